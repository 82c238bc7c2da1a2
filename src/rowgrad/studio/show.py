"""`rowgrad.show`: a graph, a page, or one call of an op in a notebook cell, with the rows its results are made of."""

from __future__ import annotations

import sys
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from .._catalog.spec import Op, find_op
from ..graph import Const, Page, Scope, page_of
from ..graph import ops as graph_ops
from ..graph.engine import open_engine
from ..graph.inputs import bind_call
from ..graph.nodes import Output

if TYPE_CHECKING:
    from .widget import Widget

_MOST_TYPED = 24  # elements of an array that is typed into the block
_HEIGHTS = {"call": 700, "page": 640}  # pixels


def show(what: Any, *args: Any, height: int | None = None, **kwargs: Any) -> Widget:
    """Draw a graph, a page, or the call of an op; `rowgrad.show` describes it."""
    op = _op_of(what)
    if op is None and (args or kwargs):
        raise TypeError(f"show takes arguments for an op only; got {_name_of(what)}")
    if op is None and not isinstance(what, Scope | Page | PathLike | str):
        raise TypeError(
            f"show takes a Scope, a Page, the path of a page, or an op and its arguments; got {_name_of(what)}"
        )
    if not _is_notebook():
        raise RuntimeError(
            "rowgrad.show draws in a notebook: JupyterLab, VS Code or Colab. Elsewhere save the page with "
            "rowgrad.graph.save and open it with `rowgrad studio`."
        )
    from . import Widget  # raises if anywidget is missing

    if op is None:
        return Widget(what, height=height or _HEIGHTS["page"])
    page, pin = page_of_call(op, args, kwargs)
    widget = Widget(page, height=height or _HEIGHTS["call"])
    widget.panel, widget.shown = "trace", ["call", pin]
    try:
        widget.run()
    except BaseException:
        widget.close()
        raise
    return widget


def _op_of(what: Any) -> Op | None:
    if isinstance(what, str):
        return find_op(what)
    op = getattr(what, "op", None)
    return op if callable(what) and isinstance(op, Op) else None


def _name_of(what: Any) -> str:
    return repr(what) if isinstance(what, str) else type(what).__name__


def page_of_call(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Page, str]:
    """Return a page with one call of an op, whose name is `call`, and the output whose rows are traced.

    Arrays with rows become blocks of their own; sizes, ids and small vectors are typed into the block.
    """
    inputs, attrs = bind_call(op, tuple(map(_to_host, args)), {k: _to_host(v) for k, v in kwargs.items()})
    root = Scope.new_root_scope(op.name)
    wired = {
        name: Const(root.with_op_name(name), value) if _has_block(op, name, value) else value
        for name, value in inputs.items()
    }
    placed = graph_ops.function_of(op.name)(root.with_op_name("call"), **wired, **attrs)
    pins = {name: pin for name, pin in placed.pins.items() if isinstance(pin, Output)}
    graph_ops.function_of("ClientSession")(root.with_op_name("session"), fetch_outputs=list(pins.values()))
    page = page_of(root)
    for k, block in enumerate(b for b in page.blocks if b.id in wired):
        block.at = (0.0, 150.0 * k)
    page["call"].at, page["session"].at = (380.0, 40.0), (820.0, 40.0)
    types = {arg.type for arg in op.inputs if arg.name in op.linear}
    return page, next((out.name for out in op.outputs if out.type in types), next(iter(pins)))


def _has_block(op: Op, name: str, value: Any) -> bool:
    if next(arg for arg in op.inputs if arg.name == name).host or isinstance(value, list | tuple):
        return False
    return np.ndim(value) > 1 or np.size(value) > _MOST_TYPED


def _to_host(value: Any) -> Any:
    """Return a tensor of another library as an array; other values as they are."""
    if isinstance(value, np.ndarray | np.generic):
        return value
    if hasattr(value, "detach"):  # torch
        return open_engine("torch").get(value)
    return np.asarray(value) if hasattr(value, "__array__") and hasattr(value, "shape") else value


def _is_notebook() -> bool:
    """Return whether a kernel runs this code, whose front end draws widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is not None:
        return True
    marimo = sys.modules.get("marimo")
    return marimo is not None and bool(marimo.running_in_notebook())
