"""Nothing serious for axe-core to find, in light and dark; and nothing essential outside small and large windows."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from at_the_desk import bring, drop, is_in_view, panel
from desk import Desk
from drawn_pages import block, const, page, session, typed
from playwright.sync_api import Locator, Route, expect

HERE = Path(__file__).parents[3]
AXE = HERE / "web" / "node_modules" / "axe-core" / "axe.min.js"
SAMPLES = HERE / "tests" / "graph" / "enuspace_samples"
# What depends on the colours is asked in dark once more.
ASK = """async (only) => {
    for (let moving; (moving = document.getAnimations().filter((one) => one.playState === "running")).length; )
        await Promise.allSettled(moving.map((one) => one.finished));
    const found = await axe.run(document, { resultTypes: ["violations"], ...(only ? { runOnly: only } : {}) });
    return found.violations.filter((one) => ["serious", "critical"].includes(one.impact))
        .map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(" ") + " "
            + (node.any[0]?.message ?? node.failureSummary)).join("; ")}`);
}"""
# Steps towards the worst: everything grey on grey.
GREY = """lambda self, path: (file := original(self, path))._replace(packed=None, plain=file.plain + b'''
    .studio, .studio * { color: #999 !important; background: #888 !important }''' * (path.suffix == ".css"))"""
WIDE = """lambda self, path: (file := original(self, path))._replace(packed=None, plain=file.plain + b'''
    .studio { width: 3000px }''' * (path.suffix == ".css"))"""
STATIC = "rowgrad.studio.http:StaticFiles._read"


@cache
def axe() -> str:
    assert AXE.exists(), f"there is no {AXE}: `make web-ready` installs it"
    return AXE.read_text(encoding="utf-8")


class Judge:
    """Asks axe about the window as it is, and keeps what it says."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.findings: list[str] = []

    def look(self, what: str) -> None:
        window = self.desk.window
        window.mouse.move(0, 0)
        if not window.evaluate("typeof axe === 'object'"):
            window.evaluate(axe())
        for scheme, rules in (("light", None), ("dark", ["color-contrast"])):
            window.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            self.findings += [f"{what}, {scheme}: {line}" for line in window.evaluate(ASK, rules)]

    def done(self) -> None:
        assert not self.findings, "\n".join(self.findings)


def quiet(desk: Desk) -> None:
    """Put away what was said in passing."""
    for button in desk.window.locator(".toast").get_by_role("button", name="Dismiss").all():
        button.click()


@pytest.mark.broken(STATIC, GREY)
def test_axe_finds_nothing_on_screens(desk: Desk) -> None:
    judge = Judge(desk)
    desk.window.locator("[data-gallery] img").first.wait_for()
    judge.look("start screen")
    desk.new_page()
    judge.look("empty page")
    desk.open_gallery("02_sparse_segment_mean_grad")
    desk.select("op")
    desk.run_once()
    judge.look("page 02, a block selected, run")
    desk.open_gallery("11_sparse_add_int_thresh_refused")
    desk.window.locator(".block-message").first.wait_for()
    judge.look("page with an error")
    judge.done()


@pytest.mark.broken(STATIC, GREY)
def test_axe_finds_nothing_on_panels(desk: Desk) -> None:
    judge = Judge(desk)
    desk.open_gallery("01_sparse_segment_mean")
    desk.run_once()
    desk.drag("op", (10, 20))
    for tab in ("results", "trend", "map", "trace", "messages", "history"):
        shown = panel(desk, tab)
        if tab == "map":
            shown.locator("canvas").wait_for()
        if tab == "trace":
            shown.locator('[data-row="0"]').first.hover()
        judge.look(tab)
        if tab == "map":
            shown.get_by_role("button", name="Surface").click()
            judge.look("surface")
    desk.type_value("data", "val", "{{1,2,3}}")
    panel(desk, "results").locator(".stale-words").wait_for()
    judge.look("stale results")
    judge.done()


def dialog_page() -> dict[str, Any]:
    """Blocks that every dialog has something to show for."""
    sparse = {"indices": typed([[0, 1], [2, 0]], "int64"), "values": typed([1.5, 2.5]), "dense_shape": typed([3, 3])}
    matrix, minus = const("matrix", [[1.0, 2.0], [3.0, 4.0]]), block("minus", "Neg", x="matrix.output")
    return page("dialogs", matrix, minus, block("sparse", "SparseTensor", sparse), session("minus.y"))


def open_dialog(desk: Desk, what: str) -> None:
    """Open a dialog the way a person does."""
    keys = {"commands": "Control+k", "wire": "w", "flip": "g", "help": "F1", "note": "n"}
    if what in keys:
        desk.select("minus")
        desk.key(keys[what])
    elif what in ("snapshots", "keys", "export"):
        desk.press(what)
    elif what == "value":
        desk.select("matrix")
        desk.inspector.get_by_label("Edit matrix.val as a table").click()
    elif what == "sparse":
        desk.select("sparse")
        desk.inspector.get_by_text("Edit as a sparse matrix").click()
    elif what == "import":
        drop(desk, SAMPLES / "basic.json")
    elif what == "rename":
        desk.window.get_by_role("tab", name="dialogs").dblclick()
    else:
        conflict(desk)
    desk.window.get_by_role("dialog").wait_for()


def conflict(desk: Desk) -> None:
    """Another program writes the page while it is on its way to the server."""
    desk.wait_saved()
    file = desk.studio.folder / "dialogs.json"

    def meanwhile(route: Route) -> None:
        written = json.loads(file.read_text())
        written["blocks"][0]["at"] = [0, 40]
        file.write_text(json.dumps(written))
        route.continue_()

    desk.window.route("**/api/save", meanwhile, times=1)
    desk.drag("sparse", (30, 30))


DIALOGS = ("commands", "wire", "value", "sparse", "flip", "export", "import", "snapshots", "help", "keys", "note")


@pytest.mark.broken(STATIC, GREY)
def test_axe_finds_nothing_on_dialogs(desk: Desk) -> None:
    judge = Judge(desk)
    bring(desk, dialog_page())
    desk.run_once()
    desk.press("snapshot")
    desk.window.locator(".toast").first.wait_for()
    quiet(desk)
    for what in (*DIALOGS, "rename", "conflict"):
        open_dialog(desk, what)
        dialog = desk.window.get_by_role("dialog")
        judge.look(what)
        for kind in ("Picture (PNG)", "Command") if what == "export" else ():
            dialog.get_by_role("tab", name=kind).click()
            expect(dialog.get_by_role("button", name="Download")).to_be_enabled()
            judge.look(f"export, {kind}")
        desk.key("Escape")
        dialog.wait_for(state="detached")
        if what == "import":
            quiet(desk)
    judge.done()


def is_on_top(what: Locator) -> bool:
    """Whether a click in its middle reaches it."""
    return bool(
        what.evaluate("""one => {
            const { x, y, width, height } = one.getBoundingClientRect();
            const hit = document.elementFromPoint(x + width / 2, y + height / 2);
            return hit !== null && (one.contains(hit) || hit.contains(one));
        }""")
    )


@pytest.mark.broken(STATIC, WIDE)
@pytest.mark.parametrize("size", [(1280, 720), (2560, 1440)], ids=str)
def test_everything_essential_is_in_the_window(desk: Desk, size: tuple[int, int]) -> None:
    desk.window.set_viewport_size({"width": size[0], "height": size[1]})
    desk.open_gallery("02_sparse_segment_mean_grad")
    desk.run_once()
    desk.select("grad")
    window = desk.window
    fields = desk.inspector.locator("input, select, button").all()
    assert len(fields) >= 4
    essential = {
        "Run once": window.locator('[data-command="run"]'),
        "Stop": window.locator('[data-command="stop"]'),
        "Export": window.locator('[data-command="export"]'),
        "the page's tab": window.locator(".tab-list [role=tab]").first,
        "how far it is": desk.progress,
        "search of the palette": window.get_by_label("Search blocks", exact=True),
        "the panels' tabs": window.locator("#bottom-history"),
    } | {f"field {k} of the inspector": field for k, field in enumerate(fields)}
    hidden = [name for name, what in essential.items() if not is_in_view(desk, what) or not is_on_top(what)]
    assert not hidden
    for name in desk.blocks():
        assert is_in_view(desk, desk.block(name), desk.canvas), name
    assert window.evaluate("[scrollX, scrollY, document.documentElement.scrollWidth - innerWidth]") == [0, 0, 0]
    picture = HERE / "build" / "browser" / f"size_{size[0]}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    window.screenshot(path=picture)
