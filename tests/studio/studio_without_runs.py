"""A studio whose runs are a recorder: pages, arrays and events are real."""

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


class RecordedRuns:
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
        self.runs = RecordedRuns()
        self.listener = self.hub.listen("w")

    def call(self, verb: str, arguments: Mapping[str, Any] | None = None, body: bytes = b"") -> Any:
        """Call a verb, with arguments and result passed through JSON."""
        sent = json.loads(json.dumps(arguments or {}))
        response = verbs.answer(self, verb, sent, body)  # type: ignore[arg-type]
        return json.loads(json.dumps(response, allow_nan=False))

    def events(self) -> list[dict[str, Any]]:
        return self.listener.take(0)


VERB_MODULES = ("project_verbs", "import_export_verbs")


def make_studio(root: Path, monkeypatch: pytest.MonkeyPatch) -> FilesStudio:
    """Return a studio with only the verbs about files."""
    monkeypatch.setattr(verbs, "_VERB_MODULES", VERB_MODULES)
    return FilesStudio(root)


def make_folder(root: Path) -> Folder:
    return Folder(root, Pool(root))


def listed_names(folder: Folder) -> list[str]:
    return [entry["name"] for entry in folder.pages()]


def small_page(name: str = "p", number: float = 1.0) -> Page:
    """Return a page of two wired blocks."""
    one = Block("a", "Const", {"val": np.array([number, 2.0])}, at=(0, 0))
    return Page(name, [one, Block("b", "Identity", wires={"input": [End("a", "output")]})])


def page_with_array(name: str = "p", seed: int = 0, count: int = 1000) -> Page:
    """Return a page with an array that is large enough for its own file."""
    values = np.random.default_rng(seed).random(count, dtype=np.float32)
    return Page(name, [Block("a", "Const", {"val": values})])


def project_files(folder: Path) -> dict[str, bytes]:
    """Return all files of a project except those in .rowgrad."""
    found = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith(".rowgrad")}
