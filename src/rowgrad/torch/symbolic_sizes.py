"""Symbolic sizes: the shape rules of the records on torch's SymInts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._catalog.spec import Aval, Op
from .._runtime.validation import infer
from .tensors import NAME, is_size


class _Dim:
    """A symbolic size for shape rules: comparisons that torch cannot decide without data count as valid."""

    __slots__ = ("size",)

    def __init__(self, size: Any) -> None:
        self.size = size

    def __eq__(self, other: object) -> bool:
        return _decide(self.size == _unwrap(other))

    def __ne__(self, other: object) -> bool:
        return _decide(self.size != _unwrap(other))

    def __lt__(self, other: Any) -> bool:
        return _decide(self.size < _unwrap(other))

    def __gt__(self, other: Any) -> bool:
        return _decide(self.size > _unwrap(other))

    def __ge__(self, other: Any) -> bool:
        return _decide(self.size >= _unwrap(other))

    def __le__(self, other: Any) -> bool:
        return _decide(self.size <= _unwrap(other))

    def __bool__(self) -> bool:
        return _decide(self.size != 0)

    def __hash__(self) -> int:
        return id(self)

    def __mul__(self, other: Any) -> _Dim:
        return _Dim(self.size * _unwrap(other))

    def __add__(self, other: Any) -> _Dim:
        return _Dim(self.size + _unwrap(other))

    def __sub__(self, other: Any) -> _Dim:
        return _Dim(self.size - _unwrap(other))

    def __mod__(self, other: Any) -> _Dim:
        divisor = _unwrap(other)
        if isinstance(divisor, int) and divisor >= 1 << 63:  # a shape rule wraps to 64 bits; sizes fit
            return _Dim(self.size)
        return _Dim(self.size % divisor)

    __rmul__, __radd__ = __mul__, __add__

    def __rsub__(self, other: Any) -> _Dim:
        return _Dim(_unwrap(other) - self.size)

    def __str__(self) -> str:
        return str(self.size)


def _unwrap(value: Any) -> Any:
    return value.size if isinstance(value, _Dim) else value


def _decide(condition: Any) -> bool:
    """Return whether a condition holds; False if that depends on data."""
    from torch.fx.experimental import symbolic_shapes  # slow: imports sympy

    try:
        return bool(condition)
    except symbolic_shapes.GuardOnDataDependentSymNode:
        return False


def wrap_sizes(value: Any) -> Any:
    """Wrap symbolic sizes for shape rules."""
    if isinstance(value, list | tuple):
        return tuple(wrap_sizes(v) for v in value)
    return _Dim(value) if isinstance(value, torch.SymInt) else value


def infer_outputs(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Aval, ...]:
    """Return shapes and dtypes of the outputs, with sizes that may be symbolic; data-dependent ones are None.

    Arguments are tensors, `Like`s, or numbers and lists of numbers.
    """
    avals: dict[str, Aval] = {}
    host: dict[str, Any] = {}
    for arg in op.inputs:
        value = arguments[arg.name]
        if arg.host:
            value = as_size(value)
            host[arg.name] = wrap_sizes(value)
        if hasattr(value, "dtype"):
            avals[arg.name] = Aval(NAME[value.dtype], wrap_sizes(tuple(value.shape)))
        else:
            dtype = arg.type if arg.type not in op.types else "int64"
            avals[arg.name] = Aval(dtype, (len(value),) if isinstance(value, list | tuple) else ())
    return tuple(
        Aval(a.dtype, tuple(None if d is None else _unwrap(d) for d in a.shape)) for a in infer(op, avals, host, attrs)
    )


def as_size(value: Any) -> Any:
    """Return a host input as an int or a list of ints, which may be symbolic."""
    if is_size(value):
        return value
    if isinstance(value, Tensor):
        return value.item() if value.ndim == 0 else value.tolist()
    return [int(v) for v in value] if hasattr(value, "__len__") else int(value)
