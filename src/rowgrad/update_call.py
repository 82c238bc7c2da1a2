"""One call of a kernel that updates: admits arrays, refuses what does not fit, launches, words what is reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ._core import Job, dtypes, kernels, update_kernels
from .arrays import NUMPY_DTYPE, Array, aval_of, base_view, canonical, is_aligned, is_masked, is_ndarray, plain_array
from .errors import OpError, ResourceExhaustedError, refuse, shape_text
from .spec import PLAN, value_text
from .update_rules import Step, check_range, rule_named, slot_dtype, slot_shapes

_KERNEL = {name: len(kernels()) + i for i, (name, _) in enumerate(update_kernels())}
_CODE = {name: i for i, name in enumerate(dtypes())}
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int32", "int64")
_NUMBERS = 6  # of a step, as kernels read them
_GOOD = "a writable, contiguous, aligned array"


class Memory(NamedTuple):
    """C-contiguous memory of another library, which the caller keeps alive for the call.

    `device` is None for memory of the host; else it is `rowgrad.cuda`'s, and `tensor` is what lies there.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    device: Any = None
    tensor: Any = None


class UpdateCall:
    """Admits the arrays of one call, in the kernel's order, and runs it; refusals carry its name and arguments."""

    def __init__(self, kernel: str, **arguments: Any) -> None:
        self.kernel = kernel
        self.arguments = arguments
        self.inputs: list[tuple[str, Any, Memory]] = []  # name, the array, what was checked of it

    def __enter__(self) -> UpdateCall:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, OpError | MemoryError):
            return
        parts = (f"{k}={_value_text(v)}" for k, v in self.arguments.items() if v is not None)
        if isinstance(error, OpError):
            error.in_call(self.kernel, None, ", ".join(parts))
        else:  # NumPy's, which says how much it asked for
            raise ResourceExhaustedError(f"OOM: {error}").in_call(self.kernel, None, ", ".join(parts)) from error

    @property
    def names(self) -> tuple[str, ...]:
        """What a refusal may speak of: a plan's arrays have names, too."""
        return (*self.arguments, *(name for name, _, _ in self.inputs))

    def state(self, rule: str, table: Any, slots: Sequence[Any]) -> list[tuple[str, Any, Memory]]:
        """The arrays that are updated: the table, whose dtype and rows the others follow, and the rule's slots."""
        wanted = rule_named(rule).slots
        if isinstance(slots, tuple | list) and not isinstance(slots, Memory):
            slots = tuple(slots)  # once: what a list holds may differ the next time
        self.table = _updated("table", table, None)
        self._check_table(self.table)
        listed = isinstance(slots, tuple) and not isinstance(slots, Memory)
        if not listed or len(slots) != len(wanted):
            names = ", ".join(s.name for s in wanted) or "none"
            count = len(slots) if listed else type(slots).__name__
            raise refuse("slot_count", value=count, bound=f"{len(wanted)}, {names}")
        state = [("table", table, self.table)]
        for slot, array, shape in zip(wanted, slots, slot_shapes(rule, self.table.shape), strict=True):
            aval = Memory(0, slot_dtype(self.table.dtype), shape)
            state.append((slot.name, array, _updated(slot.name, array, aval)))
        return state

    def table_of(self, table: Any) -> tuple[str, tuple[int, ...]]:
        """Dtype and shape of a table that is only looked at."""
        if not (is_ndarray(table) or isinstance(table, Memory)):
            raise refuse("not_an_array", argument="table", value=type(table).__name__)
        found = describe(table, "table")
        self._check_table(found)
        return found.dtype, found.shape

    @staticmethod
    def _check_table(table: Memory) -> None:
        if table.dtype not in _FLOATS:
            raise refuse("dtype_not_allowed", argument="table", value=table.dtype, bound=", ".join(_FLOATS))
        if not table.shape:
            raise refuse("updated_unfit", argument="table", value="a scalar", bound="of rank 1 or more, rows first")

    def rows(self, name: str, value: Any) -> Memory:
        """A gradient: of the table's dtype, with rows like the table's."""
        grad = self._take(name, value)
        if grad.dtype != self.table.dtype:
            raise refuse(
                "dtype_expected", argument=name, value=grad.dtype, bound=self.table.dtype, why=", as the table"
            )
        if not grad.shape or grad.shape[1:] != self.table.shape[1:]:
            raise refuse(
                "rows_match", argument=name, value=shape_text(grad.shape[1:]), bound=shape_text(self.table.shape[1:])
            )
        return grad

    def ids(self, name: str, value: Any) -> Memory:
        """A vector of int32 or int64."""
        if isinstance(value, list | tuple) and not isinstance(value, Memory):
            value = np.zeros(0, np.int64) if len(value) == 0 else plain_array(value, name)
        ids = self._take(name, value)
        if ids.dtype not in _INTEGERS:
            raise refuse("dtype_not_allowed", argument=name, value=ids.dtype, bound=", ".join(_INTEGERS))
        if len(ids.shape) != 1:
            raise refuse("should_be_vector", argument=name)
        return ids

    def weights(self, value: Any, ids: int) -> None:
        """A weight for every id, of any float dtype; or none."""
        if value is None:
            return
        weights = self._take("weights", value)
        if weights.dtype not in _FLOATS:
            raise refuse("dtype_not_allowed", argument="weights", value=weights.dtype, bound=", ".join(_FLOATS))
        if weights.shape != (ids,):
            raise refuse("weights_match", value=shape_text(weights.shape), bound=ids)

    def plan(self, parts: Mapping[str, Any]) -> None:
        """A plan's arrays; the kernel checks what they hold."""
        length = {}
        for name in PLAN[:-1]:
            array = self.ids(name, parts[name])
            length[name] = array.shape[0]
            if name in ("starts", "positions", "counts") and array.dtype != "int64":
                raise refuse("dtype_expected", argument=name, value=array.dtype, bound="int64", why="")
        for name, other in (("starts", "rows"), ("positions", "segments")):
            if length[name] != length[other]:
                raise refuse("lengths_match", argument=name, value=length[name], bound=length[other])
        rows = parts["num_rows"]
        if not isinstance(rows, int | np.integer) or isinstance(rows, bool) or not 0 <= (count := int(rows)) < 1 << 63:
            raise refuse("count_unfit", argument="num_rows", value=value_text(rows), bound=0)
        self._take("num_rows", np.array(count, np.int64))

    def ready(
        self, state: list[tuple[str, Any, Memory]], rule: str, step: Step, constants: Sequence[int] = ()
    ) -> Callable[[], None]:
        """Check that what is updated stands apart; returns the launch of the kernel, which does the update."""
        if not isinstance(step, Step):
            raise refuse("number_unfit", argument="step", value=type(step).__name__, bound="an updates.Step")
        numbers = (int(step.lazy), int(step.stochastic_rounding), int(step.seed), int(step.step))
        attrs = [rule_named(rule).number, self.table.shape[0], *numbers, *constants]
        scalars = np.array(step.numbers(), np.float64)
        if scalars.shape != (_NUMBERS,):
            raise refuse("number_unfit", argument="step", value=f"{scalars.size} numbers", bound=f"{_NUMBERS} numbers")
        check_range(rule, scalars.tolist(), slot_dtype(self.table.dtype))
        # From here on no code of the caller's runs: arrays are read now, and must be what was checked.
        state, self.inputs = _taken_again(state, written=True), _taken_again(self.inputs)
        for name, _, memory in state:
            for other, _, second in (*self.inputs, *(s for s in state if s[0] != name)):
                if _overlap(memory, second):
                    raise refuse("updated_overlaps", argument=name, value=other)
        if self.table.device is None:
            self._take("numbers", scalars)
        return partial(self._launch, state, rule, step, constants, attrs)

    def _launch(
        self, state: list[tuple[str, Any, Memory]], rule: str, step: Step, constants: Sequence[int], attrs: list[int]
    ) -> None:
        with self:
            if self.table.device is not None:
                from .cuda.updates import run_update

                run_update(self, state, rule, step, constants)
                return
            job = Job(_KERNEL[self.kernel], attrs, *_raw(self.inputs))
            fault = job.fault or job.run(*_raw(state), False, (), b"")
            if fault is not None:
                key, position, value, bound = fault
                raise refuse(key, has=self.names, position=position, value=value, bound=bound)

    def _take(self, name: str, value: Any) -> Memory:
        if not isinstance(value, Memory):
            array = canonical(plain_array(value, name), name)
            if not (is_ndarray(value) and (array is value or array.base is not None)):
                value = array
            memory = describe(array)
        else:
            memory = describe(value, name)
        if memory.dtype not in _CODE:
            raise refuse("not_an_array", argument=name, value=f"an array of {memory.dtype}")
        self.inputs.append((name, value, memory))
        return memory


def _updated(name: str, value: Any, wanted: Memory | None) -> Memory:
    """What is updated is taken as it is: nothing could be copied back."""
    if is_masked(value):
        raise refuse("updated_unfit", argument=name, value="a masked array, whose mask would be lost", bound=_GOOD)
    if is_ndarray(value):
        value = base_view(value)
        if not (value.flags.carray and is_aligned(value)):
            raise refuse("updated_unfit", argument=name, value=_array_text(value), bound=_GOOD)
    elif not isinstance(value, Memory):
        raise refuse("updated_unfit", argument=name, value=type(value).__name__, bound="an array")
    memory = describe(value, name)
    if wanted is not None and (memory.dtype, memory.shape) != (wanted.dtype, wanted.shape):
        raise refuse(
            "updated_unfit",
            argument=name,
            value=f"{memory.dtype}{shape_text(memory.shape)}",
            bound=f"{wanted.dtype}{shape_text(wanted.shape)}",
        )
    return memory


def describe(value: Array | Memory, name: str = "") -> Memory:
    """The address of an array, its dtype and its shape; `name` is for errors."""
    if isinstance(value, Memory):
        _check_memory(value, name)
        return value
    view = base_view(value)
    dtype = aval_of(view).dtype
    if dtype == "string" and view.dtype.kind not in "OSUT":
        dtype = str(view.dtype)  # of another byte order, or of a type that the catalogue does not have
    return Memory(view.__array_interface__["data"][0], dtype, view.shape)


def _check_memory(memory: Memory, name: str) -> None:
    """Reject fields that no memory has: kernels take them as they are."""
    address, dtype, shape = memory[:3]
    if not isinstance(dtype, str):
        raise refuse("value_unfit", argument=f"dtype of {name}", value=value_text(dtype), bound="a str")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise refuse("value_unfit", argument=f"shape of {name}", value=value_text(shape), bound="a tuple of sizes")
    if dtype not in NUMPY_DTYPE:
        return  # which dtypes there may be is checked for each argument
    size, width = math.prod(shape), NUMPY_DTYPE[dtype].itemsize
    if type(address) is not int or address < 0 or address + size * width >= 1 << 64:
        raise refuse("value_unfit", argument=f"address of {name}", value=value_text(address), bound="an address")
    if memory.device is None and size and (address == 0 or address % width):
        bound = f"a multiple of {width} above 0"
        raise refuse("value_unfit", argument=f"address of {name}", value=address, bound=bound)


def _taken_again(arrays: Sequence[tuple[str, Any, Memory]], written: bool = False) -> list[tuple[str, Any, Memory]]:
    """The arrays as they are now, which code of other arguments may have changed since they were checked."""
    taken: list[tuple[str, Any, Memory]] = []
    for name, value, checked in arrays:
        if isinstance(value, Memory):
            taken.append((name, value, checked))
            continue
        view = base_view(value)
        memory = describe(view)
        if memory[1:] != checked[1:] or not (view.flags.carray if written else view.flags.c_contiguous):
            raise refuse("argument_changed", argument=name)
        taken.append((name, view, memory))
    return taken


def _overlap(a: Memory, b: Memory) -> bool:
    return a.address < b.address + _bytes(b) and b.address < a.address + _bytes(a)


def _bytes(memory: Memory) -> int:
    return math.prod(memory.shape) * NUMPY_DTYPE[memory.dtype].itemsize


def _raw(arrays: Sequence[tuple[str, Any, Memory]]) -> tuple[tuple[Any, ...], bytes]:
    """Arrays by their addresses, and their dtype codes."""
    return tuple((m.address, *m.shape) for _, _, m in arrays), bytes(_CODE[m.dtype] for _, _, m in arrays)


def _array_text(array: Array) -> str:
    state = "" if array.flags.writeable else "read-only "
    return f"{state}{'' if array.flags.c_contiguous else 'strided '}{array.dtype}{shape_text(array.shape)}"


def _value_text(value: Any) -> str:
    try:
        dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    except Exception:  # its own code: whatever that raises, it has none
        return type(value).__name__
    return f"{dtype}{shape_text(shape)}" if isinstance(shape, tuple) else type(value).__name__
