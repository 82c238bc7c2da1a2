"""A project: a folder in which every `<name>.json` that is a rowgrad page is a page of that name.

Other JSON files are ignored. A page that cannot be read is listed with its error. A file with a whole project is listed
too: importing it makes a file of each of its pages. Symbolic links are not followed. Removed pages go to
`.rowgrad/removed/<time>`, from where they can be restored. If two windows change a page at the same time, the second
save is merged with the first, field by field. If both changed the same field, or the version they began from is not
known any more, the first save wins, and the second is saved as a new page.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .._hints import nearest
from ..errors import InvalidArgumentError
from ..graph import Page, PageError, Project, load
from ..graph.io import arrays, files, page_json, store, strict_json
from ..graph.io.store import folder_of
from . import array_pool, page_names
from .array_pool import Pool
from .merge import Conflict, merge

if TYPE_CHECKING:
    from .studio import Studio

# -- names after a conflict --------------------------------------------------------------------------------------------

_CONFLICT_SUFFIX = re.compile(r" \(kept \d\d-\d\d-\d\d\)( \d+)?$")


def conflict_name(name: str, when: datetime) -> str:
    """Return the name of a conflicting page, `net (kept 12-03-09)`; the mark is never repeated."""
    mark = f" (kept {when:%H-%M-%S})"
    return page_names.valid_name(_CONFLICT_SUFFIX.sub("", name), len(mark)) + mark


# -- events for windows ------------------------------------------------------------------------------------------------


def send_page_event(studio: Studio, name: str, revision: str, window: str) -> None:
    """Send the event of a page's new revision, which `window` wrote."""
    event = {"event": "page", "name": name, "revision": revision, "window": window}
    studio.hub.send(event, key=("page", name))


def send_conflict_event(studio: Studio, name: str, conflict_page: str, window: str) -> None:
    """Send the event of a conflict: the page that this window sent was saved as `conflict_page`."""
    studio.hub.send(
        {"event": "kept", "name": name, "kept": conflict_page, "window": window}, key=("kept", conflict_page)
    )


def send_project_event(studio: Studio) -> None:
    """Send the event that the page list changed."""
    studio.hub.send({"event": "project", "pages": studio.folder.pages()}, key="project")


# -- the listing of a folder, which reads a file only when it is new or has changed ------------------------------------

ENDING = ".json"
MOST_FILE = 256 << 20  # bytes of a page's text; large arrays are not in it
_OURS = "rowgrad-"  # the prefix of `format` in rowgrad's files
_OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff")  # UTF-16: a page of enuSpace, which can be imported but not opened


class _ListedFile(NamedTuple):
    """The entry of a file, and the file's stamp when it was read."""

    stamp: tuple[int, int, int]
    entry: dict[str, Any] | None


class Listing:
    """The pages of a folder by name. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, _ListedFile] = {}
        self._lock = threading.Lock()

    def entries(self) -> list[dict[str, Any]]:
        """Return `{name, revision, blocks, modified}` for every page, and `error` if it cannot be opened."""
        with self._lock:
            listed = {stem: self._read_entry(stem) for stem in stems(self._root)}
            self._files = {stem: found for stem, found in listed.items() if found is not None}
            entries = [found.entry for found in self._files.values() if found.entry is not None]
        return sorted(({**entry} for entry in entries), key=lambda entry: page_names.key(entry["name"]))

    def _read_entry(self, stem: str) -> _ListedFile | None:
        path = self._root / (stem + ENDING)
        try:
            status = os.lstat(path)
        except OSError:
            return None  # it was deleted a moment ago
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._files.get(stem)
        if known is not None and known.stamp == stamp:
            return known
        entry: dict[str, Any] = {"name": stem, "revision": "", "blocks": 0, "modified": status.st_mtime}
        try:
            raw = page_bytes(path)
            entry["revision"] = revision_of(raw)
            found = _decode_page(raw)
            if found is None:
                return _ListedFile(stamp, None)
            entry |= _entry_fields(found)
            why = page_names.fault(stem)
            if why is not None:
                raise PageError(path.name, f"a page cannot have this name: {why}")
        except PageError as error:
            entry["error"] = str(error)
        except OSError as error:
            entry["error"] = f"{path.name}: {error.strerror}"
        entry["name"] = stem.encode(errors="replace").decode()  # a name that is not valid text is still shown
        return _ListedFile(stamp, entry)


def stems(root: Path) -> list[str]:
    """Return the names of all files that may be pages, without reading them."""
    with os.scandir(root) as found:
        listed = [entry.name for entry in found if not entry.is_dir(follow_symlinks=False)]
    return sorted(name[: -len(ENDING)] for name in listed if name.endswith(ENDING) and not name.startswith("."))


def page_bytes(path: Path) -> bytes:
    """Read a page's file; raise PageError if it is not a regular file."""
    if stat.S_ISLNK(os.lstat(path).st_mode):
        raise PageError(path.name, "this is a symbolic link, which Studio does not follow")
    raw = files.read_regular(path, lambda size: size <= MOST_FILE)
    if raw is None:
        raise PageError(path.name, f"a page's file has at most {MOST_FILE} bytes")
    return raw


def revision_of(raw: bytes) -> str:
    """Return the revision of a page's file, a hash of its bytes."""
    return hashlib.sha256(raw).hexdigest()[:32]


def _decode_page(raw: bytes) -> Page | Project | None:
    """Decode a file without its arrays; return None for JSON of another kind."""
    if raw.startswith(_OTHER_MARKS):
        return None
    tree = strict_json.parse_bytes(raw)
    kind = tree.get("format") if isinstance(tree, dict) else None
    if not isinstance(tree, strict_json.Unreadable) and not (isinstance(kind, str) and kind.startswith(_OURS)):
        return None
    return page_json.decode(tree, lambda value, place: None)


def _entry_fields(found: Page | Project) -> dict[str, Any]:
    if isinstance(found, Page):
        return {"blocks": len(found.blocks)}
    listed = [page.name for page in found.pages]
    message = f"this file is a project of {len(listed)} pages; import it to add each page to this folder"
    return {"blocks": sum(len(page.blocks) for page in found.pages), "pages": listed, "error": message}


# -- a page's file and its folder of arrays, written and moved so that a crash leaves complete pages -------------------


def arrays_in(tree: Any) -> set[str]:
    """Return the array files that a page's data names at any depth."""
    return set(_array_names(tree))


def _array_names(tree: Any) -> Iterator[str]:
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


def write_page(path: Path, text: bytes, names: set[str], pool: Pool, first: Callable[[], None]) -> None:
    """Write a page with arrays of the pool. `first` is called under the writer's lock and may raise to cancel."""

    def put_arrays(folder: Path, created: list[Path]) -> None:
        first()
        array_pool.reject_link(folder, path)
        pool.link_files(names, folder, created)

    store.replace(path, text, names, put_arrays)


def has_arrays(path: Path, names: set[str]) -> bool:
    """Return whether a page's folder of arrays has all these files."""
    return names <= set(_list_folder(store.folder_of(path)))


def move(old: Path, new: Path) -> None:
    """Move a page: its arrays are linked before the page is renamed, and the old ones deleted afterwards."""
    source, target = store.folder_of(old), store.folder_of(new)
    array_pool.reject_link(source, target)
    listed = [name for name in _list_folder(source) if arrays.NAME.fullmatch(name)]
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
    except OSError:  # such as a full disk: remove the arrays of a page that was not moved
        if not os.path.lexists(new) and not array_pool.same(source, target):
            _clear(target)
        raise
    files.sync_folder(new.parent)
    if old.parent != new.parent:
        files.sync_folder(old.parent)
    if not array_pool.same(source, target):  # they are the same where the file system ignores case
        _clear(source)


def _clear(folder: Path) -> None:
    """Delete the arrays of a page that was moved, and their folder if it is empty."""
    files.remove_stale(folder, arrays.NAME.pattern)
    for name in _list_folder(folder):
        if arrays.NAME.fullmatch(name):
            files.remove(folder / name)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _list_folder(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


# -- the project -------------------------------------------------------------------------------------------------------

_TRIES = 100  # attempts of a reader while another process keeps saving
_MOST_CONFLICTS = 64  # conflicting pages that are remembered


class Saved(NamedTuple):
    """The result of a save.

    `revision` is the current one of the page's file. `conflict_page` is None if the page was saved there, else the name
    of the new page it was saved as, and `conflicts` are the fields that prevented a merge, if those were the reason.
    `written` says whether any file changed. `merged` is the page in the file if it also has changes of others; then the
    next save of the writer begins from the revision `sent`, which is of the page it sent.
    """

    revision: str
    conflict_page: str | None
    written: bool
    merged: Page | None = None
    conflicts: tuple[Conflict, ...] = ()
    sent: str = ""


_MOST_VERSIONS = 256  # versions of pages that are remembered for merges
_MOST_VERSION_BYTES = 64 << 20


class _Versions:
    """The last versions of pages that were read or written, by revision."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._bytes = 0

    def add(self, text: bytes) -> str:
        """Remember a version, and return its revision."""
        revision = revision_of(text)
        with self._lock:
            if revision in self._texts:
                self._texts.move_to_end(revision)
                return revision
            self._texts[revision] = text
            self._bytes += len(text)
            while len(self._texts) > _MOST_VERSIONS or (self._bytes > _MOST_VERSION_BYTES and len(self._texts) > 1):
                self._bytes -= len(self._texts.popitem(last=False)[1])
        return revision

    def find(self, revision: str | None) -> bytes | None:
        with self._lock:
            return None if revision is None else self._texts.get(revision)


class _RevisionChanged(Exception):  # noqa: N818  control flow of a save, not an error
    """A page's file has changed since the writer read it."""

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self.revision = revision


class Folder:
    """The pages of a project. Thread-safe; other programs may write to the folder at the same time."""

    def __init__(self, root: Path, pool: Pool) -> None:
        self.root = Path(os.path.realpath(root))
        if not self.root.is_dir():
            raise PageError(str(root), "a project must be a folder")
        self._pool = pool
        self._listing = Listing(self.root)
        self._lock = threading.Lock()
        self._conflict_pages: dict[tuple[str, str], str] = {}
        self._versions = _Versions()
        self._removed = self.root / array_pool.OWN / "removed"

    @property
    def name(self) -> str:
        """Return the project's name."""
        return self.root.name

    def pages(self) -> list[dict[str, Any]]:
        """Return `{name, revision, blocks, modified}` for every page, and `error` if it cannot be opened."""
        return self._listing.entries()

    def info(self, name: str) -> dict[str, Any]:
        """Return the entry of one page."""
        for entry in self.pages():
            if entry["name"] == name:
                return entry
        raise self._unknown(name)

    def open(self, name: str) -> tuple[Page, str]:
        """Read a page and its revision, and add its large arrays to the pool."""
        path = self._file(name)
        raw = self._bytes(path, name)
        for _ in range(_TRIES):
            try:
                page = self._read(path, raw)
                self._versions.add(raw)
                return page, revision_of(raw)
            except PageError as error:
                # Another process may have saved meanwhile, and deleted the old page's arrays.
                newer = self._bytes(path, name)
                if newer == raw:
                    error.add_note(f"in {path.name}")
                    raise
                raw = newer
        raise PageError(name, "the file is written faster than it can be read")

    def pages_of(self, name: str) -> list[Page]:
        """Return all pages of a project file, or the page of a page file."""
        path = self._file(name)
        self._bytes(path, name)
        array_pool.reject_link(folder_of(path))
        found = load(path)
        return found.pages if isinstance(found, Project) else [found]

    def save(self, name: str, base: str | None, page: Page, choices: Mapping[str, str] | None = None) -> Saved:
        """Write a page if its file still has the revision `base` that the writer read, otherwise merge both.

        If the same field was changed in both and `choices` do not decide, the file stays, and the sent page is saved
        under a new name. A deleted file is created again.
        """
        path = self._file(name)
        text, names = self._text(name, page)
        sent = revision_of(text)
        with self._lock:
            try:
                self._write(name, path, text, names, base)
            except _RevisionChanged as found:
                if found.revision == sent:
                    return Saved(sent, None, False)
                return self._merge(name, base, page, text, choices)
        return Saved(sent, None, True)

    def _write(self, name: str, path: Path, text: bytes, names: set[str], base: str | None) -> None:
        """Write a page's file; raise _RevisionChanged unless it has the revision `base`."""

        def compare() -> None:
            try:
                current = page_bytes(path)
            except FileNotFoundError:
                self._check_free(name, "name")
            else:
                if revision_of(current) != base or (current == text and has_arrays(path, names)):
                    raise _RevisionChanged(revision_of(current))

        write_page(path, text, names, self._pool, compare)
        self._versions.add(text)

    def _merge(self, name: str, base: str | None, page: Page, sent: bytes, choices: Mapping[str, str] | None) -> Saved:
        """Merge a sent page with the one in the file, or save it as a new page if that is not possible."""
        path, before = self._file(name), self._versions.find(base)
        for _ in range(_TRIES):
            current = page_bytes(path)
            revision = revision_of(current)
            try:
                self._read(path, current)  # adds its arrays to the pool
                if before is None:
                    raise PageError(name, "the version that both began from is not known any more")
                trees: Any = [strict_json.parse_bytes(raw) for raw in (before, sent, current)]
                merged = merge(trees[0], trees[1], trees[2], choices)
                found = self._pool.read_page(merged.tree)
            except PageError:
                return self._save_conflict(name, page, revision, revision_of(sent))
            if merged.conflicts:
                saved = self._save_conflict(name, page, revision, revision_of(sent))
                return saved._replace(conflicts=tuple(merged.conflicts))
            text, names = self._text(name, found)
            if text == current:
                return Saved(revision, None, False, found, sent=self._versions.add(sent))
            try:
                self._write(name, path, text, names, revision)
            except _RevisionChanged:
                continue  # another program wrote meanwhile
            return Saved(revision_of(text), None, True, found, sent=self._versions.add(sent))
        raise PageError(name, "the file is written faster than it can be merged")

    def new(self, name: str | None = None, page: Page | None = None) -> dict[str, Any]:
        """Create a page. Without a name, it gets the name of the page, or a similar unused one."""
        if name is not None:
            page_names.checked(name)
        page = Page(name or "page") if page is None else page
        with self._lock:
            if name is None:
                name = page_names.unused_name(page_names.valid_name(page.name), self._used_keys())
            self._create(name, page)
        return self.info(name)

    def rename(self, name: str, to: str) -> dict[str, Any]:
        """Rename a page. The content of its file, and so its revision, does not change."""
        page_names.checked(to, "to")
        with self._exclusive():
            path = self._existing_file(name)
            if to != name:
                self._check_free(to, "to", but=name)
                move(path, self._file(to))
        return self.info(to)

    def remove(self, name: str) -> None:
        """Remove a page from the project; `bring_back` restores it."""
        with self._exclusive():
            path = self._existing_file(name)
            folder = self._removed / f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
            array_pool.reject_link(self._removed)
            array_pool.make_folder(folder)
            move(path, folder / path.name)

    def bring_back(self, name: str) -> dict[str, Any]:
        """Restore the last removed page of this name; under a similar name if the name is used by now."""
        file = self._file(name).name
        with self._exclusive():
            array_pool.reject_link(self._removed.parent, self._removed)
            found = sorted(self._removed.iterdir()) if self._removed.is_dir() else []
            found = [folder for folder in found if not folder.is_symlink() and os.path.lexists(folder / file)]
            if not found:
                raise InvalidArgumentError(f"no page {name!r} was removed from this project", argument="name")
            back = page_names.unused_name(name, self._used_keys())
            move(found[-1] / file, self._file(back))
            with contextlib.suppress(OSError):
                os.rmdir(found[-1])
        return self.info(back)

    def _save_conflict(self, name: str, page: Page, revision: str, sent: str) -> Saved:
        """Save a page that lost a conflict as a new page; only once if it is sent twice because a response was lost."""
        conflict_page = self._conflict_pages.get((name, sent))
        if conflict_page is not None and page_names.key(conflict_page) in self._used_keys():
            return Saved(revision, conflict_page, False)
        conflict_page = page_names.unused_name(conflict_name(name, datetime.now()), self._used_keys())
        self._create(conflict_page, page)
        self._conflict_pages[name, sent] = conflict_page
        while len(self._conflict_pages) > _MOST_CONFLICTS:
            self._conflict_pages.pop(next(iter(self._conflict_pages)))
        return Saved(revision, conflict_page, True)

    def _create(self, name: str, page: Page) -> None:
        text, names = self._text(name, page)
        write_page(self._file(name), text, names, self._pool, lambda: self._check_free(name, "name"))

    def _text(self, name: str, page: Page) -> tuple[bytes, set[str]]:
        """Return the content of a page's file and the arrays it names, which are then in the pool."""
        tree = self._pool.tree_of(replace(page, name=name))
        text = page_json.text_of(tree).encode()
        if len(text) > MOST_FILE:
            raise PageError(name, f"a page's file has at most {MOST_FILE} bytes; this one would have {len(text)}")
        return text, arrays_in(tree["blocks"])

    def _read(self, path: Path, raw: bytes) -> Page:
        tree = strict_json.parse_bytes(raw)
        for array in arrays_in(tree):
            self._pool.add_file(folder_of(path), array)
        return replace(self._pool.read_page(tree), name=path.name[: -len(ENDING)])

    def _bytes(self, path: Path, name: str) -> bytes:
        try:
            return page_bytes(path)
        except FileNotFoundError:
            raise self._unknown(name) from None

    def _file(self, name: str) -> Path:
        """Return the path of a page, which is directly in the folder for every valid name."""
        return self.root / (page_names.checked(name) + ENDING)

    def _existing_file(self, name: str) -> Path:
        path = self._file(name)
        if not os.path.lexists(path):
            raise self._unknown(name)
        array_pool.reject_link(path)
        return path

    def _used_keys(self) -> set[str]:
        return {page_names.key(stem) for stem in stems(self.root)}

    def _check_free(self, name: str, argument: str, but: str | None = None) -> None:
        used = next((s for s in stems(self.root) if page_names.key(s) == page_names.key(name) and s != but), None)
        if used is not None:
            raise InvalidArgumentError(f"the folder already has a file {used + ENDING!r}", argument=argument)

    def _unknown(self, name: str) -> InvalidArgumentError:
        near = nearest(name, (entry["name"] for entry in self.pages()))
        meant = f"; did you mean {near[0]!r}?" if near else ""
        return InvalidArgumentError(f"there is no page {name!r} in this project{meant}", argument="name")

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Allow one writer at a time: the lock excludes our threads, the folder's lock other programs."""
        with self._lock, files.one_writer(self.root):
            yield
