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


class VerbCaller:
    """Calls verbs of a studio without an HTTP server."""

    def __init__(self, folder: Path) -> None:
        self.studio = Studio(folder)

    def __call__(self, verb: str, body: bytes = b"", **arguments: Any) -> Any:
        return verbs.answer(self.studio, verb, arguments, body)

    def page(self, value: Any = 1.0) -> dict[str, Any]:
        blocks = [Block("v", "Variable", {"initvalues": value})]
        blocks.append(Block("s", "ClientSession", wires={"fetch_outputs": [End("v", "ref")]}))
        return self.studio.pool.write_page(Page("p", blocks))


@pytest.fixture
def call(tmp_path: Path) -> Any:
    caller = VerbCaller(tmp_path)
    yield caller
    caller.studio.close()


@pytest.mark.parametrize("path", ["/api%2Fevents", "/ap%69/events", "/%61pi/events", "/api/event%73", "/api%2fhello"])
@pytest.mark.anyio
async def test_percent_encoded_paths_do_not_bypass_access_control(tmp_path: Path, path: str) -> None:
    app = make_app(Studio(tmp_path), Hosts(8832), Access(8832, TOKEN))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8832") as client:
        with anyio.fail_after(10):  # an event stream would never end
            answer = await client.get(f"{path}?window=w")
    assert answer.status_code in (401, 404)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_an_unterminated_json_string_fails_fast() -> None:
    began = time.process_time()
    with pytest.raises(InvalidArgumentError, match="Unterminated string"):
        parse_object(b'{"a": "' + b'\\"' * 200_000, LIMITS)
    with pytest.raises(InvalidArgumentError, match="nested 101 deep"):
        parse_object(b'{"a": "\\"[", "b": ' + b"[" * 100 + b"]" * 100 + b"}", LIMITS)
    assert time.process_time() - began < 10


def test_long_whitespace_in_a_literal_parses_fast() -> None:
    began = time.process_time()
    assert parse_value("{true," + " \t" * 100_000 + "false}") == [True, False]
    parse_value("{true" + " \t" * 100_000 + ", true, 1.5}")
    assert time.process_time() - began < 10


def test_huge_shapes_without_elements_are_bounded(call: Any) -> None:
    wide = {"dtype": "float32", "shape": [10**9, 0], "data": []}
    deep = {"dtype": "float32", "shape": [100] * 6 + [0], "data": []}
    for value in (wide, deep):
        assert len(call("describe", value=value)["text"]) == 200
    with pytest.raises(InvalidArgumentError, match="at most 10000 cells; got 1000000000 x 0"):
        call("window", value=wide, rows=[0, 2**40], columns=[0, 1])
    empty = {"dtype": "int64", "shape": [0, 2], "data": []}
    with pytest.raises(InvalidArgumentError, match="at most 10000 cells"):
        call("sparse", indices=empty, values=[], dense_shape=[10**15, 0], rows=[0, 2**60], columns=[0, 1])
    for shape in ([10**9, 0], [0, 2**61, 2**61]):
        with pytest.raises(InvalidArgumentError, match="shape must be of at most"):
            call("parse", text="{}", shape=shape)
    page = Page("p", [Block("c", "Const", {"val": np.zeros((10**10, 0), np.float32)})])
    with pytest.raises(Exception, match="text may have at most"):
        call("export", page=call.studio.pool.write_page(page), **{"as": "python"})


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 3, 0), (3, 0, 2)])
def test_short_text_of_empty_arrays(shape: tuple[int, ...]) -> None:
    before = shape[: shape.index(0) + 1]
    expected = str(np.zeros(before).tolist()).replace("[", "{").replace("]", "}").replace(" ", "")
    assert short_text(np.zeros(shape, np.float32)) == expected


def test_snapshots_of_pages_with_long_unicode_names(call: Any) -> None:
    one, other = "名" * 66, "字" * 66
    call("new", name=one, page=call.page())
    call("run", name=one)
    snapshots = call("snapshot", name=one)["snapshots"]
    assert len(snapshots) == 1
    call("rename", name=one, to=other)
    assert call("snapshots", name=other)["snapshots"] == snapshots


def test_a_rename_moves_snapshots_over_those_of_a_removed_page(call: Any) -> None:
    for name in ("a", "b"):
        call("new", name=name, page=call.page())
        call("run", name=name)
        call("snapshot", name=name, label=f"of {name}")
    call("remove", name="b")
    call("rename", name="a", to="b")
    assert [s["label"] for s in call("snapshots", name="b")["snapshots"]] == ["of a"]


def test_snapshots_reject_symbolic_links(call: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    call("new", name="a", page=call.page())
    call("run", name="a")
    (tmp_path / ".rowgrad").mkdir(exist_ok=True)
    (tmp_path / ".rowgrad" / "snapshots").symlink_to(elsewhere)
    with pytest.raises(PageError, match="symbolic link"):
        call("snapshot", name="a")
    assert not list(elsewhere.iterdir())


def test_damaged_snapshots_are_not_listed(call: Any, tmp_path: Path) -> None:
    call("new", name="a", page=call.page())
    call("run", name="a")
    snapshots = call("snapshot", name="a")["snapshots"]
    folder = tmp_path / ".rowgrad" / "snapshots" / "a"
    for k, text in enumerate(
        ['{"label": "", "run": 1e999, "when": 1}', '{"label": "", "run": 1, "when": NaN}', "[" * 9999]
    ):
        (folder / f"20200101-000000-{k}.json").write_text(text)
        (folder / f"20200101-000000-{k}.state").write_bytes(b"")
    assert call("snapshots", name="a")["snapshots"] == snapshots


def test_a_removed_page_cannot_be_started(call: Any) -> None:
    call("new", name="a", page=call.page())
    page, revision = call.studio.folder.open("a")
    run = call.studio.runs.of("a")  # as a late request has it
    call("remove", name="a")
    with pytest.raises(InvalidArgumentError, match="no longer in this project"):
        run.start(page, revision, mode="flat")
    assert run.phase == "idle"


def test_a_failed_rename_changes_nothing(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("new", name="a", page=call.page(np.ones((300, 2), np.float32)))
    before = sorted(os.listdir(tmp_path))

    def raise_disk_full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", raise_disk_full)
        with pytest.raises(OSError, match="No space left"):
            call("rename", name="a", to="b")
    assert sorted(os.listdir(tmp_path)) == before
    assert call("open", name="a")["checked"]["errors"] == {}


def test_trends_record_only_real_numbers() -> None:
    assert np.isnan(number(np.array(1 + 2j), ()))
    assert np.isnan(number(np.array("12", object), ()))
    assert number(np.array([3], np.uint8), (0,)) == 3.0


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array))
    return buffer.getvalue()


@pytest.mark.parametrize("offsets", [[-3, 1, 3], [0.0, 1.0, 3.0], 3, ["a", "b", "c"], [[0, 1, 3]]])
@pytest.mark.parametrize("shape", [[2], 2, [-1, -2], [2.0]])
def test_string_arrays_with_invalid_offsets_raise(offsets: Any, shape: Any) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        members = {"x": np.frombuffer(b"abc", np.uint8), "x.offsets": offsets, "x.shape": shape}
        for name, array in members.items():
            archive.writestr(f"{name}.npy", _npy(array))
    with pytest.raises(InvalidArgumentError, match="x: its offsets do not fit its bytes"):
        arrays_of("s.npz", buffer.getvalue())


def test_a_wide_csv_row_parses_fast() -> None:
    began = time.process_time()
    assert arrays_of("x.csv", b"1," * 200_000 + b"1")["x"].shape == (1, 200_001)
    assert time.process_time() - began < 10


def test_a_widget_survives_failing_callbacks_and_late_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    widgets = pytest.importorskip("rowgrad.studio.widget")
    widget = widgets.Widget(Page("p", [Block("c", "Const", {"val": 1.0})]), project=tmp_path)
    names: list[str] = []

    def raise_error(page: Page) -> None:
        raise RuntimeError("mine")

    widget.on_change(raise_error)
    widget.on_change(lambda page: names.append(page.name))
    widget._notify_changed("p")
    assert names == ["p"]
    assert "RuntimeError: mine" in capsys.readouterr().err
    (tmp_path / "p.json").unlink()
    widget._notify_changed("p")
    widget.close()
    widget.close()
    widget._on_message(widget, {"id": 1, "verb": "hello"}, [])


def test_a_csv_column_with_trailing_separators() -> None:
    assert arrays_of("x.csv", b"1,\n2,\n")["x"].tolist() == [1, 2]
    assert parse_value("1.5;\n2;") == [1.5, 2.0]


def test_a_window_of_an_array_whose_first_dimension_is_0(call: Any) -> None:
    value = {"dtype": "float32", "shape": [0, 3, 4], "data": []}
    found = call("window", value=value, rows=[0, 9], columns=[0, 9])
    assert (found["of"], found["cells"]) == ([0, 4], [])
    with pytest.raises(InvalidArgumentError, match=r"at\[0\] must be in \[0, 0\); got 1"):
        call("window", value=value, at=[1], rows=[0, 9], columns=[0, 9])
