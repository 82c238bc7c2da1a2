"""Studio: a block editor in the browser for pages of `rowgrad.graph`, opened by `rowgrad studio`.

`Widget` shows the same editor in a notebook, and `rowgrad.show` a call of an op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._hints import missing_extra, no_attribute

if TYPE_CHECKING:
    from .widget import Widget

__all__ = ["Widget"]


def __getattr__(name: str) -> Any:
    if name != "Widget":
        raise no_attribute(__name__, name, __all__)
    try:
        from .widget import Widget
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("anywidget", "traitlets", "ipywidgets"):
            raise
        raise missing_extra("a notebook's Widget", "anywidget", "notebook") from error
    return Widget
