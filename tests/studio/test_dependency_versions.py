"""Versions of Studio's dependencies: bounded for Python, verified by hash for the page's build."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def test_the_studio_extra_bounds_what_it_subclasses() -> None:
    """serve.py depends on internals of uvicorn and on h11, which had a request-smuggling bug before 0.16."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in ("studio", "dev"):
        found = {parsed.name: parsed.specifier for parsed in map(Requirement, extras[extra])}
        assert not found["uvicorn"].contains("1.0")
        assert not found["uvicorn"].contains("0.99")
        assert "0.16.0" in found["h11"]
        assert "0.14.0" not in found["h11"]


def test_the_lock_file_verifies_every_package_and_names_no_registry() -> None:
    packages = json.loads((ROOT / "web" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    locked = {name: entry for name, entry in packages.items() if name}
    assert len(locked) > 50
    assert [name for name, entry in locked.items() if not entry.get("integrity", "").startswith("sha512-")] == []
    assert [name for name, entry in locked.items() if "resolved" in entry] == []
