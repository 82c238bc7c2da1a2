"""SparseFillEmptyRows and RaggedFillEmptyRows, their gradients and the gradients' transposes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import make_error
from .kernels import kernel
from .shapes import differ, rank
from .spec import EVERYTHING, NUMBERS, Known, Shape, declare

CATEGORY = "Empty rows"

kernel("fill_empty_rows", parameters=("ragged",), vmap="moved", data_sized=True, fuzz="fill_empty_rows")
kernel("fill_empty_rows_grad", vmap="fill_grad", fuzz="fill_empty_rows")
kernel(
    "fill_empty_rows_grad_grad",
    vmap="fill_grad_grad",
    layout="reverse_index_map: n>M, dd_values: n, dd_default_value: ., grad_values: M -> M",
    fuzz="fill_empty_rows",
)


def _fill(x: Known, ragged: bool) -> tuple[Shape, ...]:
    size, ids = ("nrows", "value_rowids") if ragged else ("dense_shape", "indices")
    rank(x, size, 0 if ragged else 1, "must_be_scalar" if ragged else "must_be_vector")
    rank(x, ids, 1 if ragged else 2, "must_be_vector" if ragged else "must_be_matrix")
    rank(x, "values", 1, "must_be_vector")
    count, length = x.shape(ids)[0], x.shape("values")[0]
    if differ(count, length):
        raise make_error("values_match_rows", rows=ids, value=length, bound=count)
    if not ragged and differ(x.shape(size)[0], x.shape(ids)[1]):
        raise make_error("shape_matches_columns", value=x.shape(size)[0], bound=x.shape(ids)[1])
    rank(x, "default_value", 0, "must_be_scalar")
    if not ragged and x.shape(size)[0] == 0:
        raise make_error("dense_shape_empty")
    host = x.host[size]
    rows = host if ragged or host is None else host[0]
    if rows is not None:
        if rows < 0:
            raise make_error("dimension_negative", argument=size, value=rows, bound=0)
        if rows == 0 and count:
            raise make_error("no_rows_for_values", argument=ids, value=count, bound=0)
    return (None, *x.shape(ids)[1:]), (None,), (rows,), (count,)


def _grad(x: Known) -> tuple[Shape, ...]:
    rank(x, "reverse_index_map", 1, "must_be_vector")
    rank(x, "grad_values", 1, "must_be_vector")
    return x.shape("reverse_index_map"), ()


def _grad_grad(x: Known) -> tuple[Shape, ...]:
    for name in ("reverse_index_map", "dd_values", "grad_values"):
        rank(x, name, 1, "must_be_vector")
    rank(x, "dd_default_value", 0, "must_be_scalar")
    if differ(x.shape("dd_values")[0], x.shape("reverse_index_map")[0]):
        raise make_error("lengths_match", argument="dd_values", value=x.shape("dd_values")[0],
                         bound=x.shape("reverse_index_map")[0])  # fmt: skip
    return (x.shape("grad_values"),)


def _map_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return enumerate(map(int, inputs["reverse_index_map"]))


def _back_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return ((int(to), i) for i, to in enumerate(inputs["reverse_index_map"]))


def _fill_pairs(rowids: list[int], rows: int) -> Iterable[tuple[int, int]]:
    start, counts = 0, [rowids.count(r) for r in range(rows)]
    starts = [0] * rows
    for r in range(rows):
        starts[r], start = start, start + max(counts[r], 1)
    for i, r in enumerate(rowids):
        yield starts[r], i
        starts[r] += 1


def _sparse_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return _fill_pairs([int(row[0]) for row in inputs["indices"]], int(inputs["dense_shape"][0]))


def _ragged_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    return _fill_pairs([int(r) for r in inputs["value_rowids"]], int(inputs["nrows"]))


_DOC = """The entries, and one entry with `default_value` for every row without any.

The result is sorted by row, in input order within a row; an added entry is in column 0. `empty_row_indicator` is true
for rows that were empty; `reverse_index_map` is the position of each input entry in the result."""

for _family in ("Sparse", "Ragged"):
    _ragged = _family == "Ragged"
    _name = f"{_family}FillEmptyRows"
    declare(
        _name,
        "value_rowids: int64, values: T, nrows: host int64, default_value: T -> output_value_rowids: int64,"
        " output_values: T, empty_row_indicator: bool, reverse_index_map: int64"
        if _ragged
        else "indices: int64, values: T, dense_shape: host int64, default_value: T -> output_indices: int64,"
        " output_values: T, empty_row_indicator: bool, reverse_index_map: int64",
        types={"T": EVERYTHING},
        unlisted=("T",),
        kernel="fill_empty_rows",
        constants=(int(_ragged),),
        shape=lambda x, ragged=_ragged: _fill(x, ragged),
        category=CATEGORY,
        differentiable=("values", "default_value"),
        linear=("values", "default_value"),
        adjoint=lambda ops, c, _i, y, _e, _m, name=_name: ops[f"{name}Grad"](c.outputs[3], y),
        rows=_ragged_pairs if _ragged else _sparse_pairs,
        doc=_DOC,
        example=(
            "import numpy as np, rowgrad as rg\n"
            "rg.raw_ops.RaggedFillEmptyRows(value_rowids=[0, 0, 2], values=np.array([1., 2., 3.]), nrows=4,\n"
            "                               default_value=-1.)\n"
            if _ragged
            else "import numpy as np, rowgrad as rg\n"
            "rg.raw_ops.SparseFillEmptyRows(indices=[[0, 1], [0, 3], [2, 0]], values=np.array([1., 2., 3.]),\n"
            "                               dense_shape=[4, 4], default_value=-1.)\n"
        ),
    )
    declare(
        f"{_name}Grad",
        "reverse_index_map: int64, grad_values: T -> d_values: T, d_default_value: T",
        types={"T": NUMBERS},
        unlisted=("T",),
        kernel="fill_empty_rows_grad",
        shape=_grad,
        category=CATEGORY,
        differentiable=("grad_values",),
        linear=("grad_values",),
        adjoint=lambda ops, c, v, d, name=_name: (ops[f"{name}GradGrad"](c.reverse_index_map, v, d, c.grad_values),),
        rows=_map_pairs,
        doc=f"""The gradients of `{_name}` for the values, and for the default: the sum over added entries.

`d_values[i] = grad_values[reverse_index_map[i]]`; `d_default_value` is the sum of the entries that are not in the map,
in ascending order and in T: 16-bit floats are rounded at every addition, as in TensorFlow.""",
        example=f"""\
import numpy as np, rowgrad as rg
rg.raw_ops.{_name}Grad(reverse_index_map=[0, 1, 3], grad_values=np.array([1., 2., 4., 8., 16.]))
""",
    )
    declare(
        f"{_name}GradGrad",
        "reverse_index_map: int64, dd_values: T, dd_default_value: T, grad_values: T -> output: T",
        types={"T": NUMBERS},
        kernel="fill_empty_rows_grad_grad",
        shape=_grad_grad,
        category=CATEGORY,
        differentiable=("dd_values", "dd_default_value"),
        linear=("dd_values", "dd_default_value"),
        adjoint=lambda ops, c, y, name=_name: ops[f"{name}Grad"](c.reverse_index_map, y),
        rows=_back_pairs,
        tensorflow=False,
        doc=f"""The transpose of `{_name}Grad`: values at the positions in the map, the default elsewhere.

Only the length of `grad_values` matters.""",
        example=f"""\
import numpy as np, rowgrad as rg
rg.raw_ops.{_name}GradGrad([0, 1, 3], np.array([1., 2., 4.]), 9., grad_values=np.zeros(5))
""",
    )
