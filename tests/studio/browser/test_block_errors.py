"""Faults: on the block and pin they belong to, in the words of the check; those of the page itself, too."""

from __future__ import annotations

import re
from typing import Any

import pytest
from at_the_desk import bring, is_in_view, panel
from desk import Desk
from drawn_pages import block, const, page, session
from playwright.sync_api import Route, expect

from rowgrad.graph import load
from rowgrad.graph.page_summary import summary

FAR_AWAY = [4000, 3000]


def faulty_page() -> dict[str, Any]:
    """Ids that are no integers, a block behind it, one behind that, and two that have nothing to do with it."""
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
def test_an_error_stands_on_its_block_and_pin_in_the_words_of_check(desk: Desk) -> None:
    bring(desk, faulty_page())
    wanted = summary(load(desk.studio.folder / "p.json"))["errors"]  # type: ignore[arg-type]
    assert wanted.keys() == {"mean"}
    assert wanted["mean"]["pin"] == "indices"
    expect(desk.block("mean")).to_have_class(re.compile(r"\bfaulty\b"))
    assert desk.fault("mean") == wanted["mean"]["message"]
    expect(desk.window.locator(".pin-row.faulty")).to_have_count(1)
    expect(desk.block("mean").locator('[data-pin="indices"]')).to_have_class(re.compile(r"\bfaulty\b"))
    expect(panel(desk, "messages").locator(".message.error")).to_have_text(f"mean.indices {wanted['mean']['text']}")
    desk.type_value("ids", "val", "{1}", "int32")
    expect(desk.window.locator(".block-message")).to_have_count(0)
    expect(desk.block("mean")).not_to_have_class(re.compile(r"\bfaulty\b"))
    # A fault that only a run can find is on its block as well.
    desk.type_value("ids", "val", "{7}")
    desk.wire("mean.output", "session.fetch_outputs")
    desk.watch.forgive("status of 4")
    desk.press("run")
    desk.wait_run("failed")
    expect(desk.block("mean").locator(".block-message")).to_contain_text(re.compile(r"indices.*\b7\b"))
    expect(desk.block("mean").locator('[data-pin="indices"]')).to_have_class(re.compile(r"\bfaulty\b"))


@pytest.mark.feature("errors")
@pytest.mark.broken(
    "rowgrad.studio.project_verbs:summary",
    "lambda *given: (s := original(*given)) | {'waiting': [], 'errors': s['errors'] | "
    "{k: next(iter(s['errors'].values())) for k in s['waiting']}}",
)
def test_one_fault_does_not_cascade(desk: Desk) -> None:
    bring(desk, faulty_page())
    expect(desk.window.locator(".block-message")).to_have_count(1)
    for name in ("behind", "after"):
        expect(desk.block(name)).to_have_class(re.compile(r"\bwaiting\b"))
        expect(desk.block(name)).not_to_have_class(re.compile(r"\bfaulty\b"))
    for name in ("data", "ids", "segments", "other", "session"):
        expect(desk.block(name)).not_to_have_class(re.compile(r"\b(waiting|faulty)\b"))
    expect(desk.block("other").locator('[data-out="y"] .pin-info')).to_have_text("float64[2,2]")
    desk.run_once()
    assert desk.result("other", "y") == [["-1.0", "-2.0"], ["-3.0", "-4.0"]]


@pytest.mark.feature("messages")
def test_a_message_leads_to_its_block(desk: Desk) -> None:
    drawn = faulty_page()
    drawn["blocks"][3]["at"] = FAR_AWAY
    bring(desk, drawn)
    desk.select("data")
    desk.key("Control+1")  # at full size the other corner of the page is out of sight
    desk.block("data").locator(".block-op").focus()
    below = panel(desk, "messages")
    desk._until(lambda: not is_in_view(desk, desk.block("mean"), desk.canvas))
    below.locator(".message.error").click()
    expect(desk.block("mean")).to_have_class(re.compile("selected"))
    expect(desk.inspector.get_by_label("Name")).to_have_value("mean")
    desk._until(lambda: is_in_view(desk, desk.block("mean"), desk.canvas))
    expect(desk.block("data")).not_to_have_class(re.compile("selected"))


@pytest.mark.feature("errors")
@pytest.mark.broken("rowgrad.studio.project_verbs:summary", "lambda *given: original(*given) | {'errors': {}}")
def test_an_unknown_op_is_shown_and_reported_and_the_page_opens(desk: Desk) -> None:
    odd = block("odd", "SparseSegmentMaen", {"scale": 2}, data="a.output")
    drawn = page("p", const("a", [1.0]), odd, block("minus", "Neg", x="a.output"), session("minus.y"))
    bring(desk, drawn)
    expect(desk.window.locator("[data-block]")).to_have_count(4)
    expect(desk.block("odd").locator(".block-op")).to_have_text("SparseSegmentMaen")
    assert "there is no block 'SparseSegmentMaen'; did you mean 'SparseSegmentMean'?" in desk.fault("odd")
    expect(desk.wires("odd.data")).to_have_count(1)
    desk.run_once()
    assert desk.result("minus", "y") == [["-1.0"]]
    desk.drag("minus", (40, 40))
    saved = desk.page_json("p")
    kept = next(one for one in saved["blocks"] if one["id"] == "odd")
    assert (kept["op"], kept["in"], kept["values"]) == (odd["op"], odd["in"], odd["values"])


@pytest.mark.broken(
    "rowgrad.studio.project:Folder.save", "lambda self, name, *given: Saved(self.open(name)[1], None, False)"
)
def test_a_fault_of_the_page_itself_shows_what_to_do_and_loses_nothing(desk: Desk) -> None:
    bring(desk, page("p", const("a", [1.0]), block("minus", "Neg", x="a.output"), session("minus.y")))
    desk.run_once()
    for trouble in (r"net::ERR_FAILED", "Cannot read properties|is not iterable|null", "failed: POST /api/save"):
        desk.watch.forgive(trouble)
    desk.window.route("**/api/save", lambda route: route.abort())
    desk.type_value("a", "val", "{42}")
    expect(desk.window.locator(".save-state")).to_have_attribute("data-saving", "failed")

    def sabotage(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | {"cells": None})

    desk.window.route("**/api/window", sabotage)
    desk.block("minus").locator("button.result").click()
    expect(desk.window.get_by_role("heading", name="Something went wrong on this page")).to_be_visible()
    expect(desk.window.get_by_text("What you have drawn is kept")).to_be_visible()
    desk.window.unroute_all()
    desk.window.get_by_role("button", name="Reload").click()
    desk.canvas.wait_for()
    desk.wait_saved()
    (value,) = desk.page_json("p")["blocks"][0]["values"]["val"]["data"]
    assert value == 42
    desk.run_once()
    assert desk.result("minus", "y") == [["-42.0"]]
