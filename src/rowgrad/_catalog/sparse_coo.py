"""SparseSlice and SparseAdd, their gradients and the gradients' transposes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import make_error, shape_text
from .kernels import kernel
from .shapes import check_dimensions, check_replaced, differ, rank, wrap_int64
from .spec import EVERYTHING, NUMBERS, QUANTIZED, REAL_OF, Known, Shape, declare

CATEGORY = "Sparse tensor"

_SLICED = "input_indices: n>#, input_start: .>#, output_indices: k>#"
_ADDED = "a_indices: a>#, b_indices: b>#, sum_indices: k>#"
kernel("sparse_slice", vmap="moved", data_sized=True, fuzz="slice")
kernel("sparse_slice_grad", vmap="rows", layout=f"backprop_val_grad: k, {_SLICED} -> n", fuzz="slice")
kernel("sparse_slice_grad_grad", vmap="rows", layout=f"grad: n, {_SLICED} -> k", fuzz="slice")
kernel(
    "sparse_add",
    no_vmap="the values determine which sums reach thresh",
    data_sized=True,
    fuzz="add",
)
kernel("sparse_add_grad", vmap="rows", layout=f"backprop_val_grad: k, {_ADDED} -> a, b", fuzz="add")
kernel("sparse_add_grad_grad", vmap="rows", layout=f"da: a, db: b, {_ADDED} -> k", fuzz="add")


def _slice(x: Known) -> tuple[Shape, ...]:
    for name, expected in (("indices", 2), ("values", 1), ("shape", 1)):
        rank(x, name, expected, "sparse_rank", part=name, bound=expected, value=len(x.shape(name)))
    (count, columns), (length,), (dims,) = x.shape("indices"), x.shape("values"), x.shape("shape")
    if differ(count, length):
        raise make_error("values_match_indices", value=length, bound=count)
    if differ(columns, dims):
        raise make_error("shape_matches_indices", value=dims, bound=columns)
    for name in ("start", "size"):
        rank(x, name, 1, "input_vector")
    for name in ("start", "size"):
        if differ(x.shape(name)[0], dims):
            raise make_error("vector_length", argument=name, value=x.shape(name)[0], bound=dims)
    if all(x.host[name] is not None for name in ("shape", "start", "size")):
        _slice_sizes(x.host["shape"], x.host["start"], x.host["size"])
    return (None, columns), (None,), (dims,)


def _slice_sizes(shape: tuple[int, ...], start: tuple[int, ...], size: tuple[int, ...]) -> None:
    check_dimensions(shape, "shape")
    sizes = [
        extent if begin < wrap_int64(dim - extent) else wrap_int64(dim - begin) if begin < dim else 0
        for dim, begin, extent in zip(shape, start, size, strict=True)
    ]
    check_replaced(shape, sizes, "size")


def _check_slice_grad(x: Known, values: str) -> None:
    entries, sliced = x.shape("input_indices"), x.shape("output_indices")
    if len(entries) != 2 or len(sliced) != 2:
        argument = "input_indices" if len(entries) != 2 else "output_indices"
        raise make_error("slice_matrices", argument=argument, value=shape_text(entries), bound=shape_text(sliced))
    if values == "backprop_val_grad":
        rank(x, values, 1, "backprop_vector")
    else:
        rank(x, values, 1, "must_be_vector")
    if differ(entries[1], sliced[1]):
        raise make_error("slice_ranks", value=entries[1], bound=sliced[1])
    if entries[0] is not None and sliced[0] is not None and sliced[0] > entries[0]:
        raise make_error("slice_more_rows", value=sliced[0], bound=entries[0])
    length = x.shape(values)[0]
    if values == "backprop_val_grad":
        if differ(length, sliced[0]):
            raise make_error("slice_backprop_length", value=length, bound=sliced[0])
    elif differ(length, entries[0]):
        raise make_error("lengths_match", argument=values, value=length, bound=entries[0])
    rank(x, "input_start", 1, "start_vector")
    if differ(x.shape("input_start")[0], entries[1]):
        raise make_error("vector_length", argument="input_start", value=x.shape("input_start")[0], bound=entries[1])


def _slice_grad(x: Known) -> tuple[Shape, ...]:
    _check_slice_grad(x, "backprop_val_grad")
    return (x.shape("input_indices")[:1],)


def _slice_grad_grad(x: Known) -> tuple[Shape, ...]:
    _check_slice_grad(x, "grad")
    return (x.shape("output_indices")[:1],)


def _texts(x: Known, *names: str) -> str:
    return " and ".join(shape_text(x.shape(n)) for n in names)


def _all_rank(x: Known, expected: int, fault: str, *names: str) -> None:
    for name in names:
        if len(x.shape(name)) != expected:
            raise make_error(fault, argument=name, shapes=_texts(x, *names))


def _add(x: Known) -> tuple[Shape, ...]:
    _all_rank(x, 2, "add_matrices", "a_indices", "b_indices")
    (na, columns), (nb, b_columns) = x.shape("a_indices"), x.shape("b_indices")
    if differ(columns, b_columns):
        raise make_error("add_columns", value=columns, bound=b_columns)
    _all_rank(x, 1, "add_vectors", "a_values", "b_values")
    (a_length,), (b_length,) = x.shape("a_values"), x.shape("b_values")
    if differ(na, a_length) or differ(nb, b_length):
        argument = "a_values" if differ(na, a_length) else "b_values"
        raise make_error("add_values", argument=argument, value=f"{a_length} and {b_length}", bound=f"{na} and {nb}")
    _all_rank(x, 1, "add_shapes", "a_shape", "b_shape")
    (dims,) = x.shape("a_shape")
    if differ(columns, dims):
        raise make_error("add_shape_columns", value=columns, bound=dims)
    if dims == 0:
        raise make_error("add_empty")
    a, b = x.host["a_shape"], x.host["b_shape"]
    if differ(dims, x.shape("b_shape")[0]):
        texts = [" ".join(map(str, s)) if s is not None else "?" for s in (a, b)]
        raise make_error("add_ranks", value=texts[0], bound=texts[1])
    if a is not None and b is not None:
        for position, (p, q) in enumerate(zip(a, b, strict=True)):
            if p != q:
                raise make_error("add_dimensions", position=position, value=p, bound=q)
    rank(x, "thresh", 0, "thresh_scalar")
    return (None, columns), (None,), (dims,)


def _check_add_indices(x: Known) -> None:
    _all_rank(x, 2, "add_matrices", "a_indices", "b_indices", "sum_indices")


def _add_ranks(x: Known) -> None:
    ranks = [x.shape(n)[1] for n in ("a_indices", "b_indices", "sum_indices")]
    if differ(ranks[0], ranks[1]) or differ(ranks[1], ranks[2]) or differ(ranks[0], ranks[2]):
        raise make_error("add_grad_ranks", value="".join(map(str, ranks)))


def _add_grad(x: Known) -> tuple[Shape, ...]:
    _check_add_indices(x)
    rank(x, "backprop_val_grad", 1, "backprop_vector")
    _add_ranks(x)
    length, expected = x.shape("backprop_val_grad")[0], x.shape("sum_indices")[0]
    if differ(length, expected):
        raise make_error("add_backprop_length", value=length, bound=expected)
    return x.shape("a_indices")[:1], x.shape("b_indices")[:1]


def _add_grad_grad(x: Known) -> tuple[Shape, ...]:
    _check_add_indices(x)
    _add_ranks(x)
    for values, indices in (("da", "a_indices"), ("db", "b_indices")):
        rank(x, values, 1, "must_be_vector")
        if differ(x.shape(values)[0], x.shape(indices)[0]):
            raise make_error("lengths_match", argument=values, value=x.shape(values)[0], bound=x.shape(indices)[0])
    return (x.shape("sum_indices")[:1],)


def _slice_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    box = [(int(s), int(s) + int(n)) for s, n in zip(inputs["start"], inputs["size"], strict=True)]
    inside = (
        i
        for i, row in enumerate(inputs["indices"])
        if all(low <= int(v) < high for v, (low, high) in zip(row, box, strict=True))
    )
    return enumerate(inside)


def _slice_grad_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    start = [int(s) for s in inputs["input_start"]]
    sliced = [tuple(int(v) + s for v, s in zip(row, start, strict=True)) for row in inputs["output_indices"]]
    j = 0
    for i, row in enumerate(inputs["input_indices"]):
        if j < len(sliced) and tuple(map(int, row)) == sliced[j]:
            yield i, j
            j += 1


def _swap(pairs: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    return ((b, a) for a, b in pairs)


def _first_place(rows: Any) -> dict[tuple[int, ...], int]:
    place: dict[tuple[int, ...], int] = {}
    for k, row in enumerate(rows):
        place.setdefault(tuple(map(int, row)), k)
    return place


def _add_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    """Number entries of a from 0, and those of b from len(a)."""
    merged = [tuple(map(int, r)) for r in (*inputs["a_indices"], *inputs["b_indices"])]
    place = _first_place(sorted(set(merged)))
    return ((place[row], i) for i, row in enumerate(merged))


def _add_grad_pairs(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    """Return (entry of a, or len(a) + entry of b; entry of the sum)."""
    place = _first_place(inputs["sum_indices"])
    merged = [tuple(map(int, r)) for r in (*inputs["a_indices"], *inputs["b_indices"])]
    return ((i, place[row]) for i, row in enumerate(merged) if row in place)


declare(
    "SparseSlice",
    "indices: int64, values: T, shape: host int64, start: host int64, size: host int64"
    " -> output_indices: int64, output_values: T, output_shape: int64",
    types={"T": (*EVERYTHING, *QUANTIZED)},
    unlisted=("T",),
    kernel="sparse_slice",
    shape=_slice,
    category=CATEGORY,
    differentiable=("values",),
    linear=("values",),
    adjoint=lambda ops, c, _i, y, _s: (ops["SparseSliceGrad"](y, c.indices, c.start, c.outputs[0]),),
    rows=_slice_pairs,
    doc="""The entries of a sparse tensor inside the box `start` … `start + size`, moved to the origin.

Entries stay in input order. A size that reaches past the shape is clipped; a negative start shifts the indices.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.SparseSlice(indices=[[0, 0], [0, 3], [1, 2]], values=np.array([1., 2., 3.]), shape=[2, 4],
                       start=[0, 2], size=[2, 2])
""",
)
declare(
    "SparseSliceGrad",
    "backprop_val_grad: T, input_indices: int64, input_start: int64, output_indices: int64 -> val_grad: T",
    types={"T": (*NUMBERS, *QUANTIZED)},
    kernel="sparse_slice_grad",
    shape=_slice_grad,
    category=CATEGORY,
    differentiable=("backprop_val_grad",),
    linear=("backprop_val_grad",),
    adjoint=lambda ops, c, y: (ops["SparseSliceGradGrad"](y, c.input_indices, c.input_start, c.output_indices),),
    rows=_slice_grad_pairs,
    doc="""The gradient of `SparseSlice` for `values`: 0 for entries outside of the slice.

One pass over `input_indices` matches `output_indices` in order; an unmatched one raises InternalError.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.SparseSliceGrad(backprop_val_grad=np.array([5., 7.]), input_indices=[[0, 0], [0, 3], [1, 2]],
                           input_start=[0, 2], output_indices=[[0, 1], [1, 0]])
""",
)
declare(
    "SparseSliceGradGrad",
    "grad: T, input_indices: int64, input_start: int64, output_indices: int64 -> output: T",
    types={"T": (*NUMBERS, *QUANTIZED)},
    kernel="sparse_slice_grad_grad",
    shape=_slice_grad_grad,
    category=CATEGORY,
    differentiable=("grad",),
    linear=("grad",),
    adjoint=lambda ops, c, y: (ops["SparseSliceGrad"](y, c.input_indices, c.input_start, c.output_indices),),
    rows=lambda inputs: _swap(_slice_grad_pairs(inputs)),
    tensorflow=False,
    doc="""The transpose of `SparseSliceGrad`: of one value per input entry, those inside the slice.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.SparseSliceGradGrad(np.array([1., 2., 3.]), input_indices=[[0, 0], [0, 3], [1, 2]],
                               input_start=[0, 2], output_indices=[[0, 1], [1, 0]])
""",
)
declare(
    "SparseAdd",
    "a_indices: int64, a_values: T, a_shape: host int64, b_indices: int64, b_values: T, b_shape: host int64,"
    " thresh: Treal -> sum_indices: int64, sum_values: T, sum_shape: int64",
    types={"T": NUMBERS, "Treal": REAL_OF},
    kernel="sparse_add",
    shape=_add,
    category=CATEGORY,
    differentiable=("a_values", "b_values"),
    linear=("a_values", "b_values"),
    adjoint=lambda ops, c, _i, y, _s: ops["SparseAddGrad"](y, c.a_indices, c.b_indices, c.outputs[0]),
    rows=_add_pairs,
    doc="""The sum of two sparse tensors of one shape, in lexicographic order of their indices.

Where both have an entry, the result has their sum if `thresh <= abs(sum)`, so NaN is dropped. Entries of only one
operand are never dropped. `thresh` has the real dtype of the values.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.SparseAdd(a_indices=[[0, 0], [1, 1]], a_values=np.array([1., 2.]), a_shape=[2, 2],
                     b_indices=[[0, 1], [1, 1]], b_values=np.array([3., -2.]), b_shape=[2, 2], thresh=0.5)
""",
)
declare(
    "SparseAddGrad",
    "backprop_val_grad: T, a_indices: int64, b_indices: int64, sum_indices: int64 -> a_val_grad: T, b_val_grad: T",
    types={"T": NUMBERS},
    kernel="sparse_add_grad",
    shape=_add_grad,
    category=CATEGORY,
    differentiable=("backprop_val_grad",),
    linear=("backprop_val_grad",),
    adjoint=lambda ops, c, ya, yb: (ops["SparseAddGradGrad"](ya, yb, c.a_indices, c.b_indices, c.sum_indices),),
    rows=_add_grad_pairs,
    doc="""The gradient of `SparseAdd` for the values of both operands; entries the sum dropped get 0.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.SparseAddGrad(backprop_val_grad=np.array([5., 7.]), a_indices=[[0, 0], [1, 1]],
                         b_indices=[[0, 1], [1, 1]], sum_indices=[[0, 0], [0, 1]])
""",
)
declare(
    "SparseAddGradGrad",
    "da: T, db: T, a_indices: int64, b_indices: int64, sum_indices: int64 -> output: T",
    types={"T": NUMBERS},
    kernel="sparse_add_grad_grad",
    shape=_add_grad_grad,
    category=CATEGORY,
    differentiable=("da", "db"),
    linear=("da", "db"),
    adjoint=lambda ops, c, y: ops["SparseAddGrad"](y, c.a_indices, c.b_indices, c.sum_indices),
    rows=lambda inputs: _swap(_add_grad_pairs(inputs)),
    tensorflow=False,
    doc="""The transpose of `SparseAddGrad`: for each entry of the sum, the values of its entries of a and b, added.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.SparseAddGradGrad(np.array([1., 2.]), np.array([3., 4.]), a_indices=[[0, 0], [1, 1]],
                             b_indices=[[0, 1], [1, 1]], sum_indices=[[0, 0], [0, 1], [1, 1]])
""",
)
