"""Example pages that come with rowgrad: an installed package has them beside this file, a source tree in examples/."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError
from ..graph import Page, PageError, load
from ..graph.export import to_svg

_NUMBER = re.compile(r"^\d+_")
_MOST_TEXT = 120  # characters of the line about a page


def folder() -> Path | None:
    """Where the pages are; None where they were left out."""
    beside = Path(__file__).parent / "gallery_pages"
    in_source = Path(__file__).parents[3] / "examples" / "pages"
    return next((path for path in (beside, in_source) if path.is_dir()), None)


def entries() -> list[dict[str, Any]]:
    """`{name, title, blocks, text}` for every page."""
    return [{**entry} for entry in _entries(folder())]


def page(name: str) -> Page:
    """The page of a name."""
    found = folder()
    known = [entry["name"] for entry in _entries(found)]
    if found is None or name not in known:
        told = f"there are {', '.join(known)}" if known else "it is empty"
        raise InvalidArgumentError(f"there is no page {name[:100]!r} in the gallery; {told}", argument="name")
    return _loaded(found / f"{name}.json")


@lru_cache(maxsize=64)
def picture(name: str) -> str:
    """A drawing of the page."""
    return to_svg(page(name))


@lru_cache(maxsize=4)
def _entries(path: Path | None) -> tuple[dict[str, Any], ...]:
    if path is None:
        return ()
    stems = sorted(file[: -len(".json")] for file in os.listdir(path) if file.endswith(".json"))
    return tuple(_entry(path, stem) for stem in stems)


def _entry(path: Path, name: str) -> dict[str, Any]:
    try:
        found = _loaded(path / f"{name}.json")
        blocks, texts = len(found.blocks), [note.text for note in found.notes]
    except PageError as error:  # one damaged file does not take the others away
        blocks, texts = 0, [str(error)]
    lines = [line for text in texts for line in text.strip().splitlines()[:1]]
    return {"name": name, "title": _title(name), "blocks": blocks, "text": "".join(lines[:1])[:_MOST_TEXT]}


def _title(name: str) -> str:
    """`01_sparse_slice` is shown as `Sparse slice`."""
    words = _NUMBER.sub("", name).replace("_", " ").strip()
    return words[:1].upper() + words[1:] or name


def _loaded(path: Path) -> Page:
    found = load(path)
    if not isinstance(found, Page):
        raise PageError(path.name, "the gallery has pages only, and this is a project")
    return found
