"""A project is a folder: every file `<name>.json` in it that is a page of rowgrad is one, under that name.

Other JSON files are left alone. A page that cannot be read is listed with its error. A file that is a whole project
(several pages in one) is listed too, and says that it is to be imported: then each of its pages becomes a file of its
own, and the project's file stays as it was. Symbolic links are not followed. What is removed goes to
`.rowgrad/removed/<time>`, from where it can be brought back.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InvalidArgumentError
from ..graph import Page, PageError, Project, load
from ..graph.io import files, layout, strict_json
from ..graph.io.store import folder_of
from . import folder_files, names, pool_files
from .conflicts import kept_name
from .folder_listing import ENDING, MOST_FILE, Listing, page_bytes, revision_of, stems
from .pool import Pool

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
        self._removed = self.root / pool_files.OWN / "removed"

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
        pool_files.refuse_link(folder_of(path))
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
                if revision_of(there) != base or (there == text and folder_files.has_arrays(path, named)):
                    raise _Another(revision_of(there))

        sent = revision_of(text)
        with self._lock:
            try:
                folder_files.put(path, text, named, self._pool, compare)
            except _Another as found:
                if found.revision == sent:
                    return Saved(sent, None, False)
                return self._keep(name, page, found.revision, sent)
        return Saved(sent, None, True)

    def new(self, name: str | None = None, page: Page | None = None) -> dict[str, Any]:
        """Make a page. Without a name it gets that of the page that was given, or one near it that is free."""
        if name is not None:
            names.checked(name)
        page = Page(name or "page") if page is None else page
        with self._lock:
            if name is None:
                name = names.free(names.fitted(page.name), self._taken())
            self._make(name, page)
        return self.info(name)

    def rename(self, name: str, to: str) -> dict[str, Any]:
        """Give a page another name. Its file, and with that its revision, stays as it is."""
        names.checked(to, "to")
        with self._moving():
            path = self._there(name)
            if to != name:
                self._refuse_taken(to, "to", but=name)
                folder_files.move(path, self._file(to))
        return self.info(to)

    def remove(self, name: str) -> None:
        """Take a page out of the project; `bring_back` has it again."""
        with self._moving():
            path = self._there(name)
            folder = self._removed / f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
            pool_files.refuse_link(self._removed)
            pool_files.make_folder(folder)
            folder_files.move(path, folder / path.name)

    def bring_back(self, name: str) -> dict[str, Any]:
        """The page of this name that was removed last; under a name near it where there is another one by now."""
        file = self._file(name).name
        with self._moving():
            pool_files.refuse_link(self._removed.parent, self._removed)
            found = sorted(self._removed.iterdir()) if self._removed.is_dir() else []
            found = [folder for folder in found if not folder.is_symlink() and os.path.lexists(folder / file)]
            if not found:
                raise InvalidArgumentError(f"no page {name!r} was removed from this project", argument="name")
            back = names.free(name, self._taken())
            folder_files.move(found[-1] / file, self._file(back))
            with contextlib.suppress(OSError):
                os.rmdir(found[-1])
        return self.info(back)

    def _keep(self, name: str, page: Page, revision: str, sent: str) -> Saved:
        """Make a page of what lost. One that is sent twice, because an answer was lost, is kept once."""
        kept = self._kept.get((name, sent))
        if kept is not None and names.key(kept) in self._taken():
            return Saved(revision, kept, False)
        kept = names.free(kept_name(name, datetime.now()), self._taken())
        self._make(kept, page)
        self._kept[name, sent] = kept
        while len(self._kept) > _MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return Saved(revision, kept, True)

    def _make(self, name: str, page: Page) -> None:
        text, named = self._text(name, page)
        folder_files.put(self._file(name), text, named, self._pool, lambda: self._refuse_taken(name, "name"))

    def _text(self, name: str, page: Page) -> tuple[bytes, set[str]]:
        """What a page's file will be, and the arrays it names, which are in the pool by then."""
        tree = self._pool.tree_of(replace(page, name=name))
        text = layout.text_of(tree).encode()
        if len(text) > MOST_FILE:
            raise PageError(name, f"a page's file has at most {MOST_FILE} bytes; this one would have {len(text)}")
        return text, folder_files.arrays_in(tree["blocks"])

    def _read(self, path: Path, raw: bytes) -> Page:
        tree = strict_json.parse_bytes(raw)
        for array in folder_files.arrays_in(tree):
            self._pool.take_in(folder_of(path), array)
        return replace(self._pool.read_page(tree), name=path.name[: -len(ENDING)])

    def _bytes(self, path: Path, name: str) -> bytes:
        try:
            return page_bytes(path)
        except FileNotFoundError:
            raise self._unknown(name) from None

    def _file(self, name: str) -> Path:
        """Where a page is or would be: directly in the folder, whatever the name."""
        return self.root / (names.checked(name) + ENDING)

    def _there(self, name: str) -> Path:
        path = self._file(name)
        if not os.path.lexists(path):
            raise self._unknown(name)
        pool_files.refuse_link(path)
        return path

    def _taken(self) -> set[str]:
        return {names.key(stem) for stem in stems(self.root)}

    def _refuse_taken(self, name: str, argument: str, but: str | None = None) -> None:
        taken = next((s for s in stems(self.root) if names.key(s) == names.key(name) and s != but), None)
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
