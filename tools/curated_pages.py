"""The twelve pages that the gallery shows first, in their order: written to examples/pages/start by gen_example_pages.

The lines of a page's note are its title in the gallery, and two sentences on what to try.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rowgrad.graph import End

TABLE = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
INDICES, SEGMENTS = np.array([0, 2, 2], np.int32), np.array([0, 0, 1], np.int32)
Make = Callable[[Any], None]  # of a Sheet of gen_example_pages, which imports this module


def lookup(sheet: Any) -> None:
    table, ids, bags = sheet.value("table", TABLE), sheet.value("ids", INDICES), sheet.value("bags", SEGMENTS)
    sheet.add("lookup", "SparseSegmentMean", data=table, indices=ids, segment_ids=bags)


def lookup_gradient(sheet: Any) -> None:
    grad = sheet.value("grad", np.array([[1, 2], [6, 8]], np.float32))
    ids, bags = sheet.value("ids", INDICES), sheet.value("bags", SEGMENTS)
    sheet.add(
        "gradient", "SparseSegmentMeanGrad", grad=grad, indices=ids, segment_ids=bags, output_dim0=np.int32(4)[...]
    )


def mean_or_sqrtn(sheet: Any) -> None:
    table = sheet.value("table", TABLE)
    ids, bags = (
        sheet.value("ids", np.array([0, 1, 2, 3, 3], np.int32)),
        sheet.value("bags", np.array([0, 0, 0, 0, 1], np.int32)),
    )
    for name, op in (("mean", "SparseSegmentMean"), ("sqrtn", "SparseSegmentSqrtN"), ("total", "SparseSegmentSum")):
        sheet.add(name, op, data=table, indices=ids, segment_ids=bags)


def empty_rows(sheet: Any) -> None:
    entries = sheet.add("entries", "SparseTensor", indices=np.array([[0, 1], [0, 3], [2, 0]], np.int64),
                        values=np.array([1, 2, 3], np.float32), dense_shape=np.array([4, 4], np.int64))  # fmt: skip
    filled = sheet.add("filled", "SparseFillEmptyRows", indices=entries["tensor"], default_value=np.float32(-1)[...])
    grads = sheet.value("grad_values", np.array([1, 2, 4, 8, 16], np.float32))
    sheet.add("gradient", "SparseFillEmptyRowsGrad", reverse_index_map=filled["reverse_index_map"], grad_values=grads)


def slice_and_gradient(sheet: Any) -> None:
    indices = sheet.value("indices", np.array([[0, 0], [0, 3], [1, 2], [2, 1]], np.int64))
    start = sheet.value("start", np.array([0, 2], np.int64))
    part = sheet.add("part", "SparseSlice", indices=indices, values=np.array([1, 2, 3, 4], np.float32),
                     shape=np.array([3, 4], np.int64), start=start, size=np.array([2, 2], np.int64))  # fmt: skip
    grad = sheet.value("grad", np.array([5, 7], np.float32))
    sheet.add("gradient", "SparseSliceGrad", backprop_val_grad=grad, input_indices=indices, input_start=start,
              output_indices=part["output_indices"])  # fmt: skip


def unique_rows(sheet: Any) -> None:
    grad = sheet.value("grad", np.array([[1, 2], [6, 8]], np.float32))
    ids, bags = sheet.value("ids", np.array([700, 20, 20], np.int32)), sheet.value("bags", SEGMENTS)
    sheet.add("rows", "SparseSegmentMeanGradV2", grad=grad, indices=ids, segment_ids=bags,
              dense_output_dim0=np.int32(1_000_000)[...])  # fmt: skip


def weights(sheet: Any) -> None:
    table, ids, bags = sheet.value("table", TABLE), sheet.value("ids", INDICES), sheet.value("bags", SEGMENTS)
    weight = sheet.value("weights", np.array([1, 3, 2], np.float32))
    shared = {"indices": ids, "segment_ids": bags, "weights": weight}
    sheet.add("lookup", "WeightedSparseSegmentMean", data=table, **shared)
    grad = sheet.value("grad", np.array([[1, 2], [6, 8]], np.float32))
    sheet.add("gradient", "WeightedSparseSegmentMeanGrad", grad=grad, **shared, output_dim0=np.int32(4)[...])


def train_embedding(sheet: Any) -> None:
    rng = np.random.default_rng(3)
    table = sheet.variable("table", rng.normal(0, 0.5, (6, 2)).astype(np.float32))
    ids = sheet.value("ids", np.array([0, 1, 2, 3, 3, 4], np.int32))
    bags = sheet.value("bags", np.array([0, 0, 1, 1, 2, 2], np.int32))
    target = sheet.value("target", np.array([[1, 0], [0, 1], [-1, 0]], np.float32))
    means = sheet.add("lookup", "SparseSegmentMean", data=table, indices=ids, segment_ids=bags)["output"]
    difference = sheet.add("difference", "Subtract", x=means, y=target)["z"]
    loss = sheet.add("loss", "L2Loss", t=difference)["output"]
    sheet.add("gradients", "AddSymbolicGradients", outputs=[loss], inputs=[table])
    step = sheet.add("step", "ApplyGradientDescent", var=table, alpha=sheet.value("rate", np.float32(0.5)[...]),
                     delta=End("gradients", "grad_outputs", 0))  # fmt: skip
    sheet.session(loss, step["out"], End("gradients", "grad_outputs", 0))


def two_towers(sheet: Any) -> None:
    rng = np.random.default_rng(5)
    towers, tables = [], []
    bags = {"user": ([0, 1, 1, 2, 3, 0], [0, 0, 1, 2, 3, 3]), "item": ([3, 4, 0, 0, 1, 2], [0, 0, 1, 2, 2, 3])}
    for name, (ids, segments) in bags.items():
        table = sheet.variable(f"{name}_table", rng.normal(0, 0.7, (5, 3)).astype(np.float32))
        tower = sheet.add(f"{name}_tower", "SparseSegmentMean", data=table,
                          indices=sheet.value(f"{name}_ids", np.array(ids, np.int32)),
                          segment_ids=sheet.value(f"{name}_bags", np.array(segments, np.int32)))  # fmt: skip
        tables.append(table)
        towers.append(tower["output"])
    product = sheet.add("product", "Multiply", x=towers[0], y=towers[1])["z"]
    score = sheet.add("score", "Sum", input=product, axis=np.array([1], np.int32))["output"]
    clicked = sheet.value("clicked", np.array([1, 0, 1, 0], np.float32))
    each = sheet.add("each", "SigmoidCrossEntropyWithLogits", logits=score, labels=clicked)["loss"]
    loss = sheet.add("loss", "Mean", input=each, axis=np.array([0], np.int32))["output"]
    sheet.add("gradients", "AddSymbolicGradients", outputs=[loss], inputs=tables)
    rate = sheet.value("rate", np.float32(1)[...])
    steps = [
        sheet.add(f"step_{name}", "ApplyGradientDescent", var=tables[k], alpha=rate,
                  delta=End("gradients", "grad_outputs", k))["out"]
        for k, name in enumerate(bags)
    ]  # fmt: skip
    sheet.session(loss, score, *steps)


def xor(sheet: Any) -> None:
    rng = np.random.default_rng(1)
    x = sheet.value("x", np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32))
    y = sheet.value("y", np.array([[0], [1], [1], [0]], np.float32))
    v = {
        name: sheet.variable(name, rng.normal(0, 1, shape).astype(np.float32))
        for name, shape in {"W1": (2, 4), "B1": (1, 4), "W2": (4, 1), "B2": (1, 1)}.items()
    }
    hidden = sheet.add("hidden", "Tanh", x=sheet.add("sum1", "Add", x=sheet.add(
        "product1", "MatMul", a=x, b=v["W1"])["product"], y=v["B1"])["z"])["y"]  # fmt: skip
    logits = sheet.add("sum2", "Add", x=sheet.add("product2", "MatMul", a=hidden, b=v["W2"])["product"], y=v["B2"])["z"]
    guess = sheet.add("guess", "Sigmoid", x=logits)["y"]
    each = sheet.add("each", "SigmoidCrossEntropyWithLogits", logits=logits, labels=y)["loss"]
    cost = sheet.add("cost", "Mean", input=each, axis=np.array([0, 1], np.int32))["output"]
    sheet.add("gradients", "AddSymbolicGradients", outputs=[cost], inputs=list(v.values()))
    rate = sheet.value("rate", np.float32(1)[...])
    steps = [
        sheet.add(f"new_{name}", "ApplyGradientDescent", var=v[name], alpha=rate,
                  delta=End("gradients", "grad_outputs", k))["out"]
        for k, name in enumerate(v)
    ]  # fmt: skip
    sheet.session(cost, guess, *steps)


def symbolic_gradients(sheet: Any) -> None:
    x = sheet.value("x", np.array([1, 2, 3], np.float32))
    w = sheet.value("w", np.array([0.5, -1, 2], np.float32))
    product = sheet.add("product", "Multiply", x=x, y=w)["z"]
    y = sheet.add("y", "Tanh", x=product)["y"]
    sheet.add("gradients", "AddSymbolicGradients", outputs=[y], inputs=[x, w])


def one_hot(sheet: Any) -> None:
    ids, table = sheet.value("ids", np.array([2, 0, 2], np.int32)), sheet.value("table", TABLE)
    rows = sheet.add("one_hot", "OneHot", indices=ids, depth=np.int32(4)[...], on_value=np.float32(1)[...],
                     off_value=np.float32(0)[...])["output"]  # fmt: skip
    sheet.add("product", "MatMul", a=rows, b=table)
    sheet.add("gather", "Gather", params=table, indices=ids)


class Curated(NamedTuple):
    """A page: the function that draws it, its title, and two sentences on what to try."""

    make: Make
    title: str
    see: str
    change: str


CURATED: dict[str, Curated] = {
    "lookup": Curated(
        lookup,
        "Look up rows of a table",
        "Press Run and compare each row of the result with the rows it averages.",
        "Then type other ids, or put all of them into bag 0.",
    ),
    "lookup_gradient": Curated(
        lookup_gradient,
        "The gradient of a lookup",
        "Press Run: row 2 is named twice, so it gets ½·[1, 2] + [6, 8].",
        "Open Trace, choose a row, and change the ids to see rows that get nothing.",
    ),
    "mean_or_sqrtn": Curated(
        mean_or_sqrtn,
        "Mean, sqrtn and sum",
        "The same four rows, divided by 4, by √4, and not at all.",
        "Add ids to bag 1 and see which of the results grow.",
    ),
    "empty_rows": Curated(
        empty_rows,
        "Empty rows",
        "Rows 1 and 3 have no entry and get the default value −1.",
        "Run it and find where the gradient of the default comes from: 4 + 16 or 8 + 16?",
    ),
    "slice_and_gradient": Curated(
        slice_and_gradient,
        "A slice and its gradient",
        "The slice takes rows 0–1 and columns 2–3; its gradient is zero at every other entry.",
        "Move the start to [1, 0] and fix the error that its gradient reports.",
    ),
    "unique_rows": Curated(
        unique_rows,
        "Only the rows that were named",
        "The table has a million rows, but the gradient has only the two that were named, and their ids.",
        "Repeat an id and see that its row appears once.",
    ),
    "weights": Curated(
        weights,
        "Weighted lookups",
        "Each id has a weight: the mean divides by the sum of the weights of its bag.",
        "Set the weight 3 to 0 and compare the result and the gradient.",
    ),
    "train_embedding": Curated(
        train_embedding,
        "Train an embedding",
        "Run 50 steps and watch the loss fall in Trend.",
        "Then open Trace, Over time: row 5 is never named, so it never moves.",
    ),
    "two_towers": Curated(
        two_towers,
        "A two-tower model",
        "Users and items have a table each, and a score is the product of their mean rows.",
        "Run 100 steps and see the scores of clicked pairs rise; then change who clicked.",
    ),
    "xor": Curated(
        xor,
        "XOR, as in the old tool",
        "Run 500 steps: the guesses go to 0, 1, 1, 0.",
        "Reset, type a rate of 0.1, and compare the cost in Trend.",
    ),
    "symbolic_gradients": Curated(
        symbolic_gradients,
        "Symbolic gradients",
        "One block computes the gradients of y with respect to x and w, as TensorFlow's C++ API does.",
        "Select y, press Flip to gradient, and compare the blocks it adds.",
    ),
    "one_hot": Curated(
        one_hot,
        "A lookup is a product",
        "Rows of ones and zeros times the table give the rows that Gather copies.",
        "Type an id that is too large and see where the two differ.",
    ),
}
