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
import rowgrad.torch  # noqa: F401  both runners are loaded before anything is timed
from jax_arrays import to_jax, x64
from rowgrad import errors
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad._core import faults
from rowgrad._runtime.arrays import NUMPY_DTYPE, aval_of, canonical
from rowgrad.errors import OpError
from rowgrad.graph import Block, ClientSession, End, Page, check
from rowgrad.raw_ops import OPS
from rowgrad.studio import verbs
from rowgrad.studio.studio import Studio
from rowgrad.torch.tensors import NAME

Arguments = dict[str, Any]
_THE_BLOCK = "the_block"


class Refusal(NamedTuple):
    """An error of the library: its class and words, and the op and argument it names."""

    kind: str
    message: str
    op: str | None = None
    argument: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


Outcome = tuple[np.ndarray, ...] | Refusal


class Runner(NamedTuple):
    """How a call is made. `speaks` says whether a call can be made there; its answer is as NumPy has it."""

    name: str
    call: Callable[[Op, Arguments, Mapping[str, Any]], Outcome]
    speaks: Callable[[Op, Arguments], bool]


def outcome(runner: Runner, op: Op, arguments: Arguments, attrs: Mapping[str, Any] | None = None) -> Outcome | None:
    """What comes of a call; None where it cannot be made there. Any other exception is a fault, and is raised."""
    if not runner.speaks(op, arguments):
        return None
    try:
        return runner.call(op, arguments, attrs or {})
    except OpError as error:
        return refusal_of(error)
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        return Refusal(type(error).__name__, str(error), *_named(op, str(error)))


def refusal_of(error: OpError) -> Refusal:
    return Refusal(type(error).__name__, error.message, error.op, error.argument)


def _named(op: Op, text: str) -> tuple[str | None, str | None]:
    """The op and the argument that a plain error's words name."""
    argument = next((a.name for a in op.inputs if re.search(rf"\b{a.name}\b", text)), None)
    return (op.name if op.name in text else None), argument


def several(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, tuple) else (outputs,)


def formed(op: Op, arguments: Arguments, form: Callable[[Any], Any]) -> Arguments:
    """Every argument, or item of an argument that is a list of arrays, in another form."""
    made = {}
    for arg in op.inputs:
        value = arguments[arg.name]
        is_list = arg.many and isinstance(value, list | tuple)
        made[arg.name] = [form(v) for v in value] if is_list else form(value)
    return made


# -- NumPy -----------------------------------------------------------------------------------------------------------


def _on_numpy(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    return several(OPS[op.name](**arguments, **attrs))


# -- torch -----------------------------------------------------------------------------------------------------------


def tensor_of(value: Any) -> Any:
    """An array as a tensor on the same memory where torch can have it; anything else as it is."""
    if not isinstance(value, np.ndarray | np.generic) or isinstance(value, np.ma.MaskedArray):
        return value
    array = np.asarray(value)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.copy().view(np.uint16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError):  # no such dtype, byte order or stride
        return value


def from_tensor(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _has(kind: Any, form: Callable[[Any], Any]) -> Callable[[Op, Arguments], bool]:
    """Whether an argument becomes a value of a kind: only then is the call that runner's."""

    def speaks(op: Op, arguments: Arguments) -> bool:
        made = formed(op, arguments, form)
        lists = {a.name for a in op.inputs if a.many}
        return any(
            isinstance(v, kind) for k, x in made.items() for v in (x if k in lists and isinstance(x, list) else [x])
        )

    return speaks


def _on_torch(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    given = formed(op, arguments, tensor_of)
    return tuple(map(from_tensor, several(OPS[op.name](**given, **attrs))))


def _recorded_on_torch(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    """As above, with a gradient asked for of all that may have one; and the way back is gone, too."""
    given = formed(op, arguments, tensor_of)
    leaves = []
    for name in op.differentiable:
        listed = isinstance(given[name], list)
        items = [_leaf(v) for v in (given[name] if listed else [given[name]])]
        leaves += [v for v in items if isinstance(v, torch.Tensor) and v.requires_grad]
        given[name] = items if listed else items[0]
    outputs = several(OPS[op.name](**given, **attrs))
    smooth = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    if leaves and smooth:
        # The way back may refuse what the way there did not look at, such as a plan it had no use for.
        with suppress(OpError):
            torch.autograd.grad(smooth, leaves, [torch.ones_like(o) for o in smooth], allow_unused=True)
    return tuple(map(from_tensor, outputs))


def _on_meta(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    """On meta tensors: the shapes and dtypes that torch infers for the results, as arrays of zeros."""
    outputs = several(OPS[op.name](**_without_elements(op, arguments), **attrs))
    assert all(o.is_meta for o in outputs)
    return tuple(np.broadcast_to(np.zeros((), NUMPY_DTYPE[NAME[o.dtype]]), tuple(o.shape)) for o in outputs)


def _without_elements(op: Op, arguments: Arguments) -> Arguments:
    hosts = {a.name: arguments[a.name] for a in op.inputs if a.host}
    return formed(op, arguments, lambda v: v.to("meta") if isinstance(v := tensor_of(v), torch.Tensor) else v) | hosts


def _has_meta(op: Op, arguments: Arguments) -> bool:
    made = _without_elements(op, arguments)
    return any(isinstance(v, torch.Tensor) and v.is_meta for x in made.values() for v in _items(x))


def _items(value: Any) -> Any:
    return value if isinstance(value, list) else (value,)


def _leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex):
        return value.detach().requires_grad_()
    return value


# -- JAX -------------------------------------------------------------------------------------------------------------


def jax_of(value: Any) -> Any:
    """An array as JAX's where JAX can have it; anything else as it is."""
    if not isinstance(value, np.ndarray | np.generic) or isinstance(value, np.ma.MaskedArray):
        return value
    array = np.asarray(value)
    if not array.dtype.isnative or array.dtype.kind in "SUOTmM":
        return value
    try:
        made = to_jax(array)
    except TypeError:  # no such dtype
        return value
    return value if made is None else made


def _on_jax(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    with x64():
        given = formed(op, arguments, jax_of)
        return tuple(map(np.asarray, several(OPS[op.name](**given, **attrs))))


_XLA_TEXT = re.compile(r"(\w+Error): (\w+): (.*)\nin (\w+)\(")
_KERNEL_MESSAGES = {
    fault: re.compile(r"-?\d+".join(map(re.escape, re.split(r"\{\w+\}", errors.MESSAGES[fault].text))))
    for fault in faults()
    if fault != "none"
}


def _split(op: Op, text: str) -> tuple[str, str | None]:
    """The message at the start of the text of a kernel's error, and the argument, which the text must name."""
    found = {key: match[0] for key, pattern in _KERNEL_MESSAGES.items() if (match := pattern.match(text))}
    key = max(found, key=lambda k: len(found[k]))
    argument = next((a for a in errors.MESSAGES[key].arguments if a in op.input_names), None)
    assert argument is None or re.search(rf"\b{argument}\b", text), text
    return found[key], argument


def _in_jit(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    """Compiled: sizes are known, all else is traced. What XLA reports is read back from its words."""
    with x64():
        traced, others = _to_trace(op, arguments, attrs)
        try:
            outputs = jax.jit(lambda given: several(OPS[op.name](**given, **others)))(traced)
            return tuple(map(np.asarray, jax.block_until_ready(outputs)))
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith("RESOURCE_EXHAUSTED"):  # XLA finds memory for results before a kernel looks
                return Refusal("ResourceExhaustedError", str(error), op.name)
            found = _XLA_TEXT.search(str(error))
            if found is None:
                raise
            kind, name, text, noted = found.groups()
            assert issubclass(getattr(errors, kind), OpError)
            assert noted == name
            message, argument = _split(op, text)
            return Refusal(kind, message, name, argument)


def _to_trace(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> tuple[Arguments, Arguments]:
    """The arrays that JAX traces, and all else."""
    arrays = {a.name: jax_of(arguments[a.name]) for a in op.inputs if not a.host and not a.many}
    traced = {k: v for k, v in arrays.items() if isinstance(v, jax.Array)}
    return traced, {k: v for k, v in arguments.items() if k not in traced} | dict(attrs)


def _traced(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    """Traced only: the shapes and dtypes that a compiler infers for the results, as arrays of zeros.

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
                _TRACES[key] = refusal_of(error)
        return _TRACES[key]


_TRACES: dict[Any, Outcome] = {}


def _shapes_of(op: Op, shapes: Arguments, others: Arguments) -> Outcome:
    outputs = jax.eval_shape(lambda given: several(OPS[op.name](**given, **others)), shapes)
    return tuple(np.broadcast_to(np.zeros((), o.dtype), o.shape) for o in outputs)


def _frozen(value: Any) -> Any:
    """A value that is equal to another only if no op can tell them apart; a TypeError where nobody can say."""
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.dtype.str, value.shape, value.tobytes()
    if type(value) in (list, tuple):
        return type(value), *map(_frozen, value)
    if type(value) in (bool, int, float, str):
        return type(value), repr(value) if type(value) is float else value
    raise TypeError


def _on_jax_32(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    with x64(False):
        return tuple(map(np.asarray, several(OPS[op.name](**formed(op, arguments, jax_of), **attrs))))


def _compiles(op: Op, arguments: Arguments) -> bool:
    with x64():
        return any(isinstance(jax_of(arguments[a.name]), jax.Array) for a in op.inputs if not a.host and not a.many)


def _speaks_jax(op: Op, arguments: Arguments) -> bool:
    with x64():
        return _has(jax.Array, jax_of)(op, arguments)


def _compiles_kernel(op: Op, arguments: Arguments) -> bool:
    return op.kernel is not None and _compiles(op, arguments)


# -- graphs and Studio -----------------------------------------------------------------------------------------------


def page_of(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Page:
    """A page with the op's block, its arguments typed in, and a block that runs it."""
    block = Block(_THE_BLOCK, op.name, dict(arguments), attrs=dict(attrs))
    wires = {"fetch_outputs": [End(_THE_BLOCK, o.name) for o in op.outputs]}
    return Page("hostile", [block, Block("run", "ClientSession", wires=wires)])


def _on_a_page(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    checked = check(page_of(op, arguments, attrs))
    for error in checked.errors.values():
        raise error
    values = ClientSession(checked.scope).run_block("run")
    return tuple(values.values())


def _fed(op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
    """The arrays come by placeholders that say nothing of their shapes, so that only the run can judge them."""
    blocks, wires, feeds = [], {}, {}
    for arg in op.inputs:
        value = arguments[arg.name]
        dtype = None if arg.many else _dtype_fed(value)
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


def _dtype_fed(value: Any) -> str | None:
    """What a placeholder for an array says; None for all that none takes."""
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        return None
    try:
        return aval_of(canonical(value, "value")).dtype
    except OpError:
        return None


def _pinned(op: Op, arguments: Arguments) -> bool:
    """A pin that is given None is given nothing; one that takes a list and is given one thing has a list of one."""
    lists = (arguments[a.name] for a in op.inputs if a.many)
    return all(v is not None for v in arguments.values()) and all(isinstance(v, list | tuple) for v in lists)


class StudioDesk:
    """A studio in a folder of its own; pages are put there, run and looked at by its verbs."""

    def __init__(self, root: Path) -> None:
        self.studio = Studio(root)
        self.count = 0

    def ask(self, verb: str, **given: Any) -> Any:
        return verbs.answer(self.studio, verb, given)

    def call(self, op: Op, arguments: Arguments, attrs: Mapping[str, Any]) -> Outcome:
        """Saved as a browser saves, run as it runs; the answer is what the session holds for the page's windows."""
        self.count += 1
        name = f"page{self.count}"
        self.ask("new", name=name, page=self.studio.pool.write_page(page_of(op, arguments, attrs)))
        state = self.ask("run", name=name)
        while state["phase"] == "running":
            state = self.ask("state", name=name)
        error = state["error"]
        if error is not None:
            assert error["block"] == _THE_BLOCK, error
            named = re.match(r"\w+", error["text"])
            return Refusal(error["kind"], error["message"], named[0] if named else None, error["pin"])
        session = self.studio.runs.session_of(name)
        assert session is not None
        return tuple(session.result(_THE_BLOCK, o.name) for o in op.outputs)


@contextmanager
def studio_runner() -> Iterator[Runner]:
    with tempfile.TemporaryDirectory() as folder:
        desk = StudioDesk(Path(folder))
        try:
            yield Runner("studio", desk.call, _pinned)
        finally:
            desk.studio.close()


NUMPY = Runner("numpy", _on_numpy, lambda op, arguments: True)
TORCH = Runner("torch", _on_torch, _has(torch.Tensor, tensor_of))
TORCH_RECORDED = Runner("torch_autograd", _recorded_on_torch, _has(torch.Tensor, tensor_of))
TORCH_META = Runner("torch_meta", _on_meta, _has_meta)
JAX = Runner("jax", _on_jax, _speaks_jax)
JAX_JIT = Runner("jax_jit", _in_jit, _compiles_kernel)
JAX_TRACED = Runner("jax_traced", _traced, _compiles)
JAX_32 = Runner("jax_32", _on_jax_32, _speaks_jax)
PAGE = Runner("page", _on_a_page, _pinned)
FED = Runner("page_fed", _fed, _pinned)
IN_PROCESS = (NUMPY, TORCH, TORCH_RECORDED, JAX, PAGE, FED)


@cache
def computed_ops() -> tuple[Op, ...]:
    return tuple(op for op in CATALOG.values() if op.layer != "graph")
