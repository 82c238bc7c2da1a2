"""What windows are told when pages change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .studio import Studio


def tell_page(studio: Studio, name: str, revision: str, window: str) -> None:
    """A page has a new revision; `window` wrote it and has it already."""
    event = {"event": "page", "name": name, "revision": revision, "window": window}
    studio.hub.tell(event, key=("page", name))


def tell_kept(studio: Studio, name: str, kept: str, window: str) -> None:
    """Two windows changed a page; what this one sent is a page of its own."""
    studio.hub.tell({"event": "kept", "name": name, "kept": kept, "window": window}, key=("kept", kept))


def tell_project(studio: Studio) -> None:
    """The list of pages is another one."""
    studio.hub.tell({"event": "project", "pages": studio.folder.pages()}, key="project")
