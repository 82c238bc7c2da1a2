"""Studio in a notebook cell: the same page, with its verbs answered by the kernel."""

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
from .project import send_page_event, send_project_event
from .studio import Studio

_HERE = files(__package__) / "static"
_PYTHON = "python"  # the window name of changes made by Python code


class Widget(anywidget.AnyWidget):
    """Edit and run a page in a notebook.

    Put the widget at the end of a cell to show it. `page` is always the page as it is drawn; setting it shows another.
    `session()` opens a session on it.

    Args:
        graph: The page to show: a Scope, a Page, or the path of a page's file. None shows an empty page.
        height: Height of the editor in pixels.
        project: The folder of the project. None uses a temporary folder, which `close` deletes.

    Raises:
        PageError: The file is not a page, or contains several.
        TypeError: `graph` has another type.

    >>> from rowgrad.graph import Const, Scope
    >>> from rowgrad.studio import Widget
    >>> root = Scope.new_root_scope("model")
    >>> block = Const(root.with_op_name("x"), [1.0, 2.0])
    >>> widget = Widget(root)
    >>> widget.page["x"].op
    'Const'
    >>> widget.session().run("x").tolist()
    [1.0, 2.0]
    >>> widget.close()
    """

    _esm = (_HERE / "studio.js").read_text(encoding="utf-8")
    _css = (_HERE / "studio.css").read_text(encoding="utf-8")
    height = traitlets.Int(640).tag(sync=True)
    page_name = traitlets.Unicode("page").tag(sync=True)
    panel = traitlets.Unicode("").tag(sync=True)  # the panel that is open at first; "" for the usual ones
    shown = traitlets.List(traitlets.Unicode()).tag(sync=True)  # the block and pin whose result it shows

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
        self._executor = ThreadPoolExecutor(4, thread_name_prefix="rowgrad-widget")
        self._listener = self._studio.hub.listen(_PYTHON)
        self.on_msg(self._on_message)
        threading.Thread(target=self._forward_events, name="rowgrad-widget-events", daemon=True).start()

    # -- from Python ---------------------------------------------------------------------------------------------------

    @property
    def page(self) -> Page:
        """Return the page as it is drawn now."""
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
        send_page_event(self._studio, self.page_name, saved.revision, _PYTHON)
        send_project_event(self._studio)

    def on_change(self, call: Callable[[Page], None]) -> None:
        """Call a function with the page whenever it is changed in the notebook."""
        self._changed.append(call)

    def session(self, engine: str = "numpy") -> ClientSession:
        """Open a session on the current page.

        Args:
            engine: The array library that runs the ops, such as "numpy" or "torch".

        Returns:
            The session.

        Raises:
            OpError: The page has an error, or the engine is unknown.
        """
        return ClientSession(build(self.page), engine)

    def run(self) -> None:
        """Run the page once, as its button does.

        Raises:
            OpError: The page has an error, or a block failed.
        """
        state = verbs.answer(self._studio, "run", {"name": self.page_name})
        if state["error"] is not None:
            self.session().run_block()  # raises it
            raise PageError(self.page_name, state["error"]["message"])

    def close(self) -> None:
        """Stop all runs, and delete the temporary folder."""
        if not hasattr(self, "_hands"):  # the constructor raised
            return
        self._studio.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        super().close()
        if self._own is not None:
            self._own.cleanup()

    # -- from the notebook ---------------------------------------------------------------------------------------------

    def _on_message(self, _: Any, message: dict[str, Any], buffers: list[Any]) -> None:
        """Handle a request in a thread, so that a long run does not block the kernel."""
        if isinstance(message, dict) and isinstance(message.get("id"), int):
            with contextlib.suppress(RuntimeError):  # the widget was closed a moment ago
                self._executor.submit(self._answer, message, bytes(buffers[0]) if buffers else b"")

    def _answer(self, message: dict[str, Any], body: bytes) -> None:
        fields = message.get("given")
        try:
            result = verbs.answer(
                self._studio, str(message.get("verb")), fields if isinstance(fields, dict) else {}, body
            )
            self.send({"id": message["id"], "result": result})
        except Exception as error:  # the page shows it
            self.send({"id": message["id"], "error": verbs.error_json(error)})

    def _forward_events(self) -> None:
        while not self._listener.closed:
            for event in self._listener.take(10.0):
                self.send({"event": event})
                if event.get("event") == "page" and event.get("window") != _PYTHON:
                    self._notify_changed(event["name"])

    def _notify_changed(self, name: str) -> None:
        if name != self.page_name or not self._changed:
            return
        try:
            page = self.page
        except (PageError, InvalidArgumentError, OSError):
            return  # it was removed meanwhile
        for call in list(self._changed):
            try:
                call(page)
            except Exception as error:  # an error of the caller's function must not end the events
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
        raise PageError(Path(graph).name, "the file is a project; load it and pass one of its pages")
    return found
