"""`rowgrad import`: convert a file of enuSpace-TensorFlow to a page, and report what was changed or omitted."""

from __future__ import annotations

import argparse
import errno
import os
from pathlib import Path

from .._hints import counted
from ..graph.enuspace import read_enuspace
from ..graph.io import save
from ..graph.page import PageError
from .errors import OK, REJECTED
from .pages import check_writable, is_enuspace, read_bytes
from .terminal import emit, show


def command(options: argparse.Namespace) -> int:
    """Convert the file and print the report."""
    if not is_enuspace(read_bytes(options.file)):
        raise PageError(options.file, "not a page (SVG) or task (JSON) of enuSpace-TensorFlow")
    out = options.out or _default_output(Path(options.file))
    check_writable(out, [options.file, str(Path(options.file).with_suffix(".dat"))])
    if os.path.exists(out) and not options.force:
        raise FileExistsError(errno.EEXIST, "the file exists; --force overwrites it", out)
    imported = read_enuspace(options.file, follow_links=options.follow_links)
    save(imported.page, out)
    warnings = sum(remark.level == "warning" for remark in imported.report)
    if options.json:
        report = [{"level": r.level, "place": r.place, "text": r.text} for r in imported.report]
        emit({"page": imported.page.name, "file": out, "report": report})
    else:
        for remark in imported.report:
            show(str(remark))
        notes = len(imported.report) - warnings
        blocks = counted(len(imported.page.blocks), "block")
        show(f"{blocks} written to {out}, {counted(warnings, 'warning')}, {counted(notes, 'note')}")
    return REJECTED if options.strict and warnings else OK


def _default_output(file: Path) -> str:
    """Return the default output: .json, or .page.json if a task has that name."""
    plain = file.with_suffix(".json")
    is_used = file.suffix.lower() == ".json" or _is_task(plain)
    return str(file.with_suffix(".page.json") if is_used else plain)


def _is_task(file: Path) -> bool:
    try:
        return is_enuspace(read_bytes(str(file)))
    except OSError:
        return False
