"""Errors appear on their block and pin; crashes of the front end itself lose nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from grid_pages import block, const, page, session
from playwright.sync_api import Route, expect
from studio_window import StudioWindow
from window_actions import is_in_view, open_page, open_panel

from rowgrad.graph import load
from rowgrad.graph.page_summary import summary

FAR_AWAY = [4000, 3000]


def page_with_error() -> dict[str, Any]:
    """Return a page with float ids, two blocks downstream of the error, and two independent blocks."""
    data, ids, segments = const("data", [[1.0, 2.0], [3.0, 4.0]]), const("ids", [0.5]), const("segments", [0], "int32")
    mean = block("mean", "SparseSegmentMean", data="data.output", indices="ids.output", segment_ids="segments.output")
    behind, after = block("behind", "Neg", x="mean.output"), block("after", "Square", x="behind.y")
    return page(
        "p", data, ids, segments, mean, behind, after, block("other", "Neg", x="data.output"), session("other.y")
    )


@pytest.mark.feature("errors")
@pytest.mark.broken(
    "rowgrad.studio.project_verbs:summary",
    "lambda *given: (s := original(*given)) | "
    "{'errors': {k: e | {'message': 'wrong'} for k, e in s['errors'].items()}}",
)
def test_an_error_appears_on_its_block_and_pin_with_the_message_of_check(ui: StudioWindow) -> None:
    open_page(ui, page_with_error())
    wanted = summary(load(ui.server.folder / "p.json"))["errors"]  # type: ignore[arg-type]
    assert wanted.keys() == {"mean"}
    assert wanted["mean"]["pin"] == "indices"
    expect(ui.block("mean")).to_have_class(re.compile(r"\bfaulty\b"))
    assert ui.block_error("mean") == wanted["mean"]["message"]
    expect(ui.window.locator(".pin-row.faulty")).to_have_count(1)
    expect(ui.block("mean").locator('[data-pin="indices"]')).to_have_class(re.compile(r"\bfaulty\b"))
    message = open_panel(ui, "messages").locator(".message.error .message-text")
    expect(message).to_have_text(f"p mean.indices {wanted['mean']['text']}")
    ui.type_value("ids", "val", "{1}", "int32")
    expect(ui.window.locator(".block-message")).to_have_count(0)
    expect(ui.block("mean")).not_to_have_class(re.compile(r"\bfaulty\b"))
    # An error that only a run finds appears on its block as well.
    ui.type_value("ids", "val", "{7}")
    ui.wire("mean.output", "session.fetch_outputs")
    ui.windows.allow_error("status of 4")
    ui.press("run")
    ui.wait_run("failed")
    expect(ui.block("mean").locator(".block-message")).to_contain_text(re.compile(r"indices.*\b7\b"))
    expect(ui.block("mean").locator('[data-pin="indices"]')).to_have_class(re.compile(r"\bfaulty\b"))


@pytest.mark.feature("errors")
@pytest.mark.broken(
    "rowgrad.studio.project_verbs:summary",
    "lambda *given: (s := original(*given)) | {'waiting': [], 'errors': s['errors'] | "
    "{k: next(iter(s['errors'].values())) for k in s['waiting']}}",
)
def test_one_error_does_not_cascade(ui: StudioWindow) -> None:
    open_page(ui, page_with_error())
    expect(ui.window.locator(".block-message")).to_have_count(1)
    for name in ("behind", "after"):
        expect(ui.block(name)).to_have_class(re.compile(r"\bwaiting\b"))
        expect(ui.block(name)).not_to_have_class(re.compile(r"\bfaulty\b"))
    for name in ("data", "ids", "segments", "other", "session"):
        expect(ui.block(name)).not_to_have_class(re.compile(r"\b(waiting|faulty)\b"))
    expect(ui.block("other").locator('[data-out="y"] .pin-info')).to_have_text("float64[2,2]")
    ui.run_once()
    assert ui.result("other", "y") == [["-1.0", "-2.0"], ["-3.0", "-4.0"]]


@pytest.mark.feature("messages")
def test_a_click_on_a_message_shows_its_block(ui: StudioWindow) -> None:
    tree = page_with_error()
    tree["blocks"][3]["at"] = FAR_AWAY
    open_page(ui, tree)
    ui.select("data")
    ui.key("Control+1")  # at full size the other corner of the page is out of view
    ui.block("data").locator(".block-op").focus()
    panel = open_panel(ui, "messages")
    ui.wait_until(lambda: not is_in_view(ui, ui.block("mean"), ui.canvas))
    panel.locator(".message.error").click()
    expect(ui.block("mean")).to_have_class(re.compile("selected"))
    expect(ui.inspector.get_by_label("Name")).to_have_value("mean")
    ui.wait_until(lambda: is_in_view(ui, ui.block("mean"), ui.canvas))
    expect(ui.block("data")).not_to_have_class(re.compile("selected"))


@pytest.mark.feature("errors")
@pytest.mark.broken("rowgrad.studio.project_verbs:summary", "lambda *given: original(*given) | {'errors': {}}")
def test_an_unknown_op_is_shown_and_reported_and_the_page_opens(ui: StudioWindow) -> None:
    odd = block("odd", "SparseSegmentMaen", {"scale": 2}, data="a.output")
    tree = page("p", const("a", [1.0]), odd, block("minus", "Neg", x="a.output"), session("minus.y"))
    open_page(ui, tree)
    expect(ui.window.locator("[data-block]")).to_have_count(4)
    expect(ui.block("odd").locator(".block-op")).to_have_text("SparseSegmentMaen")
    assert "there is no block 'SparseSegmentMaen'; did you mean 'SparseSegmentMean'?" in ui.block_error("odd")
    expect(ui.wires("odd.data")).to_have_count(1)
    ui.run_once()
    assert ui.result("minus", "y") == [["-1.0"]]
    ui.drag("minus", (40, 40))
    saved = ui.page_json("p")
    saved_odd = next(one for one in saved["blocks"] if one["id"] == "odd")
    assert (saved_odd["op"], saved_odd["in"], saved_odd["values"]) == (odd["op"], odd["in"], odd["values"])


@pytest.mark.broken(
    "rowgrad.studio.project:Folder.save", "lambda self, name, *given: Saved(self.open(name)[1], None, False)"
)
def test_a_front_end_crash_shows_what_to_do_and_loses_nothing(ui: StudioWindow) -> None:
    open_page(ui, page("p", const("a", [1.0]), block("minus", "Neg", x="a.output"), session("minus.y")))
    ui.run_once()
    for message in (r"net::ERR_FAILED", "Cannot read properties|is not iterable|null", "failed: POST /api/save"):
        ui.windows.allow_error(message)
    ui.window.route("**/api/save", lambda route: route.abort())
    ui.type_value("a", "val", "{42}")
    expect(ui.window.locator(".save-state")).to_have_attribute("data-saving", "failed")

    def drop_cells(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | {"cells": None})

    ui.window.route("**/api/window", drop_cells)
    ui.block("minus").locator("button.result").click()
    expect(ui.window.get_by_role("heading", name="Something went wrong on this page")).to_be_visible()
    expect(ui.window.get_by_text("What you have drawn is kept")).to_be_visible()
    ui.window.unroute_all()
    ui.window.get_by_role("button", name="Reload").click()
    ui.canvas.wait_for()
    ui.wait_saved()
    (value,) = ui.page_json("p")["blocks"][0]["values"]["val"]["data"]
    assert value == 42
    ui.run_once()
    assert ui.result("minus", "y") == [["-42.0"]]
