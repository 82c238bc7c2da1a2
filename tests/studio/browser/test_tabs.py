"""Pages as tabs: separate scopes, simultaneous runs, rename, remove and restore."""

from __future__ import annotations

import re

import pytest
from page_fixtures import block, const
from playwright.sync_api import expect
from studio_window import StudioWindow


def write_page_with(ui: StudioWindow, name: str, number: float) -> None:
    """Write a page; all pages have the same block ids and different numbers."""
    session = block("session", "ClientSession", (340, 0), wires={"fetch_outputs": "x.output"})
    ui.write_page(name, const("x", (0, 0), [number, number + 1]), session)


@pytest.mark.feature("tabs")
@pytest.mark.broken("rowgrad.studio.runs:Runs.of", "lambda self, name: original(self, 'left')")
def test_each_tab_has_its_own_scope(ui: StudioWindow) -> None:
    """Two pages with the same block ids have separate results."""
    write_page_with(ui, "left", 1)
    write_page_with(ui, "right", 30)
    ui.open("left")
    ui.run_once()
    assert ui.preview("x", "output") == "1, 2"
    ui.switch_to("right")
    ui.wait_run("idle")
    expect(ui.block("x").locator(".result-preview")).to_have_count(0)
    ui.run_once()
    assert ui.preview("x", "output") == "30, 31"
    ui.tab("left").click()
    assert ui.preview("x", "output") == "1, 2"
    assert ui.result("x", "output") == [["1.0"], ["2.0"]]
    ui.type_value("x", "val", "{5}")  # on this page only
    assert ui.saved_block("x")["values"] == {"val": {"dtype": "float32", "shape": [1], "data": [5.0]}}
    ui.key("Alt+PageDown")
    assert ui.page == "right"
    assert ui.preview("x", "output") == "30, 31"
    assert ui.saved_block("x")["values"]["val"]["data"] == [30.0, 31.0]


@pytest.mark.feature("tabs")
def test_an_address_shows_its_page_and_a_reload_the_active_one(ui: StudioWindow) -> None:
    write_page_with(ui, "left", 1)
    write_page_with(ui, "right", 30)
    ui.open("left")
    ui.switch_to("right")
    ui.open("left")
    assert ui.page == "left"
    ui.wait_until(lambda: ui.tabs() == ["left", "right"])
    ui.tab("right").click()
    ui.reload()
    assert ui.page == "right"


@pytest.mark.feature("restoreTabs")
def test_a_reload_restores_the_open_tabs(ui: StudioWindow) -> None:
    """In their order, with edits that the server has not received; without removed pages and closed tabs."""
    ui.windows.allow_error("ERR_FAILED|/api/save")
    for k, name in enumerate(["first", "second", "third", "fourth", "gone"]):
        write_page_with(ui, name, k)
    ui.open("second")
    for name in ("gone", "first", "fourth", "third"):
        ui.switch_to(name)
    ui.window.get_by_role("button", name="Close second", exact=True).click()
    ui.tab("fourth").click()
    ui.window.route("**/api/save", lambda route: route.abort())
    ui.type_value("x", "val", "{7,8}")
    (ui.server.folder / "gone.json").unlink()
    ui.reload()
    ui.wait_until(lambda: ui.tabs() == ["first", "fourth", "third"])
    assert ui.page == "fourth"
    expect(ui.block("x")).to_contain_text("{7,8}")
    ui.window.unroute("**/api/save")
    assert ui.saved_block("x")["values"]["val"]["data"] == [7.0, 8.0]
    assert ui.tabs() == ["first", "fourth", "third"]
    ui.reload()
    ui.wait_until(lambda: ui.tabs() == ["first", "fourth", "third"])
    assert ui.page == "fourth"
    assert not ui.window.locator(".toast").all_inner_texts()


@pytest.mark.feature("restoreTabs")
def test_a_renamed_page_is_restored_without_a_warning(ui: StudioWindow) -> None:
    """The address still has the old name."""
    write_page_with(ui, "left", 1)
    write_page_with(ui, "right", 30)
    ui.open("left")
    ui.switch_to("right")
    ui.tab("left").dblclick()
    ui.window.get_by_label("Name of the page").fill("middle")
    ui.key("Enter")
    ui.wait_until(lambda: ui.tabs() == ["middle", "right"])
    ui.reload()
    ui.wait_until(lambda: ui.tabs() == ["middle", "right"])
    assert not ui.window.locator(".toast").all_inner_texts()


@pytest.mark.feature("restoreTabs")
def test_a_new_window_restores_the_tabs_of_a_closed_one(ui: StudioWindow) -> None:
    """A window beside another one of the same project starts without its tabs."""
    write_page_with(ui, "left", 1)
    write_page_with(ui, "right", 30)
    ui.open("left")
    ui.switch_to("right")
    beside = ui.another_window(same_browser=True)
    expect(beside.window.get_by_role("heading", name="Pages")).to_be_visible()
    assert beside.tabs() == []
    ui.window.close()
    beside.window.close()
    later = ui.another_window(same_browser=True)
    later.wait_until(lambda: later.tabs() == ["left", "right"])
    assert later.page == "right"
    later.wait_saved()
    for name in ("right", "left"):
        later.window.get_by_role("button", name=f"Close {name}", exact=True).click()
    later.window.close()
    last = ui.another_window(same_browser=True)
    expect(last.window.get_by_role("heading", name="Pages")).to_be_visible()
    assert last.tabs() == []


FILL_STORAGE = """() => {
    for (let size = 1 << 23, k = 0; size; k++) {
        try { sessionStorage.setItem(`filler ${k}`, "x".repeat(size)); } catch { size >>= 1; }
    }
}"""


@pytest.mark.feature("restoreTabs")
def test_tabs_are_restored_if_the_storage_of_the_window_is_full(ui: StudioWindow) -> None:
    write_page_with(ui, "left", 1)
    write_page_with(ui, "right", 30)
    ui.open("left")
    ui.window.evaluate(FILL_STORAGE)
    ui.switch_to("right")
    ui.reload()
    ui.wait_until(lambda: ui.tabs() == ["left", "right"])
    assert ui.page == "right"


NO_STORAGE = """for (const name of ["localStorage", "sessionStorage"])
    Object.defineProperty(window, name, { get() { throw new DOMException("forbidden", "SecurityError"); } });"""


@pytest.mark.feature("tabs")
def test_a_window_without_storage_has_tabs(ui: StudioWindow) -> None:
    write_page_with(ui, "left", 1)
    write_page_with(ui, "right", 30)
    ui.window.add_init_script(NO_STORAGE)
    ui.open("left")
    ui.switch_to("right")
    assert ui.tabs() == ["left", "right"]
    ui.type_value("x", "val", "{5}")
    assert ui.saved_block("x")["values"]["val"]["data"] == [5.0]


# A server that runs one page at a time.
STOP_OTHER_PAGES = """lambda self, name, *rest, **more: (
    [self.stop(other) for other in ("left", "right") if other != name], original(self, name, *rest, **more))[1]"""


@pytest.mark.broken("rowgrad.studio.runs:Runs.start", STOP_OTHER_PAGES)
def test_several_pages_run_at_the_same_time(ui: StudioWindow) -> None:
    """Both advance while the other is shown."""
    write_page_with(ui, "left", 1)
    write_page_with(ui, "right", 30)
    ui.open("left")
    ui.window.get_by_label("Runs per second").fill("50")
    ui.press("run-rate")
    ui.wait_run("running")
    ui.switch_to("right")
    ui.press("run-rate")
    ui.wait_run("running")
    expect(ui.window.locator(".tab .dot.running")).to_have_count(2)
    runs = {"left": 0, "right": 0}
    for name in ("right", "left", "right", "left"):
        ui.window.locator(".tab-list [role=tab]", has_text=name).click()
        expect(ui.window.locator("h1.unseen")).to_have_text(name)
        ui.wait_run("running")
        ui.wait_until(lambda name=name: ui.runs() > runs[name] + 2)
        runs[name] = ui.runs()
    ui.press("stop")
    ui.wait_run("stopped")
    expect(ui.window.locator(".tab .dot.running")).to_have_count(1)


@pytest.mark.broken("rowgrad.studio.project:Folder.rename", "lambda self, name, to: self.info(name)")
def test_a_rename_moves_file_tab_and_run(ui: StudioWindow) -> None:
    """The name of another page is rejected with a message."""
    write_page_with(ui, "left", 1)
    write_page_with(ui, "right", 30)
    ui.open("left")
    ui.run_once()
    ui.tab("left").dblclick()
    dialog = ui.window.get_by_role("dialog", name="Rename left")
    dialog.get_by_label("Name of the page").fill("middle")
    ui.key("Enter")
    expect(ui.tab("middle")).to_have_attribute("aria-selected", "true")
    expect(dialog).to_have_count(0)
    assert not (ui.server.folder / "left.json").exists()
    assert [b["id"] for b in ui.page_json("middle")["blocks"]] == ["x", "session"]
    assert ui.preview("x", "output") == "1, 2"
    ui.run_once()
    assert ui.runs() == 2
    ui.windows.allow_error("status of 400")
    ui.tab("middle").dblclick()
    ui.window.get_by_label("Name of the page").fill("right")
    ui.key("Enter")
    expect(ui.window.get_by_role("alert").filter(has_text=re.compile("right"))).to_be_visible()
    ui.key("Escape")
    assert ui.tabs() == ["middle"]
    assert (ui.server.folder / "middle.json").exists()


@pytest.mark.broken("rowgrad.studio.project:Folder.remove", "lambda self, name: None")
@pytest.mark.broken("rowgrad.studio.project:Folder.bring_back", "lambda self, name: self.new(name)")
def test_a_removed_page_can_be_restored(ui: StudioWindow) -> None:
    write_page_with(ui, "left", 1)
    write_page_with(ui, "right", 30)
    ui.open("left")
    expect(ui.block("x")).to_be_visible()
    before = ui.page_json("left")
    ui.window.locator(".top-bar .brand").click()
    row = ui.window.locator('[data-page="left"]')
    row.get_by_role("button", name="Remove left", exact=True).click()
    row.get_by_role("button", name="Remove", exact=True).click()
    expect(row).to_have_count(0)
    assert ui.tabs() == []
    assert not (ui.server.folder / "left.json").exists()
    assert list((ui.server.folder / ".rowgrad" / "removed").rglob("left.json"))
    ui.window.get_by_role("button", name="Bring back left").click()
    expect(ui.block("x")).to_be_visible()
    assert ui.page_json("left") == before
