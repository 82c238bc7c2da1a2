"""Make one call in every runner, and return its result or its error.

A call is an op with NumPy arguments. A runner converts them to its own types: tensors, JAX arrays, values of a block. A
value without such a type (strings in torch, a list, None) stays as it is where the runner accepts other types beside
its own; otherwise the call cannot be expressed in that runner.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import torch

import rowgrad.jax
import rowgrad.torch  # noqa: F401  both runners are loaded before any timing
from jax_arrays import to_jax, x64
from rowgrad import errors
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad._core import faults
from rowgrad._runtime.arrays import NUMPY_DTYPE, aval_of, canonical
from rowgrad.errors import OpError
from rowgrad.graph import Block, ClientSession, End, Page, check
from rowgrad.graph.inputs import typed_value
from rowgrad.raw_ops import OPS
from rowgrad.studio import verbs
from rowgrad.studio.studio import Studio
from rowgrad.torch.tensors import NAME

Arguments = dict[str, Any]
_THE_BLOCK = "the_block"


class Rejection(NamedTuple):
    """An error of the library: its class and message, and the op and argument it names.

    `explanation` is the message with the facts that it does not state; Studio shows only that.
    """

    kind: str
    message: str
    op: str | None = None
    argument: str | None = None
    explanation: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


Outcome = tuple[np.ndarray, ...] | Rejection


class Runner(NamedTuple):
    """How a call is made. `supports` tells whether a call can be expressed; results are NumPy arrays."""

    name: str
    call: Callable[[Op, Arguments, Mapping[str, Any]], Outcome]
    supports: Callable[[Op, Arguments], bool]


def outcome(runner: Runner, op: Op, arguments: Arguments, attrs: Mapping[str, Any] | None = None) -> Outcome | None:
    """Return the result or the error of a call; None if the runner cannot express it. Other exceptions are raised."""
    if not runner.supports(op, arguments):
        return None
    try:
        return runner.call(op, arguments, attrs or {})
    except OpError as error:
        return rejection_of(error)
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        return Rejection(type(error).__name__, str(error), *_op_and_argument(op, str(error)))


def rejection_of(error: OpError) -> Rejection:
    return Rejection(type(error).__name__, error.message, error.op, error.argument, error.explanation)


def _op_and_argument(op: Op, text: str) -> tuple[str | None, str | None]:
    """Return the op and the argument that the text of a plain error names."""
    argument = next((a.name for a in op.inputs if re.search(rf"\b{a.name}\b", text)), None)
    return (op.name if op.name in text else None), argument


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, tuple) else (outputs,)


def converted(op: Op, arguments: Arguments, convert: Callable[[Any], Any]) -> Arguments:
    """Return the arguments, and the items of lists of arrays, converted."""
    arguments_ = {}
    for arg in op.inputs:
        value = arguments[arg.name]
        is_list = arg.many and isinstance(value, list | tuple)
        arguments_[arg.name] = [convert(v) for v in value] if is_list else convert(value)
    return arguments_


# -- NumPy -----------------------------------------------------------------------------------------------------------


def _on_numpy(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    return as_tuple(OPS[op.name](**arguments, **attrs))


# -- torch -----------------------------------------------------------------------------------------------------------


def tensor_of(value: Any) -> Any:
    """Return an array as a tensor on the same memory if torch supports it; anything else unchanged."""
    if not isinstance(value, np.ndarray | np.generic) or isinstance(value, np.ma.MaskedArray):
        return value
    array = np.asarray(value)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.copy().view(np.uint16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError):  # unsupported dtype, byte order or stride
        return value


def from_tensor(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _has(kind: Any, convert: Callable[[Any], Any]) -> Callable[[Op, Arguments], bool]:
    """Return a test whether any argument becomes a value of this kind: only then is the call the runner's."""

    def supports(op: Op, arguments: Arguments) -> bool:
        values = converted(op, arguments, convert)
        lists = {a.name for a in op.inputs if a.many}
        return any(
            isinstance(v, kind) for k, x in values.items() for v in (x if k in lists and isinstance(x, list) else [x])
        )

    return supports


def _on_torch(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    tensors = converted(op, arguments, tensor_of)
    return tuple(map(from_tensor, as_tuple(OPS[op.name](**tensors, **attrs))))


def _on_torch_with_autograd(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    """Call with autograd recording all differentiable arguments, then run the backward pass too."""
    tensors = converted(op, arguments, tensor_of)
    leaves = []
    for name in op.differentiable:
        is_list = isinstance(tensors[name], list)
        items = [_leaf(v) for v in (tensors[name] if is_list else [tensors[name]])]
        leaves += [v for v in items if isinstance(v, torch.Tensor) and v.requires_grad]
        tensors[name] = items if is_list else items[0]
    outputs = as_tuple(OPS[op.name](**tensors, **attrs))
    smooth = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    if leaves and smooth:
        # The backward pass may reject what the forward pass did not read, such as an unused plan.
        with suppress(OpError):
            torch.autograd.grad(smooth, leaves, [torch.ones_like(o) for o in smooth], allow_unused=True)
    return tuple(map(from_tensor, outputs))


def _on_meta(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    """Call on meta tensors; return the inferred shapes and dtypes as arrays of zeros."""
    outputs = as_tuple(OPS[op.name](**_without_elements(op, arguments), **attrs))
    assert all(o.is_meta for o in outputs)
    return tuple(np.broadcast_to(np.zeros((), NUMPY_DTYPE[NAME[o.dtype]]), tuple(o.shape)) for o in outputs)


def _without_elements(op: Op, arguments: Arguments) -> Arguments:
    hosts = {a.name: arguments[a.name] for a in op.inputs if a.host}
    return (
        converted(op, arguments, lambda v: v.to("meta") if isinstance(v := tensor_of(v), torch.Tensor) else v) | hosts
    )


def _has_meta(op: Op, arguments: Arguments) -> bool:
    values = _without_elements(op, arguments)
    return any(isinstance(v, torch.Tensor) and v.is_meta for x in values.values() for v in _items(x))


def _items(value: Any) -> Any:
    return value if isinstance(value, list) else (value,)


def _leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex):
        return value.detach().requires_grad_()
    return value


# -- JAX -------------------------------------------------------------------------------------------------------------


def jax_of(value: Any) -> Any:
    """Return an array as a JAX array if JAX supports it; anything else unchanged."""
    if not isinstance(value, np.ndarray | np.generic) or isinstance(value, np.ma.MaskedArray):
        return value
    array = np.asarray(value)
    if not array.dtype.isnative or array.dtype.kind in "SUOTmM":
        return value
    try:
        made = to_jax(array)
    except TypeError:  # unsupported dtype
        return value
    return value if made is None else made


def _on_jax(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    with x64():
        arrays = converted(op, arguments, jax_of)
        return tuple(map(np.asarray, as_tuple(OPS[op.name](**arrays, **attrs))))


_XLA_TEXT = re.compile(r"(\w+Error): (\w+): (.*)\nin (\w+)\(")
_KERNEL_MESSAGES = {
    fault: re.compile(r"-?\d+".join(map(re.escape, re.split(r"\{\w+\}", errors.MESSAGES[fault].text))))
    for fault in faults()
    if fault != "none"
}


def _split(op: Op, text: str) -> tuple[str, str | None]:
    """Return the message at the start of a kernel's error text, and the argument, which the text must name."""
    found = {key: match[0] for key, pattern in _KERNEL_MESSAGES.items() if (match := pattern.match(text))}
    key = max(found, key=lambda k: len(found[k]))
    argument = next((a for a in errors.MESSAGES[key].arguments if a in op.input_names), None)
    assert argument is None or re.search(rf"\b{argument}\b", text), text
    return found[key], argument


def _in_jit(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    """Call compiled, with sizes static and arrays traced. XLA's errors are parsed from their text."""
    with x64():
        traced, others = _to_trace(op, arguments, attrs)
        try:
            outputs = jax.jit(lambda arrays: as_tuple(OPS[op.name](**arrays, **others)))(traced)
            return tuple(map(np.asarray, jax.block_until_ready(outputs)))
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith("RESOURCE_EXHAUSTED"):  # XLA allocates results before a kernel runs
                return Rejection("ResourceExhaustedError", str(error), op.name)
            found = _XLA_TEXT.search(str(error))
            if found is None:
                raise
            kind, name, text, noted = found.groups()
            assert issubclass(getattr(errors, kind), OpError)
            assert noted == name
            message, argument = _split(op, text)
            return Rejection(kind, message, name, argument)


def _to_trace(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> tuple[Arguments, Arguments]:
    """Return the arrays that JAX traces, and all other arguments."""
    arrays = {a.name: jax_of(arguments[a.name]) for a in op.inputs if not a.host and not a.many}
    traced = {k: v for k, v in arrays.items() if isinstance(v, jax.Array)}
    return traced, {k: v for k, v in arguments.items() if k not in traced} | dict(attrs)


def _traced(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    """Only trace the call; return the inferred shapes and dtypes as arrays of zeros.

    Tracers have no values, so calls that differ only in values are traced once.
    """
    with x64():
        traced, others = _to_trace(op, arguments, attrs)
        shapes = {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in traced.items()}
        try:
            key = (op.name, *((k, v.shape, v.dtype) for k, v in traced.items()), *map(_frozen, others.items()))
        except (TypeError, RecursionError):
            return _shapes_of(op, shapes, others)
        if key not in _TRACES:
            try:
                _TRACES[key] = _shapes_of(op, shapes, others)
            except OpError as error:
                _TRACES[key] = rejection_of(error)
        return _TRACES[key]


_TRACES: dict[Any, Outcome] = {}


def _shapes_of(op: Op, shapes: Arguments, others: Arguments) -> Outcome:
    outputs = jax.eval_shape(lambda arrays: as_tuple(OPS[op.name](**arrays, **others)), shapes)
    return tuple(np.broadcast_to(np.zeros((), o.dtype), o.shape) for o in outputs)


def _frozen(value: Any) -> Any:
    """Return a hashable key, equal only for values that no op can tell apart; raise TypeError if unknown."""
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.dtype.str, value.shape, value.tobytes()
    if type(value) in (list, tuple):
        return type(value), *map(_frozen, value)
    if type(value) in (bool, int, float, str):
        return type(value), repr(value) if type(value) is float else value
    raise TypeError


def _on_jax_32(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    with x64(False):
        return tuple(map(np.asarray, as_tuple(OPS[op.name](**converted(op, arguments, jax_of), **attrs))))


def _compiles(op: Op, arguments: Arguments) -> bool:
    with x64():
        return any(isinstance(jax_of(arguments[a.name]), jax.Array) for a in op.inputs if not a.host and not a.many)


def _supports_jax(op: Op, arguments: Arguments) -> bool:
    with x64():
        return _has(jax.Array, jax_of)(op, arguments)


def _compiles_kernel(op: Op, arguments: Arguments) -> bool:
    return op.kernel is not None and _compiles(op, arguments)


# -- graphs and Studio -----------------------------------------------------------------------------------------------


def as_typed(op: Op, arguments: Arguments) -> Arguments:
    """Return the arguments as pins take them: integers that are typed on a pin for floats are floats."""
    return {arg.name: typed_value(op, arg, arguments[arg.name]) for arg in op.inputs}


def page_of(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Page:
    """Return a page with the op's block, its arguments typed in, and a block that runs it."""
    block = Block(_THE_BLOCK, op.name, dict(arguments), attrs=dict(attrs))
    wires = {"fetch_outputs": [End(_THE_BLOCK, o.name) for o in op.outputs]}
    return Page("hostile", [block, Block("run", "ClientSession", wires=wires)])


def _on_a_page(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    checked = check(page_of(op, arguments, attrs))
    for error in checked.errors.values():
        raise error
    values = ClientSession(checked.scope).run_block("run")
    return tuple(values.values())


def _on_a_page_with_feeds(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    """Feed the arrays through placeholders of unknown shape, so that they are validated only at run time."""
    blocks, wires, feeds = [], {}, {}
    for arg in op.inputs:
        value = arguments[arg.name]
        dtype = None if arg.many else _placeholder_dtype(value)
        if dtype is not None:
            blocks.append(Block(f"in_{arg.name}", "Placeholder", attrs={"dtype": dtype}))
            wires[arg.name] = [End(f"in_{arg.name}", "output")]
            feeds[f"in_{arg.name}"] = value
    typed = {k: v for k, v in arguments.items() if k not in wires}
    blocks.append(Block(_THE_BLOCK, op.name, typed, wires, attrs=dict(attrs)))
    fetched = {"fetch_outputs": [End(_THE_BLOCK, o.name) for o in op.outputs]}
    checked = check(Page("fed", [*blocks, Block("run", "ClientSession", wires=fetched)]))
    for error in checked.errors.values():
        raise error
    return tuple(ClientSession(checked.scope).run_block("run", feeds).values())


def _placeholder_dtype(value: Any) -> str | None:
    """Return the dtype of a placeholder for this array; None if a placeholder cannot take it."""
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        return None
    try:
        return aval_of(canonical(value, "value")).dtype
    except OpError:
        return None


def _fits_pins(op: Op, arguments: Arguments) -> bool:
    """Return whether pins can express the arguments: not None, and lists where a pin takes a list."""
    lists = (arguments[a.name] for a in op.inputs if a.many)
    return all(v is not None for v in arguments.values()) and all(isinstance(v, list | tuple) for v in lists)


class StudioDesk:
    """A studio in a temporary folder, driven by its verbs."""

    def __init__(self, root: Path) -> None:
        self.studio = Studio(root)
        self.count = 0

    def send(self, verb: str, **arguments: Any) -> Any:
        return verbs.answer(self.studio, verb, arguments)

    def call(self, op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
        """Save and run a page as a browser does; return the results of its session."""
        self.count += 1
        name = f"page{self.count}"
        self.send("new", name=name, page=self.studio.pool.write_page(page_of(op, arguments, attrs)))
        state = self.send("run", name=name)
        while state["phase"] == "running":
            state = self.send("state", name=name)
        error = state["error"]
        if error is not None:
            assert error["block"] == _THE_BLOCK, error
            name_match = re.match(r"\w+", error["text"])
            shown = error["message"]
            direct = outcome(NUMPY, op, as_typed(op, arguments), attrs)
            is_shown = isinstance(direct, Rejection) and direct.explanation == shown
            message = direct.message if is_shown else shown
            return Rejection(error["kind"], message, name_match[0] if name_match else None, error["pin"], shown)
        session = self.studio.runs.session_of(name)
        assert session is not None
        return tuple(session.result(_THE_BLOCK, o.name) for o in op.outputs)


@contextmanager
def studio_runner() -> Iterator[Runner]:
    with tempfile.TemporaryDirectory() as folder:
        desk = StudioDesk(Path(folder))
        try:
            yield Runner("studio", desk.call, _fits_pins)
        finally:
            desk.studio.close()


NUMPY = Runner("numpy", _on_numpy, lambda op, arguments: True)
TORCH = Runner("torch", _on_torch, _has(torch.Tensor, tensor_of))
TORCH_RECORDED = Runner("torch_autograd", _on_torch_with_autograd, _has(torch.Tensor, tensor_of))
TORCH_META = Runner("torch_meta", _on_meta, _has_meta)
JAX = Runner("jax", _on_jax, _supports_jax)
JAX_JIT = Runner("jax_jit", _in_jit, _compiles_kernel)
JAX_TRACED = Runner("jax_traced", _traced, _compiles)
JAX_32 = Runner("jax_32", _on_jax_32, _supports_jax)
PAGE = Runner("page", _on_a_page, _fits_pins)
FED = Runner("page_fed", _on_a_page_with_feeds, _fits_pins)
IN_PROCESS = (NUMPY, TORCH, TORCH_RECORDED, JAX, PAGE, FED)


@cache
def computed_ops() -> tuple[Op, ...]:
    return tuple(op for op in CATALOG.values() if op.layer != "graph")
