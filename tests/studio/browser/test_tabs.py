"""Pages as tabs: each a Scope of its own, several running, renamed, removed and brought back."""

from __future__ import annotations

import re

import pytest
from desk import Desk, block, const
from playwright.sync_api import expect


def put(desk: Desk, name: str, number: float) -> None:
    """Every page has the same two blocks by name, with a number of its own."""
    session = block("session", "ClientSession", (340, 0), wires={"fetch_outputs": "x.output"})
    desk.put_page(name, const("x", (0, 0), [number, number + 1]), session)


@pytest.mark.feature("tabs")
@pytest.mark.broken("rowgrad.studio.runs:Runs.of", "lambda self, name: original(self, 'left')")
def test_pages_are_tabs_and_each_is_a_scope_of_its_own(desk: Desk) -> None:
    """Tabs, each its own Scope: the same ids on two pages, both run, results apart."""
    put(desk, "left", 1)
    put(desk, "right", 30)
    desk.open("left")
    desk.run_once()
    assert desk.preview("x", "output") == "1, 2"
    desk.go_to("right")
    desk.wait_run("idle")
    expect(desk.block("x").locator(".result-preview")).to_have_count(0)
    desk.run_once()
    assert desk.preview("x", "output") == "30, 31"
    desk.tab("left").click()
    assert desk.preview("x", "output") == "1, 2"
    assert desk.result("x", "output") == [["1.0"], ["2.0"]]
    desk.type_value("x", "val", "{5}")  # of this page only
    assert desk.saved_block("x")["values"] == {"val": {"dtype": "float32", "shape": [1], "data": [5.0]}}
    desk.key("Alt+PageDown")
    assert desk.page == "right"
    assert desk.preview("x", "output") == "30, 31"
    assert desk.saved_block("x")["values"]["val"]["data"] == [30.0, 31.0]


# A server that runs one page only: each start ends the other's.
ONE_AT_A_TIME = """lambda self, name, *rest, **more: (
    [self.stop(other) for other in ("left", "right") if other != name], original(self, name, *rest, **more))[1]"""


@pytest.mark.broken("rowgrad.studio.runs:Runs.start", ONE_AT_A_TIME)
def test_several_pages_run_at_the_same_time(desk: Desk) -> None:
    """Several pages running together: two cyclic runs, both advance."""
    put(desk, "left", 1)
    put(desk, "right", 30)
    desk.open("left")
    desk.window.get_by_label("Runs per second").fill("50")
    desk.press("run-rate")
    desk.wait_run("running")
    desk.go_to("right")
    desk.press("run-rate")
    desk.wait_run("running")
    expect(desk.window.locator(".tab .dot.running")).to_have_count(2)
    seen = {"left": 0, "right": 0}
    for name in ("right", "left", "right", "left"):  # each goes on while the other is looked at
        desk.window.locator(".tab-list [role=tab]", has_text=name).click()
        expect(desk.window.locator("h1.unseen")).to_have_text(name)
        desk.wait_run("running")
        desk._until(lambda name=name: desk.runs() > seen[name] + 2)
        seen[name] = desk.runs()
    desk.press("stop")
    desk.wait_run("stopped")
    expect(desk.window.locator(".tab .dot.running")).to_have_count(1)


@pytest.mark.broken("rowgrad.studio.project:Folder.rename", "lambda self, name, to: self.info(name)")
def test_a_page_is_renamed(desk: Desk) -> None:
    """Renaming a page: its file, its tab and its run go along; a name that is taken is refused with words."""
    put(desk, "left", 1)
    put(desk, "right", 30)
    desk.open("left")
    desk.run_once()
    desk.tab("left").dblclick()
    dialog = desk.window.get_by_role("dialog", name="Rename left")
    dialog.get_by_label("Name of the page").fill("middle")
    desk.key("Enter")
    expect(desk.tab("middle")).to_have_attribute("aria-selected", "true")
    expect(dialog).to_have_count(0)
    assert not (desk.studio.folder / "left.json").exists()
    assert [b["id"] for b in desk.page_json("middle")["blocks"]] == ["x", "session"]
    assert desk.preview("x", "output") == "1, 2"
    desk.run_once()
    assert desk.runs() == 2
    desk.watch.forgive("status of 400")
    desk.tab("middle").dblclick()
    desk.window.get_by_label("Name of the page").fill("right")
    desk.key("Enter")
    expect(desk.window.get_by_role("alert").filter(has_text=re.compile("right"))).to_be_visible()
    desk.key("Escape")
    assert desk.tabs() == ["middle"]
    assert (desk.studio.folder / "middle.json").exists()


@pytest.mark.broken("rowgrad.studio.project:Folder.remove", "lambda self, name: None")
@pytest.mark.broken("rowgrad.studio.project:Folder.bring_back", "lambda self, name: self.new(name)")
def test_a_removed_page_is_brought_back(desk: Desk) -> None:
    """Removing and bringing back a page."""
    put(desk, "left", 1)
    put(desk, "right", 30)
    desk.open("left")
    expect(desk.block("x")).to_be_visible()
    before = desk.page_json("left")
    desk.window.locator(".top-bar .brand").click()
    row = desk.window.locator('[data-page="left"]')
    row.get_by_role("button", name="Remove left", exact=True).click()
    row.get_by_role("button", name="Remove", exact=True).click()
    expect(row).to_have_count(0)
    assert desk.tabs() == []
    assert not (desk.studio.folder / "left.json").exists()
    assert list((desk.studio.folder / ".rowgrad" / "removed").rglob("left.json"))
    desk.window.get_by_role("button", name="Bring back left").click()
    expect(desk.block("x")).to_be_visible()
    assert desk.page_json("left") == before
