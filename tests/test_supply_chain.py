"""The inputs of a release are pinned by hash, share one repository address, and are hardened."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rowgrad import _core

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_workflow_actions_are_pinned_by_commit() -> None:
    folder = ROOT / ".github" / "workflows"
    if not folder.exists():
        pytest.skip("the sdist does not contain the workflows")
    used = [
        line.split("uses:")[1].strip()
        for path in folder.glob("*.yml")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert used
    loose = [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action)]
    assert not loose


def test_one_repository_address_everywhere() -> None:
    repository = PROJECT["urls"]["Repository"]
    assert all(url.startswith(repository) for url in PROJECT["urls"].values())
    assert f'repository-code: "{repository}"' in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"{repository}/security/advisories/new" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hardening flags are set on Linux only")
def test_the_extension_is_hardened() -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed")
    headers = subprocess.run([readelf, "-d", "-l", "--dyn-syms", "-W", _core.__file__], capture_output=True, text=True)
    assert headers.returncode == 0, headers.stderr
    assert "BIND_NOW" in headers.stdout or re.search(r"FLAGS_1.*NOW", headers.stdout)
    assert "GNU_RELRO" in headers.stdout
    assert "__stack_chk_fail" in headers.stdout
