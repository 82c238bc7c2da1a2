"""The notebook widget without a notebook: tests pass it messages and read what it sends."""

from __future__ import annotations

import doctest
import importlib
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rowgrad.graph import Block, ClientSession, Const, Page, PageError, Project, Scope, ops, save
from rowgrad.studio import Widget


class Notebook:
    """A front end: sends numbered requests and waits for their responses."""

    def __init__(self, widget: Widget) -> None:
        self.widget = widget
        self.heard: queue.Queue[dict[str, Any]] = queue.Queue()
        widget.send = lambda content, buffers=None: self.heard.put(content)  # type: ignore[method-assign]
        self._next = 0

    def call(self, verb: str, body: bytes | None = None, **arguments: Any) -> Any:
        self._next += 1
        message = {"id": self._next, "verb": verb, "given": arguments, "window": "w"}
        self.widget._handle_custom_msg(message, [] if body is None else [memoryview(body)])
        while True:
            received = self.heard.get(timeout=120)
            if received.get("id") == self._next:
                return received

    def event(self, kind: str) -> dict[str, Any]:
        while True:
            received = self.heard.get(timeout=120)
            if received.get("event", {}).get("event") == kind:
                return received["event"]


def scope() -> Scope:
    root = Scope.new_root_scope("model")
    x = Const(root.with_op_name("x"), [1.0, 2.0])
    y = ops.Neg(root.with_op_name("y"), x)
    ops.ClientSession(root.with_op_name("s"), fetch_outputs=[y])
    return root


@pytest.fixture
def widget() -> Iterator[Widget]:
    made = Widget(scope())
    yield made
    made.close()


def test_a_scope_is_shown_and_can_be_run(widget: Widget) -> None:
    notebook = Notebook(widget)
    opened = notebook.call("open", name=widget.page_name)["result"]
    assert widget.page_name == "model"
    assert [b["id"] for b in opened["page"]["blocks"]] == ["x", "y", "s"]
    assert notebook.call("run", name="model", mode="once")["result"]["phase"] == "done"
    cells = notebook.call("window", name="model", block="y", pin="y", at=[], rows=[0, 9], columns=[0, 9])["result"][
        "cells"
    ]
    assert cells == [["-1.0"], ["-2.0"]]


def test_an_edit_in_the_notebook_reaches_python(widget: Widget) -> None:
    notebook = Notebook(widget)
    seen: queue.Queue[Page] = queue.Queue()
    widget.on_change(seen.put)
    opened = notebook.call("open", name="model")["result"]
    opened["page"]["blocks"][0]["values"]["val"] = [{"float": 7}]
    saved = notebook.call("save", name="model", base=opened["revision"], page=opened["page"], window="w")
    assert "conflict" not in saved["result"]
    assert seen.get(timeout=120)["x"].values["val"] == [7.0]
    assert widget.session().run("y").tolist() == [-7.0]


def test_a_page_set_in_python_is_sent_to_the_notebook(widget: Widget) -> None:
    notebook = Notebook(widget)
    before = notebook.call("open", name="model")["result"]["revision"]
    page = widget.page
    page["x"].values["val"] = np.array([5, 6], np.int64)
    widget.page = page
    event = notebook.event("page")
    assert event["name"] == "model"
    assert event["revision"] != before
    received = notebook.call("open", name="model")["result"]
    assert received["revision"] == event["revision"]
    assert received["checked"]["blocks"]["y"]["outputs"]["y"]["text"] == "int64[2]"


def test_an_uploaded_file_arrives_as_a_buffer(widget: Widget) -> None:
    received = Notebook(widget).call("upload", b"1,2\n3,4\n", name="a.csv")
    assert received["result"]["arrays"][0]["info"]["shape"] == [2, 2]


def test_errors_are_sent_as_responses(widget: Widget) -> None:
    notebook = Notebook(widget)
    assert "nothing" in notebook.call("open", name="nothing")["error"]["message"]
    assert "no verb" in notebook.call("nonsense")["error"]["message"]


def test_other_messages_are_ignored(widget: Widget) -> None:
    notebook = Notebook(widget)
    widget._handle_custom_msg("text", [])
    widget._handle_custom_msg({"verb": "hello"}, [])
    assert "result" in notebook.call("hello")


def test_a_widget_accepts_scopes_pages_and_files(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    save(Page("kept", [Block("a", "NoOp")]), file)
    for graph in (file, str(file), Page("kept", [Block("a", "NoOp")])):
        made = Widget(graph)
        assert [b.id for b in made.page] == ["a"]
        made.close()
    with pytest.raises(TypeError, match="a Scope, a Page or the path"):
        Widget(3)  # type: ignore[arg-type]
    save(Project("many", [Page("a"), Page("b")]), tmp_path / "many.json")
    with pytest.raises(PageError, match="is a project"):
        Widget(tmp_path / "many.json")


def test_a_project_folder_persists_edits(tmp_path: Path) -> None:
    made = Widget(scope(), project=tmp_path)
    made.close()
    assert (tmp_path / "model.json").is_file()


def test_the_session_has_the_requested_engine(widget: Widget) -> None:
    assert isinstance(widget.session(), ClientSession)
    assert widget.session("numpy").engine.name == "numpy"


def test_without_anywidget_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['anywidget'] = None\n"
        "try:\n    from rowgrad.studio import Widget\n"
        "except ImportError as error:\n    print(error)\n"
    )
    received = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'rowgrad[notebook]'" in received.stdout


def test_the_example_in_its_docstring_runs() -> None:
    result = doctest.testmod(importlib.import_module("rowgrad.studio.widget"))
    assert (result.failed, result.attempted > 0) == (0, True)
