"""Read and write pages: one JSON file whose rename commits a save, and a folder of large arrays beside it."""

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

import rowgrad.graph.io.arrays as arrays
import rowgrad.graph.io.files as files

from ..._runtime.plain_file import open_plain
from ..page import Page, PageError, Project
from .page_json import decode, encode, text_of
from .strict_json import parse, parse_bytes

# -- pages in files ----------------------------------------------------------------------------------------------------

_TRIES = 100  # attempts of a reader while another process keeps saving


def dumps(what: Page | Project, browser: bool = False) -> str:
    """Write a page or project as one JSON text, arrays included.

    Args:
        what: The page or project.
        browser: Whether to write numbers so that JavaScript returns the same ones: 3.0 as `{"float": 3.0}`.

    Returns:
        The text, which `loads` reads.

    Raises:
        PageError: The page is inconsistent: the text could not be read again.

    >>> from rowgrad.graph import Block, Page
    >>> print(dumps(Page("net", [Block("a", "Const", values={"val": 2})])), end="")
    {
     "format": "rowgrad-page", "version": 1, "name": "net",
     "blocks": [
      {"id": "a", "op": "Const", "values": {"val": 2}}
     ]
    }
    """
    return text_of(encode(what, arrays.Writer(apart=False, browser=browser)))


def loads(text: str) -> Page | Project:
    """Read a page or project from a JSON text.

    Args:
        text: The text, as `dumps` writes it.

    Returns:
        The page or project. Its arrays are read-only.

    Raises:
        PageError: The text is not a page; `place` says where.

    >>> from rowgrad.graph import Page, dumps
    >>> loads(dumps(Page("net"))).name
    'net'
    """
    return decode(parse(text), partial(arrays.decode, folder=None))


def load(path: str | os.PathLike[str], *, follow_links: bool = False) -> Page | Project:
    """Read a page or project from a file.

    Args:
        path: The file.
        follow_links: Whether files of arrays, or their folder, may be symbolic links.

    Returns:
        The page or project. Its arrays are read-only.

    Raises:
        PageError: The file is not a page; `place` says where.
        OSError: The file cannot be read.

    >>> import os, tempfile
    >>> from rowgrad.graph import Page, save
    >>> path = os.path.join(tempfile.mkdtemp(), "net.json")
    >>> save(Page("net"), path)
    >>> load(path).name
    'net'
    """
    real = Path(os.path.realpath(path))
    stamp, raw = _stamp(real), _bytes(real)
    for _ in range(_TRIES):
        try:
            return decode(parse_bytes(raw), partial(arrays.decode, folder=arrays.Folder(folder_of(real), follow_links)))
        except PageError as error:
            # Another process may have saved meanwhile, and deleted the old page's arrays.
            later, newer = _stamp(real), _bytes(real)
            if (later, newer) == (stamp, raw):  # the same bytes may have been saved twice, with others in between
                error.add_note(f"in {os.fspath(path)}")
                raise
            stamp, raw = later, newer
    raise PageError(str(path), "the file is written faster than it can be read")


def save(what: Page | Project, path: str | os.PathLike[str], *, follow_links: bool = False) -> None:
    """Write a page or project to a file; after a crash or an error the file is the old one or the new one.

    Large arrays go to the folder `<path>.arrays`.

    Args:
        what: The page or project.
        path: The file.
        follow_links: Whether the folder of arrays may be a symbolic link.

    Raises:
        PageError: The page is inconsistent, or the path is a folder or a link.
        OSError: The file cannot be written.

    >>> import os, tempfile
    >>> from rowgrad.graph import Page, load
    >>> path = os.path.join(tempfile.mkdtemp(), "net.json")
    >>> save(Page("net"), path)
    >>> load(path).name
    'net'
    """
    folder = folder_of(Path(os.path.realpath(path)))
    if folder.is_symlink() and not follow_links:
        raise PageError(str(folder), "this is a symbolic link, which is not followed")
    writer = arrays.Writer(apart=True)
    text = text_of(encode(what, writer)).encode()
    contents = list(writer.files.values())
    replace(path, text, writer.files.keys(), lambda folder, created: put_arrays(folder, contents, created))


PutArrays = Callable[[Path, list[Path]], None]  # (folder of arrays, list to append created files to)


def replace(path: str | os.PathLike[str], text: bytes, named: Container[str], put: PutArrays) -> None:
    """Write a page's array files, then its text, which commits; then delete arrays that are not in `named`."""
    real = Path(os.path.realpath(path))
    if real.is_dir():
        raise PageError(str(path), "this is a folder")
    with files.one_writer(real.parent):
        folder = folder_of(real)
        created: list[Path] = []
        try:
            put(folder, created)
            temporary = files.prepare(real, text)
        except BaseException:
            for array in created:
                files.remove(array)
            _remove_if_empty(folder)
            raise
        # From here on the new arrays stay, because after an error the rename may still have happened.
        files.commit(temporary, real)
        _sweep(real, folder, named)


def folder_of(path: Path) -> Path:
    """Return the folder of a page's large arrays."""
    return path.with_name(path.name + ".arrays")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever a file is replaced; None if there is no file."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns


def _bytes(path: Path) -> bytes:
    raw = files.read_regular(path)
    assert raw is not None
    return raw


def put_arrays(folder: Path, contents: list[arrays.Content], created: list[Path]) -> None:
    """Write missing array files and sync them to disk; append them to `created`."""
    missing = [content for content in contents if not arrays.is_there(folder / content.name, content)]
    if not missing:
        return
    make_folder(folder)
    for content in missing:
        target = folder / content.name
        temporary = files.prepare(target, partial(_write, content=content))
        created.append(target)
        files.rename(temporary, target)
    files.sync_folder(folder)


def make_folder(folder: Path) -> None:
    """Create the folder of a page's arrays, and sync its parent to disk."""
    if not folder.is_dir():
        os.mkdir(folder)
        files.sync_folder(folder.parent)


def _write(file: BinaryIO, content: arrays.Content) -> None:
    digest = hashlib.sha256()
    for buffer in content.buffers:
        file.write(buffer)
        digest.update(buffer)
    if not content.name.startswith(digest.hexdigest()):
        raise PageError(content.name, "an array was changed while the page was saved")


def _sweep(path: Path, folder: Path, named: Container[str]) -> None:
    """Delete arrays that the page no longer names, and temporary files left by crashes."""
    files.remove_stale(path.parent, re.escape(path.name))
    if not folder.is_dir():
        return
    files.remove_stale(folder, arrays.NAME.pattern)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if arrays.NAME.fullmatch(name) and name not in named:
                files.remove(folder / name)
    _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)


# -- pages of a browser, which name large arrays by their files; saving links these files without encoding them again --

_MOST_VERIFIED = 10_000
# Files that were verified, by what changes with their content, so that a save need not read 100 MB again.
_verified: dict[tuple[Any, ...], None] = {}


def browser_tree(what: Page | Project) -> tuple[dict[str, Any], dict[str, arrays.Content]]:
    """Return a page as plain data for a browser, and the files of its large arrays."""
    writer = arrays.Writer(apart=True, browser=True)
    return encode(what, writer), writer.files


def read_tree(tree: Any, folder: str | os.PathLike[str]) -> Page | Project:
    """Return the page of such data; `folder` has the array files. Arrays are read-only."""
    return decode(tree, partial(arrays.decode, folder=arrays.Folder(Path(folder))))


def save_tree(tree: Any, path: str | os.PathLike[str], source: str | os.PathLike[str]) -> None:
    """Write a page from its plain data, as `save` does; missing array files are linked from the folder `source`.

    The file is the same that `save` writes. An array file that is in neither folder, or does not match its name and the
    page, is an error before anything is written.
    """
    writer = arrays.Writer(apart=True)
    text = text_of(encode(decode(tree, arrays.decode_or_refer), writer)).encode()
    contents = list(writer.files.values())
    known = Path(source)

    def put(folder: Path, created: list[Path]) -> None:
        # Under the writer's lock, because another save could delete files meanwhile.
        missing = {r.name: r for r in writer.references if not _is_in(folder, r)}
        for reference in writer.references:
            if reference.name in missing:
                _verify(known, reference)
        put_arrays(folder, contents, created)
        if missing:
            make_folder(folder)
            for name in missing:
                _link(known / name, folder / name, created)
            files.sync_folder(folder)

    replace(path, text, {*writer.files, *(r.name for r in writer.references)}, put)


def _is_in(folder: Path, reference: arrays.Reference) -> bool:
    try:
        _verify(folder, reference)
    except PageError:
        return False
    return True


def _verify(folder: Path, reference: arrays.Reference) -> None:
    """Read and validate an array's file, once per version of the file."""
    key = _identity(folder / reference.name, reference)
    if key is not None and key in _verified:
        return
    arrays.read_reference(reference, arrays.Folder(folder))
    # Not if the file changed meanwhile.
    if key is not None and key == _identity(folder / reference.name, reference):
        if len(_verified) >= _MOST_VERIFIED:
            _verified.clear()
        _verified[key] = None


def _identity(path: Path, reference: arrays.Reference) -> tuple[Any, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    # Not st_ctime, which every new link changes.
    found = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return *found, reference.name, reference.dtype, reference.shape


def _link(source: Path, target: Path, created: list[Path]) -> None:
    """Hard-link a file, or copy it if the file system has no links or the files are on two file systems."""
    real = os.path.realpath(source)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        os.link(real, temporary)
    except OSError:
        temporary = files.prepare(target, partial(_copy, real))
    else:
        with contextlib.suppress(OSError):  # the process that wrote the file may not have synced it
            files.sync_file(temporary)
    created.append(target)
    files.rename(temporary, target)


def _copy(source: str, file: Any) -> None:
    with open_plain(source) as whole:
        shutil.copyfileobj(whole, file, 1 << 20)
