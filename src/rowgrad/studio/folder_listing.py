"""What page files a folder has: each is read when it is new or has changed, and one that cannot be read says why."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from pathlib import Path
from typing import Any, NamedTuple

from ..graph import Page, PageError, Project
from ..graph.io import decode, files, strict_json
from . import names

ENDING = ".json"
MOST_FILE = 256 << 20  # bytes of a page's text; large arrays are not in it
_OURS = "rowgrad-"  # what `format` begins with in every file of ours
_OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff")  # text in UTF-16: a page of the old tool, which is imported and not opened


class _Seen(NamedTuple):
    """What was found in a file, and the state of the file at that time."""

    mark: tuple[int, int, int]
    entry: dict[str, Any] | None


class Listing:
    """The pages of a folder, by name. Any thread may ask."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    def entries(self) -> list[dict[str, Any]]:
        """`{name, revision, blocks, modified}` for every page, and `error` for one that cannot be opened."""
        with self._lock:
            seen = {stem: self._look(stem) for stem in stems(self._root)}
            self._seen = {stem: found for stem, found in seen.items() if found is not None}
            entries = [found.entry for found in self._seen.values() if found.entry is not None]
        return sorted(({**entry} for entry in entries), key=lambda entry: names.key(entry["name"]))

    def _look(self, stem: str) -> _Seen | None:
        path = self._root / (stem + ENDING)
        try:
            status = os.lstat(path)
        except OSError:
            return None  # it went a moment ago
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._seen.get(stem)
        if known is not None and known.mark == mark:
            return known
        entry: dict[str, Any] = {"name": stem, "revision": "", "blocks": 0, "modified": status.st_mtime}
        try:
            raw = page_bytes(path)
            entry["revision"] = revision_of(raw)
            found = _inside(raw)
            if found is None:
                return _Seen(mark, None)
            entry |= _described(found)
            why = names.fault(stem)
            if why is not None:
                raise PageError(path.name, f"a page cannot have this name: {why}")
        except PageError as error:
            entry["error"] = str(error)
        except OSError as error:
            entry["error"] = f"{path.name}: {error.strerror}"
        entry["name"] = stem.encode(errors="replace").decode()  # a name that is no text is shown all the same
        return _Seen(mark, entry)


def stems(root: Path) -> list[str]:
    """The names of all files that may be pages, whatever is in them."""
    with os.scandir(root) as found:
        listed = [entry.name for entry in found if not entry.is_dir(follow_symlinks=False)]
    return sorted(name[: -len(ENDING)] for name in listed if name.endswith(ENDING) and not name.startswith("."))


def page_bytes(path: Path) -> bytes:
    """The bytes of a page's file, which must be a plain one."""
    if stat.S_ISLNK(os.lstat(path).st_mode):
        raise PageError(path.name, "this is a symbolic link, which a studio does not follow")
    raw = files.read_regular(path, lambda size: size <= MOST_FILE)
    if raw is None:
        raise PageError(path.name, f"a page's file has at most {MOST_FILE} bytes")
    return raw


def revision_of(raw: bytes) -> str:
    """What tells one state of a page's file from another."""
    return hashlib.sha256(raw).hexdigest()[:32]


def _inside(raw: bytes) -> Page | Project | None:
    """What a file holds, without its arrays; None where it is JSON about something else."""
    if raw.startswith(_OTHER_MARKS):
        return None
    tree = strict_json.parse_bytes(raw)
    kind = tree.get("format") if isinstance(tree, dict) else None
    if not isinstance(tree, strict_json.Unreadable) and not (isinstance(kind, str) and kind.startswith(_OURS)):
        return None
    return decode.decode(tree, lambda value, place: None)


def _described(found: Page | Project) -> dict[str, Any]:
    if isinstance(found, Page):
        return {"blocks": len(found.blocks)}
    listed = [page.name for page in found.pages]
    told = f"this file is a project of {len(listed)} pages; import it, and each becomes a page of this folder"
    return {"blocks": sum(len(page.blocks) for page in found.pages), "pages": listed, "error": told}
