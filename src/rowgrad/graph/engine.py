"""Engines: what a session's arrays are and who runs its ops. NumPy's is here; others are found by their entry point.

An engine is an object with `name`, `put` (a NumPy array in), `get` (a NumPy array out) and `bind` (an op and its
attributes, as a function of a list of arguments). The module behind an entry point of the group `rowgrad.engines` has a
function `open_engine(device)`; `torch:cuda` asks the one named `torch` for the device `cuda`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np

from .._catalog.spec import Op
from .._runtime.arrays import Array, canonical
from .._runtime.dispatch import import_module, load_runner
from ..errors import make_error

Bound = Callable[[list[Any]], tuple[Any, ...]]


class Engine(Protocol):
    """What a session asks of an engine."""

    name: str

    def put(self, array: Array) -> Any:
        """A NumPy array as the engine's own, apart from it."""

    def get(self, value: Any) -> Array:
        """The engine's array as a NumPy array; it may be the engine's own memory."""

    def keep(self, value: Any) -> Any:
        """A value to be kept beyond the run, that nothing changes."""

    def bind(self, op: Op, attrs: Mapping[str, Any]) -> Bound:
        """A function that runs the op on a list of arguments."""


class NumpyEngine:
    """Arrays are NumPy's, ops run on the CPU."""

    name = "numpy"

    def __init__(self) -> None:
        self._call = load_runner(np.ndarray).call

    def put(self, array: Array) -> Array:
        """The array, contiguous; a copy where somebody else could change it."""
        found = canonical(array, "value")
        return found.copy() if found is array and (found.flags.writeable or found.base is not None) else found

    def get(self, value: Any) -> Array:
        """The array itself, for looking at."""
        return np.asarray(value)

    def keep(self, value: Any) -> Array:
        """The array, read-only."""
        array = np.asarray(value)
        array.flags.writeable = False
        return array

    def bind(self, op: Op, attrs: Mapping[str, Any]) -> Bound:
        """The runner's call, with names put to the arguments."""
        names, call = op.input_names, self._call
        # Judgements of earlier calls are found sooner where nothing is out of the ordinary.
        usual = op.attrs if attrs == op.attrs else attrs

        def run(arguments: list[Any]) -> tuple[Any, ...]:
            result: tuple[Any, ...] = call(op, dict(zip(names, arguments, strict=True)), usual, None)
            return result

        return run


def engine_names() -> list[str]:
    """The engines there are."""
    return ["numpy", *sorted(point.name for point in entry_points(group="rowgrad.engines"))]


def open_engine(name: str | Engine) -> Engine:
    """The engine of a name such as "numpy", "torch" or "torch:cuda"."""
    if not isinstance(name, str):
        if all(hasattr(name, part) for part in ("put", "get", "keep", "bind")):
            return name
        raise make_error("engine_unknown", argument="engine", value=repr(name), bound=", ".join(engine_names()))
    kind, _, device = name.partition(":")
    if kind == "numpy" and not device:
        return NumpyEngine()
    for point in entry_points(group="rowgrad.engines"):
        if point.name == kind:
            try:
                module = import_module(point.value)
            except ImportError as error:
                why = f"{error}; run pip install 'rowgrad[{kind}]'"
                raise make_error("engine_unfit", argument="engine", value=repr(name), why=why) from error
            engine: Engine = module.open_engine(device)
            return engine
    raise make_error("engine_unknown", argument="engine", value=repr(name), bound=", ".join(engine_names()))
