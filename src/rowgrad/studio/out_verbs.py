"""Verbs for what leaves a studio and what comes into it: pages as other things, and files dropped on the window."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ResourceExhaustedError
from ..graph import Page, build, dumps
from ..graph.export import to_dot, to_python, to_svg
from . import names, out_old_files
from .asked import Asked
from .out_limits import MOST_EXPORTED, MOST_IMPORTED
from .out_reading import pages_of
from .verbs import Json, verb

if TYPE_CHECKING:
    from .studio import Studio

_FORMS: dict[str, tuple[str, Callable[[Page], str]]] = {
    "python": (".py", to_python),
    "json": (".json", dumps),
    "svg": (".svg", to_svg),
    "dot": (".dot", to_dot),
}
_WITH_ARRAYS = ("python", "json")


@verb("export")
def export(studio: Studio, given: Asked) -> Json:
    """A page as one text with everything in it."""
    page, form = given.page(), given.text("as")
    if form not in _FORMS:
        raise given.refuse("as", f"one of {', '.join(_FORMS)}", form)
    size = sum(_bytes(value) for block in page.blocks for value in block.values.values())
    if form in _WITH_ARRAYS and size > MOST_EXPORTED:
        told = f"the page's arrays have {size} bytes, and one text takes at most {MOST_EXPORTED}"
        raise ResourceExhaustedError(f"{told}; `rowgrad export` puts them into files beside it", argument="page")
    if form == "python":
        build(page)  # a script of a page that does not hold would only fail later; a drawing of one may help
    ending, written = _FORMS[form]
    return {"name": names.fitted(page.name) + ending, "text": written(page)}


@verb("import", takes_file=True)
def import_file(studio: Studio, given: Asked) -> Json:
    """The page or pages in a file: rowgrad's own, or those of enuSpace-TensorFlow.

    `page` is the first and `pages` are all. A `.dat` file is kept for the drawing of the same name that comes next.
    Without a body, `name` is a file of the project's folder: a whole project there is taken apart in this way.
    """
    file = PurePosixPath(given.text("name", most=1000).replace("\\", "/")).name
    if len(given.body) > MOST_IMPORTED:
        raise given.refuse("the file", f"at most {MOST_IMPORTED} bytes", len(given.body))
    stem, ending = names.fitted(PurePosixPath(file).stem), PurePosixPath(file).suffix.lower()
    report: list[dict[str, str]] = []
    if not given.body:
        pages = studio.folder.pages_of(names.checked(file.removesuffix(".json")))
    elif ending == ".dat":
        out_old_files.keep_data(studio.folder.root, stem, given.body)
        told = f"kept for a page {stem}.svg or {stem}.json, which is to be dropped next"
        return {"page": None, "pages": [], "report": [{"level": "note", "place": file, "message": told}]}
    else:
        pages, report = pages_of(studio, stem, ending, given.body)
    if not pages:
        raise given.refuse("the file", "a page, or a project with pages", "a project without any")
    if len(pages) > 1:
        told = f"this project has {len(pages)} pages: {', '.join(page.name for page in pages)}"
        report.append({"level": "note", "place": file, "message": told})
    written = [studio.pool.write_page(page) for page in pages]
    return {"page": written[0], "pages": written, "report": report}


def _bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        strings = sum(map(len, value.reshape(-1).tolist())) if value.dtype == object else 0
        # An array without elements is a brace for every row where it is written out.
        return (int(value.nbytes) or math.prod(max(size, 1) for size in value.shape)) + strings
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    return len(value) if isinstance(value, str | bytes) else 8
