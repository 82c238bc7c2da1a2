"""`rowgrad import`: a file of the old tool as a page, with remarks on what was changed or left out."""

from __future__ import annotations

import argparse
import errno
import os
from pathlib import Path

from ..graph.enuspace import read_enuspace
from ..graph.io import save
from ..graph.page import PageError
from .errors import OK, REFUSED
from .pages import check_writable, is_old, plain_bytes
from .terminal import emit, show


def command(chosen: argparse.Namespace) -> int:
    """Read, write, report."""
    if not is_old(plain_bytes(chosen.file)):
        raise PageError(chosen.file, "this is no page (SVG) and no task (JSON) of enuSpace-TensorFlow")
    out = chosen.out or _beside(Path(chosen.file))
    check_writable(out, [chosen.file, str(Path(chosen.file).with_suffix(".dat"))])
    if os.path.exists(out) and not chosen.force:
        raise FileExistsError(errno.EEXIST, "there is such a file already; --force writes over it", out)
    imported = read_enuspace(chosen.file, follow_links=chosen.follow_links)
    save(imported.page, out)
    warnings = sum(remark.level == "warning" for remark in imported.report)
    if chosen.json:
        report = [{"level": r.level, "place": r.place, "text": r.text} for r in imported.report]
        emit({"page": imported.page.name, "file": out, "report": report})
    else:
        for remark in imported.report:
            show(str(remark))
        notes = len(imported.report) - warnings
        show(f"{len(imported.page.blocks)} blocks written to {out}, {warnings} warnings, {notes} notes")
    return REFUSED if chosen.strict and warnings else OK


def _beside(file: Path) -> str:
    """A task has the name a page would get, so beside one the page gets another."""
    plain = file.with_suffix(".json")
    is_taken = file.suffix.lower() == ".json" or _is_task(plain)
    return str(file.with_suffix(".page.json") if is_taken else plain)


def _is_task(file: Path) -> bool:
    try:
        return is_old(plain_bytes(str(file)))
    except OSError:
        return False
