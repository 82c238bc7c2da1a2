"""Files that hold pages: rowgrad's own, and those of the old tool, told apart by what is in them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path

from ..graph.enuspace import read_enuspace
from ..graph.io import load
from ..graph.io.files import check_replaceable
from ..graph.io.store import folder_of
from ..graph.page import Page, PageError, Project
from ..plain_file import open_plain
from .exits import UsageError

_HEAD = 400  # bytes in which a page that rowgrad wrote says what it is


def read_pages(file: str, name: str | None, say: Callable[[str], None], follow_links: bool = False) -> list[Page]:
    """The pages of a file, or the one of this name. Remarks on a file of the old tool are said."""
    if is_old(plain_bytes(file)):
        imported = read_enuspace(file, follow_links=follow_links)
        for remark in imported.report:
            say(f"{file}: {remark}")
        found: Page | Project = imported.page
    else:
        found = load(file, follow_links=follow_links)
    pages = found.pages if isinstance(found, Project) else [found]
    if name is not None:
        pages = [p for p in pages if p.name == name] or _no_such_page(file, name, pages)
    if not pages:
        raise PageError(file, "there is no page in this project")
    return pages


def read_page(file: str, name: str | None, say: Callable[[str], None], follow_links: bool = False) -> Page:
    """The only page of a file, or the one of this name."""
    pages = read_pages(file, name, say, follow_links)
    if len(pages) > 1:
        raise UsageError(f"{file} has several pages; choose one with --page: {', '.join(p.name for p in pages)}")
    return pages[0]


def _no_such_page(file: str, name: str, pages: list[Page]) -> list[Page]:
    names = [p.name for p in pages]
    near = get_close_matches(name, names, 1)
    meant = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names) or 'none'}"
    raise PageError(file, f"there is no page {name!r}; {meant}")


def plain_bytes(file: str) -> bytes:
    """The bytes of a file; OSError where it is none that can be read."""
    with open_plain(file) as opened:
        return opened.read()


def is_old(raw: bytes) -> bool:
    """Whether this is a file of the old tool: SVG, UTF-16, or JSON about `object` without our `format`."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:2]:
        return True
    text = raw.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith(b"{") or b'"format"' in text[:_HEAD]:
        return text.startswith(b"<")
    try:
        top = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return "object" in top and "format" not in top


def files_of(file: str) -> list[str]:
    """A page's file and the files that are read with it: its arrays, or the `.dat` of a page of the old tool."""
    if is_old(plain_bytes(file)):
        return [file, str(Path(file).with_suffix(".dat"))]
    folder = folder_of(Path(os.path.realpath(file)))
    return [file, *(str(path) for path in folder.iterdir())] if folder.is_dir() else [file]


def check_writable(path: str, sources: Iterable[str | None] = ()) -> None:
    """Raise OSError, before the work, if a file cannot be written there or would overwrite one of the sources."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder", path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}", path)
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"nothing can be written in {target.parent}", path)
    check_replaceable(target)
    for source in filter(None, sources):
        if os.path.realpath(source) == str(target) or (target.exists() and _is_same(target, source)):
            raise FileExistsError(errno.EEXIST, f"the output would overwrite {source}, which this command uses", path)


def _is_same(target: Path, source: str) -> bool:
    try:
        return os.path.samefile(target, source)
    except OSError:
        return False
