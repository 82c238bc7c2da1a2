"""Verbs that export a page as text, and import pages from files dropped on a window."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ResourceExhaustedError
from ..graph import Page, PageError, Project, build, dumps
from ..graph.enuspace import Imported, read_enuspace
from ..graph.export import to_dot, to_python, to_svg
from ..graph.io import files, strict_json
from ..graph.page_builder import without_unknown_ops
from . import array_pool, page_names
from .limits import MOST_EXPORTED, MOST_IMPORTED
from .verbs import Arguments, Json, verb

if TYPE_CHECKING:
    from .studio import Studio

# -- enuSpace files received as bytes; their reader needs a file, with the `.dat` file beside it -----------------------

_KEEP_SECONDS = 86400.0  # how long a .dat file is stored for its drawing


def save_data(root: Path, stem: str, raw: bytes) -> None:
    """Store a `.dat` file for the drawing of the same name."""
    folder = _folder(root)
    array_pool.make_folder(folder)
    _sweep(folder)
    files.write_atomically(folder / f"{stem}.dat", raw)


def read(root: Path, stem: str, ending: str, raw: bytes) -> Imported:
    """Read the page of a drawing."""
    data = _folder(root) / f"{stem}.dat"
    with tempfile.TemporaryDirectory(prefix="rowgrad-import-") as temporary:
        drawing = Path(temporary) / f"{stem}{ending if ending in ('.svg', '.json') else ''}"
        drawing.write_bytes(raw)
        if data.is_file() and not data.is_symlink():
            # The name that the reader expects: it replaces everything after the last dot.
            os.symlink(data, drawing.with_suffix(".dat"))
        return read_enuspace(drawing, follow_links=True)  # the link made here


def _folder(root: Path) -> Path:
    folder = root / array_pool.OWN / "imports"
    array_pool.reject_link(folder.parent, folder)
    return folder


def _sweep(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for path in folder.glob("*.dat"):
            if path.lstat().st_mtime < time.time() - _KEEP_SECONDS:
                files.remove(path)


# -- files of either tool, distinguished by their content --------------------------------------------------------------

_HEAD = 400  # bytes at the start of a file in which rowgrad writes its format


def pages_of(studio: Studio, stem: str, ending: str, raw: bytes) -> tuple[list[Page], list[dict[str, str]]]:
    """Return the pages of a file, and remarks on what was omitted or changed."""
    tree = _rowgrad_tree(raw)
    if tree is None:
        imported = read(studio.folder.root, stem, ending, raw)
        report = [{"level": r.level, "place": r.place, "message": r.text} for r in imported.report]
        return [imported.page], report
    try:
        found = studio.pool.read_any(tree)
    except PageError as error:
        if not error.place.endswith(".file"):
            raise
        why = "this array is in a separate file, which was not sent"
        raise PageError(
            error.place, f"{why}; copy the page and its folder of arrays into the project's folder"
        ) from error
    return (found.pages if isinstance(found, Project) else [found]), []


def _rowgrad_tree(raw: bytes) -> object | None:
    """Return the data of a rowgrad page or project, or None for a file of another tool."""
    try:
        tree = strict_json.parse_bytes(raw)
    except PageError:
        if b'"rowgrad-' in raw[:_HEAD]:
            raise  # a damaged rowgrad file
        return None
    return tree if isinstance(tree, dict) and "format" in tree else None


# -- verbs -------------------------------------------------------------------------------------------------------------

_FORMATS: dict[str, tuple[str, Callable[[Page], str]]] = {
    "python": (".py", to_python),
    "json": (".json", dumps),
    "svg": (".svg", to_svg),
    "dot": (".dot", to_dot),
}
_WITH_ARRAYS = ("python", "json")


@verb("export")
def export(studio: Studio, args: Arguments) -> Json:
    """Export a page as one text, arrays included."""
    page, format_name = args.page(), args.text("as")
    if format_name not in _FORMATS:
        raise args.error("as", f"one of {', '.join(_FORMATS)}", format_name)
    size = sum(_bytes(value) for block in page.blocks for value in block.values.values())
    if format_name in _WITH_ARRAYS and size > MOST_EXPORTED:
        message = f"the page's arrays have {size} bytes; an exported text may have at most {MOST_EXPORTED}"
        raise ResourceExhaustedError(f"{message}; `rowgrad export` writes them to separate files", argument="page")
    if format_name == "python":
        _check_script(page)
    ending, export_text = _FORMATS[format_name]
    return {"name": page_names.valid_name(page.name) + ending, "text": export_text(page)}


@verb("import", takes_file=True)
def import_file(studio: Studio, args: Arguments) -> Json:
    """Import the pages of a rowgrad or enuSpace-TensorFlow file.

    `page` is the first page and `pages` are all. A `.dat` file is stored for the drawing of the same name that follows.
    Without a body, `name` is a file in the project's folder, such as a project whose pages become separate files.
    """
    file = PurePosixPath(args.text("name", most=1000).replace("\\", "/")).name
    if len(args.body) > MOST_IMPORTED:
        raise args.error("the file", f"at most {MOST_IMPORTED} bytes", len(args.body))
    stem, ending = page_names.valid_name(PurePosixPath(file).stem), PurePosixPath(file).suffix.lower()
    report: list[dict[str, str]] = []
    if not args.body:
        pages = studio.folder.pages_of(page_names.checked(file.removesuffix(".json")))
    elif ending == ".dat":
        save_data(studio.folder.root, stem, args.body)
        message = f"saved for the page {stem}.svg or {stem}.json; drop that file next"
        return {"page": None, "pages": [], "report": [{"level": "note", "place": file, "message": message}]}
    else:
        pages, report = pages_of(studio, stem, ending, args.body)
    if not pages:
        raise args.error("the file", "a page, or a project with pages", "a project without any")
    if len(pages) > 1:
        message = f"this project has {len(pages)} pages: {', '.join(page.name for page in pages)}"
        report.append({"level": "note", "place": file, "message": message})
    export_text = [studio.pool.write_page(page) for page in pages]
    return {"page": export_text[0], "pages": export_text, "report": report}


def _check_script(page: Page) -> None:
    """Raise the first error of a page whose script would fail. A picture of such a page may still help.

    Blocks of unknown ops are no error here: they are comments in the script.
    """
    kept, _ = without_unknown_ops(page)
    build(Page(page.name, kept or page.blocks))  # if nothing is left, it names what is missing


def _bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        strings = sum(map(len, value.reshape(-1).tolist())) if value.dtype == object else 0
        # The text of an array without elements still has a brace for every row.
        return (int(value.nbytes) or math.prod(max(size, 1) for size in value.shape)) + strings
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    return len(value) if isinstance(value, str | bytes) else 8
