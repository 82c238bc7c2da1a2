"""Engines: the array library that a session stores its values in and runs its ops with.

The NumPy engine is here; others are found by their entry point. An engine is an object with the methods of `Engine`.
The module behind an entry point of the group `rowgrad.engines` has a function `open_engine(device)`: the name
`torch:cuda` opens the entry point `torch` with the device `cuda`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np

from .._catalog.spec import Op
from .._hints import install_command
from .._runtime.arrays import Array, canonical
from .._runtime.dispatch import import_module, load_runner
from ..errors import make_error

Bound = Callable[[list[Any]], tuple[Any, ...]]


class Engine(Protocol):
    """The interface that sessions use."""

    name: str

    def put(self, array: Array) -> Any:
        """Copy a NumPy array into an array of the engine."""

    def put_size(self, array: Array) -> Any:
        """Copy sizes, which an op reads on the host beside arrays of the engine."""

    def get(self, value: Any) -> Array:
        """Return the engine's array as a NumPy array, which may share the engine's memory."""

    def keep(self, value: Any) -> Any:
        """Return a value that outlives the run and that nothing changes."""

    def bind(self, op: Op, attrs: Mapping[str, Any]) -> Bound:
        """Return a function that runs the op on a list of arguments."""


class NumpyEngine:
    """The engine of NumPy arrays, whose ops run on the CPU."""

    name = "numpy"

    def __init__(self) -> None:
        self._call = load_runner(np.ndarray).call

    def put(self, array: Array) -> Array:
        """Return a contiguous array; a copy if a caller could change the original."""
        found = canonical(array, "value")
        return found.copy() if found is array and (found.flags.writeable or found.base is not None) else found

    put_size = put

    def get(self, value: Any) -> Array:
        """Return the array itself."""
        return np.asarray(value)

    def keep(self, value: Any) -> Array:
        """Make the array read-only and return it."""
        array = np.asarray(value)
        array.flags.writeable = False
        return array

    def bind(self, op: Op, attrs: Mapping[str, Any]) -> Bound:
        """Return the runner's call, with arguments bound to the op's input names."""
        names, call = op.input_names, self._call
        # The record's own defaults are a faster key into the cache of validated calls.
        usual = op.attrs if attrs == op.attrs else attrs

        def run(arguments: list[Any]) -> tuple[Any, ...]:
            result: tuple[Any, ...] = call(op, dict(zip(names, arguments, strict=True)), usual, None)
            return result

        return run


def engine_names() -> list[str]:
    """List the names of the available engines.

    Returns:
        "numpy", followed by the entry points of the group `rowgrad.engines`.

    >>> engine_names()[0]
    'numpy'
    """
    return ["numpy", *sorted(point.name for point in entry_points(group="rowgrad.engines"))]


def open_engine(name: str | Engine) -> Engine:
    """Open an engine by name.

    Args:
        name: "numpy", "torch", or a name with a device such as "torch:cuda". An engine object is returned unchanged.

    Returns:
        The engine.

    Raises:
        InvalidArgumentError: The name is unknown, or the engine's library is not installed.

    >>> open_engine("numpy").name
    'numpy'
    """
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
                why = str(error)
                if (command := install_command(kind)) not in why:
                    why = f"{why}; run {command}"
                raise make_error("engine_unfit", argument="engine", value=repr(name), why=why) from error
            engine: Engine = module.open_engine(device)
            return engine
    raise make_error("engine_unknown", argument="engine", value=repr(name), bound=", ".join(engine_names()))
