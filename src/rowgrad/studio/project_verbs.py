"""Verbs about projects and pages: list, open, save, rename, the gallery of examples."""

from __future__ import annotations

import importlib.util
import os
import re
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from .._catalog.spec import ALL_DTYPES, catalog
from ..errors import InvalidArgumentError
from ..graph import End, Page, PageError, engine_names, load
from ..graph.export import to_svg
from ..graph.io.plain import encode_attr
from ..graph.page_summary import summary
from ..graph.wiring import candidates_from, candidates_to, gradient_blocks
from . import array_pool, limits, page_names, project, verbs
from .limits import LIMITS
from .project import tell_kept, tell_page, tell_project
from .verbs import Asked, Json, verb

# -- Example pages that come with rowgrad ------------------------------------------------------------------------------

# Example pages that come with rowgrad: an installed package has them beside this file, a source tree in examples/.

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
        hint = f"there are {', '.join(known)}" if known else "it is empty"
        raise InvalidArgumentError(f"there is no page {name[:100]!r} in the gallery; {hint}", argument="name")
    return _loaded(found / f"{name}.json")


@lru_cache(maxsize=64)
def gallery_picture(name: str) -> str:
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


# -- Verbs about one page ----------------------------------------------------------------------------------------------

# Verbs about one page: opened, saved, judged.

if TYPE_CHECKING:
    from .studio import Studio


@verb("open")
def open_page(studio: Studio, given: Asked) -> Json:
    """A page as it is in its file, what is wrong with it, and how its run stands."""
    name = given.text("name")
    page, revision = studio.folder.open(name)
    return _shown(studio, page, revision) | {"run": studio.runs.state(name)}


@verb("save")
def save(studio: Studio, given: Asked) -> Json:
    """Write a page, if nobody else has since the window read it."""
    name, window = given.text("name"), given.text("window", "")
    page = given.page()
    saved = studio.folder.save(name, given.text("base", "") or None, page)
    if saved.kept is not None:
        if saved.written:
            tell_kept(studio, name, saved.kept, window)
            tell_project(studio)
        return {"conflict": {"kept": saved.kept} | _winner(studio, name, saved.revision)}
    checked = summary(page)
    if saved.written:
        studio.runs.edited(name, page, saved.revision, checked["recipes"])
        tell_page(studio, name, saved.revision, window)
        tell_project(studio)
    return {"revision": saved.revision, "checked": checked}


@verb("check")
def check(studio: Studio, given: Asked) -> Json:
    """What every block gives, and what is wrong."""
    return summary(given.page())


@verb("candidates")
def candidates(studio: Studio, given: Asked) -> Json:
    """Where a wire from a pin may end, or from where a wire to a pin may come; the reason where it may not."""
    if ("from" in given) == ("to" in given):
        raise given.refuse("from", "given, or `to`, and not both", "both" if "from" in given else "neither")
    page = given.page()
    if "from" in given:
        return {"takes": candidates_from(page, _end(given, "from", given.text("from")))}
    end = _end(given, "to", given.text("to"))
    if end.index is not None:
        raise given.refuse("to", "block.pin, without an index", str(end))
    return {"takes": candidates_to(page, end.block, end.pin)}


@verb("gradients")
def gradients(studio: Studio, given: Asked) -> Json:
    """The gradients of some pins by others, as blocks to be put on the page."""
    page = given.page()
    outputs, inputs = (
        [_end(given, f"{side}[{k}]", text) for k, text in enumerate(given.texts(side, most=1000))]
        for side in ("outputs", "inputs")
    )
    blocks, ends = gradient_blocks(page, outputs, inputs)
    # Their wires begin at blocks of the page, so that they are written together with it.
    whole = studio.pool.write_page(Page(page.name, [*page.blocks, *blocks]))
    return {"blocks": whole["blocks"][len(page.blocks) :], "gradients": [str(end) for end in ends]}


def _shown(studio: Studio, page: Page, revision: str) -> dict[str, Json]:
    return {"page": studio.pool.write_page(page), "revision": revision, "checked": summary(page)}


def _winner(studio: Studio, name: str, revision: str) -> dict[str, Json]:
    """The page that stands in the file. Another program may have left one there that cannot be read."""
    try:
        return _shown(studio, *studio.folder.open(name))
    except PageError as error:
        return {"page": None, "revision": revision, "checked": None, "error": str(error)}


def _end(given: Asked, argument: str, text: str) -> End:
    try:
        return End.parse(text)
    except ValueError:
        raise given.refuse(argument, "block.pin or block.pin[index]", text) from None


# -- Verbs about the project -------------------------------------------------------------------------------------------

# Verbs about the project: what there is, and pages made, renamed, removed and brought back.

if TYPE_CHECKING:
    from .studio import Studio

_LIMITS = {
    "body": LIMITS.json_bytes,  # bytes of a request
    "file": LIMITS.file_bytes,  # bytes of a file that is sent
    "name": page_names.MOST,  # characters of a page's name
    "text": verbs.MOST_TEXT,  # characters of a literal
    "page": project.MOST_FILE,  # bytes of a page's file
    "arrays": array_pool.MOST_REMEMBERED,  # bytes of arrays held decoded
    "export": limits.MOST_EXPORTED,  # bytes of arrays in one exported text
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
        "gallery": entries(),
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
    return {"page": studio.pool.write_page(page(given.text("name")))}


@verb("picture")
def picture(studio: Studio, given: Asked) -> Json:
    """A drawing of a page of the gallery."""
    return {"svg": gallery_picture(given.text("gallery"))}


def _records() -> list[dict[str, Any]]:
    """The catalogue, with floats among the attributes tagged as in pages: JavaScript cannot tell 0.0 from 0."""
    records = [dict(record) for record in catalog()]
    for record in records:
        record["attrs"] = {
            name: {key: encode_attr(value, f"{record['name']}.{name}", browser=True) for key, value in attr.items()}
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
