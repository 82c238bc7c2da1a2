"""A state belongs to the page that wrote it: another page with the same Variables rejects it by default."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rowgrad.cli import main
from rowgrad.graph import ClientSession, Page, PageError, build
from rowgrad.graph.io import save
from rowgrad.graph.io.state_file import load_state, save_state
from rowgrad.graph.page import Block, End

ONE = np.array([1.0, 2.0], np.float32)


def page(name: str = "a", op: str = "AssignAdd", by: float = 1.0, rate: str = "rate", extra: bool = False) -> Page:
    blocks = [
        Block("w", "Variable", {"initvalues": ONE}),
        Block(rate, "Const", {"val": np.full(2, by, np.float32)}, at=(1.0, 2.0)),
        Block("step", op, wires={"ref": [End("w", "ref")], "value": [End(rate, "output")]}),
        Block("run", "ClientSession", wires={"fetch_outputs": [End("step", "output_ref")]}),
    ]
    if extra:
        blocks.insert(0, Block("watch", "Neg", wires={"x": [End("w", "ref")]}))
        blocks.append(Block("v", "Variable", {"initvalues": ONE}))
    return Page(name, blocks)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    session = ClientSession(build(page()))
    session.run_block()
    session.save(tmp_path / "state")
    return tmp_path / "state"


def value(session: ClientSession) -> list[float]:
    found: list[float] = session.variables["w"].tolist()
    return found


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (page("b", op="AssignSub"), "it is a state of page 'a', and this page computes something else with w; pass"),
        (page("a", op="AssignSub"), "it is a state of page 'a', and this page computes something else with w; pass"),
        (page("b", by=100.0), "it is a state of page 'a', and page 'b' has other values in its blocks; pass"),
        (Page("a", page().blocks[:1]), "this page computes something else with w"),
    ],
)
def test_the_state_of_another_page_is_rejected(state: Path, other: Page, message: str) -> None:
    session = ClientSession(build(other))
    before = value(session)
    with pytest.raises(PageError, match=message):
        session.restore(state)
    assert value(session) == before
    session.restore(state, other_page=True)
    assert value(session) == [2.0, 3.0]


@pytest.mark.parametrize(
    "same",
    [
        page(),
        page("renamed"),
        page(rate="another_id"),
        page(by=0.5),  # the same page with another rate
        page(extra=True),
        Page("a", list(reversed(page().blocks))),
    ],
)
def test_the_same_page_in_another_layout_restores_the_state(state: Path, same: Page) -> None:
    for block in same.blocks:
        block.at = (300.0, 400.0)
    session = ClientSession(build(same))
    session.restore(state)
    assert value(session) == [2.0, 3.0]


def test_pages_without_updates_are_distinguished_by_readers_of_their_variables(tmp_path: Path) -> None:
    def reading(op: str) -> ClientSession:
        blocks = [Block("w", "Variable", {"initvalues": ONE}), Block("y", op, wires={"x": [End("w", "ref")]})]
        return ClientSession(build(Page("p", blocks)))

    reading("Neg").save(tmp_path / "state")
    reading("Neg").restore(tmp_path / "state")
    with pytest.raises(PageError, match="this page computes something else with w"):
        reading("Square").restore(tmp_path / "state")


def test_files_without_an_identity_are_restored_with_a_warning(tmp_path: Path, state: Path) -> None:
    old = load_state(state)
    save_state(tmp_path / "old", old.variables, old.counters, old.page)
    with zipfile.ZipFile(tmp_path / "old") as archive:
        head = json.loads(archive.read("state.json"))
    assert (head["version"], "graph" in head) == (1, False)
    session = ClientSession(build(page("b", op="AssignSub")))
    with pytest.warns(UserWarning, match="does not say which page it belongs to"):
        session.restore(tmp_path / "old")
    assert value(session) == [2.0, 3.0]


def test_the_command_rejects_the_state_of_another_page(
    tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(page("b", op="AssignSub"), tmp_path / "b.json")
    before = state.read_bytes()
    words = ["run", str(tmp_path / "b.json"), "--state", str(state)]
    assert main(words) == 1
    assert "it is a state of page 'a'" in capsys.readouterr().err
    assert state.read_bytes() == before
    assert main([*words, "--other-page"]) == 0
    capsys.readouterr()
    assert load_state(state).page == "b"
    saved = load_state(state)
    save_state(tmp_path / "old", saved.variables, saved.counters, saved.page)
    assert main(["run", str(tmp_path / "b.json"), "--state", str(tmp_path / "old")]) == 0
    assert "warning: " in capsys.readouterr().err


def test_damaged_identities_are_rejected(tmp_path: Path, state: Path) -> None:
    with zipfile.ZipFile(state) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for wrong in (5, {}, {"variables": [], "values": ""}, {"variables": {"w": 1}, "values": ""}):
        head = json.loads(members["state.json"]) | {"graph": wrong}
        with zipfile.ZipFile(tmp_path / "bad", "w") as archive:
            for name, raw in (members | {"state.json": json.dumps(head).encode()}).items():
                archive.writestr(name, raw)
        with pytest.raises(PageError):
            load_state(tmp_path / "bad")
