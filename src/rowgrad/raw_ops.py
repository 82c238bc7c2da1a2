"""Every kernel op of the catalogue as a function, under TensorFlow's name and its snake_case form.

`raw_ops.SparseSegmentMeanGrad(grad=…, indices=…, segment_ids=…, output_dim0=…)`; arguments go by keyword or by
position, `name=` appears in error messages, `out=` takes arrays to write into, `plan=` a Plan in place of ids.
One output comes back as it is, several as a named tuple. The type stub beside this file is generated from the same
records.
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import ops as _declarations  # noqa: F401  importing it fills the catalogue
from .dispatch import invoke
from .spec import CATALOG, Op


def keywords(op: Op) -> tuple[str, ...]:
    """What a call takes besides arguments and attributes."""
    return ("plan", "name", "out") if op.planned else ("name", "out")


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
    """Functions by op name, over the whole catalogue: what adjoints are handed."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            self._functions[name] = _function(CATALOG[name])
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(CATALOG)

    def __len__(self) -> int:
        return len(CATALOG)


OPS = OpTable()
__all__ = []
for _op in CATALOG.values():
    if _op.layer == "kernel":
        globals()[_op.name] = globals()[_op.snake_name] = OPS[_op.name]
        __all__ += [_op.name, _op.snake_name]
