"""Verbs about a project and its pages: list, open, save, check, rename, remove, and the gallery of example pages."""

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
from .._hints import install_command
from ..errors import InvalidArgumentError
from ..graph import Block, End, Page, PageError, engine_names, load
from ..graph.export import to_svg
from ..graph.fixes import Fix, apply_fix, fixes_of
from ..graph.io.plain import encode_attr
from ..graph.op_example import example_on_page
from ..graph.page_summary import summary
from ..graph.wiring import candidates_from, candidates_to, fetch_with_session, gradient_blocks, rejected_wire
from . import array_pool, limits, page_names, project, verbs
from .first_gradient import FIRST_GRADIENT
from .limits import LIMITS
from .project import send_conflict_event, send_page_event, send_project_event
from .verbs import Arguments, Json, verb

if TYPE_CHECKING:
    from .studio import Studio

# -- example pages: beside this file in an installed package, in examples/ of a source tree ----------------------------

_NUMBER = re.compile(r"^\d+_")
_CURATED = "start"  # the folder of the pages that the gallery shows first
_MOST_TEXT = 120  # characters of a page's description


def folder() -> Path | None:
    """Return the folder of the example pages, or None if they are not installed."""
    beside = Path(__file__).parent / "gallery_pages"
    in_source = Path(__file__).parents[3] / "examples" / "pages"
    return next((path for path in (beside, in_source) if path.is_dir()), None)


def entries() -> list[dict[str, Any]]:
    """Return `{name, title, blocks, text, reference}` for every example page: the curated ones first, in their order.

    `reference` marks the worked examples of the manual.
    """
    return [{**entry} for entry in _entries(folder())]


def page(name: str) -> Page:
    """Return an example page by its name."""
    found = folder()
    known = [entry["name"] for entry in _entries(found)]
    if found is None or name not in known:
        hint = f"it has {', '.join(known)}" if known else "it is empty"
        raise InvalidArgumentError(f"the gallery has no page {name[:100]!r}; {hint}", argument="name")
    return _load_page(found / f"{name}.json")


@lru_cache(maxsize=64)
def gallery_picture(name: str) -> str:
    """Return an example page as SVG, without its text, which the gallery shows beside it."""
    return to_svg(page(name), thumbnail=True)


@lru_cache(maxsize=4)
def _entries(path: Path | None) -> tuple[dict[str, Any], ...]:
    if path is None:
        return ()
    names = [f"{_CURATED}/{name}" for name in _pages_in(path / _CURATED)] + _pages_in(path)
    return tuple(_entry(path, name) for name in names)


def _pages_in(path: Path) -> list[str]:
    files = os.listdir(path) if path.is_dir() else []
    return sorted(file[: -len(".json")] for file in files if file.endswith(".json"))


def _entry(path: Path, name: str) -> dict[str, Any]:
    try:
        found = _load_page(path / f"{name}.json")
        blocks, texts = len(found.blocks), [note.text for note in found.notes]
    except PageError as error:  # a damaged file must not hide the others
        blocks, texts = 0, [str(error)]
    lines = [line for text in texts for line in text.strip().splitlines()]
    if name.startswith(f"{_CURATED}/") and len(lines) > 1:
        title, text = lines[0], " ".join(lines[1:])
        return {"name": name, "title": title, "blocks": blocks, "text": text, "reference": False}
    text = "".join(lines[:1])[:_MOST_TEXT]
    return {"name": name, "title": _title(name), "blocks": blocks, "text": text, "reference": True}


def _title(name: str) -> str:
    """Return the title of a page: `Sparse slice` for `01_sparse_slice`."""
    title = _NUMBER.sub("", name).replace("_", " ").strip()
    return title[:1].upper() + title[1:] or name


def _load_page(path: Path) -> Page:
    found = load(path)
    if not isinstance(found, Page):
        raise PageError(path.name, "the gallery can only have pages, and this is a project")
    return found


# -- verbs about one page ----------------------------------------------------------------------------------------------


@verb("open")
def open_page(studio: Studio, args: Arguments) -> Json:
    """Return a page as it is saved, its errors, and the state of its run."""
    name = args.text("name")
    page, revision = studio.folder.open(name)
    return _page_json(studio, page, revision) | {"run": studio.runs.state(name)}


@verb("save")
def save(studio: Studio, args: Arguments) -> Json:
    """Write a page, merged with what others changed since the window read it.

    Where both changed the same field, `mine` and `theirs` are the keys of conflicts that the user decided.
    """
    name, window = args.text("name"), args.text("window", "")
    page = args.page()
    choices = dict.fromkeys(args.texts("mine", []), "mine") | dict.fromkeys(args.texts("theirs", []), "theirs")
    saved = studio.folder.save(name, args.text("base", "") or None, page, choices)
    if saved.conflict_page is not None:
        if saved.written:
            send_conflict_event(studio, name, saved.conflict_page, window)
            send_project_event(studio)
        conflicts = [conflict.json() for conflict in saved.conflicts]
        conflict: dict[str, Json] = {"kept": saved.conflict_page, "fields": conflicts}
        return {"conflict": conflict | _current_page(studio, name, saved.revision)}
    page = page if saved.merged is None else saved.merged
    checked = summary(page)
    if saved.written:
        studio.runs.edited(name, page, saved.revision, checked["recipes"])
        send_page_event(studio, name, saved.revision, window)
        send_project_event(studio)
    answer = {"revision": saved.revision, "checked": checked}
    if saved.merged is None:
        return answer
    return answer | {"merged": studio.pool.write_page(saved.merged), "sent": saved.sent}


@verb("check")
def check(studio: Studio, args: Arguments) -> Json:
    """Return the outputs and errors of every block."""
    return summary(args.page())


@verb("candidates")
def candidates(studio: Studio, args: Arguments) -> Json:
    """Return the pins where a wire from or to a pin may end or begin, and why others reject it."""
    if ("from" in args) == ("to" in args):
        raise args.error("from", "set, or `to`, but not both", "both" if "from" in args else "neither")
    page = args.page()
    if "from" in args:
        return {"takes": candidates_from(page, _end(args, "from", args.text("from")))}
    end = _end(args, "to", args.text("to"))
    if end.index is not None:
        raise args.error("to", "block.pin, without an index", str(end))
    return {"takes": candidates_to(page, end.block, end.pin)}


@verb("gradients")
def gradients(studio: Studio, args: Arguments) -> Json:
    """Return the gradients of some pins with respect to others, as blocks to add to the page."""
    page = args.page()
    outputs, inputs = (
        [_end(args, f"{side}[{k}]", text) for k, text in enumerate(args.texts(side, most=1000))]
        for side in ("outputs", "inputs")
    )
    blocks, ends = gradient_blocks(page, outputs, inputs)
    session = fetch_with_session(page, ends, outputs)
    changed = _changed_blocks(studio, page, [*blocks, *([] if session is None else [session])])
    return {"blocks": changed, "gradients": [str(end) for end in ends]}


@verb("wire_fixes")
def wire_fixes(studio: Studio, args: Arguments) -> Json:
    """Return the fixes of a wire that a pin rejects."""
    end, to = _end(args, "from", args.text("from")), _end(args, "to", args.text("to"))
    checked, error = rejected_wire(args.page(), end, to.block, to.pin)
    fixes = [] if error is None else fixes_of(checked, to.block, error, end)
    return {"fixes": [fix.json() for fix in fixes]}


@verb("fix")
def fix(studio: Studio, args: Arguments) -> Json:
    """Return the blocks of a page that a fix changes or adds."""
    page, fields = args.page(), args.record("fix")
    texts = {}
    for name in ("title", "action", "block", "pin"):
        if not isinstance(fields.get(name), str):
            raise args.error(f"fix.{name}", "a string", fields.get(name))
        texts[name] = str(fields[name])
    end = None if fields.get("end") is None else str(_end(args, "fix.end", str(fields["end"])))
    found = Fix(**texts, value=fields.get("value"), end=end)
    return {"blocks": _changed_blocks(studio, page, apply_fix(page, found))}


@verb("example")
def example(studio: Studio, args: Arguments) -> Json:
    """Return the blocks of an op's worked example, to add to a page at `at`."""
    page, at = args.page(), args.listed("at", [0, 0], 2)
    if len(at) != 2 or not all(type(x) in (int, float) and abs(x) < 1e9 for x in at):
        raise args.error("at", "two numbers", at)
    return {"blocks": _changed_blocks(studio, page, example_on_page(page, args.text("op", most=200), (at[0], at[1])))}


def _changed_blocks(studio: Studio, page: Page, blocks: list[Block]) -> list[Json]:
    """Return new and changed blocks as plain data; they are encoded with the page, whose blocks their wires name."""
    changed = {b.id: b for b in blocks}
    known = {b.id for b in page.blocks}
    whole = [changed.get(b.id, b) for b in page.blocks] + [b for b in blocks if b.id not in known]
    return [b for b in studio.pool.write_page(Page(page.name, whole))["blocks"] if b["id"] in changed]


def _page_json(studio: Studio, page: Page, revision: str) -> dict[str, Json]:
    return {"page": studio.pool.write_page(page), "revision": revision, "checked": summary(page)}


def _current_page(studio: Studio, name: str, revision: str) -> dict[str, Json]:
    """Return the page in the file, or its error: another program may have written one that cannot be read."""
    try:
        return _page_json(studio, *studio.folder.open(name))
    except PageError as error:
        return {"page": None, "revision": revision, "checked": None, "error": str(error)}


def _end(args: Arguments, argument: str, text: str) -> End:
    try:
        return End.parse(text)
    except ValueError:
        raise args.error(argument, "block.pin or block.pin[index]", text) from None


# -- verbs about the project -------------------------------------------------------------------------------------------

_LIMITS = {
    "body": LIMITS.json_bytes,  # bytes of a request
    "file": LIMITS.file_bytes,  # bytes of a file that is sent
    "name": page_names.MOST,  # characters of a page's name
    "text": verbs.MOST_TEXT,  # characters of a literal
    "page": project.MOST_FILE,  # bytes of a page's file
    "arrays": array_pool.MOST_DECODED,  # bytes of decoded arrays in memory
    "export": limits.MOST_EXPORTED,  # bytes of arrays in one exported text
}


@verb("hello")
def hello(studio: Studio, args: Arguments) -> Json:
    """Return everything a window needs to start."""
    folder = studio.folder
    return {
        "version": __version__,
        "project": {"name": folder.name, "folder": str(folder.root), "pages": folder.pages()},
        "catalog": _records(),
        "dtypes": list(ALL_DTYPES),
        "engines": [_engine(name) for name in engine_names()],
        "limits": _LIMITS,
        "gallery": entries(),
        "tour": FIRST_GRADIENT,
    }


@verb("new")
def new(studio: Studio, args: Arguments) -> Json:
    """Create a page, empty or with the content of `page`."""
    name = args.text("name") if "name" in args else None
    info = studio.folder.new(name, args.page() if "page" in args else None)
    _edited(studio, info)
    return info


@verb("rename")
def rename(studio: Studio, args: Arguments) -> Json:
    """Rename a page and its run."""
    old = args.text("name")
    info = studio.folder.rename(old, args.text("to"))
    if info["name"] != old:
        studio.runs.renamed(old, info["name"])
    send_project_event(studio)
    return info


@verb("remove")
def remove(studio: Studio, args: Arguments) -> Json:
    """Remove a page from the project. `bring_back` restores it."""
    name = args.text("name")
    studio.folder.remove(name)
    studio.runs.forget(name)
    send_project_event(studio)
    return {}


@verb("bring_back")
def bring_back(studio: Studio, args: Arguments) -> Json:
    """Restore the last removed page of this name."""
    info = studio.folder.bring_back(args.text("name"))
    if "error" in info:  # it was unreadable before it was removed
        send_project_event(studio)
    else:
        _edited(studio, info)
    return info


@verb("gallery")
def gallery_page(studio: Studio, args: Arguments) -> Json:
    """Return an example page."""
    return {"page": studio.pool.write_page(page(args.text("name")))}


@verb("picture")
def picture(studio: Studio, args: Arguments) -> Json:
    """Return an example page, or a page of the project, as SVG."""
    if ("gallery" in args) == ("name" in args):
        raise args.error("gallery", "set, or `name`, but not both", "both" if "gallery" in args else "neither")
    if "gallery" in args:
        return {"svg": gallery_picture(args.text("gallery"))}
    page, revision = studio.folder.open(args.text("name"))
    return {"svg": to_svg(page, thumbnail=True), "revision": revision}


def _records() -> list[dict[str, Any]]:
    """Return the catalogue, with float attributes marked as in pages: JavaScript cannot distinguish 0.0 from 0."""
    records = [dict(record) for record in catalog()]
    for record in records:
        record["attrs"] = {
            name: {key: encode_attr(value, f"{record['name']}.{name}", browser=True) for key, value in attr.items()}
            for name, attr in record["attrs"].items()
        }
    return records


def _edited(studio: Studio, info: dict[str, Any]) -> None:
    """Notify the run and all windows of a new page."""
    page, revision = studio.folder.open(info["name"])
    studio.runs.edited(info["name"], page, revision)
    send_page_event(studio, info["name"], revision, "")
    send_project_event(studio)


def _engine(name: str) -> dict[str, Any]:
    """Describe an engine without importing its package, which may take seconds."""
    if importlib.util.find_spec(name) is None:
        why = f"{name} is not installed; run {install_command(name)}"
        return {"name": name, "version": None, "available": False, "why": why}
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = None
    return {"name": name, "version": version, "available": True, "why": None}
