"""Drawings of enuSpace-TensorFlow that came as bytes; their reader wants a file, with the `.dat` file beside it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

from ..graph.enuspace import Imported, read_enuspace
from ..graph.io import files
from . import pool_files

_KEPT = 86400.0  # seconds a .dat file waits for its drawing


def keep_data(root: Path, stem: str, raw: bytes) -> None:
    """Put a `.dat` file where the drawing of the same name will find it."""
    folder = _folder(root)
    pool_files.make_folder(folder)
    _sweep(folder)
    files.write_atomically(folder / f"{stem}.dat", raw)


def read(root: Path, stem: str, ending: str, raw: bytes) -> Imported:
    """The page a drawing shows."""
    data = _folder(root) / f"{stem}.dat"
    with tempfile.TemporaryDirectory(prefix="rowgrad-import-") as made:
        drawing = Path(made) / f"{stem}{ending if ending in ('.svg', '.json') else ''}"
        drawing.write_bytes(raw)
        if data.is_file() and not data.is_symlink():
            # Named as the reader looks for it, which takes what is behind the last dot for an ending.
            os.symlink(data, drawing.with_suffix(".dat"))
        return read_enuspace(drawing, follow_links=True)  # the link made here


def _folder(root: Path) -> Path:
    folder = root / pool_files.OWN / "imports"
    pool_files.refuse_link(folder.parent, folder)
    return folder


def _sweep(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for path in folder.glob("*.dat"):
            if path.lstat().st_mtime < time.time() - _KEPT:
                files.remove(path)
