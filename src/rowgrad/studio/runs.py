"""The runs of a project's pages, one per page and independent of each other, and snapshots of their states."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import InvalidArgumentError, OpError
from ..graph.io import write_atomically
from ..graph.page import Page
from ..graph.session import ClientSession
from . import array_pool
from .charts import Watched
from .events import Hub
from .page_session import SAVE_WAIT, PageRun

# -- snapshots: one state file each, and a JSON file with its label and time -------------------------------------------

_END_WAIT = 5.0  # seconds that the end of Studio waits for a step in progress
MOST = 50  # snapshots of a page; the oldest is deleted
_MOST_NAME = 200  # characters of a folder's name; file systems allow 255
_ID = re.compile(r"\d{8}-\d{6}-\d+")


class Snapshots:
    """Snapshots of all pages, in `<project>/.rowgrad/snapshots/<page>`, or in a temporary folder without a project."""

    def __init__(self, project: Path | None) -> None:
        self._own = None if project is not None else tempfile.TemporaryDirectory(prefix="rowgrad-")
        root = Path(self._own.name) if self._own is not None else Path(project or ".")
        self.root = root / ".rowgrad" / "snapshots"
        self._lock = threading.Lock()

    def take(self, page: str, session: ClientSession, label: str, run: int, automatic: bool = False) -> None:
        """Save a session's Variables and counters. An automatic snapshot replaces the automatic one before."""
        folder = self._folder(page)
        with self._lock:
            array_pool.make_folder(folder)
            known = self._all(page)
            second = time.strftime("%Y%m%d-%H%M%S")
            number = 1 + max((int(s["id"].rpartition("-")[2]) for s in known), default=0)
            name = f"{second}-{number}"
            session.save(folder / f"{name}.state")
            entry = {"id": name, "label": label or f"run {run}", "run": run, "when": time.time()}
            text = json.dumps(entry | ({"automatic": True} if automatic else {}), ensure_ascii=False).encode()
            write_atomically(folder / f"{name}.json", text)
            replaced = [s for s in known if automatic and s["automatic"]]
            left = [s for s in known if s not in replaced]
            for old in [*replaced, *[*left, entry][:-MOST]]:
                for ending in (".json", ".state"):
                    (folder / f"{old['id']}{ending}").unlink(missing_ok=True)

    @property
    def is_temporary(self) -> bool:
        """Return whether the snapshots end with this object."""
        return self._own is not None

    def all(self, page: str) -> list[dict[str, Any]]:
        """Return the snapshots of a page, the oldest first."""
        with self._lock:
            return self._all(page)

    def find(self, page: str, name: str) -> tuple[dict[str, Any], Path]:
        """Return a snapshot and its file; raise InvalidArgumentError if it does not exist."""
        for entry in self.all(page):
            if entry["id"] == name:
                return entry, self._folder(page) / f"{name}.state"
        latest = ", ".join(s["id"] for s in self.all(page)[-5:]) or "none"
        message = f"snapshot: page {page!r} has no snapshot {name!r}; the latest are: {latest}"
        raise InvalidArgumentError(message, argument="snapshot")

    def copy_for_command(self, page: str, name: str) -> Path:
        """Return a copy for `rowgrad run --state`, which writes to its file."""
        _, path = self.find(page, name)
        copy = path.with_name("command.state")
        copy.unlink(missing_ok=True)  # not overwritten, because it may be a symbolic link
        shutil.copyfile(path, copy)
        return copy

    def renamed(self, old: str, new: str) -> None:
        """Rename the folder of a renamed page."""
        source, target = self._folder(old), self._folder(new)
        with self._lock:
            if not source.is_dir():
                return
            if target.exists() and not array_pool.same(source, target):  # snapshots of a removed page
                os.rename(target, target.with_name(f"{target.name[:200]}%-{time.time_ns()}"))
            os.rename(source, target)

    def close(self) -> None:
        """Delete the temporary folder."""
        if self._own is not None:
            self._own.cleanup()

    def _folder(self, page: str) -> Path:
        # Quoted, so that the name can never lead to another folder.
        name = quote(page, safe=" ()").replace(".", "%2E")
        if len(name) > _MOST_NAME:  # quoting writes three characters per byte
            name = f"{name[:100]}%-{hashlib.sha256(page.encode()).hexdigest()[:32]}"
        array_pool.reject_link(self.root.parent, self.root, self.root / name)
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
                entry |= {"when": float(saved["when"]), "automatic": saved.get("automatic") is True}
            except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue  # incomplete, or a file of another program
            if math.isfinite(entry["when"]):
                found.append(entry)
        return sorted(found, key=lambda s: int(s["id"].rpartition("-")[2]))


def _is_plain(path: Path) -> bool:
    """Return whether a path is a regular file and not a link."""
    return path.is_file() and not path.is_symlink()


# -- runs --------------------------------------------------------------------------------------------------------------


class Runs:
    """The run of every page, by the page's name. Snapshots are saved in the project's `folder`."""

    def __init__(self, hub: Hub, folder: str | PathLike[str] | None = None) -> None:
        self._hub = hub
        self._pages: dict[str, PageRun] = {}
        self._lock = threading.Lock()
        self.snapshot_files = Snapshots(None if folder is None else Path(folder))

    def of(self, name: str) -> PageRun:
        """Return the run of a page; a page that was never run has an idle one."""
        with self._lock:
            if name not in self._pages:
                saved = self.snapshot_files.all(name)
                self._pages[name] = PageRun(name, self._hub.send, saved[-1] if saved else None)
            return self._pages[name]

    def state(self, name: str) -> dict[str, Any]:
        """Return the RunState of a page."""
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
        change: bool = False,
    ) -> dict[str, Any]:
        """Run a page as it is saved, with its current Variables; return its state, or `{"ask"}` what to agree to."""
        question = self.of(name).start(page, revision, sessions, mode, steps, rate, engine, change)
        return self.state(name) if question is None else {"ask": question}

    def pause(self, name: str) -> dict[str, Any]:
        """Stop after the step in progress; `resume` continues."""
        self.of(name).pause()
        return self.state(name)

    def resume(self, name: str) -> dict[str, Any]:
        """Continue after a pause."""
        self.of(name).resume()
        return self.state(name)

    def step(self, name: str, steps: int = 1) -> dict[str, Any]:
        """Run some more steps, then pause."""
        self.of(name).step(steps)
        return self.state(name)

    def stop(self, name: str) -> dict[str, Any]:
        """End the run; results stay available."""
        self.of(name).stop()
        return self.state(name)

    def reset(self, name: str) -> dict[str, Any]:
        """Reset Variables to their initial values, and drop results."""
        self.of(name).reset()
        return self.state(name)

    def edited(self, name: str, page: Page, revision: str, recipes: Mapping[str, str] | None = None) -> None:
        """Handle a saved change of a page. `recipes` are its recipes, if they were computed before."""
        if name in self._pages:
            self.of(name).edited(page, revision, recipes)

    def session_of(self, name: str) -> ClientSession | None:
        """Return the page's last session, or None."""
        found = self._pages.get(name)
        return None if found is None or found.opened is None else found.opened.session

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def snapshot(self, name: str, label: str = "") -> list[dict[str, Any]]:
        """Save Variables and counters between two steps."""
        run = self.of(name)
        opened = run.opened
        if opened is None:
            message = f"name: page {name!r} has not been run: there is nothing to save"
            raise InvalidArgumentError(message, argument="name")
        with opened.gate.between(SAVE_WAIT):
            self.snapshot_files.take(name, opened.session, label, run.run)
            run.is_unsaved = False
        return self.snapshot_files.all(name)

    def snapshots(self, name: str) -> list[dict[str, Any]]:
        """Return the snapshots of a page, the oldest first."""
        return self.snapshot_files.all(name)

    def restore(self, name: str, snapshot: str, page: Page, revision: str) -> dict[str, Any]:
        """Restore a snapshot."""
        entry, path = self.snapshot_files.find(name, snapshot)
        self.of(name).restore(page, revision, path, entry["run"], snapshot)
        return self.state(name)

    # -- charts --------------------------------------------------------------------------------------------------------

    def watch(self, name: str, watched: list[Watched] | None) -> list[dict[str, Any]]:
        """Set the series to record after every step; None records every number that a session fetches."""
        return self.of(name).watch(watched)

    def trend(self, name: str, since: int = 0) -> dict[str, Any]:
        """Return the recorded points after run `since`."""
        run = self.of(name)
        return {"series": run.trends.points(since), "run": run.run, "chosen": run.trends.is_chosen}

    # -- pages that are renamed and removed ----------------------------------------------------------------------------

    def forget(self, name: str) -> None:
        """End the run of a page that was removed."""
        with self._lock:
            found = self._pages.pop(name, None)
        if found is not None:
            found.close()

    def renamed(self, old: str, new: str) -> None:
        """Handle the rename of a page; its run continues."""
        with self._lock:
            found, gone = self._pages.pop(old, None), self._pages.pop(new, None)
            if found is not None:
                found.name = new
                self._pages[new] = found
        if gone is not None:  # the run of a page that another program removed
            gone.close()
        self.snapshot_files.renamed(old, new)

    def close(self) -> None:
        """End all runs. Variables that runs changed are saved: the next start offers them."""
        for name, run in list(self._pages.items()):
            self.forget(name)
            self._save_at_end(name, run)
        self.snapshot_files.close()

    def _save_at_end(self, name: str, run: PageRun) -> None:
        opened = run.opened
        if self.snapshot_files.is_temporary or opened is None or not run.is_unsaved or not opened.session.variables:
            return
        try:
            with opened.gate.between(_END_WAIT):
                self.snapshot_files.take(name, opened.session, "when Studio stopped", run.run, automatic=True)
        except (OSError, MemoryError, OpError) as error:
            print(f"rowgrad studio: the Variables of page {name} were not saved: {error}", file=sys.stderr)
