"""What a person does at the studio, in the words of a person. Everything goes through mouse, keyboard and eyes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page
    from running import Studio
    from watching import Watch


_ROWS = """grid => [...grid.querySelectorAll("[role=row][data-row]")].map(row =>
    [row.dataset.row, [...row.querySelectorAll("[role=gridcell]")].map(cell => cell.textContent.trim())])"""


class Desk:
    """A window with the studio in it."""

    def __init__(self, window: Page, studio: Studio, watch: Watch) -> None:
        self.window, self.studio, self.watch = window, studio, watch
        self.keys = window.keyboard
        self.mouse = window.mouse
        expect.set_options(timeout=watch.milliseconds)

    # -- windows and pages -------------------------------------------------------------------------------------------

    def open(self, page: str | None = None) -> Desk:
        """Go to the address the server printed, or to one of its pages."""
        self.window.goto(self.studio.page_url(page) if page else self.studio.url)
        self.window.locator(".top-bar").wait_for()
        if page:
            self.canvas.wait_for()
        return self

    def another_window(self, same_browser: bool = False) -> Desk:
        """A second desk on the same server, for two people or two tabs."""
        return Desk(self.watch.new_window(self.window if same_browser else None), self.studio, self.watch).open()

    def reload(self) -> None:
        self.window.reload()
        self.canvas.wait_for()

    def new_page(self) -> str:
        """An empty page in front; its name."""
        before = set(self.tabs())
        self.window.get_by_role("button", name="New page", exact=True).first.click()
        self._until(lambda: set(self.tabs()) - before)
        self.canvas.wait_for()
        return self.page

    def open_gallery(self, name: str) -> str:
        """A copy of a page of the gallery, through the start screen; its name."""
        before = self.tabs()
        self.window.locator(".top-bar .brand").click()
        self.window.locator(f'[data-gallery="{name}"]').click()
        self._until(lambda: len(self.tabs()) > len(before))
        self.canvas.wait_for()
        return self.page

    def tabs(self) -> list[str]:
        return self.window.locator(".tab-list [role=tab]").all_inner_texts()

    @property
    def page(self) -> str:
        """The name of the page in front."""
        return self.window.locator('.tab-list [aria-selected="true"]').inner_text()

    def wait_saved(self) -> None:
        expect(self.window.locator(".save-state")).to_have_attribute("data-saving", "saved")

    def page_json(self, name: str | None = None) -> dict[str, Any]:
        """The page as it is saved on the disk."""
        self.wait_saved()
        return self.studio.page_json(name or self.page)

    # -- blocks ------------------------------------------------------------------------------------------------------

    @property
    def canvas(self) -> Locator:
        return self.window.get_by_test_id("canvas")

    def blocks(self) -> list[str]:
        return [str(found.get_attribute("data-block")) for found in self.window.locator("[data-block]").all()]

    def block(self, name: str) -> Locator:
        return self.window.locator(f'[data-block="{name}"]')

    def pin(self, block: str, pin: str, side: str = "in") -> Locator:
        """The handle of a pin, where wires begin and end; side is "in" or "out"."""
        return self.window.locator(f'.react-flow__node[data-id="{block}"] [data-handleid="{side}:{pin}"]')

    def place(self, op: str, at: tuple[float, float] | None = None) -> str:
        """Drag a block from the palette to a place on the canvas, or take the first found by search; its name."""
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
        self._pull(x, y, x + by[0], y + by[1])

    def zoom(self, factor: float) -> None:
        """Zoom about the middle of the canvas with Ctrl and the wheel."""
        self.mouse.move(*self.middle(self.canvas))
        self.keys.down("Control")
        self.mouse.wheel(0, -100 * math.log2(factor))
        self.keys.up("Control")

    def type_value(self, block: str, pin: str, text: str, dtype: str | None = None) -> None:
        """Type a literal into a pin on the block; a dtype is chosen in the inspector."""
        self.block(block).get_by_role("button", name=re.compile(f"type a value into {re.escape(block)}.{pin}$")).click()
        field = self.block(block).get_by_label(f"Value of {block}.{pin}", exact=True)
        field.fill(text)
        field.press("Enter")
        field.wait_for(state="detached")
        if dtype is not None:
            self.select(block)
            self.inspector.get_by_label(f"Dtype of {block}.{pin}", exact=True).select_option(dtype)
            # The server reads the text anew: a wire drawn before it answers would carry the old dtype.
            self._until(lambda: self._saved_dtype(block, pin) == dtype)

    def _saved_dtype(self, block: str, pin: str) -> str | None:
        found = next(b for b in self.page_json()["blocks"] if b["id"] == block).get("values", {}).get(pin)
        return found.get("dtype") if isinstance(found, dict) else None

    @property
    def inspector(self) -> Locator:
        return self.window.get_by_role("complementary", name="Inspector")

    # -- wires -------------------------------------------------------------------------------------------------------

    def drag_wire(self, source: str, target: str) -> None:
        """From handle to handle with the mouse, whatever becomes of it: "a.output", "b.indices"."""
        self.wait_saved()  # blocks grow by what the server says of them; a hand waits until they stand still
        (a, out), (b, into) = source.split(".", 1), target.split(".", 1)
        self._rest(self.pin(a, out, "out"), self.pin(b, into))
        x, y = self.middle(self.pin(a, out, "out"))
        self.mouse.move(x, y)
        self.mouse.down()
        # The first movement makes it a drag; the server is asked meanwhile which pins would take the wire.
        self.mouse.move(x + 12, y + 4)
        self.window.locator(f'[data-block="{b}"] [data-pin="{into}"][data-takes]').wait_for(state="attached")
        # At the edge of the page the page moves along; away from there it stands still, and then the aim is true.
        self.mouse.move(*self.middle(self.pin(b, into)), steps=3)
        self._rest(self.pin(b, into))
        self.mouse.move(*self.middle(self.pin(b, into)), steps=3)
        self.mouse.up()

    def _rest(self, *pins: Locator) -> None:
        """Until pins are where they were a moment ago: types that come in later make blocks wider."""
        before: Any = None
        for _ in range(60):
            now = [pin.bounding_box() for pin in pins]
            if now == before:
                return
            before = now
            self.window.wait_for_timeout(50)

    def wire(self, source: str, target: str) -> None:
        """Draw a wire; it must be taken."""
        before = self.wires(target).count()
        self.drag_wire(source, target)
        expect(self.wires(target)).to_have_count(before + 1)

    def wires(self, target: str) -> Locator:
        """The wires that end at a pin."""
        block, pin = target.split(".", 1)
        start = json.dumps([block, pin], separators=(",", ":"))[:-1]
        return self.window.locator(f".react-flow__edge[data-id^='{start},']")

    # -- runs and results --------------------------------------------------------------------------------------------

    def press(self, command: str) -> None:
        """The button of a command."""
        self.window.locator(f'[data-command="{command}"]').first.click()

    @property
    def progress(self) -> Locator:
        return self.window.locator(".progress[data-phase]")

    def runs(self) -> int:
        return int(self.progress.get_attribute("data-run") or 0)

    def run_once(self) -> None:
        before = self.runs()
        self.press("run")
        self._until(lambda: self.runs() > before)
        self.wait_run()

    def run_steps(self, steps: int) -> None:
        """So many runs, after which the page pauses."""
        before = self.runs()
        self.window.get_by_label("Steps to run").fill(str(steps))
        self.press("run-steps")
        self._until(lambda: self.runs() >= before + steps)
        self.wait_run("paused")

    def wait_run(self, phase: str = "done") -> None:
        expect(self.progress).to_have_attribute("data-phase", phase)

    def preview(self, block: str, pin: str) -> str:
        """The short text of a result on the block."""
        return self._chip(block, pin).locator(".result-preview").inner_text()

    def result(self, block: str, pin: str) -> list[list[str]]:
        """The texts of a result's table, after a click on it: on its block, or in the list where blocks are small."""
        chip = self._chip(block, pin)
        if chip.is_visible():
            chip.click()
        else:
            self.window.locator("#bottom-results").click()
            self.window.locator(f'[data-result="{block}.{pin}"]').click()
        return self.read_table(self.table(block, pin))

    def read_table(self, table: Locator) -> list[list[str]]:
        """All rows of a grid that draws only those in view: it is scrolled to its end. Columns must be in view."""
        table.get_by_role("gridcell").first.wait_for()
        count = int(table.get_attribute("aria-rowcount") or 0)
        found: dict[int, list[str]] = {}
        while len(found) < count:
            expect(table.locator(".coming")).to_have_count(0)
            before = len(found)
            found |= {int(row): cells for row, cells in table.evaluate(_ROWS)}
            assert len(found) > before, f"of {count} rows only {sorted(found)} are shown"
            table.evaluate("grid => grid.scrollBy(0, grid.clientHeight - 60)")
        return [found[row] for row in sorted(found)]

    def table(self, block: str, pin: str) -> Locator:
        """The grid of a result in the panel below."""
        return self.window.get_by_role("grid", name=f"Elements of {block} result_{pin}")

    def all_results(self) -> list[tuple[str, str]]:
        """Blocks and pins that show a result."""
        found = self.window.locator("[data-block] .result-name").evaluate_all(
            "all => all.map(one => [one.closest('[data-block]').dataset.block, one.textContent.replace('result_', '')])"
        )
        return [(block, pin) for block, pin in found]

    def _chip(self, block: str, pin: str) -> Locator:
        name = self.window.locator(".result-name", has_text=re.compile(rf"^result_{re.escape(pin)}$"))
        return self.block(block).locator("button.result").filter(has=name).first

    # -- words -------------------------------------------------------------------------------------------------------

    def messages(self) -> list[str]:
        """What was said in passing."""
        return [text.strip() for text in self.window.locator(".toast-text").all_inner_texts()]

    def wait_message(self, text: str | re.Pattern[str]) -> None:
        self.window.locator(".toast-text", has_text=text).first.wait_for()

    def fault(self, block: str) -> str:
        """The error written on a block."""
        return self.block(block).locator(".block-message").inner_text()

    # -- hands -------------------------------------------------------------------------------------------------------

    def key(self, *keys: str) -> None:
        for key in keys:
            self.keys.press(key)

    def middle(self, what: Locator) -> tuple[float, float]:
        what.wait_for(state="attached")
        box = what.bounding_box()
        assert box is not None, f"{what} is not to be seen"
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def _pull(self, x: float, y: float, to_x: float, to_y: float) -> None:
        self.mouse.move(x, y)
        self.mouse.down()
        self.mouse.move(to_x, to_y, steps=8)
        self.mouse.up()

    def _until(self, holds: Any) -> None:
        """Wait for what no locator says. Playwright's own clock runs meanwhile, so events are heard."""
        left = self.watch.milliseconds
        while not holds():
            assert left > 0, "it did not happen in time"
            self.window.wait_for_timeout(25)
            left -= 25

    # -- pages, hands and eyes of the tests of editing ---------------------------------------------------------------

    def put_page(self, name: str, *blocks: dict[str, Any], notes: Sequence[dict[str, Any]] = ()) -> str:
        """A page in the folder, as another program leaves it there; `open` shows it."""
        tree = {"format": "rowgrad-page", "version": 1, "name": name, "blocks": blocks}
        tree |= {"notes": notes} if notes else {}
        (self.studio.folder / f"{name}.json").write_text(json.dumps(tree), encoding="utf-8")
        return name

    def go_to(self, page: str) -> None:
        """Bring a page of the project to the front through the menu, as one does that has no tab yet."""
        self.menu(f"Open page {page}", f"do open {page}")
        expect(self.window.locator(".save-state")).to_be_visible()
        expect(self.window.locator("h1.unseen")).to_have_text(page)

    def menu(self, words: str, key: str) -> None:
        """Type into the command menu and take an entry."""
        self.key("Control+k")
        self.window.get_by_role("dialog").get_by_role("combobox").fill(words)
        self.window.locator(f'[role=option][data-key="{key}"]').click()

    def tab(self, page: str) -> Locator:
        return self.window.locator(".tab-list").get_by_role("tab", name=page, exact=True)

    def saved_block(self, block: str, page: str | None = None) -> dict[str, Any]:
        """A block as it stands on the disk."""
        found: dict[str, Any] = next(b for b in self.page_json(page)["blocks"] if b["id"] == block)
        return found

    def wait_selected(self, blocks: set[str]) -> None:
        """Until these blocks are marked as selected, and no others."""
        found = self.window.locator(".block.selected")
        for name in blocks:
            expect(self.block(name)).to_have_class(re.compile(r"\bselected\b"))
        expect(found).to_have_count(len(blocks))

    def box(self, what: Locator) -> tuple[float, float, float, float]:
        """Left, top, right, bottom on the screen."""
        what.wait_for()
        found = what.bounding_box()
        assert found is not None
        return found["x"], found["y"], found["x"] + found["width"], found["y"] + found["height"]

    def boxes(self) -> dict[str, tuple[float, float, float, float]]:
        """Left, top, right, bottom of every block, all at the same moment."""
        found = self.window.locator("[data-block]").evaluate_all(
            "all => all.map(one => [one.dataset.block, one.getBoundingClientRect()]).map(([name, box]) => "
            "[name, [box.left, box.top, box.right, box.bottom]])"
        )
        return {name: tuple(box) for name, box in found}

    def style(self, what: Locator, name: str) -> str:
        """What the browser made of the style sheets."""
        found: str = what.evaluate("(one, name) => getComputedStyle(one).getPropertyValue(name)", name)
        return found

    def zoomed(self) -> float:
        """How large the page is drawn."""
        matrix = self.style(self.window.locator(".react-flow__viewport"), "transform")
        return float(matrix.removeprefix("matrix(").split(",")[0]) if matrix != "none" else 1.0

    def grab_pin(self, block: str, pin: str, side: str = "out") -> None:
        """Begin to draw a wire; it hangs at the mouse."""
        self.wait_saved()
        x, y = self.middle(self.pin(block, pin, side))
        self.mouse.move(x, y)
        self.mouse.down()
        self.mouse.move(x + 12, y + 4)

    # -- values, runs and sessions: pages that are there already, tables of values, commands ---------------------------

    def open_made(self, *blocks: dict[str, Any], name: str = "made") -> str:
        """Open a page of these blocks, which is written to the folder as any program may do it."""
        tree = {"format": "rowgrad-page", "version": 1, "name": name, "blocks": blocks}
        (self.studio.folder / f"{name}.json").write_text(json.dumps(tree), encoding="utf-8")
        self.open(name)
        expect(self.window.locator("[data-block]")).to_have_count(len(blocks))
        self.key("Control+0")  # away from the edges, where a wire that is drawn moves the page
        return name

    def saved(self, block: str) -> dict[str, Any]:
        """A block as it is saved."""
        found: dict[str, Any] = next(b for b in self.page_json()["blocks"] if b["id"] == block)
        return found

    def saved_value(self, block: str, pin: str) -> Any:
        return self.saved(block).get("values", {}).get(pin)

    def type_in_inspector(self, label: str, text: str) -> None:
        """Into a field of the selected block, ended with Enter."""
        field = self.inspector.get_by_label(label, exact=True)
        field.fill(text)
        field.press("Enter")

    def value_dialog(self, block: str, pin: str, part: str | None = None) -> Locator:
        """The editor of a value, out of the inspector."""
        self.select(block)
        self.inspector.get_by_label(f"Edit {block}.{pin} as a table", exact=True).click()
        dialog = self.window.get_by_role("dialog", name=f"Value of {block}.{pin}")
        if part is not None:
            dialog.get_by_role("tab", name=part, exact=True).click()
        return dialog

    def apply(self) -> None:
        """Apply what a dialog has, which closes it."""
        self.window.get_by_role("dialog").get_by_role("button", name="Apply", exact=True).click()
        expect(self.window.get_by_role("dialog")).to_have_count(0)

    def command(self, key: str, words: str) -> None:
        """Out of the menu of all commands."""
        self.key("Control+k")
        self.window.get_by_role("dialog").get_by_role("combobox").fill(words)
        self.window.locator(f'[role=option][data-key="{key}"]').click()

    def wait_runs(self, least: int) -> None:
        self._until(lambda: self.runs() >= least)


def const(block: str, at: tuple[float, float], data: Any, dtype: str = "float32") -> dict[str, Any]:
    """A constant as a page's file has it."""
    shape, inner = [], data
    while isinstance(inner, list):
        shape, inner = [*shape, len(inner)], inner[0]
    return {"id": block, "op": "Const", "at": at, "values": {"val": {"dtype": dtype, "shape": shape, "data": data}}}


def block(name: str, op: str, at: tuple[float, float], **entries: Any) -> dict[str, Any]:
    """Any block as a page's file has it; wires under `wires`."""
    wires = entries.pop("wires", None)
    return {"id": name, "op": op, "at": at} | ({"in": wires} if wires else {}) | entries
