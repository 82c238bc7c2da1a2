"""Every kernel op of the catalogue as a function, under TensorFlow's name and its snake_case variant.

`raw_ops.SparseSegmentMeanGrad(grad=…, indices=…, segment_ids=…, output_dim0=…)`: arguments are passed by keyword or by
position, `name=` appears in error messages, `out=` takes arrays to write into, `plan=` takes a Plan in place of ids. An
op with several outputs returns a named tuple. The type stub of this module is generated from the same records.
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import _catalog as _declarations  # noqa: F401  importing it fills the catalogue
from ._catalog.spec import CATALOG, Op, find_op, snake
from ._hints import no_attribute
from ._runtime.dispatch import invoke


def keywords(op: Op) -> tuple[str, ...]:
    """Return the keyword arguments of an op besides its inputs and attributes."""
    return (*(("plan",) if op.planned else ()), *(("size", "fill_id") if op.padded else ()), "name", "out")


def _function(op: Op) -> Callable[..., Any]:
    names = [o.name for o in op.outputs]
    result = namedtuple(op.name, names) if len(names) > 1 else None

    def function(*args: Any, **kwargs: Any) -> Any:
        outputs = invoke(op, args, kwargs)
        return outputs[0] if result is None else result(*outputs)

    either, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(n, either) for n in op.input_names]
    parameters += [inspect.Parameter(k, either, default=v) for k, v in op.attrs.items()]
    parameters += [inspect.Parameter(k, keyword, default=None) for k in keywords(op)]
    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.doc
    function.__module__ = __name__ if op.layer == "kernel" else "rowgrad.dense_ops"
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.op = op  # type: ignore[attr-defined]
    return function


class OpTable(Mapping[str, Callable[..., Any]]):
    """The functions of all ops except graph blocks, by name; adjoints receive it. Aliases are found, but not listed."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        function = self._functions.get(name)
        if function is None:
            op = find_op(name)
            if op is None or op.layer == "graph":
                raise KeyError(name)
            function = _function(op) if op.name == name else self[op.name]
            function = self._functions.setdefault(name, function)  # another thread may have been first
        return function

    def __iter__(self) -> Iterator[str]:
        return (name for name, op in CATALOG.items() if op.layer != "graph")

    def __len__(self) -> int:
        return sum(1 for _ in self)


OPS = OpTable()
__all__ = []
for _op in CATALOG.values():
    if _op.layer == "kernel":
        for _name in (_op.name, *_op.aliases):
            globals()[_name] = globals()[snake(_name)] = OPS[_op.name]
            __all__ += [_name, snake(_name)]


def __getattr__(name: str) -> Any:
    raise no_attribute(__name__, name, __all__, "`rowgrad ops` lists all ops.")
