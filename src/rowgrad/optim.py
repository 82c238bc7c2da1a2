"""Optimizer steps on tables, in place.

Tables, slots, gradients and ids are NumPy arrays or `Memory` of another library. Updated arrays are never copied, and a
call that raises writes nothing. docs/reference/optimizers.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ._catalog.enums import COMBINERS as _COMBINERS
from ._catalog.enums import Order
from ._catalog.rows import IndexedRows
from ._catalog.rules import (
    NUMBERS,
    RULES,
    Step,
    check_betas,
    check_count,
    check_number,
    check_range,
    rule_named,
    slot_dtype,
    slot_shapes,
)
from ._catalog.spec import PLAN, Aval, value_text
from ._core import Job, dtypes, kernels, update_kernels
from ._hints import unknown_option
from ._runtime.arrays import (
    NUMPY_DTYPE,
    Array,
    aval_of,
    base_view,
    canonical,
    is_aligned,
    is_masked,
    is_ndarray,
    plain_array,
)
from ._runtime.results import check_size
from .errors import OpError, ResourceExhaustedError, make_error, shape_text

__all__ = [
    "COMBINERS", "RULES", "Memory", "Step", "apply_all", "apply_bags", "apply_gradient", "apply_planned", "apply_rows",
    "check_betas", "check_count", "check_number", "new_slots", "slot_dtype", "slot_shapes",
]  # fmt: skip

COMBINERS = tuple(_COMBINERS)
_ACCUMULATE = ("T", "float32")  # in the order of Rounding
_ORDERS = tuple(order.name for order in Order)
_KERNEL = {name: len(kernels()) + i for i, (name, _) in enumerate(update_kernels())}
_CODE = {name: i for i, name in enumerate(dtypes())}
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int32", "int64")
_GOOD = "a writable, contiguous, aligned array"


class Memory(NamedTuple):
    """C-contiguous memory of another library, which the caller keeps alive during the call.

    `device` is None for host memory; else it is a device of `rowgrad.cuda`, and `tensor` is the tensor on it.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    device: Any = None
    tensor: Any = None


class UpdateCall:
    """One call of an update kernel: validate the arrays in the kernel's order, then launch; errors name the call."""

    def __init__(self, kernel: str, **arguments: Any) -> None:
        self.kernel = kernel
        self.arguments = arguments
        self.inputs: list[tuple[str, Any, Memory]] = []  # name, array, validated memory

    def __enter__(self) -> UpdateCall:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not isinstance(error, OpError | MemoryError):
            return
        parts = (f"{k}={_value_text(v)}" for k, v in self.arguments.items() if v is not None)
        if isinstance(error, OpError):
            error.in_call(self.kernel, None, ", ".join(parts))
        else:  # from NumPy; its message has the size
            raise ResourceExhaustedError(f"OOM: {error}").in_call(self.kernel, None, ", ".join(parts)) from error

    @property
    def names(self) -> tuple[str, ...]:
        """The argument names that an error may use, including the arrays of a plan."""
        return (*self.arguments, *(name for name, _, _ in self.inputs))

    def state(self, rule: str, table: Any, slots: Sequence[Any]) -> list[tuple[str, Any, Memory]]:
        """Validate the table and the slots of the rule; return them as (name, array, memory)."""
        rule_slots = rule_named(rule).slots
        if isinstance(slots, tuple | list) and not isinstance(slots, Memory):
            slots = tuple(slots)  # read once: another thread may change a list
        self.table = _check_updated("table", table, None)
        self._check_table(self.table)
        is_list = isinstance(slots, tuple) and not isinstance(slots, Memory)
        if not is_list or len(slots) != len(rule_slots):
            names = ", ".join(s.name for s in rule_slots) or "none"
            count = len(slots) if is_list else type(slots).__name__
            raise make_error("slot_count", value=count, bound=f"{len(rule_slots)}, {names}")
        state = [("table", table, self.table)]
        for slot, array, shape in zip(rule_slots, slots, slot_shapes(rule, self.table.shape), strict=True):
            aval = Memory(0, slot_dtype(self.table.dtype), shape)
            state.append((slot.name, array, _check_updated(slot.name, array, aval)))
        return state

    def table_of(self, table: Any) -> tuple[str, tuple[int, ...]]:
        """Return the dtype and shape of a table that is not updated."""
        if not (is_ndarray(table) or isinstance(table, Memory)):
            raise make_error("not_an_array", argument="table", value=type(table).__name__)
        found = describe(table, "table")
        self._check_table(found)
        return found.dtype, found.shape

    @staticmethod
    def _check_table(table: Memory) -> None:
        if table.dtype not in _FLOATS:
            raise make_error("dtype_not_allowed", argument="table", value=table.dtype, bound=", ".join(_FLOATS))
        if not table.shape:
            raise make_error("updated_unfit", argument="table", value="a scalar", bound="of rank 1 or more, rows first")

    def rows(self, name: str, value: Any) -> Memory:
        """Validate a gradient: the dtype and row shape of the table."""
        grad = self._add_input(name, value)
        if grad.dtype != self.table.dtype:
            raise make_error(
                "dtype_expected", argument=name, value=grad.dtype, bound=self.table.dtype, why=", as the table"
            )
        if not grad.shape or grad.shape[1:] != self.table.shape[1:]:
            raise make_error(
                "rows_match", argument=name, value=shape_text(grad.shape[1:]), bound=shape_text(self.table.shape[1:])
            )
        return grad

    def ids(self, name: str, value: Any) -> Memory:
        """Validate a vector of int32 or int64."""
        if isinstance(value, list | tuple) and not isinstance(value, Memory):
            value = np.zeros(0, np.int64) if len(value) == 0 else plain_array(value, name)
        ids = self._add_input(name, value)
        if ids.dtype not in _INTEGERS:
            raise make_error("dtype_not_allowed", argument=name, value=ids.dtype, bound=", ".join(_INTEGERS))
        if len(ids.shape) != 1:
            raise make_error("should_be_vector", argument=name)
        return ids

    def weights(self, value: Any, ids: int) -> None:
        """Validate weights, if given: one per id, of any float dtype."""
        if value is None:
            return
        weights = self._add_input("weights", value)
        if weights.dtype not in _FLOATS:
            raise make_error("dtype_not_allowed", argument="weights", value=weights.dtype, bound=", ".join(_FLOATS))
        if weights.shape != (ids,):
            raise make_error("weights_match", value=shape_text(weights.shape), bound=ids)

    def plan(self, parts: Mapping[str, Any]) -> None:
        """Validate dtypes and lengths of a plan's arrays; the kernel validates their values."""
        length = {}
        for name in PLAN[:-1]:
            array = self.ids(name, parts[name])
            length[name] = array.shape[0]
            if name in ("starts", "positions", "counts") and array.dtype != "int64":
                raise make_error("dtype_expected", argument=name, value=array.dtype, bound="int64", why="")
        for name, other in (("starts", "rows"), ("positions", "segments")):
            if length[name] != length[other]:
                raise make_error("lengths_match", argument=name, value=length[name], bound=length[other])
        rows = parts["num_rows"]
        if not isinstance(rows, int | np.integer) or isinstance(rows, bool) or not 0 <= (count := int(rows)) < 1 << 63:
            raise make_error("count_unfit", argument="num_rows", value=value_text(rows), bound=0)
        self._add_input("num_rows", np.array(count, np.int64))

    def prepare(
        self, state: list[tuple[str, Any, Memory]], rule: str, step: Step, constants: Sequence[int] = ()
    ) -> Callable[[], None]:
        """Validate the step and that updated arrays do not overlap; return a function that runs the kernel."""
        if not isinstance(step, Step):
            raise make_error("number_unfit", argument="step", value=type(step).__name__, bound="an optim.Step")
        numbers = (int(step.lazy), int(step.stochastic_rounding), int(step.seed), int(step.step))
        attrs = [rule_named(rule).number, self.table.shape[0], *numbers, *constants]
        scalars = np.array(step.numbers(), np.float64)
        if scalars.shape != (len(NUMBERS),):
            raise make_error(
                "number_unfit", argument="step", value=f"{scalars.size} numbers", bound=f"{len(NUMBERS)} numbers"
            )
        check_range(rule, scalars.tolist(), slot_dtype(self.table.dtype))
        # No user code runs from here on: read the arrays again, and compare with what was validated.
        state, self.inputs = _reread(state, written=True), _reread(self.inputs)
        for name, _, memory in state:
            for other, _, second in (*self.inputs, *(s for s in state if s[0] != name)):
                if _overlap(memory, second):
                    raise make_error("updated_overlaps", argument=name, value=other)
        if self.table.device is None:
            self._add_input("numbers", scalars)
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
                raise make_error(key, has=self.names, position=position, value=value, bound=bound)

    def _add_input(self, name: str, value: Any) -> Memory:
        if not isinstance(value, Memory):
            array = canonical(plain_array(value, name), name)
            if not (is_ndarray(value) and (array is value or array.base is not None)):
                value = array
            memory = describe(array)
        else:
            memory = describe(value, name)
        if memory.dtype not in _CODE:
            raise make_error("not_an_array", argument=name, value=f"an array of {memory.dtype}")
        self.inputs.append((name, value, memory))
        return memory


def _check_updated(name: str, value: Any, expected: Memory | None) -> Memory:
    """Validate an array that is updated in place: it cannot be converted."""
    if is_masked(value):
        raise make_error("updated_unfit", argument=name, value="a masked array, whose mask would be lost", bound=_GOOD)
    if is_ndarray(value):
        value = base_view(value)
        if not (value.flags.carray and is_aligned(value)):
            raise make_error("updated_unfit", argument=name, value=_array_text(value), bound=_GOOD)
    elif not isinstance(value, Memory):
        raise make_error("updated_unfit", argument=name, value=type(value).__name__, bound="an array")
    memory = describe(value, name)
    if expected is not None and (memory.dtype, memory.shape) != (expected.dtype, expected.shape):
        raise make_error(
            "updated_unfit",
            argument=name,
            value=f"{memory.dtype}{shape_text(memory.shape)}",
            bound=f"{expected.dtype}{shape_text(expected.shape)}",
        )
    return memory


def describe(value: Array | Memory, name: str = "") -> Memory:
    """Return the address, dtype and shape of an array; `name` is for errors."""
    if isinstance(value, Memory):
        _check_memory(value, name)
        return value
    view = base_view(value)
    dtype = aval_of(view).dtype
    if dtype == "string" and view.dtype.kind not in "OSUT":
        dtype = str(view.dtype)  # of another byte order, or not a dtype of the catalogue
    return Memory(view.__array_interface__["data"][0], dtype, view.shape)


def _check_memory(memory: Memory, name: str) -> None:
    """Raise for invalid fields: kernels do not validate them."""
    address, dtype, shape = memory[:3]
    if not isinstance(dtype, str):
        raise make_error("value_unfit", argument=f"dtype of {name}", value=value_text(dtype), bound="a str")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise make_error("value_unfit", argument=f"shape of {name}", value=value_text(shape), bound="a tuple of sizes")
    if dtype not in NUMPY_DTYPE:
        return  # the allowed dtypes are checked per argument
    size, width = math.prod(shape), NUMPY_DTYPE[dtype].itemsize
    if type(address) is not int or address < 0 or address + size * width >= 1 << 64:
        raise make_error("value_unfit", argument=f"address of {name}", value=value_text(address), bound="an address")
    if memory.device is None and size and (address == 0 or address % width):
        bound = f"a multiple of {width} above 0"
        raise make_error("value_unfit", argument=f"address of {name}", value=address, bound=bound)


def _reread(arrays: Sequence[tuple[str, Any, Memory]], written: bool = False) -> list[tuple[str, Any, Memory]]:
    """Return the arrays with their current memory; raise if user code changed one after it was validated."""
    current: list[tuple[str, Any, Memory]] = []
    for name, value, checked in arrays:
        if isinstance(value, Memory):
            current.append((name, value, checked))
            continue
        view = base_view(value)
        memory = describe(view)
        if memory[1:] != checked[1:] or not (view.flags.carray if written else view.flags.c_contiguous):
            raise make_error("argument_changed", argument=name)
        current.append((name, view, memory))
    return current


def _overlap(a: Memory, b: Memory) -> bool:
    return a.address < b.address + _bytes(b) and b.address < a.address + _bytes(a)


def _bytes(memory: Memory) -> int:
    return math.prod(memory.shape) * NUMPY_DTYPE[memory.dtype].itemsize


def _raw(arrays: Sequence[tuple[str, Any, Memory]]) -> tuple[tuple[Any, ...], bytes]:
    """Return the addresses and shapes of arrays, and their dtype codes."""
    return tuple((m.address, *m.shape) for _, _, m in arrays), bytes(_CODE[m.dtype] for _, _, m in arrays)


def _array_text(array: Array) -> str:
    state = "" if array.flags.writeable else "read-only "
    return f"{state}{'' if array.flags.c_contiguous else 'strided '}{array.dtype}{shape_text(array.shape)}"


def _value_text(value: Any) -> str:
    try:
        dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    except Exception:  # user code may raise anything
        return type(value).__name__
    return f"{dtype}{shape_text(shape)}" if isinstance(shape, tuple) else type(value).__name__


# -- Public functions -------------------------------------------------------------------------------------------------


def new_slots(rule: str, table: Array | Memory, initial: float | None = None) -> tuple[Array, ...]:
    """Allocate the slots of a table before the first step.

    Args:
        rule: The name of an optimizer rule, a key of `RULES`.
        table: The table; only its dtype and shape are read.
        initial: The value of slots that do not always start as zeros. By default that of the rule: 0.1 for FTRL, which
            divides by a power of its accumulator, and 0 for all others.

    Returns:
        The slots of the rule, in its order.

    Raises:
        OpError: If the rule is unknown, or the table or `initial` is invalid.
        ResourceExhaustedError: If there is not enough memory.

    >>> import numpy as np
    >>> from rowgrad import optim
    >>> [slot.shape for slot in optim.new_slots("adam", np.ones((4, 2), np.float32))]
    [(4, 2), (4, 2)]
    """
    with UpdateCall("new_slots", table=table, initial=initial) as call:
        dtype, shape = call.table_of(table)
        if initial is None:
            initial = rule_named(rule).state_defaults.get("initial_accumulator_value", 0.0)
        check_number("initial", initial, least=0.0)  # rules take the square root
        slot = NUMPY_DTYPE[slot_dtype(dtype)]
        with np.errstate(over="ignore"):
            start = slot.type(initial)
        if not np.isfinite(start):
            raise make_error(
                "number_unfit", argument="initial", value=repr(initial), bound=f"a number that fits {slot}"
            )
        shapes = slot_shapes(rule, shape)
        for aval in (Aval(slot_dtype(dtype), shape) for shape in shapes):
            check_size(aval)
        named = zip(rule_named(rule).slots, shapes, strict=True)
        return tuple(np.full(shape, 0 if s.zeros else start, slot) for s, shape in named)


def apply_rows(
    rule: str, table: Array | Memory, slots: Sequence[Array | Memory], grad: Any, row_ids: Any, step: Step
) -> None:
    """Apply one optimizer step to some rows of a table, in place.

    Args:
        rule: The name of an optimizer rule, a key of `RULES`.
        table: The weights, updated in place; rows first.
        slots: The rule's state, updated in place; see `new_slots`.
        grad: The gradient rows; row k belongs to row `row_ids[k]` of the table.
        row_ids: Strictly ascending row numbers, int32 or int64.
        step: The numbers of the step.

    Raises:
        OpError: If an argument is invalid; nothing has been written then.

    >>> import numpy as np
    >>> from rowgrad import optim
    >>> table = np.ones((4, 2), np.float32)
    >>> optim.apply_rows("sgd", table, (), np.ones((2, 2), np.float32), [0, 3], optim.Step(lr=0.5))
    >>> table[:, 0].tolist()
    [0.5, 1.0, 1.0, 0.5]
    """
    prepare_rows(rule, table, slots, grad, row_ids, step)()


def prepare_rows(
    rule: str,
    table: Array | Memory,
    slots: Sequence[Array | Memory],
    grad: Any,
    row_ids: Any,
    step: Step,
    count: Memory | None = None,
) -> Callable[[], None]:
    """Validate the arguments of `apply_rows`; return a function that runs the kernel.

    `count`: the number of rows, if only the device of the memory knows it.
    """
    with UpdateCall("apply_rows", table=table, grad=grad, row_ids=row_ids) as call:
        state = call.state(rule, table, slots)
        grads, ids = call.rows("grad", grad), call.ids("row_ids", row_ids)
        if ids.shape[0] != grads.shape[0]:
            raise make_error("lengths_match", argument="row_ids", value=ids.shape[0], bound=grads.shape[0])
        if count is not None:
            call.ids("count", count)
        return call.prepare(state, rule, step)


def apply_all(rule: str, table: Array | Memory, slots: Sequence[Array | Memory], grad: Any, step: Step) -> None:
    """Apply one optimizer step to all rows of a table, in place.

    Args:
        rule: The name of an optimizer rule, a key of `RULES`.
        table: The weights, updated in place; rows first.
        slots: The rule's state, updated in place; see `new_slots`.
        grad: The gradient, with the dtype and shape of the table.
        step: The numbers of the step.

    Raises:
        OpError: If an argument is invalid; nothing has been written then.

    >>> import numpy as np
    >>> from rowgrad import optim
    >>> table, slots = np.ones((2, 1)), (np.zeros((2, 1)),)
    >>> optim.apply_all("adagrad", table, slots, np.array([[3.0], [4.0]]), optim.Step(lr=0.5, eps=0.0))
    >>> table.ravel().tolist(), slots[0].ravel().tolist()
    ([0.5, 0.5], [9.0, 16.0])
    """
    prepare_all(rule, table, slots, grad, step)()


def prepare_all(
    rule: str, table: Array | Memory, slots: Sequence[Array | Memory], grad: Any, step: Step
) -> Callable[[], None]:
    """Validate the arguments of `apply_all`; return a function that runs the kernel."""
    with UpdateCall("apply_all", table=table, grad=grad) as call:
        state = call.state(rule, table, slots)
        grads = call.rows("grad", grad)
        if grads.shape != call.table.shape:
            raise make_error(
                "same_shape", argument="grad", value=shape_text(grads.shape), bound=shape_text(call.table.shape)
            )
        return call.prepare(state, rule, step)


def apply_gradient(rule: str, table: Array | Memory, slots: Sequence[Array | Memory], grad: Any, step: Step) -> None:
    """Apply one optimizer step with a gradient that `vjp` returned, in place.

    Gradient rows with equal indices are summed in their order before the step.

    Args:
        rule: The name of an optimizer rule, a key of `RULES`.
        table: The weights, updated in place; rows first.
        slots: The rule's state, updated in place; see `new_slots`.
        grad: `IndexedRows` in any order, or a dense gradient with the shape of the table.
        step: The numbers of the step.

    Raises:
        OpError: If an argument is invalid; nothing has been written then.

    >>> import numpy as np, rowgrad as rg
    >>> from rowgrad import optim
    >>> table = np.ones((4, 1), np.float32)
    >>> rows = rg.IndexedRows(np.array([[1], [2], [4]], np.float32), np.array([3, 0, 3]), num_rows=4)
    >>> optim.apply_gradient("sgd", table, (), rows, optim.Step(lr=1.0))
    >>> table.ravel().tolist()
    [-1.0, 1.0, 1.0, -4.0]
    """
    if not isinstance(grad, IndexedRows):
        return apply_all(rule, table, slots, grad, step)
    if not isinstance(grad.num_rows, int | np.integer):
        raise make_error("count_unfit", argument="num_rows", value=value_text(grad.num_rows), bound=0).in_call(
            "apply_gradient", None, "IndexedRows"
        )
    if not hasattr(grad.values, "shape"):
        raise make_error("not_an_array", argument="grad", value=f"IndexedRows of {type(grad.values).__name__}").in_call(
            "apply_gradient", None, "IndexedRows"
        )
    shape = tuple(getattr(table, "shape", ()))  # another type raises below
    if shape and shape != grad.shape:
        raise make_error("same_shape", argument="grad", value=shape_text(grad.shape), bound=shape_text(shape)).in_call(
            "apply_gradient", None, f"table of shape {shape_text(shape)}, IndexedRows of shape {shape_text(grad.shape)}"
        )
    with UpdateCall("apply_gradient", table=table):
        ids = plain_array(grad.indices, "indices")
    if ids.ndim != 1 or grad.values.shape[:1] != ids.shape:
        raise make_error(
            "same_shape",
            argument="indices",
            value=shape_text(ids.shape),
            bound=shape_text(tuple(grad.values.shape[:1])),
        ).in_call("apply_gradient", None, f"IndexedRows of values {shape_text(tuple(grad.values.shape))}")
    if grad.is_unique:
        return apply_rows(rule, table, slots, grad.values, grad.indices, step)
    return apply_bags(rule, table, slots, grad.values, grad.indices, np.arange(len(ids)), step)


def apply_bags(
    rule: str,
    table: Array | Memory,
    slots: Sequence[Array | Memory],
    grad: Any,
    indices: Any,
    segment_ids: Any,
    step: Step,
    *,
    combiner: str = "sum",
    weights: Any = None,
    accumulate: str = "float32",
    order: str = "sequential",
) -> None:
    """Apply one optimizer step with the gradient of bags, in place.

    The result has the same bits as `SparseSegment{Sum,Mean,SqrtN}GradV2` followed by `apply_rows`, or with weights
    `WeightedSparseSegment*`. The gradient of the table is not stored: a few rows are summed at a time and stepped.

    Args:
        rule: The name of an optimizer rule, a key of `RULES`.
        table: The weights, updated in place; rows first.
        slots: The rule's state, updated in place; see `new_slots`.
        grad: The gradient of the bags, one row per bag.
        indices: The table row of each id.
        segment_ids: The bag of each id.
        step: The numbers of the step.
        combiner: "sum", "mean" or "sqrtn".
        weights: The weight of each id; None: unweighted bags.
        accumulate: How weighted 16-bit floats are summed: in "float32" with one rounding, or in "T", the table's dtype.
        order: The summation order, "sequential" or "blocked"; see docs/reference/orders.md.

    Raises:
        OpError: If an argument is invalid; nothing has been written then.

    >>> import numpy as np
    >>> from rowgrad import optim
    >>> table, grad = np.ones((4, 1), np.float32), np.array([[2.0], [4.0]], np.float32)
    >>> optim.apply_bags("sgd", table, (), grad, [3, 0, 3], [0, 0, 1], optim.Step(lr=0.5), combiner="mean")
    >>> table.ravel().tolist()
    [0.5, 1.0, 1.0, -1.5]
    """
    options = {"combiner": combiner, "weights": weights, "accumulate": accumulate, "order": order}
    prepare_bags(rule, table, slots, grad, indices, segment_ids, step, **options)()


def prepare_bags(
    rule: str,
    table: Array | Memory,
    slots: Sequence[Array | Memory],
    grad: Any,
    indices: Any,
    segment_ids: Any,
    step: Step,
    *,
    weights: Any = None,
    **options: Any,
) -> Callable[[], None]:
    """Validate the arguments of `apply_bags`; return a function that runs the kernel."""
    with UpdateCall(
        "apply_bags", table=table, grad=grad, indices=indices, segment_ids=segment_ids, weights=weights
    ) as call:
        state = call.state(rule, table, slots)
        call.rows("grad", grad)
        ids, segments = call.ids("indices", indices), call.ids("segment_ids", segment_ids)
        if segments.shape != ids.shape:
            raise make_error("segments_match_indices", value=segments.shape[0], bound=ids.shape[0])
        call.weights(weights, ids.shape[0])
        return call.prepare(state, rule, step, _bag_constants(weights, **options))


def apply_planned(
    rule: str,
    table: Array | Memory,
    slots: Sequence[Array | Memory],
    grad: Any,
    plan: Any,
    step: Step,
    *,
    combiner: str = "sum",
    weights: Any = None,
    accumulate: str = "float32",
    order: str = "sequential",
) -> None:
    """Apply one optimizer step with the gradient of bags, like `apply_bags` and with the same bits, from a `Plan`.

    Args:
        rule: The name of an optimizer rule, a key of `RULES`.
        table: The weights, updated in place; rows first.
        slots: The rule's state, updated in place; see `new_slots`.
        grad: The gradient of the bags, one row per bag.
        plan: The plan of the ids.
        step: The numbers of the step.
        combiner: "sum", "mean" or "sqrtn".
        weights: The weight of each id, in the order of the batch; None: unweighted bags.
        accumulate: As in `apply_bags`.
        order: As in `apply_bags`.

    Raises:
        OpError: If an argument is invalid; nothing has been written then.

    >>> import numpy as np, rowgrad as rg
    >>> from rowgrad import optim
    >>> table, plan = np.ones((4, 1), np.float32), rg.Plan([3, 0, 3], [0, 0, 1], num_rows=4)
    >>> optim.apply_planned("sgd", table, (), np.ones((2, 1), np.float32), plan, optim.Step(lr=0.5))
    >>> table.ravel().tolist()
    [0.5, 1.0, 1.0, 0.0]
    """
    options = {"combiner": combiner, "weights": weights, "accumulate": accumulate, "order": order}
    prepare_planned(rule, table, slots, grad, plan, step, **options)()


def prepare_planned(
    rule: str,
    table: Array | Memory,
    slots: Sequence[Array | Memory],
    grad: Any,
    plan: Any,
    step: Step,
    *,
    weights: Any = None,
    **options: Any,
) -> Callable[[], None]:
    """Validate the arguments of `apply_planned`; return a function that runs the kernel."""
    with UpdateCall("apply_planned", table=table, grad=grad, plan=plan, weights=weights) as call:
        state = call.state(rule, table, slots)
        call.rows("grad", grad)
        parts: dict[str, Any] = {name: getattr(plan, name, None) for name in PLAN}  # read once: properties may change
        if any(part is None for part in parts.values()):
            raise make_error("not_a_plan", value=type(plan).__name__)
        for name in PLAN[:-1]:
            if hasattr(parts[name], "__array__"):
                parts[name] = plain_array(parts[name], name)
            if len(getattr(parts[name], "shape", ())) != 1:
                raise make_error("should_be_vector", argument=name)
        call.weights(weights, parts["segments"].shape[0])
        call.plan(parts)
        return call.prepare(state, rule, step, _bag_constants(weights, **options))


def _bag_constants(
    weights: Any, combiner: str = "sum", accumulate: str = "float32", order: str = "sequential"
) -> list[int]:
    return [
        _choice_index("combiner", combiner, COMBINERS),
        int(weights is not None),
        _choice_index("accumulate", accumulate, _ACCUMULATE),
        _choice_index("order", order, _ORDERS),
    ]


def _choice_index(argument: str, value: Any, choices: tuple[str, ...]) -> int:
    if not isinstance(value, str) or value not in choices:
        raise unknown_option(argument, value, choices)
    return choices.index(value)
