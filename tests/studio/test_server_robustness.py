"""Requests that once hung the server, filled its memory or bypassed access control."""

from __future__ import annotations

import errno
import io
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import pytest

from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import Block, End, Page, PageError
from rowgrad.studio import verbs
from rowgrad.studio.access import Access
from rowgrad.studio.charts import number
from rowgrad.studio.http import make_app
from rowgrad.studio.http_requests import Hosts, parse_object
from rowgrad.studio.limits import LIMITS
from rowgrad.studio.studio import Studio
from rowgrad.studio.value_input import arrays_of, parse_value
from rowgrad.studio.value_text import short_text

TOKEN = "a-token-for-tests-0123456789"


class Asking:
    """A studio without a server."""

    def __init__(self, folder: Path) -> None:
        self.studio = Studio(folder)

    def __call__(self, verb: str, body: bytes = b"", **given: Any) -> Any:
        return verbs.answer(self.studio, verb, given, body)

    def page(self, value: Any = 1.0) -> dict[str, Any]:
        blocks = [Block("v", "Variable", {"initvalues": value})]
        blocks.append(Block("s", "ClientSession", wires={"fetch_outputs": [End("v", "ref")]}))
        return self.studio.pool.write_page(Page("p", blocks))


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    asking = Asking(tmp_path)
    yield asking
    asking.studio.close()


@pytest.mark.parametrize("path", ["/api%2Fevents", "/ap%69/events", "/%61pi/events", "/api/event%73", "/api%2fhello"])
@pytest.mark.anyio
async def test_nobody_comes_in_under_another_spelling(tmp_path: Path, path: str) -> None:
    app = make_app(Studio(tmp_path), Hosts(8832), Access(8832, TOKEN))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8832") as client:
        with anyio.fail_after(10):  # a stream would not end
            answer = await client.get(f"{path}?window=w")
    assert answer.status_code in (401, 404)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_a_string_that_does_not_end_takes_no_time() -> None:
    began = time.process_time()
    with pytest.raises(InvalidArgumentError, match="Unterminated string"):
        parse_object(b'{"a": "' + b'\\"' * 200_000, LIMITS)
    with pytest.raises(InvalidArgumentError, match="nested 101 deep"):
        parse_object(b'{"a": "\\"[", "b": ' + b"[" * 100 + b"]" * 100 + b"}", LIMITS)
    assert time.process_time() - began < 10


def test_spaces_between_truths_take_no_time() -> None:
    began = time.process_time()
    assert parse_value("{true," + " \t" * 100_000 + "false}") == [True, False]
    parse_value("{true" + " \t" * 100_000 + ", true, 1.5}")
    assert time.process_time() - began < 10


def test_arrays_without_elements_are_small(ask: Any) -> None:
    wide = {"dtype": "float32", "shape": [10**9, 0], "data": []}
    deep = {"dtype": "float32", "shape": [100] * 6 + [0], "data": []}
    for value in (wide, deep):
        assert len(ask("describe", value=value)["text"]) == 200
    with pytest.raises(InvalidArgumentError, match="at most 10000 cells; got 1000000000 x 0"):
        ask("window", value=wide, rows=[0, 2**40], columns=[0, 1])
    empty = {"dtype": "int64", "shape": [0, 2], "data": []}
    with pytest.raises(InvalidArgumentError, match="at most 10000 cells"):
        ask("sparse", indices=empty, values=[], dense_shape=[10**15, 0], rows=[0, 2**60], columns=[0, 1])
    for shape in ([10**9, 0], [0, 2**61, 2**61]):
        with pytest.raises(InvalidArgumentError, match="shape must be of at most"):
            ask("parse", text="{}", shape=shape)
    page = Page("p", [Block("c", "Const", {"val": np.zeros((10**10, 0), np.float32)})])
    with pytest.raises(Exception, match="text may have at most"):
        ask("export", page=ask.studio.pool.write_page(page), **{"as": "python"})


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 3, 0), (3, 0, 2)])
def test_short_texts_of_nothing(shape: tuple[int, ...]) -> None:
    before = shape[: shape.index(0) + 1]
    expected = str(np.zeros(before).tolist()).replace("[", "{").replace("]", "}").replace(" ", "")
    assert short_text(np.zeros(shape, np.float32)) == expected


def test_snapshots_of_pages_in_any_script(ask: Any) -> None:
    one, other = "名" * 66, "字" * 66
    ask("new", name=one, page=ask.page())
    ask("run", name=one)
    snapshots = ask("snapshot", name=one)["snapshots"]
    assert len(snapshots) == 1
    ask("rename", name=one, to=other)
    assert ask("snapshots", name=other)["snapshots"] == snapshots


def test_snapshots_go_along_though_a_removed_page_had_some(ask: Any) -> None:
    for name in ("a", "b"):
        ask("new", name=name, page=ask.page())
        ask("run", name=name)
        ask("snapshot", name=name, label=f"of {name}")
    ask("remove", name="b")
    ask("rename", name="a", to="b")
    assert [s["label"] for s in ask("snapshots", name="b")["snapshots"]] == ["of a"]


def test_snapshots_follow_no_links(ask: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    ask("new", name="a", page=ask.page())
    ask("run", name="a")
    (tmp_path / ".rowgrad").mkdir(exist_ok=True)
    (tmp_path / ".rowgrad" / "snapshots").symlink_to(elsewhere)
    with pytest.raises(PageError, match="symbolic link"):
        ask("snapshot", name="a")
    assert not list(elsewhere.iterdir())


def test_damaged_snapshots_are_left_out(ask: Any, tmp_path: Path) -> None:
    ask("new", name="a", page=ask.page())
    ask("run", name="a")
    snapshots = ask("snapshot", name="a")["snapshots"]
    folder = tmp_path / ".rowgrad" / "snapshots" / "a"
    for k, text in enumerate(
        ['{"label": "", "run": 1e999, "when": 1}', '{"label": "", "run": 1, "when": NaN}', "[" * 9999]
    ):
        (folder / f"20200101-000000-{k}.json").write_text(text)
        (folder / f"20200101-000000-{k}.state").write_bytes(b"")
    assert ask("snapshots", name="a")["snapshots"] == snapshots


def test_a_page_that_was_removed_does_not_begin_to_run(ask: Any) -> None:
    ask("new", name="a", page=ask.page())
    page, revision = ask.studio.folder.open("a")
    run = ask.studio.runs.of("a")  # as a request has it that is a moment too late
    ask("remove", name="a")
    with pytest.raises(InvalidArgumentError, match="no longer in this project"):
        run.start(page, revision, mode="flat")
    assert run.phase == "idle"


def test_a_move_that_fails_leaves_nothing(ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask("new", name="a", page=ask.page(np.ones((300, 2), np.float32)))
    before = sorted(os.listdir(tmp_path))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", full)
        with pytest.raises(OSError, match="No space left"):
            ask("rename", name="a", to="b")
    assert sorted(os.listdir(tmp_path)) == before
    assert ask("open", name="a")["checked"]["errors"] == {}


def test_trends_are_of_real_numbers() -> None:
    assert np.isnan(number(np.array(1 + 2j), ()))
    assert np.isnan(number(np.array("12", object), ()))
    assert number(np.array([3], np.uint8), (0,)) == 3.0


def _npy(array: Any) -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array(made, np.asarray(array))
    return made.getvalue()


@pytest.mark.parametrize("offsets", [[-3, 1, 3], [0.0, 1.0, 3.0], 3, ["a", "b", "c"], [[0, 1, 3]]])
@pytest.mark.parametrize("shape", [[2], 2, [-1, -2], [2.0]])
def test_strings_whose_offsets_are_nonsense(offsets: Any, shape: Any) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        members = {"x": np.frombuffer(b"abc", np.uint8), "x.offsets": offsets, "x.shape": shape}
        for name, array in members.items():
            archive.writestr(f"{name}.npy", _npy(array))
    with pytest.raises(InvalidArgumentError, match="x: its offsets do not fit its bytes"):
        arrays_of("s.npz", made.getvalue())


def test_a_wide_table_takes_no_time() -> None:
    began = time.process_time()
    assert arrays_of("x.csv", b"1," * 200_000 + b"1")["x"].shape == (1, 200_001)
    assert time.process_time() - began < 10


def test_a_widget_survives_its_callers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    widgets = pytest.importorskip("rowgrad.studio.widget")
    widget = widgets.Widget(Page("p", [Block("c", "Const", {"val": 1.0})]), project=tmp_path)
    heard: list[str] = []

    def fails(page: Page) -> None:
        raise RuntimeError("mine")

    widget.on_change(fails)
    widget.on_change(lambda page: heard.append(page.name))
    widget._notify_changed("p")
    assert heard == ["p"]
    assert "RuntimeError: mine" in capsys.readouterr().err
    (tmp_path / "p.json").unlink()
    widget._notify_changed("p")
    widget.close()
    widget.close()
    widget._on_message(widget, {"id": 1, "verb": "hello"}, [])


def test_a_column_whose_lines_end_in_commas() -> None:
    assert arrays_of("x.csv", b"1,\n2,\n")["x"].tolist() == [1, 2]
    assert parse_value("1.5;\n2;") == [1.5, 2.0]


def test_arrays_without_matrices_can_be_looked_at(ask: Any) -> None:
    value = {"dtype": "float32", "shape": [0, 3, 4], "data": []}
    found = ask("window", value=value, rows=[0, 9], columns=[0, 9])
    assert (found["of"], found["cells"]) == ([0, 4], [])
    with pytest.raises(InvalidArgumentError, match=r"at\[0\] must be in \[0, 0\); got 1"):
        ask("window", value=value, at=[1], rows=[0, 9], columns=[0, 9])
