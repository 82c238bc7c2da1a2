"""Folders appear completely or not at all, whatever other processes do at the same time."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from rowgrad.sharding import files as folders


@pytest.mark.parametrize(("module", "call"), [(os, "open"), (fcntl, "flock")], ids=["before", "while it is locked"])
def test_a_folder_that_another_process_removed_as_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, call: str
) -> None:
    """If it is removed between creation and locking, another one is created, which stays."""
    real, removed = getattr(module, call), []

    def call_then_remove(*args: Any, **options: Any) -> Any:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].rmdir()
        return real(*args, **options)

    open_files = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(module, call, call_then_remove)
    with folders.temporary_folder(tmp_path / "t") as folder:
        assert len(removed) == 1
        assert list(tmp_path.iterdir()) == [folder] != removed
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == open_files


def old_and_new(tmp_path: Path) -> tuple[Path, Path]:
    target, new = tmp_path / "t", tmp_path / ".t.0.tmp"
    for path, text in ((target, "old"), (new, "new")):
        path.mkdir()
        (path / "file").write_text(text)
    return target, new


def test_systems_without_atomic_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, new = old_and_new(tmp_path)
    monkeypatch.setattr(folders.ctypes, "CDLL", lambda name: object())
    folders.put_in_place(new, target, overwrite=True)
    assert (target / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["t"]


def test_a_failed_rename_keeps_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, new = old_and_new(tmp_path)
    real = os.rename

    def full(one: Path, other: Path) -> None:
        if one == new:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(one, other)

    monkeypatch.setattr(folders, "_exchange", lambda one, other: False)
    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        folders.put_in_place(new, target, overwrite=True)
    assert (target / "file").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == [".t.0.tmp", "t"]
