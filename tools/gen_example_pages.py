"""Write examples/pages: every worked example of tests/golden/blocks_examples.json as a page, and a few others; and
examples/pages/start, the curated pages that the gallery shows first.

The recorded outputs of an example are on its page: as pins of the block `op`, or as a block named after the output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from curated_pages import CURATED

from rowgrad._catalog.spec import find_op
from rowgrad.graph import Block, End, Note, Page, save
from rowgrad.graph.block_height import block_height
from rowgrad.graph.export.picture import positions
from rowgrad.graph.page_order import in_order
from rowgrad.graph.page_summary import summary

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "tests" / "golden" / "blocks_examples.json"
PAGES = ROOT / "examples" / "pages"


ACROSS, BETWEEN = 90.0, 50.0  # pixels between columns, and between the blocks of a column
LETTER, SMALL, PADDING = 6.8, 6.2, 24.0  # widths of a letter of a pin's name, of its type, and of the space around them


def _columns(page: Page) -> list[list[str]]:
    """Return ids in columns along the wires; a block without wires into it is beside the first block that reads it."""
    before = {b.id: [e.block for ends in b.wires.values() for e in ends] for b in page.blocks}
    depth: dict[str, int] = {}
    for block in in_order(page):
        depth[block.id] = max((depth[name] + 1 for name in before[block.id]), default=0)
    for name in [name for name, found in before.items() if not found]:
        depth[name] = min(depth[other] for other, found in before.items() if name in found) - 1
    columns: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for block in page.blocks:
        columns[depth[block.id]].append(block.id)
    return columns


def _heights(page: Page) -> dict[str, float]:
    described = summary(page)["blocks"]
    return {block.id: block_height(block, described[block.id]["outputs"]) for block in page.blocks}


def _widths(page: Page) -> dict[str, float]:
    """Return the widths that Studio's blocks have after a run: of their names, pins, values and results."""
    described = summary(page)["blocks"]
    wired = {(end.block, end.pin) for block in page.blocks for ends in block.wires.values() for end in ends}
    return {block.id: _width(block, described[block.id], wired) for block in page.blocks}


def _width(block: Block, described: dict[str, Any], wired: set[tuple[str, str]]) -> float:
    record = find_op(block.op)
    assert record is not None, block.op

    def text(info: Any) -> str:
        return "" if info is None or isinstance(info, list) else info["text"]

    left = [
        LETTER * len(pin.name) + PADDING + (_value_width(block.values[pin.name]) if pin.name in block.values
                                            else min(120.0, SMALL * len(text(described["inputs"].get(pin.name))) + 6))
        for pin in record.inputs
    ]  # fmt: skip
    types = {pin.name: text(described["outputs"].get(pin.name)) for pin in record.outputs}
    shown = {pin: "" if (block.id, pin) in wired else info for pin, info in types.items()}
    right = [LETTER * len(pin) + SMALL * len(info) + PADDING + 6 for pin, info in shown.items()]
    results = [LETTER * (len(pin) + 7) + SMALL * len(info) + 30 for pin, info in types.items()]
    head = 8.0 * len(block.op) + 62
    return min(390.0, max(200.0, head, max(left, default=0) + max(right, default=0) + 14, *results))


def _value_width(value: Any) -> float:
    found = np.asarray(value)
    if found.ndim < 2:
        return min(230.0, LETTER * len(str(found.tolist())) + 14)
    columns = found.shape[1]
    letters = max((len(f"{x:.3g}") for x in found.reshape(-1).tolist()), default=1)
    return min(230.0, columns * (6.4 * letters + 11) + 10)


class Sheet:
    """A page under construction: `sheet.add(id, op, pin=wire_or_value, …)` returns the block's outputs by pin."""

    def __init__(self, name: str, *notes: str) -> None:
        self.page = Page(name, notes=[Note(text, (20.0, -60.0 - 20.0 * k)) for k, text in enumerate(notes)])

    def add(self, id: str, op: str, /, **inputs: Any) -> dict[str, End]:
        record = find_op(op)
        assert record is not None, op
        block = Block(id, op)
        for name, value in inputs.items():
            if name in record.attrs:
                block.attrs[name] = value
            elif isinstance(value, End):
                block.wires[name] = [value]
            elif isinstance(value, list) and value and all(isinstance(v, End) for v in value):
                block.wires[name] = value
            else:
                block.values[name] = value
        self.page.blocks.append(block)
        return {o.name: End(id, o.name) for o in record.outputs}

    def value(self, id: str, array: np.ndarray) -> End:
        """Add a constant; int64 has its own block, as if typed."""
        if array.dtype == np.int64:
            return self.add(id, "Const_ex", val=array.astype(np.int32) if _is_small(array) else array, dtype="int64")[
                "output"
            ]
        return self.add(id, "Const", val=array)["output"]

    def variable(self, id: str, array: np.ndarray) -> End:
        return self.add(id, "Variable", initvalues=array)["ref"]

    def session(self, *fetches: End, **inputs: Any) -> None:
        self.add("session", "ClientSession", fetch_outputs=list(fetches), **inputs)

    def write(self, file: str) -> None:
        """Write the page in columns."""
        for name, at in positions(self.page, _heights(self.page)).items():
            self.page[name].at = at
        save(self.page, PAGES / file)

    def write_spread(self, file: str, text: str) -> None:
        """Write the page in columns around a common middle, with a note above its blocks."""
        columns = _columns(self.page)
        heights, widths = _heights(self.page), _widths(self.page)
        tallest = max(sum(heights[id] + BETWEEN for id in column) for column in columns)
        x = 20.0
        for column in columns:
            y = (tallest - sum(heights[id] + BETWEEN for id in column)) / 2
            for id in column:
                self.page[id].at = (x, 20.0 + round(y / 10) * 10)
                y += heights[id] + BETWEEN
            x += round((max(widths[id] for id in column) + ACROSS) / 10) * 10
        top = min(block.at[1] for block in self.page.blocks if block.at)
        self.page.notes.append(Note(text, (20.0, top - 130.0)))
        save(self.page, PAGES / file)


def _is_small(array: np.ndarray) -> bool:
    return bool(np.all(np.abs(array) < 2**31))


def array(entry: dict[str, Any]) -> np.ndarray:
    dtype = object if entry["dtype"] == "string" else entry["dtype"]
    return np.array(entry["values"], dtype=dtype).reshape(entry["shape"])


def arrays(example: dict[str, Any], part: str = "inputs") -> dict[str, np.ndarray]:
    return {k: array(v) for k, v in example[part].items()}


def single(sheet: Sheet, example: dict[str, Any]) -> None:
    """Add one block with a constant on every pin; fetch all its outputs."""
    pins = {name: sheet.value(name, value) for name, value in arrays(example).items()}
    sheet.session(*sheet.add("op", example["op"], **pins).values())


def sparse_add_grad(sheet: Sheet, example: dict[str, Any]) -> None:
    """Take `sum_indices` from the sum itself."""
    x = arrays(example)
    a, b = sheet.value("a_indices", x["a_indices"]), sheet.value("b_indices", x["b_indices"])
    values = sheet.value("values", np.array([1.1, 1.2], np.float32))
    shape = sheet.value("shape", np.array([3, 4], np.int64))
    thresh = sheet.value("thresh", np.float32(0.0)[...])
    total = sheet.add("sum", "SparseAdd", a_indices=a, a_values=values, a_shape=shape, b_indices=b, b_values=values,
                      b_shape=shape, thresh=thresh)  # fmt: skip
    grad = sheet.value("backprop_val_grad", x["backprop_val_grad"])
    op = sheet.add("op", "SparseAddGrad", backprop_val_grad=grad, a_indices=a, b_indices=b,
                   sum_indices=total["sum_indices"])  # fmt: skip
    sheet.session(*op.values())


def tanh_net(sheet: Sheet, example: dict[str, Any], prefix: str) -> None:
    """Add three layers, a penalty on the weights, gradients by one block, six steps of descent."""
    x = arrays(example)
    names = ["W1", "W2", "W3", "B1", "B2", "B3"]
    v = {n: sheet.variable(prefix + n, x[n]) for n in names}
    layer = sheet.value("x", x["x"])
    for k in (1, 2, 3):
        product = sheet.add(f"matmul{k}", "MatMul", a=layer, b=v[f"W{k}"])["product"]
        total = sheet.add(f"add{k}", "Add", x=product, y=v[f"B{k}"])["z"]
        layer = sheet.add(f"tanh{k}", "Tanh", x=total)["y"]
    target = sheet.value("target", np.ones((1, 1), np.float32))
    difference = sheet.add("difference", "Subtract", x=layer, y=target)["z"]
    square = sheet.add("square", "Square", x=difference)["y"]
    mean = sheet.add("mean", "Mean", input=square, axis=np.array([0, 1], np.int32))["output"]
    losses = [sheet.add(f"l2_W{k}", "L2Loss", t=v[f"W{k}"])["output"] for k in (1, 2, 3)]
    l2 = sheet.add("l2_sum", "AddN", inputs=losses)["sum"]
    penalty = sheet.add("penalty", "Multiply", x=l2, y=sheet.value("rate", np.float32(0.01)[...]))["z"]
    loss = sheet.add("loss", "Add", x=mean, y=penalty)["z"]
    sheet.add("grads", "AddSymbolicGradients", outputs=[loss], inputs=list(v.values()))
    alpha = sheet.value("alpha", np.float32(0.01)[...])
    steps = [
        sheet.add(f"after_{n}", "ApplyGradientDescent", var=v[n], alpha=alpha, delta=End("grads", "grad_outputs", k))[
            "out"
        ]
        for k, n in enumerate(names)
    ]
    gradients = [End("grads", "grad_outputs", k) for k in range(6)]
    sheet.session(loss, layer, l2, *steps, *gradients, *(v.values() if prefix else ()))


def fed_add(sheet: Sheet, example: dict[str, Any], through_tensor: bool) -> None:
    """Add placeholders and their values, through Tensor and Input_Initializer blocks or only the latter."""
    pins, feeds = {}, []
    for name, value in arrays(example).items():
        pins[name] = sheet.add(name, "Placeholder", dtype=value.dtype.name, shape=list(value.shape))["output"]
        if through_tensor:
            tensor = sheet.add(f"{name}_tensor", "Tensor", initvalues=value)["output"]
            start = sheet.add(f"{name}_initializer", "Input_Initializer", t=tensor)["output"]
        else:
            start = sheet.add(f"{name}_initializer", "Input_Initializer", t=value)["output"]
        feeds.append(sheet.add(f"{name}_feed", "FeedType", input=pins[name], initializer=start)["output"])
    sheet.session(sheet.add("op", "Add", **pins)["z"], inputs=feeds)


def input_add(sheet: Sheet, example: dict[str, Any]) -> None:
    pins = {n: sheet.add(n, "Input", initvalues=v)["input"] for n, v in arrays(example).items()}
    sheet.session(sheet.add("op", "Add", **pins)["z"])


def output_add(sheet: Sheet, example: dict[str, Any]) -> None:
    """Pass each constant through an Output block."""
    pins = {
        n: sheet.add(f"{n}_output", "Output", output_op=sheet.value(n, v))["output"] for n, v in arrays(example).items()
    }
    sheet.session(sheet.add("op", "Add", **pins)["z"])


def matmul(sheet: Sheet, example: dict[str, Any]) -> None:
    pins = {n: sheet.value(n, v) for n, v in arrays(example).items()}
    sheet.session(sheet.add("op", "MatMul", **pins, transpose_b=True)["product"])


def assign(sheet: Sheet, example: dict[str, Any]) -> None:
    x = arrays(example)
    variable = sheet.variable("variable", x["initvalues"])
    sheet.session(sheet.add("op", "Assign", ref=variable, value=sheet.value("value", x["value"]))["output_ref"])


def feedback(sheet: Sheet, example: dict[str, Any]) -> None:
    """Add the constant once per run."""
    x = arrays(example)
    variable = sheet.variable("variable", x["initvalues"])
    total = sheet.add("add", "Add", x=variable, y=sheet.value("const", x["const"]))["z"]
    sheet.session(sheet.add("op", "Assign", ref=variable, value=total)["output_ref"])


def descent(sheet: Sheet, example: dict[str, Any]) -> None:
    """W − 0.1 · mean((W·x − y)·x), as blocks."""
    v = {n: sheet.variable(n, a) for n, a in arrays(example).items()}
    hypothesis = sheet.add("hypothesis", "Multiply", x=v["W"], y=v["x"])["z"]
    difference = sheet.add("difference", "Subtract", x=hypothesis, y=v["y"])["z"]
    product = sheet.add("product", "Multiply", x=difference, y=v["x"])["z"]
    mean = sheet.add("gradient", "Mean", input=product, axis=np.int32(0)[...], keep_dims=True)["output"]
    step = sheet.add("step", "Multiply", x=mean, y=sheet.value("rate", np.float64(0.1)[...]))["z"]
    result = sheet.add("descent", "Subtract", x=v["W"], y=step)["z"]
    sheet.session(sheet.add("update", "Assign", ref=v["W"], value=result)["output_ref"], result)


def regression(sheet: Sheet, example: dict[str, Any]) -> None:
    """Add three weights and a bias, with their gradients as blocks."""
    v = {n: sheet.variable(n, a) for n, a in arrays(example).items()}
    product = sheet.add("product", "MatMul", a=v["X"], b=v["W"], transpose_b=True)["product"]
    total = sheet.add("hypothesis", "Add", x=v["B"], y=product)["z"]
    difference = sheet.add("diff", "Subtract", x=total, y=v["Y"])["z"]
    first = np.int32(0)[...]
    cost = sheet.add("cost", "Mean", input=sheet.add("square", "Square", x=difference)["y"], axis=first, keep_dims=True)
    slopes = sheet.add("slopes", "Multiply", x=difference, y=v["X"])["z"]
    to_w = sheet.add("dW", "Mean", input=slopes, axis=first, keep_dims=True)["output"]
    to_b = sheet.add("dB", "Mean", input=difference, axis=first, keep_dims=True)["output"]
    alpha = sheet.value("alpha", np.float64(0.001)[...])
    w = sheet.add("W_out", "ApplyGradientDescent", var=v["W"], alpha=alpha, delta=to_w)["out"]
    b = sheet.add("B_out", "ApplyGradientDescent", var=v["B"], alpha=alpha, delta=to_b)["out"]
    sheet.session(difference, cost["output"], w, b)


def write_example(number: int, example: dict[str, Any]) -> str:
    """Write one worked example as a page; return the file's name."""
    op, _, rest = example["op"].partition(" ")
    kinds: dict[str, Any] = {
        "(Placeholder fed through Tensor": ("fed_add", lambda s, e: fed_add(s, e, True)),
        "(Placeholder fed through Input::Initializer": ("literal_feed_add", lambda s, e: fed_add(s, e, False)),
        "(Input blocks": ("input_add", input_add),
        "(through Output": ("output_add", output_add),
        "(attrs transpose_b_": ("matmul_transpose_b", matmul),
        "step W": ("gradient_step", descent),
        "linear regression": ("linear_regression", regression),
    }
    word, make = next((v for k, v in kinds.items() if rest.startswith(k)), ("", single))
    if op == "AddSymbolicGradients":
        prefix = "before_" if "before_W1" in example["outputs"] else ""
        word, make = f"symbolic_gradients{'_trained' if prefix else ''}", lambda s, e: tanh_net(s, e, prefix)
    elif op.startswith("Assign"):
        word, make = ("assign", assign) if op == "Assign(Variable)" else ("assign_feedback", feedback)
    elif op == "SparseAddGrad":
        word, make = "sparse_add_grad", sparse_add_grad
    elif op == "SparseAdd" and example["inputs"]["thresh"]["dtype"] == "int32":
        word = "sparse_add_int_thresh_refused"
    record = find_op(op)
    file = f"{number:02}_{word or (record.snake_name if record else op)}.json"
    sheet = Sheet(file.removesuffix(".json"), example["op"])
    make(sheet, example)
    sheet.write(file)
    return file


def guide() -> None:
    """Write the first program of TensorFlow's C++ guide."""
    sheet = Sheet("guide_matmul", "v = A bᵀ")
    a = sheet.value("A", np.array([[3, 2], [-1, 0]], np.float32))
    b = sheet.value("b", np.array([[3, 5]], np.float32))
    sheet.session(sheet.add("v", "MatMul", a=a, b=b, transpose_b=True)["product"])
    sheet.write("guide_matmul.json")


def train_embedding() -> None:
    """Write a page that learns whether a bag contains more ids below 20 than above."""
    rng = np.random.default_rng(7)
    rows, size, ids_of_all, columns = 64, 40, [], 8
    entries = [(r, c) for r in range(rows) for c in range(rng.integers(0, 6))]
    ids_of_all = rng.integers(0, size, len(entries))
    balance = np.zeros(rows)
    for (r, _), i in zip(entries, ids_of_all, strict=True):
        balance[r] += 1 if i < size // 2 else -1
    sheet = Sheet("train_embedding", "SparseFillEmptyRows, SparseSegmentSqrtN, a linear layer, gradients by one block")
    batch = sheet.add(
        "batch", "SparseTensor", indices=np.array(entries, np.int64), values=ids_of_all.astype(np.int64),
        dense_shape=np.array([rows, 6], np.int64),
    )  # fmt: skip
    filled = sheet.add("filled", "SparseFillEmptyRows", indices=batch["tensor"], default_value=np.int64(0)[...])
    first = sheet.add("start_table", "RandomNormal", shape=np.array([size, columns], np.int32), seed=1)["output"]
    table = sheet.add("table", "Variable", initvalues=first)["ref"]
    weights = sheet.add(
        "weights", "Variable",
        initvalues=sheet.add("start_weights", "RandomNormal", shape=np.array([columns, 1], np.int32), seed=2)["output"],
    )["ref"]  # fmt: skip
    segments = sheet.add("rows", "Column", x=filled["output_indices"], index=0)["output"]
    bags = sheet.add("bags", "SparseSegmentSqrtN", data=table, indices=filled["output_values"], segment_ids=segments)
    logits = sheet.add("logits", "MatMul", a=bags["output"], b=weights)["product"]
    labels = sheet.value("labels", (balance > 0).astype(np.float32)[:, None])
    each = sheet.add("each", "SigmoidCrossEntropyWithLogits", logits=logits, labels=labels)["loss"]
    loss = sheet.add("loss", "Mean", input=each, axis=np.array([0, 1], np.int32))["output"]
    sheet.add("gradients", "AddSymbolicGradients", outputs=[loss], inputs=[table, weights])
    accum = sheet.add("accum", "Variable", initvalues=np.float32(0.1)[...], dtype="float32", shape=[size, columns])[
        "ref"
    ]
    rate = sheet.value("rate", np.float32(0.5)[...])
    new_table = sheet.add(
        "new_table", "ApplyAdagrad", var=table, accum=accum, lr=rate, grad=End("gradients", "grad_outputs", 0)
    )
    new_weights = sheet.add(
        "new_weights", "ApplyGradientDescent", var=weights, alpha=rate, delta=End("gradients", "grad_outputs", 1)
    )
    sheet.session(loss, new_table["out"], new_weights["out"])
    sheet.write("train_embedding.json")


def main() -> int:
    (PAGES / "start").mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(json.loads(EXAMPLES.read_text()), 1):
        print(write_example(number, example))
    guide()
    train_embedding()
    for number, (name, page) in enumerate(CURATED.items(), 1):
        sheet = Sheet(name)
        page.make(sheet)
        text = f"{page.title}\n{page.see}\n{page.change}"
        sheet.write_spread(f"start/{number:02}_{name}.json", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
