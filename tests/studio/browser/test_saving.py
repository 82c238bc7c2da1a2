"""Every edit is on the disk within a second, whatever happens to the window or the server."""

from __future__ import annotations

import json
import random
import socket
import time

import pytest
from desk import Desk, const
from playwright.sync_api import expect
from running import Studio


def on_disk(desk: Desk, name: str) -> list[str]:
    return [b["id"] for b in desk.studio.page_json(name)["blocks"]]


@pytest.mark.feature("autosave")
def test_an_edit_is_a_file_within_a_second(desk: Desk) -> None:
    """Project folder with autosave: edit → file on disk within 1 s."""
    name = desk.new_page()
    assert on_disk(desk, name) == []
    for k, wanted in enumerate((["const"], ["const", "const_2"])):
        desk.place("Const")
        began = time.monotonic()
        while on_disk(desk, name) != wanted:
            assert time.monotonic() < began + 1, f"{on_disk(desk, name)} after a second"
            desk.window.wait_for_timeout(10)
        assert len(list(desk.studio.folder.glob("*.json"))) == 1, f"one page, one file; edit {k}"
    desk.wait_saved()
    text = (desk.studio.folder / f"{name}.json").read_text()
    assert json.loads(text)["format"] == "rowgrad-page"


@pytest.mark.feature("drafts")
def test_a_reload_in_the_middle_of_an_edit_loses_nothing(desk: Desk) -> None:
    """Nothing lost by a reload mid-edit: the server has not heard of it when the window goes."""
    desk.watch.forgive("ERR_FAILED|/api/save")
    name = desk.put_page("work", const("x", (0, 0), [1.0]))
    desk.open(name)
    desk.window.route("**/api/save", lambda route: route.abort())
    desk.type_value("x", "val", "{7,8}")
    desk.place("Neg", (300, 80))
    desk.key("Escape")
    desk.window.reload()  # nothing was saved, nor is it by a window that goes
    expect(desk.block("neg")).to_be_visible()
    assert on_disk(desk, name) == ["x"]
    desk.window.unroute("**/api/save")
    expect(desk.block("x")).to_contain_text("{7,8}")
    assert [b["id"] for b in desk.page_json(name)["blocks"]] == ["x", "neg"]
    assert desk.saved_block("x")["values"]["val"]["data"] == [7.0, 8.0]
    desk.key("Control+z")  # the steps are there too
    expect(desk.window.locator("[data-block]")).to_have_count(1)


@pytest.fixture
def own_port(studio: Studio) -> None:
    """A port no other server takes while this one is down: far from the usual one, and below those of clients."""
    while not studio.port:
        with socket.socket() as tried:
            port = random.randrange(20_000, 30_000)
            if tried.connect_ex(("127.0.0.1", port)):
                studio.port = port
    studio.start()


@pytest.mark.usefixtures("own_port")
@pytest.mark.feature("autosave")
def test_a_killed_server_loses_no_more_than_the_last_second(desk: Desk) -> None:
    """Server killed with kill -9 during continuous edits loses at most the last second; the page resumes."""
    desk.watch.forgive("ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY|/api/")
    name = desk.put_page("work", const("x", (0, 0), [1.0]))
    desk.open(name)
    desk.select("x")
    desk.window.locator('.react-flow__node[data-id="x"]').focus()
    began = time.monotonic()
    moved: list[float] = []  # when each step of ten was taken; the place on the disk says how many arrived
    while time.monotonic() < began + 1.7:
        desk.key("ArrowRight")
        moved.append(time.monotonic())
    desk.studio.kill()
    killed = time.monotonic()
    reached = desk.studio.page_json(name)["blocks"][0]["at"][0] / 10
    due = sum(when < killed - 1 for when in moved)
    assert due > 5
    assert reached >= due, f"{reached} of {due} edits older than a second"
    expect(desk.window.locator(".offline")).to_be_visible()
    for _ in range(5):
        desk.key("ArrowDown")
    assert desk.studio.page_json(name)["blocks"][0]["at"][1] == 0
    desk.studio.start()
    expect(desk.window.locator(".offline")).to_have_count(0)
    x, y = desk.saved_block("x", name)["at"]
    assert (x, y) == (10 * len(moved), 50)
