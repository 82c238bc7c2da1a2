"""Further actions in a Studio window: open a page from JSON, open a panel, drop files."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Locator
    from studio_window import StudioWindow

_MIME_TYPES = {".json": "application/json", ".svg": "image/svg+xml"}
_DROP = """files => {
    const carried = new DataTransfer();
    for (const [name, type, text] of files)
        carried.items.add(new File([Uint8Array.from(atob(text), (one) => one.charCodeAt(0))], name, { type }));
    for (const kind of ["dragover", "drop"])
        document.querySelector(".top-bar").dispatchEvent(
            new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
}"""


def open_page(ui: StudioWindow, page: dict[str, Any]) -> str:
    """Write a page into the project folder and open it; return its name."""
    ui.server.folder.mkdir(exist_ok=True)
    (ui.server.folder / f"{page['name']}.json").write_text(json.dumps(page), encoding="utf-8")
    ui.open(page["name"])
    ui.block(page["blocks"][0]["id"]).wait_for()
    return ui.page


def open_panel(ui: StudioWindow, tab: str) -> Locator:
    """Open a tab of the bottom panel: results, trend, map, trace, messages or history."""
    ui.window.locator(f"#bottom-{tab}").click()
    return ui.window.locator("#bottom-panel")


def drop_files(ui: StudioWindow, *files: Path) -> None:
    """Drop files from the desktop onto the window."""
    contents = [[f.name, _MIME_TYPES.get(f.suffix, ""), base64.b64encode(f.read_bytes()).decode()] for f in files]
    ui.window.evaluate(_DROP, contents)


def is_in_view(ui: StudioWindow, what: Locator, within: Locator | None = None) -> bool:
    """Return whether an element is completely inside the window, or inside another element."""
    box = what.bounding_box()
    size = ui.window.viewport_size
    frame = within.bounding_box() if within else {"x": 0, "y": 0, **(size or {})}
    if box is None or frame is None:
        return False
    right, below = box["x"] + box["width"], box["y"] + box["height"]
    fits = right <= frame["x"] + frame["width"] + 1 and below <= frame["y"] + frame["height"] + 1
    return fits and box["x"] >= frame["x"] - 1 and box["y"] >= frame["y"] - 1


def read_result_table(ui: StudioWindow, block: str, label: str) -> list[list[str]]:
    """Return the cells of the open result table, which must show this result."""
    return ui.read_table(ui.window.get_by_role("grid", name=f"Elements of {block} {label}", exact=True))
