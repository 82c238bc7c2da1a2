"""Every edit is on disk within a second, even if the window reloads or the server is killed."""

from __future__ import annotations

import json
import random
import socket
import time

import pytest
from page_fixtures import const
from playwright.sync_api import expect
from studio_server import StudioServer
from studio_window import StudioWindow


def saved_ids(ui: StudioWindow, name: str) -> list[str]:
    return [b["id"] for b in ui.server.page_json(name)["blocks"]]


@pytest.mark.feature("autosave")
def test_an_edit_is_saved_within_a_second(ui: StudioWindow) -> None:
    name = ui.new_page()
    assert saved_ids(ui, name) == []
    for k, wanted in enumerate((["const"], ["const", "const_2"])):
        ui.place("Const")
        began = time.monotonic()
        while saved_ids(ui, name) != wanted:
            assert time.monotonic() < began + 1, f"{saved_ids(ui, name)} after a second"
            ui.window.wait_for_timeout(10)
        assert len(list(ui.server.folder.glob("*.json"))) == 1, f"one page, one file; edit {k}"
    ui.wait_saved()
    text = (ui.server.folder / f"{name}.json").read_text()
    assert json.loads(text)["format"] == "rowgrad-page"


@pytest.mark.feature("drafts")
def test_a_reload_before_the_save_loses_nothing(ui: StudioWindow) -> None:
    """The window reloads while the server has not received the edit."""
    ui.windows.allow_error("ERR_FAILED|/api/save")
    name = ui.write_page("work", const("x", (0, 0), [1.0]))
    ui.open(name)
    ui.window.route("**/api/save", lambda route: route.abort())
    ui.type_value("x", "val", "{7,8}")
    ui.place("Neg", (300, 80))
    ui.key("Escape")
    ui.window.reload()  # neither the edit nor the closing window has saved
    expect(ui.block("neg")).to_be_visible()
    assert saved_ids(ui, name) == ["x"]
    ui.window.unroute("**/api/save")
    expect(ui.block("x")).to_contain_text("{7,8}")
    assert [b["id"] for b in ui.page_json(name)["blocks"]] == ["x", "neg"]
    assert ui.saved_block("x")["values"]["val"]["data"] == [7.0, 8.0]
    ui.key("Control+z")  # the undo history survives as well
    expect(ui.window.locator("[data-block]")).to_have_count(1)


@pytest.fixture
def own_port(server: StudioServer) -> None:
    """Reserve a port outside of the default and ephemeral ranges, so that no other server takes it meanwhile."""
    while not server.port:
        with socket.socket() as tried:
            port = random.randrange(20_000, 30_000)
            if tried.connect_ex(("127.0.0.1", port)):
                server.port = port
    server.start()


@pytest.mark.usefixtures("own_port")
@pytest.mark.feature("autosave")
def test_a_killed_server_loses_no_more_than_the_last_second(ui: StudioWindow) -> None:
    """Killed with SIGKILL during continuous edits; the window resumes after a restart."""
    ui.windows.allow_error("ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY|/api/")
    name = ui.write_page("work", const("x", (0, 0), [1.0]))
    ui.open(name)
    ui.select("x")
    ui.window.locator('.react-flow__node[data-id="x"]').focus()
    began = time.monotonic()
    moved: list[float] = []  # time of each step of 10; the saved position tells how many arrived
    while time.monotonic() < began + 1.7:
        ui.key("ArrowRight")
        moved.append(time.monotonic())
    ui.server.kill()
    killed = time.monotonic()
    reached = ui.server.page_json(name)["blocks"][0]["at"][0] / 10
    due = sum(when < killed - 1 for when in moved)
    assert due > 5
    assert reached >= due, f"{reached} of {due} edits older than a second"
    expect(ui.window.locator(".offline")).to_be_visible()
    for _ in range(5):
        ui.key("ArrowDown")
    assert ui.server.page_json(name)["blocks"][0]["at"][1] == 0
    ui.server.start()
    expect(ui.window.locator(".offline")).to_have_count(0)
    x, y = ui.saved_block("x", name)["at"]
    assert (x, y) == (10 * len(moved), 50)
