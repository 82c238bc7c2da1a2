"""Verbs about the project: what there is, and pages made, renamed, removed and brought back."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..graph import engine_names
from ..graph.io.plain import encode_attr
from ..spec import ALL_DTYPES, catalog
from . import asked, folder_listing, gallery, names, out_limits, pool
from .asked import Asked
from .folder_events import tell_page, tell_project
from .limits import LIMITS
from .verbs import Json, verb

if TYPE_CHECKING:
    from .studio import Studio

_LIMITS = {
    "body": LIMITS.json_bytes,  # bytes of a request
    "file": LIMITS.file_bytes,  # bytes of a file that is sent
    "name": names.MOST,  # characters of a page's name
    "text": asked.MOST_TEXT,  # characters of a literal
    "page": folder_listing.MOST_FILE,  # bytes of a page's file
    "arrays": pool.MOST_REMEMBERED,  # bytes of arrays held decoded
    "export": out_limits.MOST_EXPORTED,  # bytes of arrays in one exported text
}


@verb("hello")
def hello(studio: Studio, given: Asked) -> Json:
    """All that a window needs to begin."""
    folder = studio.folder
    return {
        "version": __version__,
        "project": {"name": folder.name, "folder": str(folder.root), "pages": folder.pages()},
        "catalog": _records(),
        "dtypes": list(ALL_DTYPES),
        "engines": [_engine(name) for name in engine_names()],
        "limits": _LIMITS,
        "without": list(studio.without),
        "gallery": gallery.entries(),
    }


@verb("new")
def new(studio: Studio, given: Asked) -> Json:
    """Make a page, empty or as given."""
    name = given.text("name") if "name" in given else None
    info = studio.folder.new(name, given.page() if "page" in given else None)
    _edited(studio, info)
    return info


@verb("rename")
def rename(studio: Studio, given: Asked) -> Json:
    """Give a page another name; its runs go with it."""
    old = given.text("name")
    info = studio.folder.rename(old, given.text("to"))
    if info["name"] != old:
        studio.runs.renamed(old, info["name"])
    tell_project(studio)
    return info


@verb("remove")
def remove(studio: Studio, given: Asked) -> Json:
    """Take a page out of the project. It can be brought back."""
    name = given.text("name")
    studio.folder.remove(name)
    studio.runs.forget(name)
    tell_project(studio)
    return {}


@verb("bring_back")
def bring_back(studio: Studio, given: Asked) -> Json:
    """Put the page of this name that was removed last into the project again."""
    info = studio.folder.bring_back(given.text("name"))
    if "error" in info:  # it could not be read before it was removed, either
        tell_project(studio)
    else:
        _edited(studio, info)
    return info


@verb("gallery")
def gallery_page(studio: Studio, given: Asked) -> Json:
    """A page of the gallery."""
    return {"page": studio.pool.write_page(gallery.page(given.text("name")))}


@verb("picture")
def picture(studio: Studio, given: Asked) -> Json:
    """A drawing of a page of the gallery."""
    return {"svg": gallery.picture(given.text("gallery"))}


def _records() -> list[dict[str, Any]]:
    """The catalogue, with floats among the attributes tagged as in pages: JavaScript cannot tell 0.0 from 0."""
    records = [dict(record) for record in catalog()]
    for record in records:
        record["attrs"] = {
            name: {key: encode_attr(told, f"{record['name']}.{name}", browser=True) for key, told in attr.items()}
            for name, attr in record["attrs"].items()
        }
    return records


def _edited(studio: Studio, info: dict[str, Any]) -> None:
    """Tell who runs pages, and who looks at them, of a page that has come."""
    page, revision = studio.folder.open(info["name"])
    studio.runs.edited(info["name"], page, revision)
    tell_page(studio, info["name"], revision, "")
    tell_project(studio)


def _engine(name: str) -> dict[str, Any]:
    """Whether an engine's package is there; it is not imported, which takes seconds for some."""
    if importlib.util.find_spec(name) is None:
        why = f"{name} is not installed; pip install 'rowgrad[{name}]' brings it"
        return {"name": name, "version": None, "available": False, "why": why}
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = None
    return {"name": name, "version": version, "available": True, "why": None}
