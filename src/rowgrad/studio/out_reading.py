"""What kind a file that came in is of, told by what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph import Page, PageError, Project
from ..graph.io import strict_json
from . import out_old_files

if TYPE_CHECKING:
    from .studio import Studio

_HEAD = 400  # bytes in which a file of ours says what it is


def pages_of(studio: Studio, stem: str, ending: str, raw: bytes) -> tuple[list[Page], list[dict[str, str]]]:
    """The pages of a file, and remarks on what was left out or changed."""
    tree = _ours(raw)
    if tree is None:
        imported = out_old_files.read(studio.folder.root, stem, ending, raw)
        report = [{"level": r.level, "place": r.place, "message": r.text} for r in imported.report]
        return [imported.page], report
    try:
        found = studio.pool.read_any(tree)
    except PageError as error:
        if not error.place.endswith(".file"):
            raise
        told = "this array is in a file beside the page, which did not come with it"
        raise PageError(error.place, f"{told}; copy page and folder of arrays into the project's folder") from error
    return (found.pages if isinstance(found, Project) else [found]), []


def _ours(raw: bytes) -> object | None:
    """The data of a page or project of rowgrad; None where the file is another tool's."""
    try:
        tree = strict_json.parse_bytes(raw)
    except PageError:
        if b'"rowgrad-' in raw[:_HEAD]:
            raise  # one of ours that is damaged
        return None
    return tree if isinstance(tree, dict) and "format" in tree else None
