"""Table: an embedding table among parameters, marked so that its gradient is row-sparse."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Never

import jax
import jax.extend.core
import jax.numpy as jnp

from .._catalog.rows import IndexedRows
from ..errors import OpError, make_error
from ..lookup import combiner_suffix
from ..raw_ops import OPS
from .arrays import as_jax, register_for_export
from .bags import as_integers, read_num_bags
from .fault_errors import id_outside, row_lookup
from .partition import explicit_sharding, zero_after
from .varying import axes_of, unchecked_axes


class Table:
    """An embedding table: a pytree whose only leaf is an array, rows first.

    `value_and_rows` returns its gradient as rows. In a tree of gradients or updates, a Table holds these rows (`rows`)
    in place of the array.

    Args:
        array: A floating-point array of rank 1 or more.

    Raises:
        InvalidArgumentError: If it is not such an array.

    >>> import jax.numpy as jnp
    >>> from rowgrad.jax import Table
    >>> table = Table(jnp.array([[1.0], [2.0], [4.0]]))
    >>> table.bags(jnp.array([0, 2, 1]), jnp.array([0, 0, 1]), num_bags=3).ravel().tolist()
    [2.5, 2.0, 0.0]
    """

    __slots__ = ("_held", "_is_new")

    def __init__(self, array: Any) -> None:
        if isinstance(array, Table):
            raise make_error("table_unfit", argument="array", value=type(array).__name__, bound="an array, not a Table")
        self._held = as_jax(array, "array")
        self._is_new = True  # not rebuilt from the leaves of a tree
        if not jnp.issubdtype(self.dtype, jnp.floating):
            raise make_error("table_unfit", argument="array", value=str(self.dtype), bound="of floating-point numbers")
        if not self.shape:
            raise make_error("table_unfit", argument="array", value="a scalar", bound="of rank 1 or more, rows first")
        _register_with_flax()

    @classmethod
    def holding(cls, held: Any) -> Table:
        """Return a Table around anything: JAX builds trees of a Table's structure with other leaves."""
        table = object.__new__(cls)
        table._held = held
        return table

    def with_held(self, held: Any) -> Table:
        """Return a Table like this one around anything."""
        return Table.holding(held)

    @property
    def held(self) -> Any:
        """The leaf: an array; in a tree of gradients, IndexedRows; in other trees, any value."""
        return self._held

    @property
    def is_tapped(self) -> bool:
        """Whether `value_and_rows` is recording the table's lookups."""
        return isinstance(self._held, Tap)

    @property
    def is_split(self) -> bool:
        """Whether it is a sharded table, which `rowgrad.jax.sharded` looks up."""
        return False

    @property
    def array(self) -> Any:
        """The table. Raises inside `value_and_rows`: row-sparse gradients support lookups only."""
        if self.is_tapped:
            raise make_error("table_tapped")
        if isinstance(self._held, IndexedRows):
            raise make_error("table_unfit", argument="array", value="a row-sparse gradient", bound="an array; use rows")
        if isinstance(self._held, jax.core.Tracer) and not getattr(self, "_is_new", False):
            return _labelled(self._held)
        return self._held

    @property
    def rows(self) -> IndexedRows:
        """The row-sparse gradient or update that this Table holds."""
        if not isinstance(self._held, IndexedRows):
            kind = type(self._held).__name__
            raise make_error(
                "table_unfit", argument="rows", value=kind, bound="those of a row-sparse gradient; use array"
            )
        return self._held

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table, known everywhere."""
        return tuple(self._held.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the table, known everywhere."""
        return self._held.dtype

    def bags(
        self, ids: Any, segment_ids: Any, num_bags: int, weights: Any = None, combiner: str | None = "mean"
    ) -> Any:
        """Look up and combine rows: row s of the result combines the rows of `ids` whose segment id is s.

        These are the ops `SparseSegment{Mean,Sum,SqrtN}WithNumSegments` and `WeightedSparseSegment…WithNumSegments`.

        Args:
            ids: The rows to look up.
            segment_ids: The bag of each id, ascending.
            num_bags: The number of bags; empty ones are zero.
            weights: A weight for each id.
            combiner: "mean" (also None), "sum" or "sqrtn".

        Returns:
            [num_bags, …].
        """
        kind = combiner_suffix("mean" if combiner is None else combiner)
        count: Any = read_num_bags(num_bags)
        return bags_of(self._held if self.is_tapped else self.array, kind, ids, segment_ids, count, weights)

    def __getitem__(self, ids: Any) -> Any:
        """Return the row of every id, [*ids.shape, …]; inside `value_and_rows` the gradient is row-sparse.

        Ids out of range raise, negative ones too; `array[ids]` clamps them.
        """
        from .functional import embedding_bag  # which imports this module

        if isinstance(ids, tuple | slice | type(None) | type(...)):
            raise make_error("table_index", value=type(ids).__name__)
        ids = as_integers(ids, "ids")
        try:
            with row_lookup(ids.shape):
                rows = embedding_bag(self, ids.reshape(-1, 1), combiner="sum")
        except OpError as error:
            if error.argument != "indices" or error.position is None:
                raise
            raise id_outside(ids.shape, error.position, error.value, self.shape[0]) from None
        return rows.reshape(*ids.shape, *self.shape[1:])

    __iter__ = None  # `__getitem__` alone would make it iterable

    def __array__(self, *_: Any, **__: Any) -> Never:
        """Raise: NumPy would make an array of one object."""
        raise make_error("table_as_array", value=type(self).__name__)

    def __repr__(self) -> str:
        if not hasattr(self._held, "shape"):
            return f"Table({self._held!r})"
        what = "rows of " if isinstance(self._held, IndexedRows) else ""
        return f"Table({what}{self.dtype}[{','.join(map(str, self.shape))}])"


def bags_of(
    array: Any, kind: str, ids: Any, segment_ids: Any, num_bags: int, weights: Any, ordered: bool = True
) -> Any:
    """Combine the rows of each bag of an array, or of the `Tap` in its place.

    Segment ids ascend. If not `ordered` they come in any order, and the last segment is that of masked ids, whose
    result is not used.
    """
    if isinstance(array, Tap):
        return array.bags(kind, ids, segment_ids, num_bags, weights, ordered)
    how = {"data": array, "indices": ids, "segment_ids": segment_ids, "num_segments": num_bags}
    if weights is not None:
        return OPS[f"WeightedSparseSegment{kind}WithNumSegments"](**how, weights=weights)
    return OPS[f"SparseSegment{kind}{'WithNumSegments' if ordered else 'GradGrad'}"](**how)


jax.tree_util.register_pytree_with_keys(
    Table,
    lambda table: ([(jax.tree_util.GetAttrKey("array"), table.held)], None),
    lambda _, held: Table.holding(held[0]),
)
register_for_export(Table)


# -- Arrays of tables that JAX rebuilt from leaves, for value_and_rows ------------------------------------------------

_LABEL = "rowgrad.jax.Table"


def _labelled(array: Any) -> Any:
    """Return the array of a rebuilt Table with a label in the traced program, which `value_and_rows` searches for.

    JAX caches traced programs, so a side effect at trace time could be missed. The label compiles to nothing.
    """
    with jax.named_scope(_LABEL):
        return _unchanged(array)


def is_label(equation: Any) -> bool:
    """Return whether an equation of a traced program is the label of a Table's array."""
    return equation.primitive.name == "custom_jvp_call" and _LABEL in str(equation.source_info.name_stack)


@jax.custom_jvp
def _unchanged(array: Any) -> Any:
    return array


@_unchanged.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _labelled(*primals), *tangents


_REGISTERED: list[Any] = []


def _register_with_flax() -> None:
    """Make `flax.serialization` save a Table as its array, if flax is imported."""
    flax: Any = sys.modules.get("flax.serialization")
    if _REGISTERED or not hasattr(flax, "register_serialization_state"):
        return
    _REGISTERED.append(flax)

    def to_state(table: Table) -> dict[str, Any]:
        return {"array": flax.to_state_dict(table.held)}

    def from_state(table: Table, state: Any) -> Table:
        if not isinstance(state, dict) or set(state) != {"array"}:
            raise make_error("table_unfit", argument="state", value=type(state).__name__, bound="a dict with array")
        held = flax.from_state_dict(table.held, state["array"], name="array")
        if tuple(held.shape) != table.shape:
            raise make_error("table_unfit", argument="array", value=tuple(held.shape), bound=f"of shape {table.shape}")
        return table.with_held(jnp.asarray(held))

    flax.register_serialization_state(Table, to_state, from_state)


# -- Inside value_and_rows --------------------------------------------------------------------------------------------


class RecordedLookup(NamedTuple):
    """The static facts of a lookup."""

    table: int
    kind: str  # of combiner
    output: Any  # shape and dtype
    axes: Any  # mesh axes over which the output varies
    has_masked: bool  # whether masked ids name the row after the table's last


class LookupLog:
    """The lookups of one run of a function, in order; `taps`, if any, are added to their outputs."""

    def __init__(self, taps: Any = None) -> None:
        self.taps = taps
        self.trace = _trace_state()
        self.lookups: list[RecordedLookup] = []
        self.ids: list[tuple[Any, Any, Any]] = []  # indices, segment ids, weights or None

    def check(self) -> None:
        """Reject a lookup in an inner trace, which its ids could not leave."""
        if _trace_state() != self.trace:
            raise make_error("lookup_inside")

    def record(self, lookup: RecordedLookup, ids: tuple[Any, Any, Any], output: Any) -> Any:
        """Record a lookup; return its output with the tap added."""
        place = len(self.lookups)
        self.lookups.append(lookup)
        self.ids.append(_after(output, ids))
        return output if self.taps is None else _add_tap(output, self.taps[place])


class Tap:
    """The stand-in for a table's array inside `value_and_rows`: supports lookups; any other use raises."""

    def __init__(self, array: Any, log: LookupLog, table: int) -> None:
        self._array, self._log, self._table = array, log, table
        self.shape, self.dtype = array.shape, array.dtype

    def bags(
        self,
        kind: str,
        ids: Any,
        segment_ids: Any,
        num_bags: int,
        weights: Any,
        ordered: bool,
        output: Any = None,
    ) -> Any:
        """Combine the rows of each bag and record the lookup. The table is a constant; the tap gets the gradient.

        `output` is the result if it is known already, without the segment of masked ids.
        """
        self._log.check()
        if axes := unchecked_axes():
            raise make_error("rows_unchecked", value=", ".join(sorted(map(str, axes))))
        known = output
        if known is None:
            output = bags_of(self._array, kind, ids, segment_ids, num_bags, weights, ordered)
        elif not ordered:
            output = jnp.zeros((num_bags, *known.shape[1:]), known.dtype)
        inputs = (jnp.asarray(ids), jnp.asarray(segment_ids), None if weights is None else jnp.asarray(weights))
        if not ordered:
            inputs = _rename_masked(*inputs, self.shape[0], num_bags - 1)
        tapped = self.record(kind, inputs, output, has_masked=not ordered)
        return tapped if known is None or ordered else _add_tap(known, tapped[: num_bags - 1])

    @property
    def table(self) -> Any:
        """The array, for lookups that call `record` themselves."""
        return self._array

    def record(self, kind: str, inputs: tuple[Any, Any, Any], output: Any, has_masked: bool) -> Any:
        """Record a lookup of ids, segment ids and weights; return its output with the tap added.

        With `has_masked`, masked ids name the row after the table's last, and there is at least one.
        """
        self._log.check()
        shape = jax.ShapeDtypeStruct(output.shape, output.dtype)
        return self._log.record(RecordedLookup(self._table, kind, shape, axes_of(output), has_masked), inputs, output)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Claim to be an array, so that functions that select the arrays of a tree (regularizers) raise the error."""
        return jax.Array

    def __getattr__(self, name: str) -> Any:
        raise make_error("table_tapped")

    def _reject(self, *_: Any) -> Any:
        raise make_error("table_tapped")

    __getitem__ = __iter__ = __len__ = __neg__ = __abs__ = __array__ = _reject
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _reject  # type: ignore[assignment]
    __hash__ = object.__hash__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _reject
    __matmul__ = __rmatmul__ = __pow__ = _reject


def _after(output: Any, ids: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return the ids with a data dependency on the lookup's output, so that the lookup runs before the table's update.

    If the loss is linear in a lookup, its gradient does not depend on the output. XLA could then schedule the update
    first, and would copy the table to preserve the old rows for the lookup. A barrier does not help: XLA removes it
    before it decides on copies.
    """
    sharding = explicit_sharding(output)
    if not output.size or (sharding is not None and any(sharding.spec)):
        return ids  # JAX cannot slice one element from a dimension with an explicit sharding
    zero = zero_after(jax.lax.stop_gradient(output.ravel()[0]))
    return ids[0] + zero.astype(ids[0].dtype), *ids[1:]


def _rename_masked(ids: Any, segment_ids: Any, weights: Any, rows: int, last: int) -> tuple[Any, Any, Any]:
    """Make masked ids, those in the last segment, name row `rows`; append one more, so that there is at least one.

    An id that was out of range becomes -1, so it is still rejected.
    """
    ids = jnp.where(segment_ids == last, rows, jnp.where(ids < rows, ids, -1))
    ids = jnp.append(ids, jnp.asarray(rows, ids.dtype))
    segment_ids = jnp.append(segment_ids, jnp.asarray(last, segment_ids.dtype))
    return ids, segment_ids, None if weights is None else jnp.append(weights, jnp.ones((), weights.dtype))


# Older versions of JAX have the function in jax.core.
_trace_states = jax.extend.core if hasattr(jax.extend.core, "get_opaque_trace_state") else jax.core


def _trace_state() -> Any:
    return _trace_states.get_opaque_trace_state(convention="rowgrad")


@jax.custom_jvp
def _add_tap(output: Any, tap: Any) -> Any:
    """Return `output` unchanged, with the derivative of `output + tap`."""
    return output


@_add_tap.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return primals[0], tangents[0] + tangents[1]
