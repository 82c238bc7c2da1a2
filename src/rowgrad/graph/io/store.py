"""Pages and arrays in a folder or an archive, saved whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from ..._runtime.plain_file import open_plain
from ..page import Page, PageError, Project
from . import arrays, files
from . import arrays as array_files
from .page_json import decode, encode, text_of
from .strict_json import parse, parse_bytes

# -- Pages in files ----------------------------------------------------------------------------------------------------

# Pages in files: one JSON file whose renaming commits a save, and a folder of large arrays beside it.

_TRIES = 100  # of a reader that a writer overtakes


def dumps(what: Page | Project, browser: bool = False) -> str:
    """The text of a page or project with every array in it: for the clipboard, a test.

    With `browser`, numbers are written so that JavaScript gives the same ones back: 3.0 as `{"float": 3.0}`.
    """
    return text_of(encode(what, arrays.Writer(apart=False, browser=browser)))


def loads(text: str) -> Page | Project:
    """The page or project of such a text. Arrays are not to be written to."""
    return decode(parse(text), partial(arrays.decode, folder=None))


def load(path: str | os.PathLike[str], *, follow_links: bool = False) -> Page | Project:
    """The page or project in a file. Arrays are not to be written to; PageError says what is wrong and where.

    A folder or file of arrays that is a symbolic link is an error, unless `follow_links`.
    """
    real = Path(os.path.realpath(path))
    raw = _bytes(real)
    for _ in range(_TRIES):
        try:
            return decode(
                parse_bytes(raw), partial(arrays.decode, folder=array_files.Folder(folder_of(real), follow_links))
            )
        except PageError as error:
            # Somebody may have saved since the first byte was read, and deleted the old page's arrays.
            newer = _bytes(real)
            if newer == raw:
                error.add_note(f"in {os.fspath(path)}")
                raise
            raw = newer
    raise PageError(str(path), "the file is written faster than it can be read")


def save(what: Page | Project, path: str | os.PathLike[str], *, follow_links: bool = False) -> None:
    """Write a page or project: a crash or an error at any moment leaves the old one or the new one, whole.

    A folder of arrays that is a symbolic link is an error, unless `follow_links`.
    """
    folder = folder_of(Path(os.path.realpath(path)))
    if folder.is_symlink() and not follow_links:
        raise PageError(str(folder), "this is a symbolic link, which is not followed")
    writer = arrays.Writer(apart=True)
    text = text_of(encode(what, writer)).encode()
    contents = list(writer.files.values())
    replace(path, text, writer.files.keys(), lambda folder, made: put_arrays(folder, contents, made))


PutArrays = Callable[[Path, list[Path]], None]  # (folder of arrays, list that gets each file made)


def replace(path: str | os.PathLike[str], text: bytes, named: Container[str], put: PutArrays) -> None:
    """Put a page's array files, then its text, which commits; then delete arrays that are not among the `named`."""
    real = Path(os.path.realpath(path))
    if real.is_dir():
        raise PageError(str(path), "this is a folder")
    with files.one_writer(real.parent):
        folder = folder_of(real)
        made: list[Path] = []
        try:
            put(folder, made)
            temporary = files.prepare(real, text)
        except BaseException:
            for array in made:
                files.remove(array)
            _remove_if_empty(folder)
            raise
        # From here on the new arrays stay: an error does not tell for certain that nothing was renamed.
        files.commit(temporary, real)
        _sweep(real, folder, named)


def folder_of(path: Path) -> Path:
    """Where a page's large arrays are."""
    return path.with_name(path.name + ".arrays")


def _bytes(path: Path) -> bytes:
    raw = files.read_regular(path)
    assert raw is not None
    return raw


def put_arrays(folder: Path, contents: list[array_files.Content], made: list[Path]) -> None:
    """Bring array files to the disk; `made` gets those that were not there."""
    missing = [content for content in contents if not array_files.is_there(folder / content.name, content)]
    if not missing:
        return
    make_folder(folder)
    for content in missing:
        target = folder / content.name
        temporary = files.prepare(target, partial(_write, content=content))
        made.append(target)
        files.rename(temporary, target)
    files.sync_folder(folder)


def make_folder(folder: Path) -> None:
    """The folder of a page's arrays, brought to the disk."""
    if not folder.is_dir():
        os.mkdir(folder)
        files.sync_folder(folder.parent)


def _write(file: BinaryIO, content: array_files.Content) -> None:
    digest = hashlib.sha256()
    for buffer in content.buffers:
        file.write(buffer)
        digest.update(buffer)
    if not content.name.startswith(digest.hexdigest()):
        raise PageError(content.name, "an array was changed while the page was saved")


def _sweep(path: Path, folder: Path, named: Container[str]) -> None:
    """Delete arrays the page no longer names, and what crashes have left."""
    files.remove_stale(path.parent, re.escape(path.name))
    if not folder.is_dir():
        return
    files.remove_stale(folder, array_files.NAME.pattern)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if array_files.NAME.fullmatch(name) and name not in named:
                files.remove(folder / name)
    _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)


# -- Pages as data that lies open, as a browser has them, and large arrays as files that somebody else keeps -----------

# An editor's page names its large arrays by their files. Saving it links those files: nothing is encoded again.

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
