"""rowgrad itself, called from NumPy, torch and compiled programs of JAX."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np

import rowgrad as rg
from rowgrad.raw_ops import OPS

VERSION = f"rowgrad {rg.__version__}"
Arrays = dict[str, Any]


def to_numpy(result: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(result, rg.IndexedRows):  # peers return the whole table
        values, ids = np.asarray(result.values, np.float32), np.asarray(result.indices)
        table = np.zeros((result.num_rows, *values.shape[1:]), np.float32)
        table[ids[ids < result.num_rows]] = values[ids < result.num_rows]
        return [table]
    parts = result if isinstance(result, tuple | list) else [result]
    return [np.asarray(p, np.float32) if p.dtype == ml_dtypes.bfloat16 else np.asarray(p) for p in parts]


def typed(x: Arrays, name: str) -> np.ndarray[Any, Any]:
    dtype = ml_dtypes.bfloat16 if x["dtype"] == "bfloat16" else x["dtype"]
    array: np.ndarray[Any, Any] = x[name]
    return array.astype(dtype, copy=False)


def forward(x: Arrays) -> Callable[[], Any]:
    table = typed(x, "table")
    return lambda: OPS["SparseSegmentMeanWithNumSegments"](table, x["ids"], x["segments"], x["bags"])


def dense(x: Arrays) -> Callable[[], Any]:
    grad = typed(x, "grad")
    return lambda: OPS["SparseSegmentMeanGrad"](grad, x["ids"], x["segments"], x["rows"])


def dense_reused(x: Arrays) -> Callable[[], Any]:
    grad = typed(x, "grad")
    buffer = rg.GradBuffer((x["rows"], grad.shape[1]), grad.dtype)
    return lambda: OPS["SparseSegmentMeanGrad"](grad, x["ids"], x["segments"], x["rows"], out=buffer)


def rows(x: Arrays) -> Callable[[], Any]:
    grad = typed(x, "grad")
    return lambda: OPS["SparseSegmentMeanGradV2"](grad, x["ids"], x["segments"], x["rows"])


def rows_planned(x: Arrays) -> Callable[[], Any] | None:
    plan_of = getattr(rg, "Plan", None)
    if plan_of is None:
        return None
    grad = typed(x, "grad")
    plan = plan_of(x["ids"], x["segments"], x["rows"])
    return lambda: OPS["SparseSegmentMeanGradV2"](grad, plan=plan)


def weighted(x: Arrays) -> Callable[[], Any]:
    table = typed(x, "table")
    return lambda: OPS["WeightedSparseSegmentMean"](table, x["ids"], x["segments"], x["weights"])


def weighted_dense(x: Arrays) -> Callable[[], Any]:
    grad = typed(x, "grad")
    return lambda: OPS["WeightedSparseSegmentMeanGrad"](grad, x["ids"], x["segments"], x["weights"], x["rows"])


def page_touch(x: Arrays) -> Callable[[], Any]:
    grad = typed(x, "grad")
    shape, threads = (x["rows"], grad.shape[1]), rg.num_threads()
    shares = np.array_split(pages_of_rows(np.unique(x["ids"]), shape[1] * grad.itemsize), threads)
    pool = ThreadPoolExecutor(threads)

    def run() -> Any:
        table = np.zeros(shape, grad.dtype)
        flat = table.reshape(-1).view(np.uint8)

        def touch(places: np.ndarray[Any, Any]) -> None:
            flat[places] = 0  # NumPy does this without the GIL

        list(pool.map(touch, shares))
        return table

    return run


def pages_of_rows(rows: np.ndarray[Any, Any], width: int, page: int = 4096) -> np.ndarray[Any, Any]:
    """Return the offset of a byte on every page that contains rows of `width` bytes, in a page-aligned table."""
    first, last = rows.astype(np.int64) * width // page, (rows.astype(np.int64) * width + width - 1) // page
    most = int((last - first).max(initial=0)) + 1
    pages = np.unique(np.minimum(first[:, None] + np.arange(most), last[:, None]))
    return pages * page


def slice_(x: Arrays) -> Callable[[], Any]:
    return lambda: OPS["SparseSlice"](x["indices"], x["values"], x["shape"], x["start"], x["size"])


def slice_grad(x: Arrays) -> Callable[[], Any]:
    sliced = slice_(x)()
    return lambda: OPS["SparseSliceGrad"](sliced.output_values, x["indices"], x["start"], sliced.output_indices)


def fill(x: Arrays) -> Callable[[], Any]:
    zero = np.float32(0)
    return lambda: OPS["SparseFillEmptyRows"](x["indices"], x["values"], x["shape"], zero)


def fill_grad(x: Arrays) -> Callable[[], Any]:
    filled = fill(x)()
    return lambda: OPS["SparseFillEmptyRowsGrad"](filled.reverse_index_map, filled.output_values)


def add(x: Arrays) -> Callable[[], Any]:
    zero, shape = np.float32(0), x["shape"]
    return lambda: OPS["SparseAdd"](x["indices"], x["values"], shape, x["b_indices"], x["b_values"], shape, zero)


def add_grad(x: Arrays) -> Callable[[], Any]:
    total = add(x)()
    return lambda: OPS["SparseAddGrad"](total.sum_values, x["indices"], x["b_indices"], total.sum_indices)


def tiny(x: Arrays) -> Callable[[], Any]:
    grad, ids, segments = np.ones((16, 16), np.float32), np.arange(16), np.arange(16)
    size = np.int32(16)

    def thousand() -> Any:
        for _ in range(1000):
            result = OPS["SparseSegmentMeanGrad"](grad, ids, segments, size)
        return result

    return thousand


LR, EPS = 1e-4, 1e-8  # of the training steps: small, so that results stay comparable


def train(x: Arrays) -> Callable[[], Any] | None:
    if x["dtype"] != "float32":
        return None
    import torch

    import rowgrad.torch as rgt

    module = rgt.nn.EmbeddingBag(*x["table"].shape, include_last_offset=True, fused=True)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(x["table"]))
    optimizer = rgt.optim.RowWiseAdagrad(module.parameters(), lr=LR, eps=EPS)
    ids, grad = torch.from_numpy(x["ids"]), torch.from_numpy(x["grad"])
    offsets = torch.from_numpy(x["offsets"]).to(ids.dtype)

    def run() -> Any:
        out = module(ids, offsets)
        out.backward(grad)
        optimizer.step()
        return [out.detach().numpy()]

    return run


def train_tables(x: Arrays) -> Callable[[], Any]:
    import torch

    import rowgrad.torch as rgt

    tables = [rgt.nn.Table(f"t{k}", *x["table"].shape) for k in range(x["tables"])]
    module = rgt.nn.Embeddings(tables, fused=True, output="stacked")
    with torch.no_grad():
        for table in tables:
            module.weight(table.name).copy_(torch.from_numpy(x["table"]))
    optimizer = rgt.optim.RowWiseAdagrad(module.parameters(), lr=LR, eps=EPS)
    ids, offsets, grad = (torch.from_numpy(x[name]) for name in ("ids", "offsets", "grad"))

    def run() -> Any:
        out = module(ids, offsets)
        out.backward(grad)
        optimizer.step()
        return [out.detach().flatten(1).numpy()]

    return run


def tiny_torch(x: Arrays, recorded: bool = False) -> Callable[[], Any]:
    import torch

    table, ids = torch.ones(100, 16, requires_grad=recorded), torch.arange(16)
    return thousand(lambda: OPS["SparseSegmentMean"](table, ids, ids))


def tiny_torch_backward(x: Arrays) -> Callable[[], Any]:
    import torch

    table, ids, grad = torch.ones(100, 16, requires_grad=True), torch.arange(16), torch.ones(16, 16)
    out = OPS["SparseSegmentMean"](table, ids, ids)
    return thousand(lambda: torch.autograd.grad(out, table, grad, retain_graph=True))


def tiny_module(x: Arrays) -> Callable[[], Any]:
    import torch

    import rowgrad.torch as rgt

    module, ids = rgt.nn.EmbeddingBag(100, 16), torch.arange(16)
    return thousand(lambda: module(ids, ids))


def thousand(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        for _ in range(1000):
            result = call()
        return result

    return run


# -- Inside compiled programs of JAX ----------------------------------------------------------------------------------


def compiled(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """Return a compiled call on arrays that are already on the device."""
    import jax

    run = jax.jit(function)
    on_device = [jax.device_put(a) for a in arguments]
    return lambda: jax.block_until_ready(run(*on_device))


def jax_arrays(x: Arrays, name: str) -> tuple[Any, Any, Any]:
    """Return table or gradient, ids, segment ids."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", x["ids"].dtype == np.int64)
    return jnp.asarray(x[name]).astype(x["dtype"]), x["ids"], x["segments"]


def forward_jit(x: Arrays) -> Callable[[], Any]:
    mean = OPS["SparseSegmentMeanWithNumSegments"]
    return compiled(lambda table, ids, segments: mean(table, ids, segments, x["bags"]), *jax_arrays(x, "table"))


def dense_jit(x: Arrays) -> Callable[[], Any]:
    gradient = OPS["SparseSegmentMeanGrad"]
    return compiled(lambda grad, ids, segments: gradient(grad, ids, segments, x["rows"]), *jax_arrays(x, "grad"))


def rows_jit(x: Arrays) -> Callable[[], Any]:
    """Return unique rows, in an output a quarter larger than their number."""
    gradient, size = OPS["SparseSegmentMeanGradV2"], len(np.unique(x["ids"])) * 5 // 4
    call = compiled(lambda *args: tuple(gradient(*args, x["rows"], size=size)), *jax_arrays(x, "grad"))

    def run() -> Any:
        values, ids = call()
        return rg.IndexedRows(values, ids, x["rows"], is_unique=True)

    return run


def zeros_jit(x: Arrays) -> Callable[[], Any]:
    """Return the table of a gradient, filled with a number that is an argument of the program."""
    import jax.numpy as jnp

    shape = (x["rows"], x["grad"].shape[1])
    return compiled(lambda value: jnp.full(shape, value, x["dtype"]), np.float32(0))


def tiny_jit(x: Arrays) -> Callable[[], Any]:
    """Return a loop of a thousand calls, each on the result of the one before."""
    import jax
    import jax.numpy as jnp

    mean, ids = OPS["SparseSegmentMeanWithNumSegments"], jnp.arange(16)
    return compiled(
        lambda table: jax.lax.fori_loop(0, 1000, lambda _, t: mean(t, ids, ids, 16), table),
        np.ones((16, 16), np.float32),
    )


KINDS: dict[str, Callable[[Arrays], Callable[[], Any] | None]] = {
    "forward": forward, "weighted": weighted, "dense": dense, "dense_kept": dense_reused, "rows": rows,
    "rows_planned": rows_planned, "weighted_dense": weighted_dense, "page_touch": page_touch,
    "slice": slice_, "slice_grad": slice_grad, "fill": fill, "fill_grad": fill_grad, "add": add, "add_grad": add_grad,
    "tiny": tiny, "train": train, "train_tables": train_tables, "tiny_torch": tiny_torch,
    "tiny_torch_grad": lambda x: tiny_torch(x, recorded=True), "tiny_torch_backward": tiny_torch_backward,
    "tiny_module": tiny_module, "forward_jit": forward_jit, "dense_jit": dense_jit, "rows_jit": rows_jit,
    "zeros_jit": zeros_jit, "tiny_jit": tiny_jit,
}  # fmt: skip
