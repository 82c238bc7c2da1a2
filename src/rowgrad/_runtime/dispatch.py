"""Dispatch one call: bind the arguments, choose the runner by their types, run it.

A runner is a module with a function `call(op, arguments, attrs, out) -> tuple of outputs`. An argument's type names it
with `__rowgrad_runner__` (a module name); otherwise the root module of the type is looked up in the entry points of the
group `rowgrad.runners`. Runners are imported on first use.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from .._catalog.spec import CATALOG, PLAN, Op, spread, value_text
from .._hints import did_you_mean
from ..errors import OpError, ResourceExhaustedError, make_error
from .validation import validate_attrs

NUMPY = "rowgrad._runtime.numpy_runner"
PACKAGES = {"torch": "torch", "jax": "jax", "jaxlib": "jax"}  # root module -> extra that installs its runner


def invoke(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Call an op with TensorFlow's argument names, by position or keyword; `name=` appears in errors."""
    name = out = None
    attrs: Mapping[str, Any]
    if not kwargs and len(args) == len(op.input_names):  # most calls
        arguments, attrs = dict(zip(op.input_names, args, strict=True)), op.attrs
    else:
        name, out = kwargs.pop("name", None), kwargs.pop("out", None)
        if "plan" in kwargs:
            op = planned(op, args, kwargs)
        if op.padded and ("size" in kwargs or "fill_id" in kwargs):
            op, args = padded(op, args, kwargs)
        arguments, attrs = bind(op, args, kwargs)
    try:
        if attrs is not op.attrs:
            attrs = validate_attrs(op, attrs)
        flat = spread(op, arguments)[1] if op.has_lists else arguments
        outputs: tuple[Any, ...] = _LOADED[choose_runner(flat)].call(op, arguments, attrs, out)
    except OpError as error:
        error.in_call(op.name, name, describe(op, arguments, attrs))
        raise
    except MemoryError as error:  # from an array library; its message has the size
        exhausted = ResourceExhaustedError(f"OOM: {error}")
        raise exhausted.in_call(op.name, name, describe(op, arguments, attrs)) from error
    return outputs


def planned(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Op:
    """Return the op that takes a plan instead of ids; replace the plan in `kwargs` by its arrays."""
    plan = kwargs.pop("plan")
    if plan is None:
        return op
    if op.padded and (kwargs.pop("size", None), kwargs.pop("fill_id", None)) != (None, None):
        raise TypeError(f"{op.name}: a plan determines the number of rows; pass plan or size, not both")
    if not op.planned:
        raise TypeError(f"{op.name} takes no plan")
    twin = CATALOG[op.planned]
    replaced = [n for n in op.input_names if n not in twin.input_names]
    too_many = len(args) > len(twin.input_names) - len(PLAN) + len(twin.attrs)
    if replaced and (too_many or any(n in kwargs for n in replaced)):
        raise TypeError(f"{op.name}: plan takes the place of {', '.join(replaced)}; pass one or the other")
    parts = {n: getattr(plan, n, None) for n in PLAN}
    if any(part is None for part in parts.values()):
        raise make_error("not_a_plan", value=type(plan).__name__).in_call(op.name, kwargs.get("name"), "")
    kwargs.update(parts)
    return twin


def padded(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Op, tuple[Any, ...]]:
    """Return the op that returns `size` rows, and its positional arguments.

    The default `fill_id` of padding rows is the number of rows: the first id out of range.
    """
    if kwargs.get("size") is None:
        kwargs.pop("size", None)
        if kwargs.pop("fill_id", None) is not None:
            raise TypeError(f"{op.name}: fill_id is the id of padding rows, so it needs size")
        return op, args
    if kwargs.get("fill_id") is None:
        rows = "dense_output_dim0"
        at = op.input_names.index(rows)
        kwargs["fill_id"] = kwargs[rows] if rows in kwargs else args[at] if at < len(args) else 0
    twin = CATALOG[op.padded]
    # Positional attributes follow the inputs of this op, not those of its twin.
    for name, value in zip(op.attrs, args[len(op.inputs) :], strict=False):
        if name in kwargs:
            raise TypeError(f"{op.name} got argument {name!r} twice")
        kwargs[name] = value
    return twin, args[: len(op.inputs)]


def bind(op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the arguments by name in the record's order, and the attributes with defaults."""
    names = op.input_names
    if len(args) > len(names) + len(op.attrs):
        raise TypeError(f"{op.name} takes {len(names) + len(op.attrs)} arguments, got {len(args)}")
    bound = dict(zip((*names, *op.attrs)[: len(args)], args, strict=True))
    for key, value in kwargs.items():
        if key in bound:
            raise TypeError(f"{op.name} got argument {key!r} twice")
        if key not in names and key not in op.attrs:
            known = (*names, *op.attrs)
            hint = did_you_mean(key, (*known, "name", "out"), f"It takes {', '.join(known)}.")
            raise TypeError(f"{op.name} has no argument {key!r}. {hint}")
        bound[key] = value
    missing = [n for n in names if n not in bound]
    if missing:
        raise TypeError(f"{op.name} needs {', '.join(missing)}")
    arguments = {n: bound[n] for n in names}
    if len(bound) == len(names):  # runners recognize by identity that no attribute was passed
        return arguments, op.attrs
    return arguments, {k: bound.get(k, default) for k, default in op.attrs.items()}


def choose_runner(arguments: Mapping[str, Any]) -> str:
    """Return the runner of a call: NumPy's, unless an argument has another."""
    chosen, chosen_for = NUMPY, ""
    for name, value in arguments.items():
        runner = runner_of(type(value))  # a constant for torch.compile, which must not trace the dict lookup
        if runner == NUMPY:
            continue
        if chosen not in (NUMPY, runner):
            libraries = _library_of(type(value)), _library_of(type(arguments[chosen_for]))
            raise make_error("mixed_runners", argument=name, value=libraries[0], other=chosen_for, bound=libraries[1])
        chosen, chosen_for = runner, chosen_for or name
    return chosen


_LOADED: dict[str, Any] = {}
_RUNNER_OF: dict[type, str] = {}

# Imports during calls take this lock, and so does a fork: a child forked during an import would inherit a locked module
# without the thread that unlocks it, and wait forever.
_IMPORTS = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_IMPORTS.acquire, after_in_parent=_IMPORTS.release, after_in_child=_IMPORTS.release)


def import_module(name: str) -> Any:
    """Import a module during a call, so that a fork in another thread waits until the import is complete."""
    with _IMPORTS:
        return importlib.import_module(name)


def runner_of(kind: type) -> str:
    """Return the runner for values of a type, and import it."""
    runner = _RUNNER_OF.get(kind)
    if runner is None:
        with _IMPORTS:  # reading entry points also imports
            runner = _find_runner(kind)
            _LOADED[runner] = importlib.import_module(runner)
        _RUNNER_OF[kind] = runner
    return runner


def load_runner(kind: type) -> Any:
    """Return the runner module for values of a type."""
    return _LOADED[runner_of(kind)]


def is_traced(value: Any) -> bool:
    """Return whether a compiler or transform traces a value, so that it has a shape but no data."""
    check = getattr(load_runner(type(value)), "is_traced", None)
    return check is not None and check(value)


def concrete(value: Any, argument: str) -> Any:
    """Return an array that NumPy can read, for one that the transforms of its library may wrap."""
    unwrap = getattr(load_runner(type(value)), "concrete", None)
    return value if unwrap is None else unwrap(value, argument)


def id_functions(value: Any) -> Any:
    """Return what lookups do with ids in another device's memory; None for an array in host memory."""
    find = getattr(load_runner(type(value)), "id_functions", None)
    return None if find is None else find(value)


def in_host_memory(value: Any) -> Any:
    """Return an array that NumPy can read; a copy if it is in another device's memory."""
    copy = getattr(load_runner(type(value)), "in_host_memory", None)
    return value if copy is None else copy(value)


# Compilers may treat the result as a constant: the runner of a type does not change.
runner_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _find_runner(kind: type) -> str:
    own = getattr(kind, "__rowgrad_runner__", None)
    if isinstance(own, str):
        return own
    # A user's class may derive from a tensor.
    root = next((r for r in _roots(kind) if r in PACKAGES), None)
    if root is None:
        return NUMPY
    for point in entry_points(group="rowgrad.runners"):
        if point.name == PACKAGES[root]:
            return point.value
    raise make_error("no_runner", value=f"{root} arrays", bound=f"no runner named {PACKAGES[root]!r}")


def _roots(kind: type) -> Iterator[str]:
    """Yield the root modules of a type and its bases."""
    return (base.__module__.partition(".")[0] for base in kind.__mro__)


def _library_of(kind: type) -> str:
    """Return the array library of a type, by the name that users know."""
    roots = tuple(_roots(kind))
    return next((PACKAGES[r] for r in roots if r in PACKAGES), roots[0])


def describe(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> str:
    """Return the dtype and shape of each argument, and the attributes that differ from their defaults."""
    lists = {a.name for a in op.inputs if a.many}
    parts = [
        f"{k}=[{', '.join(map(describe_value, v))}]"
        if k in lists and isinstance(v, list | tuple)
        else f"{k}={describe_value(v)}"
        for k, v in arguments.items()
    ]
    parts += [f"{k}={value_text(v)}" for k, v in attrs.items() if not _is_default(v, op.attrs[k])]
    return ", ".join(parts)


def _is_default(value: Any, default: Any) -> bool:
    """Compare types first: an array attribute, which is invalid, would compare by element."""
    return value is default or (type(value) is type(default) and bool(value == default))


def describe_value(value: Any) -> str:
    """Return the dtype and shape of an array, or a short text for another value."""
    try:
        dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    except Exception:  # some tensors raise for attributes they lack
        return type(value).__name__
    if dtype is not None and isinstance(shape, tuple):
        return f"{dtype}[{','.join(map(str, shape))}]"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"int of {value.bit_length()} bits"
    if isinstance(value, bool | int | float | complex | None):
        return repr(value)
    if isinstance(value, str | bytes):
        return type(value).__name__
    try:
        return f"{type(value).__name__} of {len(value)}"
    except Exception:  # user code may raise anything
        return type(value).__name__
