"""Two windows on one project."""

from __future__ import annotations

import re

import pytest
from desk import Desk, const
from playwright.sync_api import Route, expect


@pytest.mark.feature("conflicts")
@pytest.mark.broken("rowgrad.studio.project_verbs:send_conflict_event", "lambda *given: None")
def test_the_second_writer_is_kept_and_both_say_so(desk: Desk) -> None:
    """Two windows on one project: the second writer's page is kept as a page of its own, both say so."""
    desk.put_page("work", const("x", (0, 0), [1.0]))
    other = desk.another_window().open("work")
    desk.open("work")
    expect(desk.block("x")).to_be_visible()
    # The second window does not hear of the first one's edit before it sends its own.
    waiting: list[Route] = []
    other.window.route("**/api/save", lambda route: route.continue_() if waiting else waiting.append(route))
    other.type_value("x", "val", "{2,2}")
    other._until(lambda: waiting)
    desk.type_value("x", "val", "{3,3,3}")
    desk.wait_saved()
    waiting[0].continue_()
    dialog = other.window.get_by_role("dialog", name="Two windows changed this page")
    expect(dialog).to_be_visible()
    kept = dialog.locator("b").last.inner_text()
    assert re.fullmatch(r"work \(kept \d\d-\d\d-\d\d.*\)", kept)
    desk.wait_message(re.compile(f"Another window changed work .*{re.escape(kept)}"))
    assert desk.studio.page_json("work")["blocks"][0]["values"]["val"]["data"] == [3.0, 3.0, 3.0]
    assert desk.studio.page_json(kept)["blocks"][0]["values"]["val"]["data"] == [2.0, 2.0]
    dialog.get_by_role("button", name="Open mine").click()
    expect(other.tab(kept)).to_have_attribute("aria-selected", "true")
    expect(other.block("x")).to_contain_text("{2,2}")
    other.tab("work").click()
    expect(other.block("x")).to_contain_text("{3,3,3}")  # what stands is shown to both
    expect(desk.block("x")).to_contain_text("{3,3,3}")
    other.type_value("x", "val", "{4}")  # and is gone on with
    assert other.saved_block("x", "work")["values"]["val"]["data"] == [4.0]
    assert len(list(desk.studio.folder.glob("*.json"))) == 2


@pytest.mark.broken("rowgrad.studio.project_verbs:send_page_event", "lambda *given: None")
def test_a_window_without_edits_follows(desk: Desk) -> None:
    """Two windows on one project: a window without edits follows live."""
    desk.put_page("work", const("x", (0, 0), [1.0]))
    other = desk.another_window().open("work")
    desk.open("work")
    desk.type_value("x", "val", "{5,6}")
    expect(other.block("x")).to_contain_text("{5,6}")
    desk.place("Neg", (300, 200))
    expect(other.block("neg")).to_be_visible()
    desk.wire("x.output", "neg.x")
    expect(other.wires("neg.x")).to_have_count(1)
    expect(other.wires("neg.x").locator(".wire-text")).to_have_text("float32[2]")
    other.drag("neg", (60, 40))  # and the other way round
    other.wait_saved()
    place = other.saved_block("neg", "work")["at"]
    desk._until(lambda: desk.saved_block("neg", "work")["at"] == place)
    desk.wait_saved()
    assert desk.messages() == other.messages() == []
    assert [path.stem for path in desk.studio.folder.glob("*.json")] == ["work"]
    other.key("Control+z")
    other.wait_saved()
    expect(desk.wires("neg.x")).to_have_count(1)
