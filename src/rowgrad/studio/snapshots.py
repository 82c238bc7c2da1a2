"""States of pages that were kept: one state file each, and beside it what it is called and when it was made."""

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
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import InvalidArgumentError
from ..graph.io import write_atomically
from ..graph.session import ClientSession
from . import pool_files

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
            pool_files.make_folder(folder)
            known = self._all(page)
            second = time.strftime("%Y%m%d-%H%M%S")
            number = 1 + max((int(s["id"].rpartition("-")[2]) for s in known), default=0)
            name = f"{second}-{number}"
            session.save(folder / f"{name}.state")
            told = {"id": name, "label": label or f"run {run}", "run": run, "when": time.time()}
            text = json.dumps(told, ensure_ascii=False).encode()
            write_atomically(folder / f"{name}.json", text)
            for old in [*known, told][:-MOST]:
                for ending in (".json", ".state"):
                    (folder / f"{old['id']}{ending}").unlink(missing_ok=True)

    def all(self, page: str) -> list[dict[str, Any]]:
        """What there is of a page, the oldest first."""
        with self._lock:
            return self._all(page)

    def find(self, page: str, name: str) -> tuple[dict[str, Any], Path]:
        """One snapshot, and its file."""
        for told in self.all(page):
            if told["id"] == name:
                return told, self._folder(page) / f"{name}.state"
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
            if target.exists() and not pool_files.same(source, target):  # of a page that was removed
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
        pool_files.refuse_link(self.root.parent, self.root, self.root / name)
        return self.root / name

    def _all(self, page: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        folder = self._folder(page)
        for path in folder.glob("*.json") if folder.is_dir() else ():
            try:
                if not (_ID.fullmatch(path.stem) and _is_plain(path) and _is_plain(path.with_suffix(".state"))):
                    continue
                told = json.loads(path.read_bytes())
                entry: dict[str, Any] = {"id": path.stem, "label": str(told["label"]), "run": int(told["run"])}
                entry["when"] = float(told["when"])
            except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue  # half written, or not ours
            if math.isfinite(entry["when"]):
                found.append(entry)
        return sorted(found, key=lambda s: int(s["id"].rpartition("-")[2]))


def _is_plain(path: Path) -> bool:
    """Whether it is a file, and no link to one."""
    return path.is_file() and not path.is_symlink()
