"""A studio without runs: pages, arrays and events are real, and calls to runs are recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rowgrad.graph import Block, End, Page
from rowgrad.studio import verbs
from rowgrad.studio.array_pool import Pool
from rowgrad.studio.events import Hub
from rowgrad.studio.project import Folder


class NotedRuns:
    """Replaces `Runs`, and records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def state(self, name: str) -> dict[str, Any]:
        return {"phase": "idle", "name": name}

    def edited(self, name: str, page: Page, revision: str, recipes: Mapping[str, str] | None = None) -> None:
        assert recipes is None or recipes.keys() == {block.id for block in page.blocks}
        self.calls.append(("edited", name, len(page.blocks), revision))

    def renamed(self, old: str, new: str) -> None:
        self.calls.append(("renamed", old, new))

    def forget(self, name: str) -> None:
        self.calls.append(("forget", name))


class FilesStudio:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.hub = Hub()
        self.pool = Pool(root)
        self.folder = Folder(root, self.pool)
        self.runs = NotedRuns()
        self.listener = self.hub.listen("w")

    def ask(self, verb: str, given: Mapping[str, Any] | None = None, body: bytes = b"") -> Any:
        """What a verb answers, as it comes out of JSON at the other side."""
        sent = json.loads(json.dumps(given or {}))
        made = verbs.answer(self, verb, sent, body)  # type: ignore[arg-type]
        return json.loads(json.dumps(made, allow_nan=False))

    def events(self) -> list[dict[str, Any]]:
        return self.listener.take(0)


ROOMS = ("project_verbs", "import_export_verbs")


def studio_in(root: Path, monkeypatch: pytest.MonkeyPatch) -> FilesStudio:
    """A studio that has the verbs about files, and no others."""
    monkeypatch.setattr(verbs, "_VERB_MODULES", ROOMS)
    return FilesStudio(root)


def folder_in(root: Path) -> Folder:
    return Folder(root, Pool(root))


def listed(folder: Folder) -> list[str]:
    return [entry["name"] for entry in folder.pages()]


def small(name: str = "p", number: float = 1.0) -> Page:
    """Two blocks and a wire."""
    one = Block("a", "Const", {"val": np.array([number, 2.0])}, at=(0, 0))
    return Page(name, [one, Block("b", "Identity", wires={"input": [End("a", "output")]})])


def large(name: str = "p", seed: int = 0, count: int = 1000) -> Page:
    """A block with an array that gets a file of its own."""
    values = np.random.default_rng(seed).random(count, dtype=np.float32)
    return Page(name, [Block("a", "Const", {"val": values})])


def everything(folder: Path) -> dict[str, bytes]:
    """All files of a project but the studio's own."""
    found = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith(".rowgrad")}
