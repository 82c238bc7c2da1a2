"""`rowgrad check`: print the outputs of every block of a page, or its errors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..errors import OpError
from ..graph.nodes import Output, describe
from ..graph.page_builder import Checked, check
from .errors import OK, REJECTED
from .pages import read_pages
from .terminal import emit, record, say, show, show_columns


def command(options: argparse.Namespace) -> int:
    """Validate every page."""
    found = [check(page) for page in read_pages(options.file, None, partial(say, "check"), options.follow_links)]
    ok = all(checked.ok for checked in found)
    if options.json:
        pages = [_document(checked) for checked in found]
        emit(pages[0] if len(pages) == 1 else {"ok": ok, "pages": pages})
    else:
        for checked in found:
            if len(found) > 1:
                show(f"page {checked.page.name}")
            if checked.ok:
                show_columns(_outputs(checked))
            else:
                show("\n".join(_faults(checked)))
    return OK if ok else REJECTED


def _outputs(checked: Checked) -> Iterator[list[str] | str]:
    blocks = checked.page.blocks
    for block in blocks:
        placed = checked.scope.graph.blocks[block.id]
        pins = ", ".join(f"{pin} {_text(value)}" for pin, value in placed.pins.items())
        yield [block.id, block.op, pins]
    yield f"all {len(blocks)} blocks are valid"


def _text(value: Any) -> str:
    if isinstance(value, Output):
        return describe(value.dtype, value.shape)
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list) else type(value).__name__.lower()


def _faults(checked: Checked) -> Iterator[str]:
    blocks = {b.id: b for b in checked.page.blocks}
    order = {name: k for k, name in enumerate(blocks)}
    for block in sorted(checked.errors, key=order.__getitem__):
        yield f"error: {_sentence(block, checked.errors[block])}"
    for block in sorted(checked.waiting, key=order.__getitem__):
        yield f"waiting: {block} ({blocks[block].op}) depends on a block with an error"
    wrong, total = len(checked.errors), len(checked.page.blocks)
    yield f"{wrong} of {total} blocks have errors, {len(checked.waiting)} depend on them"


def _sentence(block: str, error: OpError) -> str:
    """Return the error, with the block's id in front."""
    if error.op is not None:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        return f"{block} ({error.op}): {' '.join(f'{error.explanation}{notes}'.split())}"
    text = " ".join(str(error).split())
    return text if text.startswith(block) else f"{block}: {text}"


def _document(checked: Checked) -> dict[str, Any]:
    placed = checked.scope.graph.blocks
    blocks = []
    for block in checked.page.blocks:
        entry: dict[str, Any] = {"id": block.id, "op": block.op, "outputs": {}}
        if block.id in placed:
            entry["outputs"] = {pin: _known(value) for pin, value in placed[block.id].pins.items()}
        error = checked.errors.get(block.id)
        blocks.append(entry | {"error": None if error is None else record(error, block.id)})
    return {"page": checked.page.name, "ok": checked.ok, "blocks": blocks, "waiting": list(checked.waiting)}


def _known(value: Any) -> Any:
    if isinstance(value, Output):
        return {"dtype": value.dtype, "shape": None if value.shape is None else list(value.shape)}
    return [_known(v) for v in value] if isinstance(value, list) else {"kind": type(value).__name__.lower()}
