"""Known fixes of errors on a page: which ones an error has, by its key and facts, and the blocks that each one changes.

`fixes_of` reads the table `_RULES`. A fix is plain data that an editor shows as a button; `apply_fix` computes it again
on the page as it then is, so that edits in between are kept.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .._catalog.spec import CATALOG, Arg, Op, find_op
from .._runtime.arrays import NUMPY_DTYPE, Array, as_array, aval_of, is_inexact
from ..errors import InvalidArgumentError, OpError
from .inputs import in_dtype, is_integer
from .leaves import leaves_of
from .new_blocks import UnusedNames, arrange
from .nodes import Output
from .op_example import example_blocks
from .page import Block, End, Page, PageError
from .page_builder import Checked, pin_of, value_at

_MOST = 1 << 16  # elements of a typed value that a fix changes


@dataclass(frozen=True, slots=True)
class Fix:
    """One fix.

    Args:
        title: What it does, for a button.
        action: A key of `ACTIONS`.
        block: The block it changes; for "fetch", empty.
        pin: The input pin or attribute it changes.
        value: What it sets: a dtype, a shape, a number of values, a number, a text or a list of output pins.
        end: The output pin of a wire that was rejected, which the fix draws too.
    """

    title: str
    action: str
    block: str
    pin: str
    value: Any
    end: str | None = None

    def json(self) -> dict[str, Any]:
        """Return the fix as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


# -- values typed on a pin, or in the Const that only this pin reads ---------------------------------------------------


class _Typed(NamedTuple):
    """A typed value: its block and pin, and the array it has by itself."""

    block: str
    pin: str
    array: Array
    is_weak: bool  # Python numbers, without a dtype

    def block_with(self, page: Page, array: Array) -> Block:
        """Return the block with another value."""
        block = page[self.block]
        return replace(block, values={**block.values, self.pin: array.tolist() if self.is_weak else array})


def _typed(page: Page, block: str, pin: str, end: End | None = None, is_shared: bool = False) -> _Typed | None:
    """Return the typed value that reaches a pin, or None if it is computed or large.

    A Const that other pins read too counts only with `is_shared`.
    """
    target = page[block]
    if end is None and pin in target.values:
        return _own_value(target, pin)
    ends = [end] if end is not None else target.wires.get(pin, [])
    if len(ends) != 1:
        return None
    source = next((b for b in page.blocks if b.id == ends[0].block), None)
    readers = [e for b in page.blocks for wires in b.wires.values() for e in wires if e.block == ends[0].block]
    if source is None or source.op != "Const" or (not is_shared and len(readers) > (1 if end is None else 0)):
        return None
    return _own_value(source, "val") if "val" in source.values else None


def _own_value(block: Block, pin: str) -> _Typed | None:
    value = block.values[pin]
    with contextlib.suppress(OpError, TypeError, ValueError, OverflowError):
        array = as_array(value, pin)
        if array.size <= _MOST and array.dtype.kind in "iufbc" and array.dtype.names is None:
            return _Typed(block.id, pin, array, not isinstance(value, np.ndarray | np.generic))
    return None


# -- which fixes an error has ------------------------------------------------------------------------------------------


class _Problem(NamedTuple):
    """An error of a block at a pin. `end` is the beginning of a wire that the pin rejected."""

    checked: Checked
    block: Block
    op: Op
    arg: Arg
    error: OpError
    end: End | None

    @property
    def page(self) -> Page:
        return self.checked.page

    def fix(self, title: str, action: str, value: Any, pin: str | None = None) -> Fix:
        end = None if self.end is None else str(self.end)
        return Fix(title, action, self.block.id, pin or self.arg.name, value, end)

    def typed(self, pin: str | None = None) -> _Typed | None:
        return _typed(self.page, self.block.id, pin or self.arg.name, None if pin else self.end)

    def aval(self, pin: str | None = None) -> tuple[str, tuple[int | None, ...] | None] | None:
        """Return dtype and shape of the value at a pin, as far as they are known."""
        name = pin or self.arg.name
        found = self.typed(pin)
        if found is not None:
            return aval_of(found.array).dtype, found.array.shape
        ends = self.block.wires.get(name, []) if pin or self.end is None else [self.end]
        value = value_at(self.checked.scope.graph, ends[0]) if len(ends) == 1 else None
        return (value.dtype, value.shape) if isinstance(value, Output) else None


Rule = Callable[[_Problem], Iterable[Fix]]


def _convert(problem: _Problem) -> Iterator[Fix]:
    """Convert the value to the dtype that the pin takes, or that goes with the other inputs."""
    allowed = problem.op.dtypes_of(problem.arg.type)
    expected, aval = problem.error.bound, problem.aval()
    if aval is None:
        return
    typed = problem.typed()
    integers = ("int64", "int32") if typed is None else ("int32", "int64")  # computed ids may be large
    wanted = (expected,) if expected in NUMPY_DTYPE else ("float32", *integers, *allowed)
    target = next((dtype for dtype in wanted if dtype in allowed or dtype == expected), None)
    castable = CATALOG["Cast"].dtypes_of(CATALOG["Cast"].inputs[0].type)
    if target is None or aval[0] not in castable or target not in castable:
        return
    loses = is_inexact(NUMPY_DTYPE[aval[0]]) and is_integer(str(target))
    if typed is not None:
        with contextlib.suppress(OpError):
            in_dtype(typed.array, typed.pin, str(target))
            yield problem.fix(f"Convert to {target}", "convert", target)
        return
    yield problem.fix(f"Convert to {target}{', without fractions' if loses else ''}", "convert", target)


def _reshape_to_vector(problem: _Problem) -> Iterator[Fix]:
    yield problem.fix("Reshape to a vector", "reshape", [-1])


def _reshape_to_scalar(problem: _Problem) -> Iterator[Fix]:
    aval = problem.aval()
    if aval is not None and aval[1] is not None and None not in aval[1] and math.prod(map(int, aval[1])) == 1:  # type: ignore[arg-type]
        yield problem.fix("Reshape to a scalar", "reshape", [])


def _length(problem: _Problem, pin: str) -> int | None:
    aval = problem.aval(pin)
    return aval[1][0] if aval is not None and aval[1] else None


def _resize(problem: _Problem, pin: str, length: Any) -> Iterator[Fix]:
    typed = problem.typed(pin)
    if typed is not None and typed.array.ndim and len(typed.array) and isinstance(length, int) and 0 < length <= _MOST:
        yield problem.fix(f"Use {pin} with {length} value{'s' if length > 1 else ''}", "resize", length, pin)


def _match_ids(problem: _Problem) -> Iterator[Fix]:
    """Give indices and segment_ids one length: that of either."""
    for pin, other in (("indices", "segment_ids"), ("segment_ids", "indices")):
        yield from _resize(problem, pin, _length(problem, other))


def _match_bound(problem: _Problem) -> Iterator[Fix]:
    yield from _resize(problem, problem.arg.name, problem.error.bound)


def _enlarge_output(problem: _Problem) -> Iterator[Fix]:
    """Raise the typed number of rows or segments, so that the largest id fits."""
    ids, error = problem.typed(problem.arg.name), problem.error
    sizes = [a.name for a in problem.op.inputs if a.host and problem.block.values.get(a.name) == error.bound]
    if ids is None or not ids.array.size or ids.array.dtype.kind not in "iu" or len(sizes) != 1:
        return
    largest = int(ids.array.max())
    if int(ids.array.min()) >= 0 and largest < 1 << 31:
        yield problem.fix(f"Use {sizes[0]} = {largest + 1}", "set", largest + 1, sizes[0])


def _limit_ids(problem: _Problem) -> Iterator[Fix]:
    """Replace typed ids that are not rows of the table by the nearest row. A table has the rows it was made with."""
    pin, bound = problem.arg.name, problem.error.bound
    typed = _typed(problem.page, problem.block.id, pin, problem.end, is_shared=True)
    if typed is not None and typed.array.dtype.kind in "iu" and isinstance(bound, int) and bound > 0:
        name = pin if typed.block == problem.block.id else typed.block
        yield problem.fix(f"Limit {name} to {f'0 … {bound - 1}' if bound > 1 else 0}", "limit", bound)


def _sort_by_segment(problem: _Problem) -> Iterator[Fix]:
    pins = _id_pins(problem.op)
    if "segment_ids" in pins and all(problem.typed(pin) is not None for pin in pins):
        yield problem.fix(f"Sort {' and '.join(pins)} by segment", "sort", None, "segment_ids")


def _id_pins(op: Op) -> list[str]:
    """Return the pins with one entry per id, which keep their order together."""
    return [name for name in ("indices", "segment_ids", "weights") if name in op.input_names]


def _fill_missing(problem: _Problem) -> Iterator[Fix]:
    """Fetch what nothing consumes with a session without wires; give an untouched block the values of its example."""
    if problem.op.runs:
        if names := [str(end) for end in leaves_of(problem.checked).ends]:
            yield problem.fix(f"Fetch {_listed(names)}", "wire", names)
    elif not problem.block.wires and not problem.block.values and _example_values(problem.op.name):
        yield problem.fix("Use the values of its example", "example", None)


@lru_cache(512)
def _example_values(op: str) -> dict[str, Any]:
    """Return the typed values of an op's example if it is a single block."""
    blocks = example_blocks(op)
    return blocks[0].values if len(blocks) == 1 else {}


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _zero_unconnected(problem: _Problem) -> Iterator[Fix]:
    yield problem.fix("Use zeros where no gradient flows", "attr", "zero", "unconnected_gradients")


_RULES: dict[str, Rule] = {
    "dtype_not_allowed": _convert,
    "dtype_without_kernel": _convert,
    "dtype_expected": _convert,
    "attr_dtype": _convert,
    "should_be_vector": _reshape_to_vector,
    "ids_should_be_vector": _reshape_to_vector,
    "gathered_should_be_vector": _reshape_to_vector,
    "must_be_vector": _reshape_to_vector,
    "input_vector": _reshape_to_vector,
    "backprop_vector": _reshape_to_vector,
    "start_vector": _reshape_to_vector,
    "data_rank": _reshape_to_vector,
    "input_rank": _reshape_to_vector,
    "grad_rank": _reshape_to_vector,
    "should_be_scalar": _reshape_to_scalar,
    "should_be_scalar_not": _reshape_to_scalar,
    "must_be_scalar": _reshape_to_scalar,
    "thresh_scalar": _reshape_to_scalar,
    "segments_match_indices": _match_ids,
    "segments_match_weights": _match_bound,
    "lengths_match": _match_bound,
    "values_match_rows": _match_bound,
    "slice_backprop_length": _match_bound,
    "add_backprop_length": _match_bound,
    "index_not_in_output": _enlarge_output,
    "index_not_in_data": _limit_ids,
    "index_not_in_params": _limit_ids,
    "num_segments_too_small": _enlarge_output,
    "segments_not_increasing": _sort_by_segment,
    "segment_not_in_output": _sort_by_segment,
    "pin_missing": _fill_missing,
    "pin_unwired": _fill_missing,
    "unconnected": _zero_unconnected,
}


def fixes_of(checked: Checked, block: str | None, error: BaseException, end: End | None = None) -> list[Fix]:
    """Return the known fixes of an error of a block; `end` is the beginning of a wire that the block rejected."""
    found = next((b for b in checked.page.blocks if b.id == block), None)
    op = None if found is None else find_op(found.op)
    if found is None or op is None or not isinstance(error, OpError) or error.key not in _RULES:
        return []
    pin = pin_of(found, error)
    arg = next((a for a in op.inputs if a.name == pin), None)
    if arg is None or (arg.many and error.key not in ("unconnected", "pin_missing", "pin_unwired")):
        return []
    return list(_RULES[error.key](_Problem(checked, found, op, arg, error, end)))


def fetch_fix(ends: Iterable[End]) -> Fix:
    """Return the fix that adds a ClientSession which fetches these pins."""
    names = [str(end) for end in ends]
    return Fix(f"Add a ClientSession fetching {_listed(names)}", "fetch", "", "", names)


# -- what a fix changes ------------------------------------------------------------------------------------------------


def apply_fix(page: Page, fix: Fix) -> list[Block]:
    """Return the changed blocks and the new ones; the page itself is unchanged.

    Raises:
        InvalidArgumentError: There is no such fix, or the page no longer has what it changes.
    """
    action = ACTIONS.get(fix.action)
    if action is None:
        raise InvalidArgumentError(f"action must be one of {', '.join(ACTIONS)}; got {fix.action!r}", argument="action")
    if fix.action != "fetch":
        op = find_op(page[fix.block].op)
        if op is None or fix.pin not in (*op.input_names, *op.attrs):
            raise PageError(f"{fix.block}.{fix.pin}", "there is no such pin or attribute to change")
    return action(page, fix)


def _needs(typed: _Typed | None, fix: Fix) -> _Typed:
    if typed is None:
        raise PageError(f"{fix.block}.{fix.pin}", "it no longer has a typed value to change")
    return typed


def _source(page: Page, fix: Fix) -> End:
    if fix.end is not None:
        return End.parse(fix.end)
    ends = page[fix.block].wires.get(fix.pin, [])
    if len(ends) != 1:
        raise PageError(f"{fix.block}.{fix.pin}", "it no longer has one wire")
    return ends[0]


def _changed_value(page: Page, fix: Fix, typed: _Typed, array: Array) -> list[Block]:
    """Return the block with another typed value, and the target with its wire if a rejected one is drawn."""
    changed = typed.block_with(page, array)
    return [changed] if fix.end is None else [changed, _wired(page[fix.block], fix.pin, End.parse(fix.end))]


def _wired(block: Block, pin: str, end: End) -> Block:
    values = {name: value for name, value in block.values.items() if name != pin}
    return replace(block, values=values, wires={**block.wires, pin: [end]})


def _between(page: Page, fix: Fix, op: Op, values: dict[str, Any], attrs: dict[str, Any], suffix: str) -> list[Block]:
    """Return a new block on the wire to the pin, and the pin's block wired to it."""
    source, target = _source(page, fix), page[fix.block]
    new = Block(UnusedNames(page).take(f"{fix.block}_{fix.pin}_{suffix}"), op.name, values, attrs=attrs)
    new.wires = {op.input_names[0]: [source]}
    places = [b.at for b in page.blocks if b.id in (source.block, target.id) and b.at is not None]
    if len(places) == 2:
        new.at = ((places[0][0] + places[1][0]) / 2, (places[0][1] + places[1][1]) / 2 + 40.0)
    return [new, _wired(target, fix.pin, End(new.id, op.outputs[0].name))]


def _apply_convert(page: Page, fix: Fix) -> list[Block]:
    dtype = _text(fix)
    if dtype not in NUMPY_DTYPE:
        raise InvalidArgumentError(f"value must be a dtype; got {dtype!r}", argument="value")
    typed = _typed(page, fix.block, fix.pin, None if fix.end is None else End.parse(fix.end))
    if typed is None:
        return _between(page, fix, CATALOG["Cast"], {}, {"DstT": dtype}, dtype)
    return _changed_value(page, fix, typed._replace(is_weak=False), in_dtype(typed.array, typed.pin, dtype))


def _apply_reshape(page: Page, fix: Fix) -> list[Block]:
    if fix.value not in ([-1], []):
        raise InvalidArgumentError(f"value must be [-1] or []; got {fix.value!r}", argument="value")
    typed = _typed(page, fix.block, fix.pin, None if fix.end is None else End.parse(fix.end))
    if typed is None:
        return _between(page, fix, CATALOG["Reshape"], {"shape": np.array(fix.value, np.int32)}, {}, "reshaped")
    return _changed_value(page, fix, typed, typed.array.reshape(fix.value))


def _apply_resize(page: Page, fix: Fix) -> list[Block]:
    """Cut a typed value, or repeat its last entry."""
    length, typed = _whole(fix), _needs(_typed(page, fix.block, fix.pin), fix)
    if not 0 < length <= _MOST or not typed.array.ndim or not len(typed.array):
        raise InvalidArgumentError(f"value must be from 1 to {_MOST}; got {length}", argument="value")
    more = np.repeat(typed.array[-1:], max(length - len(typed.array), 0), axis=0)
    return _changed_value(page, fix, typed, np.concatenate([typed.array[:length], more]))


def _apply_set(page: Page, fix: Fix) -> list[Block]:
    block = page[fix.block]
    before = block.values.get(fix.pin)
    value: Any = _whole(fix)
    if isinstance(before, np.ndarray):
        value = in_dtype(value, fix.pin, aval_of(before).dtype)
    return [replace(block, values={**block.values, fix.pin: value})]


def _apply_limit(page: Page, fix: Fix) -> list[Block]:
    bound = _whole(fix)
    if bound < 1:
        raise InvalidArgumentError(f"value must be at least 1; got {bound}", argument="value")
    end = None if fix.end is None else End.parse(fix.end)
    typed = _needs(_typed(page, fix.block, fix.pin, end, is_shared=True), fix)
    if typed.array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"{fix.block}.{fix.pin} must have integers to limit", argument="value")
    largest = min(bound - 1, int(np.iinfo(typed.array.dtype).max))
    return _changed_value(page, fix, typed, typed.array.clip(0, largest))


def _apply_sort(page: Page, fix: Fix) -> list[Block]:
    op = find_op(page[fix.block].op)
    assert op is not None
    found = {pin: _needs(_typed(page, fix.block, pin), fix) for pin in _id_pins(op)}
    order = np.argsort(found["segment_ids"].array, kind="stable")
    if any(typed.array.shape != order.shape for typed in found.values()):
        raise PageError(fix.block, f"{', '.join(found)} no longer have one length")
    changed: dict[str, Block] = {}
    for typed in found.values():
        block = changed.get(typed.block, page[typed.block])
        rows = typed.array[order]
        changed[typed.block] = replace(
            block, values={**block.values, typed.pin: rows.tolist() if typed.is_weak else rows}
        )
    return list(changed.values())


def _apply_attr(page: Page, fix: Fix) -> list[Block]:
    block = page[fix.block]
    return [replace(block, attrs={**block.attrs, fix.pin: _text(fix)})]


def _apply_fetch(page: Page, fix: Fix) -> list[Block]:
    session = Block(UnusedNames(page).take("session"), "ClientSession", wires={"fetch_outputs": _ends(fix)})
    arrange(page, [session])
    return [session]


def _apply_wire(page: Page, fix: Fix) -> list[Block]:
    block = page[fix.block]
    return [replace(block, wires={**block.wires, fix.pin: _ends(fix)})]


def _apply_example(page: Page, fix: Fix) -> list[Block]:
    block = page[fix.block]
    return [replace(block, values={**_example_values(block.op), **block.values})]


def _ends(fix: Fix) -> list[End]:
    if not isinstance(fix.value, list) or not all(isinstance(v, str) for v in fix.value) or not fix.value:
        raise InvalidArgumentError("value must be a list of output pins", argument="value")
    return [End.parse(text) for text in fix.value]


def _text(fix: Fix) -> str:
    if not isinstance(fix.value, str):
        raise InvalidArgumentError(f"value must be a text; got {fix.value!r}", argument="value")
    return fix.value


def _whole(fix: Fix) -> int:
    if isinstance(fix.value, bool) or not isinstance(fix.value, int):
        raise InvalidArgumentError(f"value must be a whole number; got {fix.value!r}", argument="value")
    return fix.value


ACTIONS: dict[str, Callable[[Page, Fix], list[Block]]] = {
    "convert": _apply_convert,
    "reshape": _apply_reshape,
    "resize": _apply_resize,
    "set": _apply_set,
    "limit": _apply_limit,
    "sort": _apply_sort,
    "attr": _apply_attr,
    "fetch": _apply_fetch,
    "wire": _apply_wire,
    "example": _apply_example,
}
