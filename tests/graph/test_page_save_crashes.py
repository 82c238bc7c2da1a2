"""A save that is killed at any line or fails at any step leaves one complete page."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_samples import array_of, load_page_file, same_blocks

from kill_at_line import killed_at, lines_of
from rowgrad.graph.io import save, write_atomically
from rowgrad.graph.io.state_file import load_state, save_state
from rowgrad.graph.page import Block, Page, PageError


def file_contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def version(number: int) -> Page:
    """Return one version of the page: one array is common to all versions, others are not."""
    arrays = [array_of("float32", (400 + number, 3), number), array_of("string", (500,), number), np.arange(1000)]
    blocks = [Block(f"b{i}", "Const", {"val": array}) for i, array in enumerate(arrays)]
    return Page(f"version {number}", [*blocks, Block("small", "Const", {"val": np.full(3, number)})])


def kill_at_line_while(act: Callable[[int], object], line: int) -> None:
    """Run `act` with 1, 2, … in a separate process, and kill it at this line number."""

    def repeat() -> None:
        for turn in count(1):
            act(turn)

    killed_at(line, repeat)


def test_a_kill_during_a_save_leaves_a_complete_page(tmp_path: Path) -> None:
    path = tmp_path / "page.json"
    versions = [version(number) for number in range(3)]
    save(versions[0], path)
    once = lines_of(lambda: save(versions[1], path))
    draw = random.Random(0)
    seen, traces = set(), list[set[str]]()
    for trial in range(100):
        kill_at_line_while(
            lambda turn, first=trial: save(versions[(first + turn) % 3], path), draw.randint(1, 3 * once)
        )
        page = load_page_file(path)
        assert any(same_blocks(page, whole) for whole in versions)
        seen.add(page.name)
        traces.append(set(file_contents(tmp_path)))
    assert len(seen) == 3
    # Many kills hit a partial save: they left temporary files or unreferenced arrays.
    assert sum(a != b or len(b) > 4 for a, b in pairwise(traces)) > 25
    assert any(".tmp" in name for name in traces[-1])
    save(versions[0], path)
    assert len([name for name in file_contents(tmp_path) if ".tmp" not in name]) == 1 + 3


def test_a_kill_during_a_save_leaves_a_complete_state(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    states = [{"w": array_of("float32", (2000, 10), number)} for number in range(2)]
    once = lines_of(lambda: save_state(path, states[0], {"steps": 0}, "p"))
    draw = random.Random(1)
    for _ in range(50):
        kill_at_line_while(
            lambda turn: save_state(path, states[turn % 2], {"steps": turn % 2}, "p"), draw.randint(1, 3 * once)
        )
        state = load_state(path)
        assert state.variables["w"].tobytes() == states[state.counters["steps"]]["w"].tobytes()


class FailingDisk:
    """Lets the disk operations of a save pass until one of them, which fails with ENOSPC."""

    STEPS = ("open", "fsync", "replace", "mkdir", "fdopen", "write")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.left = at
        self.failed = ""
        for name in self.STEPS[:-1]:
            monkeypatch.setattr(os, name, self._step(name, getattr(os, name)))

    def _step(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:  # opened for sync or for reading
                return real(*args, **options)
            if name == "fdopen":
                return self._file(real(*args, **options))
            self.count(name)
            return real(*args, **options)

        return call

    def _file(self, file: Any) -> Any:
        failing = self

        class File(type(file)):  # type: ignore[misc]
            def write(self, data: Any) -> int:
                failing.count("write")
                return int(super().write(data))

        if file.writable():
            return File(file.detach())
        return file

    def count(self, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.failed = name
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("had_arrays", [True, False])
def test_a_save_that_fails_leaves_the_old_page(had_arrays: bool, tmp_path: Path) -> None:
    old, new = version(0) if had_arrays else Page("old"), version(1)
    failures: list[str] = []
    committed: list[bool] = []
    while True:
        folder = tmp_path / str(len(failures))
        folder.mkdir()
        path = folder / "page.json"
        save(old, path)
        before = file_contents(folder)
        with pytest.MonkeyPatch.context() as patch:
            failing = FailingDisk(patch, len(failures) + 1)
            with contextlib.suppress(OSError):
                save(new, path)
        if not failing.failed:
            break
        failures.append(failing.failed)
        page, after = load_page_file(path), file_contents(folder)
        assert not [name for name in after if ".tmp" in name]
        committed.append(same_blocks(page, new))
        if not committed[-1]:
            assert same_blocks(page, old)
            # If the rename of the page itself fails, new arrays stay: the rename may have happened.
            assert after == before or (failing.failed == "replace" and after.keys() > before.keys())
    assert same_blocks(load_page_file(path), new)
    # Only the sync of the folder comes after the rename.
    assert committed == [False] * (len(failures) - 1) + [True]
    assert failures[-2:] == ["replace", "fsync"]
    mkdir, files = (0, 3) if had_arrays else (1, 4)
    wanted = {"mkdir": mkdir, "open": files, "replace": files, "fsync": files + 2 + mkdir, "write": files + 1 + mkdir}
    assert {name: failures.count(name) for name in wanted} == wanted


def test_a_file_written_atomically_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    steps = 0
    while True:
        with pytest.MonkeyPatch.context() as patch:
            failing = FailingDisk(patch, steps + 1)
            try:
                write_atomically(path, lambda file: file.write(b"new"))
            except OSError:
                steps += 1
            else:
                break
        assert file_contents(tmp_path) == {"file": b"new" if steps == 5 else b"old"}
    assert failing.left > 0
    assert steps == 5  # open, write, sync, rename, sync of the folder
    assert file_contents(tmp_path) == {"file": b"new"}


def test_errors_of_a_writer_propagate(tmp_path: Path) -> None:
    def writer(file: object) -> None:
        raise PageError("here", "no")

    with pytest.raises(PageError, match="here: no"):
        write_atomically(tmp_path / "file", writer)
    assert not list(tmp_path.iterdir())
