"""Verbs about one page: opened, saved, judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph import End, Page, PageError
from ..graph.candidates import candidates_from, candidates_to
from ..graph.flipping import gradient_blocks
from ..graph.summary import summary
from .asked import Asked
from .folder_events import tell_kept, tell_page, tell_project
from .verbs import Json, verb

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
