"""More of what a person does at the desk: pages that were there before, panels, files let go over the window."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from desk import Desk
    from playwright.sync_api import Locator

_KINDS = {".json": "application/json", ".svg": "image/svg+xml"}
_DROP = """files => {
    const carried = new DataTransfer();
    for (const [name, type, text] of files)
        carried.items.add(new File([Uint8Array.from(atob(text), (one) => one.charCodeAt(0))], name, { type }));
    for (const kind of ["dragover", "drop"])
        document.querySelector(".top-bar").dispatchEvent(
            new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
}"""


def bring(desk: Desk, page: dict[str, Any]) -> str:
    """A page that lay in the folder before, in front; its name."""
    desk.studio.folder.mkdir(exist_ok=True)
    (desk.studio.folder / f"{page['name']}.json").write_text(json.dumps(page), encoding="utf-8")
    desk.open(page["name"])
    desk.block(page["blocks"][0]["id"]).wait_for()
    return desk.page


def panel(desk: Desk, tab: str) -> Locator:
    """A panel below: results, trend, map, trace, messages or history."""
    desk.window.locator(f"#bottom-{tab}").click()
    return desk.window.locator("#bottom-panel")


def drop(desk: Desk, *files: Path) -> None:
    """Files from elsewhere, let go over the window."""
    given = [[f.name, _KINDS.get(f.suffix, ""), base64.b64encode(f.read_bytes()).decode()] for f in files]
    desk.window.evaluate(_DROP, given)


def is_in_view(desk: Desk, what: Locator, within: Locator | None = None) -> bool:
    """Whether all of it lies in the window, or in another element."""
    box = what.bounding_box()
    size = desk.window.viewport_size
    room = within.bounding_box() if within else {"x": 0, "y": 0, **(size or {})}
    if box is None or room is None:
        return False
    right, below = box["x"] + box["width"], box["y"] + box["height"]
    fits = right <= room["x"] + room["width"] + 1 and below <= room["y"] + room["height"] + 1
    return fits and box["x"] >= room["x"] - 1 and box["y"] >= room["y"] - 1


def table_of(desk: Desk, block: str, label: str) -> list[list[str]]:
    """The table that is in front, where it is that of this result."""
    return desk.read_table(desk.window.get_by_role("grid", name=f"Elements of {block} {label}", exact=True))
