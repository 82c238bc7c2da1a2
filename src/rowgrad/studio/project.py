"""A project: a folder of page files and their arrays, its listing, atomic saves, and conflicts between windows."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidArgumentError
from ..graph import Page, PageError, Project, load
from ..graph.io import arrays, files, page_json, store, strict_json
from ..graph.io.store import folder_of
from . import array_pool, page_names
from .array_pool import Pool

# -- Two wrote the same page -------------------------------------------------------------------------------------------

# Two wrote the same page: the first wins, and what the second wrote becomes a page of its own.

_KEPT = re.compile(r" \(kept \d\d-\d\d-\d\d\)( \d+)?$")


def kept_name(name: str, when: datetime) -> str:
    """`net (kept 12-03-09)`; a page that was kept already is not marked twice."""
    mark = f" (kept {when:%H-%M-%S})"
    return page_names.fitted(_KEPT.sub("", name), len(mark)) + mark


# -- What windows are told when pages change ---------------------------------------------------------------------------

if TYPE_CHECKING:
    from .studio import Studio


def tell_page(studio: Studio, name: str, revision: str, window: str) -> None:
    """A page has a new revision; `window` wrote it and has it already."""
    event = {"event": "page", "name": name, "revision": revision, "window": window}
    studio.hub.tell(event, key=("page", name))


def tell_kept(studio: Studio, name: str, kept: str, window: str) -> None:
    """Two windows changed a page; what this one sent is a page of its own."""
    studio.hub.tell({"event": "kept", "name": name, "kept": kept, "window": window}, key=("kept", kept))


def tell_project(studio: Studio) -> None:
    """The list of pages is another one."""
    studio.hub.tell({"event": "project", "pages": studio.folder.pages()}, key="project")


# -- What page files a folder has --------------------------------------------------------------------------------------

# What page files a folder has: each is read when it is new or has changed, and one that cannot be read says why.

ENDING = ".json"
MOST_FILE = 256 << 20  # bytes of a page's text; large arrays are not in it
_OURS = "rowgrad-"  # what `format` begins with in every file of ours
_OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff")  # text in UTF-16: a page of the old tool, which is imported and not opened


class _Seen(NamedTuple):
    """What was found in a file, and the state of the file at that time."""

    mark: tuple[int, int, int]
    entry: dict[str, Any] | None


class Listing:
    """The pages of a folder, by name. Any thread may ask."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    def entries(self) -> list[dict[str, Any]]:
        """`{name, revision, blocks, modified}` for every page, and `error` for one that cannot be opened."""
        with self._lock:
            seen = {stem: self._look(stem) for stem in stems(self._root)}
            self._seen = {stem: found for stem, found in seen.items() if found is not None}
            entries = [found.entry for found in self._seen.values() if found.entry is not None]
        return sorted(({**entry} for entry in entries), key=lambda entry: page_names.key(entry["name"]))

    def _look(self, stem: str) -> _Seen | None:
        path = self._root / (stem + ENDING)
        try:
            status = os.lstat(path)
        except OSError:
            return None  # it went a moment ago
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._seen.get(stem)
        if known is not None and known.mark == mark:
            return known
        entry: dict[str, Any] = {"name": stem, "revision": "", "blocks": 0, "modified": status.st_mtime}
        try:
            raw = page_bytes(path)
            entry["revision"] = revision_of(raw)
            found = _inside(raw)
            if found is None:
                return _Seen(mark, None)
            entry |= _described(found)
            why = page_names.fault(stem)
            if why is not None:
                raise PageError(path.name, f"a page cannot have this name: {why}")
        except PageError as error:
            entry["error"] = str(error)
        except OSError as error:
            entry["error"] = f"{path.name}: {error.strerror}"
        entry["name"] = stem.encode(errors="replace").decode()  # a name that is no text is shown all the same
        return _Seen(mark, entry)


def stems(root: Path) -> list[str]:
    """The names of all files that may be pages, whatever is in them."""
    with os.scandir(root) as found:
        listed = [entry.name for entry in found if not entry.is_dir(follow_symlinks=False)]
    return sorted(name[: -len(ENDING)] for name in listed if name.endswith(ENDING) and not name.startswith("."))


def page_bytes(path: Path) -> bytes:
    """The bytes of a page's file, which must be a plain one."""
    if stat.S_ISLNK(os.lstat(path).st_mode):
        raise PageError(path.name, "this is a symbolic link, which a studio does not follow")
    raw = files.read_regular(path, lambda size: size <= MOST_FILE)
    if raw is None:
        raise PageError(path.name, f"a page's file has at most {MOST_FILE} bytes")
    return raw


def revision_of(raw: bytes) -> str:
    """What tells one state of a page's file from another."""
    return hashlib.sha256(raw).hexdigest()[:32]


def _inside(raw: bytes) -> Page | Project | None:
    """What a file holds, without its arrays; None where it is JSON about something else."""
    if raw.startswith(_OTHER_MARKS):
        return None
    tree = strict_json.parse_bytes(raw)
    kind = tree.get("format") if isinstance(tree, dict) else None
    if not isinstance(tree, strict_json.Unreadable) and not (isinstance(kind, str) and kind.startswith(_OURS)):
        return None
    return page_json.decode(tree, lambda value, place: None)


def _described(found: Page | Project) -> dict[str, Any]:
    if isinstance(found, Page):
        return {"blocks": len(found.blocks)}
    listed = [page.name for page in found.pages]
    message = f"this file is a project of {len(listed)} pages; import it, and each becomes a page of this folder"
    return {"blocks": sum(len(page.blocks) for page in found.pages), "pages": listed, "error": message}


# -- A page's file and its folder of arrays, written and moved together ------------------------------------------------

# A page's file and its folder of arrays, written and moved together: a crash at any moment leaves whole pages.


def arrays_in(tree: Any) -> set[str]:
    """The files of arrays that a page's data names, wherever in it."""
    return set(_names(tree))


def _names(tree: Any) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += found
        elif isinstance(found, dict):
            name = found.get("file")
            if isinstance(name, str) and arrays.NAME.fullmatch(name):
                yield name
            waiting += [value for value in found.values() if isinstance(value, dict | list)]


def put(path: Path, text: bytes, named: set[str], pool: Pool, first: Callable[[], None]) -> None:
    """Write a page with arrays of the pool. `first` looks, while others are held off, whether it is to be."""

    def put_arrays(folder: Path, made: list[Path]) -> None:
        first()
        array_pool.refuse_link(folder, path)
        pool.hand_out(named, folder, made)

    store.replace(path, text, named, put_arrays)


def has_arrays(path: Path, named: set[str]) -> bool:
    """Whether a page's folder of arrays has all these."""
    return named <= set(_listed(store.folder_of(path)))


def move(old: Path, new: Path) -> None:
    """Give a page another name or folder: its arrays are there before it is, and go after it has gone."""
    source, target = store.folder_of(old), store.folder_of(new)
    array_pool.refuse_link(source, target)
    listed = [name for name in _listed(source) if arrays.NAME.fullmatch(name)]
    try:
        if listed and not target.is_dir():
            os.mkdir(target)
        for name in listed:
            if not array_pool.same(source / name, target / name):
                array_pool.link(source / name, target / name)
        if listed:
            files.sync_folder(target)
            files.sync_folder(target.parent)
        os.rename(old, new)
    except OSError:  # a full disk keeps no arrays of a page that did not come
        if not os.path.lexists(new) and not array_pool.same(source, target):
            _clear(target)
        raise
    files.sync_folder(new.parent)
    if old.parent != new.parent:
        files.sync_folder(old.parent)
    if not array_pool.same(source, target):  # where a file system takes net and Net for one, they are
        _clear(source)


def _clear(folder: Path) -> None:
    """Delete the arrays of a page that has gone, and their folder if nothing else is in it."""
    files.remove_stale(folder, arrays.NAME.pattern)
    for name in _listed(folder):
        if arrays.NAME.fullmatch(name):
            files.remove(folder / name)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


# -- A project is a folder ---------------------------------------------------------------------------------------------

# A project is a folder: every file `<name>.json` in it that is a page of rowgrad is one, under that name.
#
# Other JSON files are left alone. A page that cannot be read is listed with its error. A file that is a whole project
# (several pages in one) is listed too, and says that it is to be imported: then each of its pages becomes a file of
# its own, and the project's file stays as it was. Symbolic links are not followed. What is removed goes to
# `.rowgrad/removed/<time>`, from where it can be brought back.

_TRIES = 100  # of a reader that a writer overtakes
_MOST_KEPT = 64  # pages kept after a conflict that are remembered


class Saved(NamedTuple):
    """What became of a page that was sent.

    `revision` is that of the page's file now. `kept` is None where that is what was sent, else the name of the page
    that was made of it. `written` says whether any file changed.
    """

    revision: str
    kept: str | None
    written: bool


class _Another(Exception):  # noqa: N818  no error, but the way out of a save
    """A page's file is not what the writer started from."""

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self.revision = revision


class Folder:
    """The pages of a project. Any thread may call, and other programs may write to the folder at the same time."""

    def __init__(self, root: Path, pool: Pool) -> None:
        self.root = Path(os.path.realpath(root))
        if not self.root.is_dir():
            raise PageError(str(root), "a project is a folder, and this is none")
        self._pool = pool
        self._listing = Listing(self.root)
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], str] = {}
        self._removed = self.root / array_pool.OWN / "removed"

    @property
    def name(self) -> str:
        """What the project is called."""
        return self.root.name

    def pages(self) -> list[dict[str, Any]]:
        """`{name, revision, blocks, modified}` for every page, and `error` for one that cannot be opened."""
        return self._listing.entries()

    def info(self, name: str) -> dict[str, Any]:
        """The entry of one page."""
        for entry in self.pages():
            if entry["name"] == name:
                return entry
        raise self._unknown(name)

    def open(self, name: str) -> tuple[Page, str]:
        """A page and its revision; its large arrays are in the pool from now on."""
        path = self._file(name)
        raw = self._bytes(path, name)
        for _ in range(_TRIES):
            try:
                return self._read(path, raw), revision_of(raw)
            except PageError as error:
                # Somebody may have saved since the first byte was read, and deleted the old page's arrays.
                newer = self._bytes(path, name)
                if newer == raw:
                    error.add_note(f"in {path.name}")
                    raise
                raw = newer
        raise PageError(name, "the file is written faster than it can be read")

    def pages_of(self, name: str) -> list[Page]:
        """All pages of a file that is a project; of a page, that page."""
        path = self._file(name)
        self._bytes(path, name)
        array_pool.refuse_link(folder_of(path))
        found = load(path)
        return found.pages if isinstance(found, Project) else [found]

    def save(self, name: str, base: str | None, page: Page) -> Saved:
        """Write a page, if its file still is what the writer started from: the revision `base`.

        Otherwise the file stays, and what was sent becomes a page of its own. A file that is gone is made again.
        """
        path = self._file(name)
        text, named = self._text(name, page)

        def compare() -> None:
            try:
                there = page_bytes(path)
            except FileNotFoundError:
                self._refuse_taken(name, "name")
            else:
                if revision_of(there) != base or (there == text and has_arrays(path, named)):
                    raise _Another(revision_of(there))

        sent = revision_of(text)
        with self._lock:
            try:
                put(path, text, named, self._pool, compare)
            except _Another as found:
                if found.revision == sent:
                    return Saved(sent, None, False)
                return self._keep(name, page, found.revision, sent)
        return Saved(sent, None, True)

    def new(self, name: str | None = None, page: Page | None = None) -> dict[str, Any]:
        """Make a page. Without a name it gets that of the page that was given, or one near it that is free."""
        if name is not None:
            page_names.checked(name)
        page = Page(name or "page") if page is None else page
        with self._lock:
            if name is None:
                name = page_names.free(page_names.fitted(page.name), self._taken())
            self._make(name, page)
        return self.info(name)

    def rename(self, name: str, to: str) -> dict[str, Any]:
        """Give a page another name. Its file, and with that its revision, stays as it is."""
        page_names.checked(to, "to")
        with self._moving():
            path = self._there(name)
            if to != name:
                self._refuse_taken(to, "to", but=name)
                move(path, self._file(to))
        return self.info(to)

    def remove(self, name: str) -> None:
        """Take a page out of the project; `bring_back` has it again."""
        with self._moving():
            path = self._there(name)
            folder = self._removed / f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
            array_pool.refuse_link(self._removed)
            array_pool.make_folder(folder)
            move(path, folder / path.name)

    def bring_back(self, name: str) -> dict[str, Any]:
        """The page of this name that was removed last; under a name near it where there is another one by now."""
        file = self._file(name).name
        with self._moving():
            array_pool.refuse_link(self._removed.parent, self._removed)
            found = sorted(self._removed.iterdir()) if self._removed.is_dir() else []
            found = [folder for folder in found if not folder.is_symlink() and os.path.lexists(folder / file)]
            if not found:
                raise InvalidArgumentError(f"no page {name!r} was removed from this project", argument="name")
            back = page_names.free(name, self._taken())
            move(found[-1] / file, self._file(back))
            with contextlib.suppress(OSError):
                os.rmdir(found[-1])
        return self.info(back)

    def _keep(self, name: str, page: Page, revision: str, sent: str) -> Saved:
        """Make a page of what lost. One that is sent twice, because an answer was lost, is kept once."""
        kept = self._kept.get((name, sent))
        if kept is not None and page_names.key(kept) in self._taken():
            return Saved(revision, kept, False)
        kept = page_names.free(kept_name(name, datetime.now()), self._taken())
        self._make(kept, page)
        self._kept[name, sent] = kept
        while len(self._kept) > _MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return Saved(revision, kept, True)

    def _make(self, name: str, page: Page) -> None:
        text, named = self._text(name, page)
        put(self._file(name), text, named, self._pool, lambda: self._refuse_taken(name, "name"))

    def _text(self, name: str, page: Page) -> tuple[bytes, set[str]]:
        """What a page's file will be, and the arrays it names, which are in the pool by then."""
        tree = self._pool.tree_of(replace(page, name=name))
        text = page_json.text_of(tree).encode()
        if len(text) > MOST_FILE:
            raise PageError(name, f"a page's file has at most {MOST_FILE} bytes; this one would have {len(text)}")
        return text, arrays_in(tree["blocks"])

    def _read(self, path: Path, raw: bytes) -> Page:
        tree = strict_json.parse_bytes(raw)
        for array in arrays_in(tree):
            self._pool.take_in(folder_of(path), array)
        return replace(self._pool.read_page(tree), name=path.name[: -len(ENDING)])

    def _bytes(self, path: Path, name: str) -> bytes:
        try:
            return page_bytes(path)
        except FileNotFoundError:
            raise self._unknown(name) from None

    def _file(self, name: str) -> Path:
        """Where a page is or would be: directly in the folder, whatever the name."""
        return self.root / (page_names.checked(name) + ENDING)

    def _there(self, name: str) -> Path:
        path = self._file(name)
        if not os.path.lexists(path):
            raise self._unknown(name)
        array_pool.refuse_link(path)
        return path

    def _taken(self) -> set[str]:
        return {page_names.key(stem) for stem in stems(self.root)}

    def _refuse_taken(self, name: str, argument: str, but: str | None = None) -> None:
        taken = next((s for s in stems(self.root) if page_names.key(s) == page_names.key(name) and s != but), None)
        if taken is not None:
            raise InvalidArgumentError(f"there is a file {taken + ENDING!r} in the folder already", argument=argument)

    def _unknown(self, name: str) -> InvalidArgumentError:
        near = get_close_matches(name, [entry["name"] for entry in self.pages()], 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        return InvalidArgumentError(f"there is no page {name!r} in this project{meant}", argument="name")

    @contextlib.contextmanager
    def _moving(self) -> Iterator[None]:
        """One writer at a time: of our threads by the lock, of other programs that save pages by the folder's."""
        with self._lock, files.one_writer(self.root):
            yield
