"""The studio in a cell of a notebook: the same page, its verbs answered by the kernel.

>>> from rowgrad.graph import Const, Scope                                      # doctest: +SKIP
>>> root = Scope.new_root_scope()                                               # doctest: +SKIP
>>> x = Const(root.with_op_name("x"), [1.0, 2.0])                               # doctest: +SKIP
>>> widget = Widget(root)                                                       # doctest: +SKIP
>>> widget                    # shows the page; what is drawn there is          # doctest: +SKIP
>>> widget.page               # here, and a page put here is shown there        # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from ..errors import InvalidArgumentError
from ..graph import ClientSession, Page, PageError, Scope, load, page_of
from ..graph.page_builder import build
from . import verbs
from .project import tell_page, tell_project
from .studio import Studio

_HERE = files(__package__) / "static"
_PYTHON = "python"  # the window that code is, for others


class Widget(anywidget.AnyWidget):
    """A page, drawn and run in a notebook; `graph` is a Scope, a Page or the path of a page's file.

    `page` is always the page as it is drawn; setting it shows another. `session()` opens a session on it. The work
    lies in a temporary folder, unless `project` names one.
    """

    _esm = (_HERE / "studio.js").read_text(encoding="utf-8")
    _css = (_HERE / "studio.css").read_text(encoding="utf-8")
    height = traitlets.Int(640).tag(sync=True)
    page_name = traitlets.Unicode("page").tag(sync=True)

    def __init__(
        self,
        graph: Scope | Page | str | PathLike[str] | None = None,
        *,
        height: int = 640,
        project: str | PathLike[str] | None = None,
    ) -> None:
        first = _page_from(graph)
        self._own = None if project is not None else tempfile.TemporaryDirectory(prefix="rowgrad-")
        self._studio = Studio(project if project is not None else self._own.name)  # type: ignore[union-attr]
        info = self._studio.folder.new(first.name if graph is not None else "page", first)
        super().__init__(height=height, page_name=info["name"])
        self._changed: list[Callable[[Page], None]] = []
        self._hands = ThreadPoolExecutor(4, thread_name_prefix="rowgrad-widget")
        self._listener = self._studio.hub.listen(_PYTHON)
        self.on_msg(self._hear)
        threading.Thread(target=self._pass_on, name="rowgrad-widget-events", daemon=True).start()

    # -- from Python ---------------------------------------------------------------------------------------------------

    @property
    def page(self) -> Page:
        """The page as it is drawn now."""
        return self._studio.folder.open(self.page_name)[0]

    @page.setter
    def page(self, graph: Scope | Page | str | PathLike[str]) -> None:
        page = _page_from(graph)
        base = self._studio.folder.open(self.page_name)[1]
        saved = self._studio.folder.save(self.page_name, base, page)
        if saved.conflict_page is not None:
            raise PageError(
                self.page_name, f"it was changed in the notebook at the same time; yours is {saved.conflict_page!r}"
            )
        self._studio.runs.edited(self.page_name, page, saved.revision)
        tell_page(self._studio, self.page_name, saved.revision, _PYTHON)
        tell_project(self._studio)

    def on_change(self, call: Callable[[Page], None]) -> None:
        """Call a function with the page whenever it is changed in the notebook."""
        self._changed.append(call)

    def session(self, engine: str = "numpy") -> ClientSession:
        """A session on the page as it is now."""
        return ClientSession(build(self.page), engine)

    def close(self) -> None:
        """Stop runs, and let go of the temporary folder."""
        if not hasattr(self, "_hands"):  # it never began: what it was to show was refused
            return
        self._studio.close()
        self._hands.shutdown(wait=False, cancel_futures=True)
        super().close()
        if self._own is not None:
            self._own.cleanup()

    # -- from the notebook ---------------------------------------------------------------------------------------------

    def _hear(self, _: Any, message: dict[str, Any], buffers: list[Any]) -> None:
        """A request; it is answered by a thread, so that a long run does not hold the kernel."""
        if isinstance(message, dict) and isinstance(message.get("id"), int):
            with contextlib.suppress(RuntimeError):  # it was closed a moment ago
                self._hands.submit(self._answer, message, bytes(buffers[0]) if buffers else b"")

    def _answer(self, message: dict[str, Any], body: bytes) -> None:
        given = message.get("given")
        try:
            result = verbs.answer(
                self._studio, str(message.get("verb")), given if isinstance(given, dict) else {}, body
            )
            self.send({"id": message["id"], "result": result})
        except Exception as error:  # whatever it is, the page says it
            self.send({"id": message["id"], "error": verbs.error_json(error)})

    def _pass_on(self) -> None:
        while not self._listener.closed:
            for event in self._listener.take(10.0):
                self.send({"event": event})
                if event.get("event") == "page" and event.get("window") != _PYTHON:
                    self._tell_changed(event["name"])

    def _tell_changed(self, name: str) -> None:
        if name != self.page_name or not self._changed:
            return
        try:
            page = self.page
        except (PageError, InvalidArgumentError, OSError):
            return  # it went since
        for call in list(self._changed):
            try:
                call(page)
            except Exception as error:  # of the caller's code; the notebook goes on to hear of everything
                traceback.print_exception(error)


def _page_from(graph: Scope | Page | str | PathLike[str] | None) -> Page:
    if graph is None:
        return Page("page")
    if isinstance(graph, Scope):
        return page_of(graph)
    if isinstance(graph, Page):
        return graph
    if not isinstance(graph, str | PathLike):
        raise TypeError(f"graph must be a Scope, a Page or the path of a page; got {type(graph).__name__}")
    found = load(fspath(graph))
    if not isinstance(found, Page):
        raise PageError(Path(graph).name, "it holds a project; load it and give one of its pages")
    return found
