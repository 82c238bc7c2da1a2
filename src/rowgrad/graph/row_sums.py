"""The sum behind one row of a result: its terms, their factors, and the order in which a kernel adds them.

`docs/reference/orders.md` defines the orders. This module replays them in the kernels' own arithmetic, so that the sum
of the terms has the bits of the op's result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from .._catalog.enums import Reduction
from .._catalog.spec import CATALOG, PLAN, Derived, Op
from .._runtime.arrays import Array
from ..errors import InvalidArgumentError
from ..raw_ops import OPS

Pairs = Iterable[tuple[int, int]]

# For ops whose set of rows only a run determines, the outputs are a better source than the inputs: the transpose of the
# gradient takes these outputs as inputs under the same names, and its record has the same pairs.
_BY_OUTPUTS = {
    "SparseAdd": "SparseAddGradGrad",
    "SparseFillEmptyRows": "SparseFillEmptyRowsGradGrad",
    "RaggedFillEmptyRows": "RaggedFillEmptyRowsGradGrad",
}
_RUN = 64  # terms of a run in the blocked order
_LANES = 8  # of an inner product


# -- records -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """A multiplication or division by one number of the dtype that sums are held in. x ÷ 0 is 0."""

    divides: bool
    by: Array
    text: str


@dataclass(frozen=True, slots=True)
class Term:
    """One row that is added: `values` as it is stored in `pin`, after the `scales`.

    `place` is the position of its id in the batch, `id` that id, and `column` that of a product in an inner product.
    `factor` is the product of the scales as text, exact where it is a fraction or a root, `weight` is about the same as
    a number, and `reason` says where it comes from: "bag 0 has 2 ids".
    """

    pin: str
    row: int
    values: Array
    place: int | None = None
    column: int | None = None
    scales: tuple[Scale, ...] = ()
    factor: str = "1"
    weight: float = 1.0
    id: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sum:
    """Terms by number, and sums, added left to right: from +0, or else from the first one."""

    of: tuple[int | Sum, ...]
    from_zero: bool = True


@dataclass(frozen=True, slots=True)
class Addition:
    """One addition: `item` of the sum at `path`, and the total after it.

    A path is a sequence of positions in `Sum.of`; the outermost sum is `()`.
    """

    path: tuple[int, ...]
    item: int
    total: Array


@dataclass(frozen=True)
class RowSum:
    """One row of a result as a sum.

    Without an order (`parts` is empty) the row is a copy of its only term, or zeros if it has none. The parts are
    stretches of columns, `(first, beyond, order)`. Sums are held in `sum_dtype`, scaled by `then`, and rounded to
    `dtype`.
    """

    pin: str
    row: int
    terms: tuple[Term, ...]
    dtype: np.dtype[Any]
    sum_dtype: np.dtype[Any]
    columns: int
    parts: tuple[tuple[int, int, Sum], ...] = ()
    then: tuple[Scale, ...] = ()

    @cached_property
    def products(self) -> list[Array]:
        """The terms as they are added."""
        if not self.parts:
            return [term.values for term in self.terms]
        return [_rounded(_scaled(load(term.values), term.scales), self.sum_dtype) for term in self.terms]

    def additions(self, order: Sum, first: int, beyond: int) -> Iterator[Addition]:
        """Yield the additions of some columns in the order in which the kernel makes them."""
        products = [product[first:beyond] for product in self.products]
        yield from _additions(order, (), products, np.zeros(beyond - first, self.sum_dtype))

    def total(self) -> Array:
        """Add the terms up."""
        if not self.parts:
            return self.terms[0].values if self.terms else np.zeros(self.columns, self.dtype)
        products = self.products
        added = [_total(order, [product[a:b] for product in products], b - a, self.sum_dtype)
                 for a, b, order in self.parts]  # fmt: skip
        return _rounded(_scaled(load(np.concatenate(added)), self.then), self.dtype)


def _total(order: Sum, products: Sequence[Array], columns: int, dtype: np.dtype[Any]) -> Array:
    last = np.zeros(columns, dtype)
    for addition in _additions(order, (), products, last):
        if not addition.path:
            last = addition.total
    return last


def _additions(order: Sum, path: tuple[int, ...], products: Sequence[Array], zero: Array) -> Iterator[Addition]:
    total: Array | None = zero if order.from_zero else None
    for item, part in enumerate(order.of):
        if isinstance(part, Sum):
            value = zero
            for addition in _additions(part, (*path, item), products, zero):
                yield addition
                if len(addition.path) == len(path) + 1:
                    value = addition.total
        else:
            value = products[part]
        total = value if total is None else add(total, value)
        yield Addition(path, item, total)


# -- arithmetic --------------------------------------------------------------------------------------------------------

_SHORT = ("float16", "bfloat16")
_LIFT = {"f": 2.0**64, "d": 2.0**200}  # scale numbers near the subnormals to where rounding is as usual


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which kernels hold sums: float32 for 16-bit floats."""
    return np.dtype(np.float32) if dtype.name in _SHORT else dtype


def load(row: Array) -> Array:
    """Return a row in the accumulator's dtype, as kernels read it: subnormal numbers are zero."""
    return _flush(row.astype(accumulator(row.dtype), copy=False))


def add(a: Array, b: Array) -> Array:
    """Add two rows of one dtype as kernels do: 16-bit floats in float32, rounded again."""
    with np.errstate(all="ignore"):
        return _rounded(_flush(load(a) + load(b)), a.dtype)  # sums of subnormals are exact


def multiply(a: Array, b: Array) -> Array:
    """Multiply a row by a number of the same dtype."""
    with np.errstate(all="ignore"):
        return _flush(a * b, lambda up: (a * up) * b)


def divide(a: Array, b: Array) -> Array:
    """Divide a row by a number; x ÷ 0 is 0."""
    if b == 0:
        return np.zeros_like(a)
    with np.errstate(all="ignore"):
        return _flush(a / b, lambda up: (a * up) / b)


def _scaled(row: Array, scales: Iterable[Scale]) -> Array:
    for scale in scales:
        row = divide(row, scale.by) if scale.divides else multiply(row, scale.by)
    return row


def _rounded(row: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        return row.astype(dtype, copy=False)


def _flush(row: Array, lifted: Callable[[Any], Array] | None = None) -> Array:
    """Replace subnormal numbers by zeros of their sign.

    Kernels flush what is tiny after rounding with an unbounded exponent. `lifted(up)` computes the row times `up`,
    where rounding is not that of subnormals.
    """
    if row.dtype.kind == "c":
        return _flush(row.view(row.real.dtype)).view(row.dtype)
    if row.dtype.kind != "f" or row.dtype.itemsize < 4:
        return row
    least = np.finfo(row.dtype).tiny
    size = np.abs(row)
    tiny = size <= least
    if not tiny.any() or not (tiny := tiny & (size > 0)).any():
        return row
    with np.errstate(all="ignore"):
        up = row.dtype.type(_LIFT[row.dtype.char])
        tiny &= np.abs(row * up if lifted is None else lifted(up)) < least * up
    return np.where(tiny, np.copysign(row.dtype.type(0), row), row)


# -- orders of addition ------------------------------------------------------------------------------------------------


def in_sequence(count: int) -> Sum:
    """Return the order of a gradient: left to right from +0."""
    return Sum(tuple(range(count)))


def in_runs(count: int) -> Sum:
    """Return the blocked order: runs of 64 from +0, whose sums are added in runs of 64, and so on."""
    level: list[int | Sum] = list(range(count))
    while len(level) > _RUN:
        level = [Sum(tuple(level[k : k + _RUN])) for k in range(0, len(level), _RUN)]
    return Sum(tuple(level))


_ORDERS: dict[str, Callable[[int], Sum]] = {"sequential": in_sequence, "blocked": in_runs}


def in_eights(count: int) -> Sum:
    """Return the order of SparseSegment ops: n mod 8 rows first (0 → 8, 1 → 9), then blocks of eight."""
    rest = count % 8
    first = min(count, rest + (8 if rest < 2 else 0))
    blocks = (Sum(tuple(range(k, k + 8)), from_zero=False) for k in range(first, count, 8))
    return Sum((*range(first), *blocks), from_zero=False)


def in_lanes(count: int, columns: int, itemsize: int) -> tuple[tuple[int, int, Sum], ...]:
    """Return the order of SegmentSum, by columns: whole packets of 32 bytes have four lanes from 16 rows on."""
    sequence = in_sequence(count)
    if count < 16:
        return ((0, columns, sequence),)
    packet = 32 // itemsize
    full_rows, full_columns = count // 4 * 4, columns // packet * packet
    lanes = (Sum(tuple(range(k, full_rows, 4))) for k in range(4))
    lanes_first = Sum((*lanes, *range(full_rows, count)), from_zero=False)
    parts = ((0, full_columns, lanes_first), (full_columns, columns, sequence))
    return tuple(part for part in parts if part[0] < part[1])


def in_a_tree(count: int) -> Sum:
    """Return the order of an inner product: eight interleaved lanes, then their tree."""
    lanes = [Sum(tuple(range(k, count, _LANES))) for k in range(_LANES)]
    fours = [Sum((lanes[k], lanes[k + 4]), from_zero=False) for k in range(4)]
    return Sum(tuple(Sum((fours[k], fours[k + 2]), from_zero=False) for k in range(2)), from_zero=False)


# -- calls -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Call:
    """A finished call of an op: its inputs and outputs by name, and its attributes."""

    op: Op
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def array(self, name: str) -> Array:
        """Return an input as an array."""
        return np.asarray(self.inputs[name])

    def rows(self, name: str) -> Array:
        """Return an input as a matrix with one row per element of the first axis; a scalar has one row."""
        return _matrix(self.array(name))

    def result(self, pin: str, row: int) -> Array:
        """Return a row of an output as the op computed it."""
        found: Array = _matrix(np.asarray(self.outputs[pin]))[row]
        return found


def _matrix(array: Array) -> Array:
    return array.reshape(array.shape[0], math.prod(array.shape[1:])) if array.ndim else array.reshape(1, 1)


def row_sum(call: Call, pin: str, row: int) -> RowSum:
    """Return the sum that a row of an output is computed by.

    Args:
        call: The finished call.
        pin: The output.
        row: The row of it; 0 for a scalar.

    Returns:
        The sum.

    Raises:
        InvalidArgumentError: The record of the op does not say which rows its results are made of, or there is no such
            output or row.
    """
    return RowSums(call)(pin, row)


class RowSums:
    """The sums of all rows of a call's results, found one by one: `RowSums(call)(pin, row)`.

    Raises:
        InvalidArgumentError: The record of the op does not say which rows its results are made of.
    """

    def __init__(self, call: Call) -> None:
        if not has_row_sums(call.op):
            raise InvalidArgumentError(f"{call.op.name} has no record of which rows its results are made of")
        assert call.op.kernel is not None  # by has_row_sums
        self.call = call
        self.pins = summed_pins(call)
        self._find = _FAMILIES[call.op.kernel](call)

    def __call__(self, pin: str, row: int) -> RowSum:
        """Return the sum of one row; raise InvalidArgumentError if there is no such output or row."""
        if pin not in self.pins:
            text = f"pin must be one of {', '.join(self.pins)}; got {pin!r}"
            raise InvalidArgumentError(text, argument="pin")
        count = len(_matrix(np.asarray(self.call.outputs[pin])))
        if not 0 <= row < count:
            raise InvalidArgumentError(f"row must be in [0, {count}), the rows of {pin}; got {row}", argument="row")
        return self._find(pin, row)


def has_row_sums(op: Op) -> bool:
    """Return whether the rows of the op's results can be written as sums."""
    return op.traced and bool(op.linear) and op.kernel in _FAMILIES


def summed_pins(call: Call) -> list[str]:
    """Return the outputs whose rows are sums: those of the pairs, and scalars of the same type."""
    _, sources = row_pins(call)
    types = _types_of(call.op, sources)
    return [arg.name for arg in call.op.outputs if arg.type in types]


def row_pins(call: Call) -> tuple[list[str], list[str]]:
    """Return the output and input pins of the pairs.

    A record does not name them. But every op with pairs is linear in the inputs whose rows it moves or adds, in the
    order in which their rows are numbered, and returns results of their type. A scalar, such as a default, has no rows.
    """
    sources = [name for name in call.op.linear if np.ndim(call.inputs[name])]
    types = _types_of(call.op, sources)
    return [arg.name for arg in call.op.outputs if arg.type in types and np.ndim(call.outputs[arg.name])], sources


def _types_of(op: Op, sources: Sequence[str]) -> set[str]:
    types = {arg.type for arg in op.inputs if arg.name in sources}
    return types | {name for name, listed in op.types.items() if isinstance(listed, Derived) and listed.of in types}


def row_pairs(call: Call) -> Pairs:
    """Return the record's pairs. Ids are passed as lists, over which Python iterates faster than over arrays."""
    op = call.op
    record = CATALOG[_BY_OUTPUTS.get(op.name, op.name)]
    arguments = call.inputs if record is op else {**call.outputs, **call.inputs}
    if "starts" in call.inputs and "indices" not in call.inputs:  # a plan instead of ids: pairs are faster from the ids
        record = next(other for other in CATALOG.values() if other.planned == op.name)
        arguments = _planned_ids(call)
    assert record.rows is not None  # the callers check
    arrays = {k: np.asarray(v) for k, v in arguments.items()}
    return record.rows({k: v.tolist() if v.dtype.kind in "iu" else v for k, v in arrays.items()})


def _planned_ids(call: Call) -> dict[str, Array]:
    """Return the ids of a plan in the order of the batch."""
    ids = OPS["PlannedIds"](*(call.inputs[name] for name in PLAN))
    return dict(zip(("indices", "segment_ids"), ids, strict=True))


# -- rows of each family of kernels ------------------------------------------------------------------------------------

Finder = Callable[[str, int], RowSum]


class _Places:
    """The positions of every id in a list, in input order."""

    def __init__(self, ids: Array) -> None:
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]

    def of(self, number: int) -> list[int]:
        first, beyond = np.searchsorted(self._sorted, number, "left"), np.searchsorted(self._sorted, number, "right")
        found: list[int] = self._order[first:beyond].tolist()
        return found


def _zeros(call: Call, pin: str, row: int, dtype: np.dtype[Any]) -> RowSum:
    return RowSum(pin, row, (), dtype, dtype, call.result(pin, row).size)


def _copy(pin: str, row: int, term: Term) -> RowSum:
    return RowSum(pin, row, (term,), term.values.dtype, term.values.dtype, term.values.size)


def _ids(call: Call) -> tuple[Array, Array]:
    found = call.inputs if "indices" in call.inputs else _planned_ids(call)
    return np.asarray(found["indices"]), np.asarray(found["segment_ids"])


def _divisor(kind: Reduction, count: int) -> float:
    """Return n, or √n, in double."""
    return float(count) if kind is Reduction.mean else math.sqrt(count)


def _divisor_text(kind: Reduction, count: int) -> str:
    root = math.isqrt(count)
    return str(count) if kind is Reduction.mean else str(root) if root * root == count else f"√{count}"


def _count_reason(segment: int, count: int) -> str:
    return f"bag {segment} has {count} {'id' if count == 1 else 'ids'}"


def _bags(call: Call) -> Finder:
    """SparseSegment ops: one row is copied, up to nine are multiplied by a reciprocal, more are divided."""
    kind, data = Reduction(call.op.constants[0]), call.rows("data")
    indices, segments = _ids(call)
    places = _Places(segments)
    sums = accumulator(data.dtype)

    def find(pin: str, row: int) -> RowSum:
        where = places.of(row) if len(data) else []  # a gradient of no rows validates no id
        n = len(where)
        weight = 1.0 if kind is Reduction.sum or n < 2 else 1 / _divisor(kind, n)
        factor = "1" if weight == 1 else f"1/{_divisor_text(kind, n)}"
        reason = "" if kind is Reduction.sum else _count_reason(row, n)
        terms = [Term("data", int(indices[i]), data[indices[i]], i, None, (), factor, weight, int(indices[i]), reason)
                 for i in where]  # fmt: skip
        if n < 2:
            return _copy(pin, row, terms[0]) if terms else _zeros(call, pin, row, data.dtype)
        then: tuple[Scale, ...] = ()
        if kind is not Reduction.sum:
            by, text = sums.type(_divisor(kind, n)), _divisor_text(kind, n)
            then = (Scale(False, sums.type(1) / by, f"1/{text}") if n < 10 else Scale(True, by, text),)
        parts = ((0, data.shape[1], in_eights(n)),)
        return RowSum(pin, row, tuple(terms), data.dtype, sums, data.shape[1], parts, then)

    return find


def _gradients(call: Call) -> Finder:
    """Gradients of SparseSegment ops: grad[segment] · c, added from +0 in input order."""
    kind, grad = Reduction(call.op.constants[0]), call.rows("grad")
    indices, segments = _ids(call)
    places, counts = _Places(indices), np.bincount(segments) if len(segments) else np.zeros(0, np.int64)
    ids = np.unique(indices) if call.op.constants[1] else None  # by unique rows
    sums = accumulator(grad.dtype)

    def term(i: int) -> Term:
        s = int(segments[i])
        n = int(counts[s])
        number = int(indices[i])
        if kind is Reduction.sum:
            return Term("grad", s, grad[s], i, id=number)
        by = sums.type(1 / _divisor(kind, n))
        factor = "1" if n == 1 else f"1/{_divisor_text(kind, n)}"
        scales = (Scale(False, by, factor),)
        return Term("grad", s, grad[s], i, None, scales, factor, float(by), number, _count_reason(s, n))

    def find(pin: str, row: int) -> RowSum:
        number = row if ids is None else int(ids[row]) if row < len(ids) else -1  # padding
        terms = tuple(map(term, places.of(number)))
        return _gradient_row(call, pin, row, terms, sums)

    return find


def _gradient_row(call: Call, pin: str, row: int, terms: tuple[Term, ...], sums: np.dtype[Any]) -> RowSum:
    grad = call.rows("grad")
    order = _ORDERS[call.attrs.get("order", "sequential")]
    parts = ((0, grad.shape[1], order(len(terms))),) if terms else ()
    return RowSum(pin, row, terms, grad.dtype, sums, grad.shape[1], parts)


class _Weights:
    """Weights in the dtype of sums, and the divisor of every segment: Σw or √Σw²."""

    def __init__(self, call: Call, kind: Reduction, sums: np.dtype[Any], segments: Array) -> None:
        wide = load(call.array("weights"))
        with np.errstate(all="ignore"):
            self.weights = _flush(wide.astype(sums), lambda up: (wide * up).astype(sums))
        self._kind, self._places, self._divisors = kind, _Places(segments), dict[int, tuple[Array, str]]()

    def divisor(self, segment: int) -> tuple[Array, str]:
        """Return the divisor of a segment, and its text."""
        if segment not in self._divisors:
            where = self._places.of(segment)
            squares = self._kind is Reduction.sqrtn
            terms = [multiply(w, w) if squares else w for w in (self.weights[i : i + 1] for i in where)]
            total = _total(in_sequence(len(terms)), terms, 1, self.weights.dtype)
            exact = sum((_exact(self.weights[i]) ** (2 if squares else 1) for i in where), Fraction(0))
            root = np.sqrt(total)[0] if squares else total[0]
            self._divisors[segment] = root, _root_text(exact, root) if squares else _number_text(total[0])
        return self._divisors[segment]

    def factor(self, i: int, segment: int) -> tuple[str, float]:
        """Return w / divisor as text and as a number."""
        w = self.weights[i]
        if self._kind is Reduction.sum:
            return _number_text(w), float(w)
        by, text = self.divisor(segment)
        weight = float(w) / float(by) if by else 0.0
        if self._kind is Reduction.mean:
            return _ratio_text(w, by), weight
        if not text.startswith("√"):
            return _ratio_text(w, by), weight
        return f"{_number_text(w)}/{text}", weight

    def reason(self, i: int, segment: int) -> str:
        w = _number_text(self.weights[i])
        if self._kind is Reduction.sum:
            return f"its weight is {w}"
        _, divisor = self.divisor(segment)
        if self._kind is Reduction.mean:
            return f"its weight is {w} of {divisor} in bag {segment} (w/Σw)"
        return f"its weight is {w} and bag {segment} has √Σw² = {divisor}"


def _exact(number: Any) -> Fraction:
    return Fraction(float(number)) if math.isfinite(number) else Fraction(0)


def _number_text(number: Any) -> str:
    text = f"{float(number):.6g}"
    return text if float(text) == float(number) else str(number)


def _ratio_text(top: Any, bottom: Any) -> str:
    """Return a ratio as a fraction if it has small numbers, else as a decimal number."""
    if not (math.isfinite(top) and math.isfinite(bottom)) or bottom == 0:
        return "0" if bottom == 0 else f"{_number_text(top)}/{_number_text(bottom)}"
    ratio = _exact(top) / _exact(bottom)
    if abs(ratio.numerator) < 1000 and ratio.denominator < 1000:
        return str(ratio)
    return f"{_number_text(top)}/{_number_text(bottom)}"


def _root_text(square: Fraction, root: Any) -> str:
    if square.denominator > 1 or square.numerator >= 10_000:
        return _number_text(root)
    whole = math.isqrt(square.numerator)
    return str(whole) if whole * whole == square.numerator else f"√{square.numerator}"


def _weighted_bags(call: Call) -> Finder:
    """Weighted bags: products in the order of SegmentSum, then a division."""
    kind, data = Reduction(call.op.constants[0]), call.rows("data")
    indices, segments = _ids(call)
    places, sums = _Places(segments), accumulator(data.dtype)
    weights = _Weights(call, kind, sums, segments)

    def term(i: int, row: int) -> Term:
        by = weights.weights[i]
        factor, weight = weights.factor(i, row)
        k = int(indices[i])
        scales = (Scale(False, by, _number_text(by)),)
        return Term("data", k, data[k], i, None, scales, factor, weight, k, weights.reason(i, row))

    def find(pin: str, row: int) -> RowSum:
        terms = tuple(term(i, row) for i in places.of(row))
        if not terms:
            return _zeros(call, pin, row, data.dtype)
        then = () if kind is Reduction.sum else (Scale(True, *weights.divisor(row)),)
        parts = _lanes_or_one(len(terms), data.shape[1], sums)
        return RowSum(pin, row, terms, data.dtype, sums, data.shape[1], parts, then)

    return find


def _lanes_or_one(count: int, columns: int, dtype: np.dtype[Any]) -> tuple[tuple[int, int, Sum], ...]:
    """Return the order of SegmentSum; one row alone is not added to zero."""
    if count == 1:
        return ((0, columns, Sum((0,), from_zero=False)),)
    return in_lanes(count, columns, accumulator(dtype).itemsize)


def _weighted_term(call: Call, kind: Reduction, segments: Array, ids: Array | None = None) -> Callable[[int], Term]:
    """Return a function from an id's position to its contribution: (grad ÷ divisor) · w."""
    grad = call.rows("grad")
    weights = _Weights(call, kind, accumulator(grad.dtype), segments)

    def term(i: int) -> Term:
        s = int(segments[i])
        by = weights.weights[i]
        scale = Scale(False, by, _number_text(by))
        scales = (scale,) if kind is Reduction.sum else (Scale(True, *weights.divisor(s)), scale)
        number = None if ids is None else int(ids[i])
        return Term("grad", s, grad[s], i, None, scales, *weights.factor(i, s), number, weights.reason(i, s))

    return term


def _weighted_gradients(call: Call) -> Finder:
    kind, dtype = Reduction(call.op.constants[0]), call.rows("grad").dtype
    indices, segments = _ids(call)
    places, term = _Places(indices), _weighted_term(call, kind, segments, indices)
    sums = dtype if call.attrs.get("accumulate") == "T" else accumulator(dtype)

    def find(pin: str, row: int) -> RowSum:
        return _gradient_row(call, pin, row, tuple(map(term, places.of(row))), sums)

    return find


def _weighted_gradient_rows(call: Call) -> Finder:
    dtype, columns = call.rows("grad").dtype, call.rows("grad").shape[1]
    term = _weighted_term(call, Reduction(call.op.constants[0]), call.array("segment_ids"))
    alone = ((0, columns, Sum((0,), from_zero=False)),)

    def find(pin: str, row: int) -> RowSum:
        return RowSum(pin, row, (term(row),), dtype, accumulator(dtype), columns, alone)

    return find


def _segment_sums(call: Call) -> Finder:
    data, places = call.rows("data"), _Places(call.array("segment_ids"))

    def find(pin: str, row: int) -> RowSum:
        terms = tuple(Term("data", i, data[i], i) for i in places.of(row))
        if len(terms) < 2:
            return _copy(pin, row, terms[0]) if terms else _zeros(call, pin, row, data.dtype)
        parts = in_lanes(len(terms), data.shape[1], accumulator(data.dtype).itemsize)
        return RowSum(pin, row, terms, data.dtype, data.dtype, data.shape[1], parts)

    return find


def _scattered(call: Call) -> Finder:
    grad, places = call.rows("grad"), _Places(call.array("indices"))
    sums = accumulator(grad.dtype)

    def find(pin: str, row: int) -> RowSum:
        terms = tuple(Term("grad", i, grad[i], i, id=row) for i in places.of(row))
        parts = ((0, grad.shape[1], in_sequence(len(terms))),) if terms else ()
        return RowSum(pin, row, terms, grad.dtype, sums, grad.shape[1], parts)

    return find


def _inner_products(call: Call) -> Finder:
    """SparseSegmentDot and RowDot: the terms are columns of the first operand, times those of the second."""
    first, second = (name for name in call.op.input_names if name in call.op.differentiable)
    a, b = call.rows(first), call.rows(second)
    mine = call.array("segment_ids") if "segment_ids" in call.inputs else None
    other = call.array("indices") if "indices" in call.inputs else None
    sums = accumulator(a.dtype)

    def find(pin: str, row: int) -> RowSum:
        i, k = (row if ids is None else int(ids[row]) for ids in (mine, other))
        factors = load(b[k])
        texts = [_number_text(x) for x in factors]
        terms = tuple(
            Term(first, i, a[i][c : c + 1], row, c, (Scale(False, factors[c], texts[c]),), texts[c], float(factors[c]))
            for c in range(a.shape[1])
        )
        return RowSum(pin, row, terms, sums, sums, 1, ((0, 1, in_a_tree(len(terms))),))

    return find


def _moved(plus: Callable[[Call, np.dtype[Any]], np.dtype[Any]], default: str = "") -> Callable[[Call], Finder]:
    """Entries that are copied by the record's pairs, or added from the first one if there are several.

    `plus` returns the dtype of such sums; `default` is the input whose value goes where no entry does.
    """

    def family(call: Call) -> Finder:
        outputs, inputs = row_pins(call)
        sources: dict[int, list[int]] = {}
        for to, entry in row_pairs(call):
            sources.setdefault(to, []).append(entry)
        first = dict(zip(outputs, _firsts(call.outputs, outputs), strict=True))
        starts = _firsts(call.inputs, inputs)

        def term(entry: int) -> Term:
            k = max(k for k, start in enumerate(starts) if entry >= start)
            row = entry - starts[k]
            return Term(inputs[k], row, call.rows(inputs[k])[row], row)

        def find(pin: str, row: int) -> RowSum:
            dtype = np.asarray(call.outputs[pin]).dtype
            terms = tuple(map(term, sources.get(first[pin] + row, ())))
            if not terms and default:
                terms = (Term(default, 0, call.rows(default)[0]),)
            if len(terms) < 2:
                return _copy(pin, row, terms[0]) if terms else _zeros(call, pin, row, dtype)
            parts = ((0, 1, Sum(tuple(range(len(terms))), from_zero=False)),)
            return RowSum(pin, row, terms, dtype, plus(call, dtype), 1, parts)

        return find

    return family


def _firsts(arrays: Mapping[str, Any], names: Sequence[str]) -> list[int]:
    """Return the number of the first row of each of several arrays, whose rows are numbered through."""
    found, count = [], 0
    for name in names:
        found.append(count)
        count += len(arrays[name])
    return found


def _in_t(call: Call, dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype


def _in_accumulator(call: Call, dtype: np.dtype[Any]) -> np.dtype[Any]:
    return accumulator(dtype)


def _fill_gradients(call: Call) -> Finder:
    """`d_values` are copies; `d_default_value` adds what no input entry came from, from +0 in T."""
    grad, mapped = call.rows("grad_values"), call.array("reverse_index_map")
    copies = _moved(_in_t)(call)

    def find(pin: str, row: int) -> RowSum:
        if np.ndim(call.outputs[pin]):
            return copies(pin, row)
        rest = np.setdiff1d(np.arange(len(grad)), mapped).tolist()
        terms = tuple(Term("grad_values", j, grad[j], j) for j in rest)
        parts = ((0, 1, in_sequence(len(terms))),) if terms else ()
        return RowSum(pin, row, terms, grad.dtype, grad.dtype, 1, parts)

    return find


# By kernel. A kernel of an op with row pairs is here, or its rows cannot be written as sums.
_FAMILIES: dict[str, Callable[[Call], Finder]] = {
    "sparse_segment": _bags,
    "sparse_segment_grad_grad": _bags,
    "sparse_segment_grad": _gradients,
    "sparse_segment_grad_padded": _gradients,
    "planned_segment_grad": _gradients,
    "weighted_segment": _weighted_bags,
    "weighted_segment_grad": _weighted_gradients,
    "planned_weighted_grad": _weighted_gradients,
    "weighted_segment_grad_rows": _weighted_gradient_rows,
    "segment_sum": _segment_sums,
    "gather_rows": _moved(_in_t),
    "scatter_rows": _scattered,
    "sparse_segment_dot": _inner_products,
    "row_dot": _inner_products,
    "fill_empty_rows": _moved(_in_t, default="default_value"),
    "fill_empty_rows_grad": _fill_gradients,
    "fill_empty_rows_grad_grad": _moved(_in_accumulator, default="dd_default_value"),
    "sparse_slice": _moved(_in_t),
    "sparse_slice_grad": _moved(_in_t),
    "sparse_slice_grad_grad": _moved(_in_t),
    "sparse_add": _moved(_in_t),
    "sparse_add_grad": _moved(_in_t),
    "sparse_add_grad_grad": _moved(_in_t),
}
