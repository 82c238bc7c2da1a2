"""Pages as data that lies open, as a browser has them, and large arrays as files that somebody else keeps.

An editor's page names its large arrays by their files. Saving it links those files: nothing is encoded again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from ...plain_file import open_plain
from ..page import Page, PageError, Project
from . import array_files, arrays, files
from .decode import decode
from .encode import encode
from .layout import text_of
from .store import make_folder, put_arrays, replace

_MOST_SEEN = 10_000
# Files that were read and found right, by what would change if they did: a save need not read 100 MB again.
_seen: dict[tuple[Any, ...], None] = {}


def browser_tree(what: Page | Project) -> tuple[dict[str, Any], dict[str, array_files.Content]]:
    """A page's data for a browser, ready for JSON, and the files its large arrays are named by."""
    writer = arrays.Writer(apart=True, browser=True)
    return encode(what, writer), writer.files


def read_tree(tree: Any, folder: str | os.PathLike[str]) -> Page | Project:
    """The page of such data; `folder` has the array files. Arrays are not to be written to."""
    return decode(tree, partial(arrays.decode, folder=array_files.Folder(Path(folder))))


def save_tree(tree: Any, path: str | os.PathLike[str], source: str | os.PathLike[str]) -> None:
    """Write a page given as such data, as `save` does; array files it lacks are linked from the folder `source`.

    The file is the one `save` would write. An array file that is in neither folder, or is not what its name and the
    page say, is refused before anything is written.
    """
    writer = arrays.Writer(apart=True)
    text = text_of(encode(decode(tree, arrays.decode_or_refer), writer)).encode()
    contents = list(writer.files.values())
    known = Path(source)

    def put(folder: Path, made: list[Path]) -> None:
        # What is there may be swept by another save, so it is looked at while that is held off.
        missing = {r.name: r for r in writer.references if not _lies_in(folder, r)}
        for reference in writer.references:
            if reference.name in missing:
                _verify(known, reference)
        put_arrays(folder, contents, made)
        if missing:
            make_folder(folder)
            for name in missing:
                _link(known / name, folder / name, made)
            files.sync_folder(folder)

    replace(path, text, {*writer.files, *(r.name for r in writer.references)}, put)


def _lies_in(folder: Path, reference: arrays.Reference) -> bool:
    try:
        _verify(folder, reference)
    except PageError:
        return False
    return True


def _verify(folder: Path, reference: arrays.Reference) -> None:
    """Read an array's file once; what reading refuses is refused here."""
    key = _identity(folder / reference.name, reference)
    if key is not None and key in _seen:
        return
    arrays.read_reference(reference, array_files.Folder(folder))
    # A file that changed meanwhile is another one.
    if key is not None and key == _identity(folder / reference.name, reference):
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        _seen[key] = None


def _identity(path: Path, reference: arrays.Reference) -> tuple[Any, ...] | None:
    try:
        told = os.stat(path)
    except OSError:
        return None
    # Not the time of the inode's last change: every link changes that.
    return told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns, reference.name, reference.dtype, reference.shape


def _link(source: Path, target: Path, made: list[Path]) -> None:
    """Another name for the file, or a copy where the file system has no such names or they are on two of them."""
    real = os.path.realpath(source)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        os.link(real, temporary)
    except OSError:
        temporary = files.prepare(target, partial(_copy, real))
    else:
        with contextlib.suppress(OSError):  # whoever put it there may not have waited for the disk
            files.sync_file(temporary)
    made.append(target)
    files.rename(temporary, target)


def _copy(source: str, file: Any) -> None:
    with open_plain(source) as whole:
        shutil.copyfileobj(whole, file, 1 << 20)
