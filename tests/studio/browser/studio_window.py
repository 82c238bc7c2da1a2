"""Drive Studio in a browser window: every action uses the mouse or the keyboard, every query reads what is shown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from playwright.sync_api import expect

if TYPE_CHECKING:
    from browser_windows import BrowserWindows
    from playwright.sync_api import Locator, Page
    from studio_server import StudioServer


_ROWS = """grid => [...grid.querySelectorAll("[role=row][data-row]")].map(row =>
    [row.dataset.row, [...row.querySelectorAll("[role=gridcell]")].map(cell => cell.textContent.trim())])"""
_SCROLL = """grid => new Promise(drawn => {
    grid.scrollBy(0, Math.max(30, grid.clientHeight - 60));
    requestAnimationFrame(() => requestAnimationFrame(drawn));
})"""
_POINT_ON_PATH = """path => {
    const { x, y } = path.getPointAtLength(0.4 * path.getTotalLength()).matrixTransform(path.getScreenCTM());
    return [x, y];
}"""


class StudioWindow:
    """A browser window that shows Studio."""

    def __init__(self, window: Page, server: StudioServer, windows: BrowserWindows) -> None:
        self.window, self.server, self.windows = window, server, windows
        self.keys = window.keyboard
        self.mouse = window.mouse
        expect.set_options(timeout=windows.milliseconds)

    # -- windows and pages --------------------------------------------------------------------------------------------

    def open(self, page: str | None = None) -> StudioWindow:
        """Go to the address the server printed, or to one of its pages."""
        self.window.goto(self.server.page_url(page) if page else self.server.url)
        self.window.locator(".top-bar").wait_for()
        if page:
            self.canvas.wait_for()
        return self

    def another_window(self, same_browser: bool = False) -> StudioWindow:
        """Open a second window on the same server; `same_browser` makes it a tab that shares cookies."""
        window = self.windows.new_window(self.window if same_browser else None)
        return StudioWindow(window, self.server, self.windows).open()

    def reload(self) -> None:
        self.window.reload()
        self.canvas.wait_for()

    def new_page(self) -> str:
        """Create an empty page and return its name."""
        before = set(self.tabs())
        self.window.get_by_role("button", name="New page", exact=True).first.click()
        self.wait_until(lambda: set(self.tabs()) - before)
        self.canvas.wait_for()
        return self.page

    def open_gallery(self, name: str) -> str:
        """Open a copy of a gallery page from the start screen and return its name."""
        before = self.tabs()
        self.window.locator(".top-bar .brand").click()
        self.window.locator(f'[data-gallery="{name}"]').click()
        self.wait_until(lambda: len(self.tabs()) > len(before))
        self.canvas.wait_for()
        return self.page

    def tabs(self) -> list[str]:
        return self.window.locator(".tab-list [role=tab]").all_inner_texts()

    @property
    def page(self) -> str:
        """The name of the page in the selected tab."""
        return self.window.locator('.tab-list [aria-selected="true"]').inner_text()

    def wait_saved(self) -> None:
        expect(self.window.locator(".save-state")).to_have_attribute("data-saving", "saved")

    def page_json(self, name: str | None = None) -> dict[str, Any]:
        """Wait until the page is saved, and return it as it is on disk."""
        self.wait_saved()
        return self.server.page_json(name or self.page)

    # -- blocks -------------------------------------------------------------------------------------------------------

    @property
    def canvas(self) -> Locator:
        return self.window.get_by_test_id("canvas")

    def blocks(self) -> list[str]:
        return [str(found.get_attribute("data-block")) for found in self.window.locator("[data-block]").all()]

    def block(self, name: str) -> Locator:
        return self.window.locator(f'[data-block="{name}"]')

    def pin(self, block: str, pin: str, side: str = "in") -> Locator:
        """Return the handle of a pin, where wires start and end; side is "in" or "out"."""
        return self.window.locator(f'.react-flow__node[data-id="{block}"] [data-handleid="{side}:{pin}"]')

    def place(self, op: str, at: tuple[float, float] | None = None) -> str:
        """Drag a block from the palette to a position, or place the first match of a search; return its name."""
        before = self.blocks()
        field = self.window.get_by_label("Search blocks", exact=True)
        field.fill(op)
        if at is None:
            field.press("Enter")
        else:
            self.window.locator(f'.palette-item[data-op="{op}"]').drag_to(
                self.canvas, target_position={"x": at[0], "y": at[1]}
            )
        expect(self.window.locator("[data-block]")).to_have_count(len(before) + 1)
        field.fill("")
        return next(name for name in self.blocks() if name not in before)

    def select(self, block: str) -> None:
        self.block(block).locator(".block-op").click()
        expect(self.block(block)).to_have_class(re.compile("selected"))

    def drag(self, block: str, by: tuple[float, float]) -> None:
        """Move a block with the mouse."""
        x, y = self.middle(self.block(block).locator(".block-op"))
        self.drag_mouse(x, y, x + by[0], y + by[1])

    def zoom(self, factor: float) -> None:
        """Zoom around the middle of the canvas with Ctrl and the wheel."""
        self.mouse.move(*self.middle(self.canvas))
        self.keys.down("Control")
        self.mouse.wheel(0, -100 * math.log2(factor))
        self.keys.up("Control")

    def type_value(self, block: str, pin: str, text: str, dtype: str | None = None) -> None:
        """Type a literal into a pin on the block; select its dtype in the inspector."""
        self.block(block).get_by_role("button", name=re.compile(f"type a value into {re.escape(block)}.{pin}$")).click()
        field = self.block(block).get_by_label(f"Value of {block}.{pin}", exact=True)
        field.fill(text)
        field.press("Enter")
        field.wait_for(state="detached")
        if dtype is not None:
            self.select(block)
            self.inspector.get_by_label(f"Dtype of {block}.{pin}", exact=True).select_option(dtype)
            # The server parses the text again: a wire drawn before its response would have the old dtype.
            self.wait_until(lambda: self._saved_dtype(block, pin) == dtype)

    def _saved_dtype(self, block: str, pin: str) -> str | None:
        found = next(b for b in self.page_json()["blocks"] if b["id"] == block).get("values", {}).get(pin)
        return found.get("dtype") if isinstance(found, dict) else None

    @property
    def inspector(self) -> Locator:
        return self.window.get_by_role("complementary", name="Inspector")

    # -- wires --------------------------------------------------------------------------------------------------------

    def drag_wire(self, source: str, target: str) -> None:
        """Drag from pin "a.output" to pin "b.indices", whether or not the wire is accepted."""
        self.wait_saved()  # the server's response can resize blocks
        (a, out), (b, into) = source.split(".", 1), target.split(".", 1)
        self.wait_until_still(self.pin(a, out, "out"), self.pin(b, into))
        x, y = self.middle(self.pin(a, out, "out"))
        self.mouse.move(x, y)
        self.mouse.down()
        # The first movement starts the drag, and the page asks the server which pins accept the wire.
        self.mouse.move(x + 12, y + 4)
        self.window.locator(f'[data-block="{b}"] [data-pin="{into}"][data-takes]').wait_for(state="attached")
        # Near its edge the canvas scrolls during a drag: move away first, then to the pin's final position.
        self.mouse.move(*self.middle(self.pin(b, into)), steps=3)
        self.wait_until_still(self.pin(b, into))
        self.mouse.move(*self.middle(self.pin(b, into)), steps=3)
        self.mouse.up()

    def wait_until_still(self, *parts: Locator) -> None:
        """Wait until parts of the window stop moving: types that arrive later make blocks wider."""
        before: Any = None
        for _ in range(60):
            now = [part.bounding_box() for part in parts]
            if now == before:
                return
            before = now
            self.window.wait_for_timeout(50)

    def wire(self, source: str, target: str) -> None:
        """Draw a wire that must be accepted."""
        before = self.wires(target).count()
        self.drag_wire(source, target)
        expect(self.wires(target)).to_have_count(before + 1)

    def wires(self, target: str) -> Locator:
        """Return the wires that end at a pin."""
        block, pin = target.split(".", 1)
        start = json.dumps([block, pin], separators=(",", ":"))[:-1]
        return self.window.locator(f".react-flow__edge[data-id^='{start},']")

    def point_on_wire(self, wire: Locator) -> tuple[float, float]:
        """Return a point of a wire in the window, where no block covers it: a part before its end."""
        x, y = wire.locator("path.react-flow__edge-path").evaluate(_POINT_ON_PATH)
        return float(x), float(y)

    def click_wire(self, wire: Locator, button: Literal["left", "right"] = "left") -> None:
        self.mouse.click(*self.point_on_wire(wire), button=button)

    # -- runs and results ---------------------------------------------------------------------------------------------

    def press(self, command: str) -> None:
        """Click the button of a command."""
        self.window.locator(f'[data-command="{command}"]').first.click()

    @property
    def progress(self) -> Locator:
        return self.window.locator(".progress[data-phase]")

    def runs(self) -> int:
        return int(self.progress.get_attribute("data-run") or 0)

    def run_once(self) -> None:
        before = self.runs()
        self.press("run")
        self.wait_until(lambda: self.runs() > before)
        self.wait_run()

    def run_steps(self, steps: int) -> None:
        """Run this many steps, after which the page pauses."""
        before = self.runs()
        self.window.get_by_label("Steps to run").fill(str(steps))
        self.press("run-steps")
        self.wait_until(lambda: self.runs() >= before + steps)
        self.wait_run("paused")

    def wait_run(self, phase: str = "done") -> None:
        expect(self.progress).to_have_attribute("data-phase", phase)

    def preview(self, block: str, pin: str) -> str:
        """Return the short text of a result on the block."""
        return self._chip(block, pin).locator(".result-preview").inner_text()

    def result(self, block: str, pin: str) -> list[list[str]]:
        """Open a result, on its block or in the list if the block is drawn small, and return its cells."""
        chip = self._chip(block, pin)
        if chip.is_visible():
            chip.click()
        else:
            self.window.locator("#bottom-results").click()
            self.window.locator(f'[data-result="{block}.{pin}"]').click()
        return self.read_table(self.table(block, pin))

    def read_table(self, table: Locator) -> list[list[str]]:
        """Scroll a grid to its end and return all its rows. All columns must be in view."""
        table.get_by_role("gridcell").first.wait_for()
        count = int(table.get_attribute("aria-rowcount") or 0)
        found: dict[int, list[str]] = {}
        for _ in range(200 + count):
            expect(table.locator(".coming")).to_have_count(0)
            found |= {int(row): cells for row, cells in table.evaluate(_ROWS)}
            if len(found) == count:
                return [found[row] for row in sorted(found)]
            table.evaluate(_SCROLL)
        raise AssertionError(f"of {count} rows only {sorted(found)} are shown")

    def table(self, block: str, pin: str) -> Locator:
        """Return the grid of a result in the bottom panel."""
        return self.window.get_by_role("grid", name=f"Elements of {block} result_{pin}")

    def all_results(self) -> list[tuple[str, str]]:
        """Return the blocks and pins that show a result."""
        found = self.window.locator("[data-block] .result-name").evaluate_all(
            "all => all.map(one => [one.closest('[data-block]').dataset.block, one.textContent.replace('result_', '')])"
        )
        return [(block, pin) for block, pin in found]

    def _chip(self, block: str, pin: str) -> Locator:
        name = self.window.locator(".result-name", has_text=re.compile(rf"^result_{re.escape(pin)}$"))
        return self.block(block).locator("button.result").filter(has=name).first

    # -- messages -----------------------------------------------------------------------------------------------------

    def messages(self) -> list[str]:
        """Return the texts of the toasts."""
        return [text.strip() for text in self.window.locator(".toast-text").all_inner_texts()]

    def wait_message(self, text: str | re.Pattern[str]) -> None:
        self.window.locator(".toast-text", has_text=text).first.wait_for()

    def block_error(self, block: str) -> str:
        """Return the error message on a block."""
        return self.block(block).locator(".block-message").inner_text()

    # -- mouse and keys -----------------------------------------------------------------------------------------------

    def key(self, *keys: str) -> None:
        for key in keys:
            self.keys.press(key)

    def middle(self, what: Locator) -> tuple[float, float]:
        what.wait_for(state="attached")
        box = what.bounding_box()
        assert box is not None, f"{what} is not visible"
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def drag_mouse(self, x: float, y: float, to_x: float, to_y: float) -> None:
        self.mouse.move(x, y)
        self.mouse.down()
        self.mouse.move(to_x, to_y, steps=8)
        self.mouse.up()

    def wait_until(self, condition: Any) -> None:
        """Wait for a condition that no locator expresses; Playwright handles events meanwhile."""
        left = self.windows.milliseconds
        while not condition():
            assert left > 0, "the condition did not become true in time"
            self.window.wait_for_timeout(25)
            left -= 25

    # -- page files, commands and geometry ----------------------------------------------------------------------------

    def write_page(self, name: str, *blocks: dict[str, Any], notes: Sequence[dict[str, Any]] = ()) -> str:
        """Write a page into the project folder without opening it; return its name."""
        tree = {"format": "rowgrad-page", "version": 1, "name": name, "blocks": blocks}
        tree |= {"notes": notes} if notes else {}
        (self.server.folder / f"{name}.json").write_text(json.dumps(tree), encoding="utf-8")
        return name

    def switch_to(self, page: str) -> None:
        """Open a page of the project with the command menu; it needs no tab yet."""
        self.choose_command(f"Open page {page}", f"do open {page}")
        expect(self.window.locator(".save-state")).to_be_visible()
        expect(self.window.locator("h1.unseen")).to_have_text(page)

    def choose_command(self, text: str, key: str) -> None:
        """Type into the command menu and click an entry."""
        self.key("Control+k")
        self.window.get_by_role("dialog").get_by_role("combobox").fill(text)
        self.window.locator(f'[role=option][data-key="{key}"]').click()

    def tab(self, page: str) -> Locator:
        return self.window.locator(".tab-list").get_by_role("tab", name=page, exact=True)

    def saved_block(self, block: str, page: str | None = None) -> dict[str, Any]:
        """Return a block as it is saved on disk."""
        found: dict[str, Any] = next(b for b in self.page_json(page)["blocks"] if b["id"] == block)
        return found

    def wait_selected(self, blocks: set[str]) -> None:
        """Wait until exactly these blocks are selected."""
        found = self.window.locator(".block.selected")
        for name in blocks:
            expect(self.block(name)).to_have_class(re.compile(r"\bselected\b"))
        expect(found).to_have_count(len(blocks))

    def box(self, what: Locator) -> tuple[float, float, float, float]:
        """Return left, top, right, bottom on the screen."""
        what.wait_for()
        found = what.bounding_box()
        assert found is not None
        return found["x"], found["y"], found["x"] + found["width"], found["y"] + found["height"]

    def boxes(self) -> dict[str, tuple[float, float, float, float]]:
        """Return left, top, right, bottom of every block, measured at the same time."""
        found = self.window.locator("[data-block]").evaluate_all(
            "all => all.map(one => [one.dataset.block, one.getBoundingClientRect()]).map(([name, box]) => "
            "[name, [box.left, box.top, box.right, box.bottom]])"
        )
        return {name: tuple(box) for name, box in found}

    def style(self, what: Locator, name: str) -> str:
        """Return a computed style property."""
        found: str = what.evaluate("(one, name) => getComputedStyle(one).getPropertyValue(name)", name)
        return found

    def zoom_level(self) -> float:
        """Return the scale of the canvas."""
        matrix = self.style(self.window.locator(".react-flow__viewport"), "transform")
        return float(matrix.removeprefix("matrix(").split(",")[0]) if matrix != "none" else 1.0

    def start_wire(self, block: str, pin: str, side: str = "out") -> None:
        """Start to drag a wire from a pin, without releasing the mouse."""
        self.wait_saved()
        x, y = self.middle(self.pin(block, pin, side))
        self.mouse.move(x, y)
        self.mouse.down()
        self.mouse.move(x + 12, y + 4)

    # -- values -------------------------------------------------------------------------------------------------------

    def open_blocks(self, *blocks: dict[str, Any], name: str = "made") -> str:
        """Write a page with these blocks, open it, and return its name."""
        self.open(self.write_page(name, *blocks))
        expect(self.window.locator("[data-block]")).to_have_count(len(blocks))
        self.key("Control+0")  # away from the edges, where the canvas scrolls during a drag
        return name

    def saved_value(self, block: str, pin: str) -> Any:
        return self.saved_block(block).get("values", {}).get(pin)

    def type_in_inspector(self, label: str, text: str) -> None:
        """Type into a field of the selected block and press Enter."""
        field = self.inspector.get_by_label(label, exact=True)
        field.fill(text)
        field.press("Enter")

    def value_dialog(self, block: str, pin: str, part: str | None = None) -> Locator:
        """Open the editor of a value from the inspector, optionally on one of its tabs."""
        self.select(block)
        self.inspector.get_by_label(f"Edit {block}.{pin} as a table", exact=True).click()
        dialog = self.window.get_by_role("dialog", name=f"Value of {block}.{pin}")
        if part is not None:
            dialog.get_by_role("tab", name=part, exact=True).click()
        return dialog

    def apply(self) -> None:
        """Click Apply, which closes the dialog."""
        self.window.get_by_role("dialog").get_by_role("button", name="Apply", exact=True).click()
        expect(self.window.get_by_role("dialog")).to_have_count(0)

    def wait_runs(self, least: int) -> None:
        self.wait_until(lambda: self.runs() >= least)
