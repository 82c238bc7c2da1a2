"""Sessions of all pages of a project, and snapshots of their variables."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import InvalidArgumentError
from ..graph.io import write_atomically
from ..graph.page import Page
from ..graph.session import ClientSession
from . import array_pool
from .charts import Watched
from .events import Hub
from .page_session import SAVES_WITHIN, PageRun

# -- States of pages that were kept ------------------------------------------------------------------------------------

# States of pages that were kept: one state file each, and beside it what it is called and when it was made.

MOST = 50  # of a page; the oldest goes
_MOST_NAME = 200  # characters of a folder's name; file systems take 255
_ID = re.compile(r"\d{8}-\d{6}-\d+")


class Snapshots:
    """Those of all pages of a project, in `<project>/.rowgrad/snapshots/<page>`; without a project, in a folder of
    this process."""

    def __init__(self, project: Path | None) -> None:
        self._own = None if project is not None else tempfile.TemporaryDirectory(prefix="rowgrad-")
        root = Path(self._own.name) if self._own is not None else Path(project or ".")
        self.root = root / ".rowgrad" / "snapshots"
        self._lock = threading.Lock()

    def take(self, page: str, session: ClientSession, label: str, run: int) -> None:
        """Keep a session's Variables and counters."""
        folder = self._folder(page)
        with self._lock:
            array_pool.make_folder(folder)
            known = self._all(page)
            second = time.strftime("%Y%m%d-%H%M%S")
            number = 1 + max((int(s["id"].rpartition("-")[2]) for s in known), default=0)
            name = f"{second}-{number}"
            session.save(folder / f"{name}.state")
            entry = {"id": name, "label": label or f"run {run}", "run": run, "when": time.time()}
            text = json.dumps(entry, ensure_ascii=False).encode()
            write_atomically(folder / f"{name}.json", text)
            for old in [*known, entry][:-MOST]:
                for ending in (".json", ".state"):
                    (folder / f"{old['id']}{ending}").unlink(missing_ok=True)

    def all(self, page: str) -> list[dict[str, Any]]:
        """What there is of a page, the oldest first."""
        with self._lock:
            return self._all(page)

    def find(self, page: str, name: str) -> tuple[dict[str, Any], Path]:
        """One snapshot, and its file."""
        for entry in self.all(page):
            if entry["id"] == name:
                return entry, self._folder(page) / f"{name}.state"
        there = ", ".join(s["id"] for s in self.all(page)[-5:]) or "none"
        message = f"snapshot: page {page!r} has no snapshot {name!r}; the latest are: {there}"
        raise InvalidArgumentError(message, argument="snapshot")

    def copy_for_command(self, page: str, name: str) -> Path:
        """A copy that `rowgrad run --state` may write to, so that the snapshot stays what it is."""
        _, path = self.find(page, name)
        copy = path.with_name("command.state")
        copy.unlink(missing_ok=True)  # it may be a link by now
        shutil.copyfile(path, copy)
        return copy

    def renamed(self, old: str, new: str) -> None:
        """A page has another name."""
        source, target = self._folder(old), self._folder(new)
        with self._lock:
            if not source.is_dir():
                return
            if target.exists() and not array_pool.same(source, target):  # of a page that was removed
                os.rename(target, target.with_name(f"{target.name[:200]}%-{time.time_ns()}"))
            os.rename(source, target)

    def close(self) -> None:
        """Remove what belongs to this process alone."""
        if self._own is not None:
            self._own.cleanup()

    def _folder(self, page: str) -> Path:
        # Names of pages are names of files already; this one can never lead anywhere else.
        name = quote(page, safe=" ()").replace(".", "%2E")
        if len(name) > _MOST_NAME:  # three characters for every byte of most scripts
            name = f"{name[:100]}%-{hashlib.sha256(page.encode()).hexdigest()[:32]}"
        array_pool.refuse_link(self.root.parent, self.root, self.root / name)
        return self.root / name

    def _all(self, page: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        folder = self._folder(page)
        for path in folder.glob("*.json") if folder.is_dir() else ():
            try:
                if not (_ID.fullmatch(path.stem) and _is_plain(path) and _is_plain(path.with_suffix(".state"))):
                    continue
                saved = json.loads(path.read_bytes())
                entry: dict[str, Any] = {"id": path.stem, "label": str(saved["label"]), "run": int(saved["run"])}
                entry["when"] = float(saved["when"])
            except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue  # half written, or not ours
            if math.isfinite(entry["when"]):
                found.append(entry)
        return sorted(found, key=lambda s: int(s["id"].rpartition("-")[2]))


def _is_plain(path: Path) -> bool:
    """Whether it is a file, and no link to one."""
    return path.is_file() and not path.is_symlink()


# -- The runs of a project's pages -------------------------------------------------------------------------------------

# The runs of a project's pages: one each, side by side, none of which waits for another.


class Runs:
    """Every page's run by the page's name. `folder` is the project's: snapshots are kept there."""

    def __init__(self, hub: Hub, folder: str | PathLike[str] | None = None) -> None:
        self._hub = hub
        self._pages: dict[str, PageRun] = {}
        self._lock = threading.Lock()
        self.kept = Snapshots(None if folder is None else Path(folder))

    def of(self, name: str) -> PageRun:
        """The run of a page; one that was never run is idle."""
        with self._lock:
            if name not in self._pages:
                self._pages[name] = PageRun(name, self._hub.tell)
            return self._pages[name]

    def state(self, name: str) -> dict[str, Any]:
        """RunState of a page."""
        return self.of(name).state()

    def start(
        self,
        name: str,
        page: Page,
        revision: str,
        sessions: Sequence[str] = (),
        mode: str = "once",
        steps: int | None = None,
        rate: float | None = None,
        engine: str = "numpy",
    ) -> dict[str, Any]:
        """Run a page as it was saved, on from where its Variables are."""
        self.of(name).start(page, revision, sessions, mode, steps, rate, engine)
        return self.state(name)

    def pause(self, name: str) -> dict[str, Any]:
        """Stop after the step in progress; `resume` goes on."""
        self.of(name).pause()
        return self.state(name)

    def resume(self, name: str) -> dict[str, Any]:
        """Go on after a pause."""
        self.of(name).resume()
        return self.state(name)

    def step(self, name: str, steps: int = 1) -> dict[str, Any]:
        """So many steps more, then pause."""
        self.of(name).step(steps)
        return self.state(name)

    def stop(self, name: str) -> dict[str, Any]:
        """End; results stay to be looked at."""
        self.of(name).stop()
        return self.state(name)

    def reset(self, name: str) -> dict[str, Any]:
        """Variables begin anew, results are forgotten."""
        self.of(name).reset()
        return self.state(name)

    def edited(self, name: str, page: Page, revision: str, recipes: Mapping[str, str] | None = None) -> None:
        """A page was saved. `recipes` spare judging it once more."""
        if name in self._pages:
            self.of(name).edited(page, revision, recipes)

    def session_of(self, name: str) -> ClientSession | None:
        """The session last used, to look at."""
        found = self._pages.get(name)
        return None if found is None or found.opened is None else found.opened.session

    # -- what is kept --------------------------------------------------------------------------------------------------

    def snapshot(self, name: str, label: str = "") -> list[dict[str, Any]]:
        """Keep Variables and counters as they are between two steps."""
        run = self.of(name)
        opened = run.opened
        if opened is None:
            message = f"name: page {name!r} has not been run: there is nothing to keep"
            raise InvalidArgumentError(message, argument="name")
        with opened.gate.between(SAVES_WITHIN):
            self.kept.take(name, opened.session, label, run.run)
        return self.kept.all(name)

    def snapshots(self, name: str) -> list[dict[str, Any]]:
        """What was kept of a page, the oldest first."""
        return self.kept.all(name)

    def restore(self, name: str, snapshot: str, page: Page, revision: str) -> dict[str, Any]:
        """Go back to what was kept."""
        entry, path = self.kept.find(name, snapshot)
        self.of(name).restore(page, revision, path, entry["run"], snapshot)
        return self.state(name)

    # -- numbers over time ---------------------------------------------------------------------------------------------

    def watch(self, name: str, watched: list[Watched] | None) -> list[dict[str, Any]]:
        """Record these after every step; None: every number that a session fetches."""
        return self.of(name).watch(watched)

    def trend(self, name: str, since: int = 0) -> dict[str, Any]:
        """The points after a run."""
        run = self.of(name)
        return {"series": run.trends.points(since), "run": run.run, "chosen": run.trends.is_chosen}

    # -- pages come and go ---------------------------------------------------------------------------------------------

    def forget(self, name: str) -> None:
        """A page is gone."""
        with self._lock:
            found = self._pages.pop(name, None)
        if found is not None:
            found.close()

    def renamed(self, old: str, new: str) -> None:
        """A page has another name; its run goes on."""
        with self._lock:
            found, gone = self._pages.pop(old, None), self._pages.pop(new, None)
            if found is not None:
                found.name = new
                self._pages[new] = found
        if gone is not None:  # the run of a page that another program has taken away
            gone.close()
        self.kept.renamed(old, new)

    def close(self) -> None:
        """End all runs."""
        for name in list(self._pages):
            self.forget(name)
        self.kept.close()
