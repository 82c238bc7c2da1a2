"""The inputs of a release are pinned by hash, share one repository address, and are hardened."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
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
    assert f"Clone\n<{repository}>" in INSTALL


# -- installation ------------------------------------------------------------------------------------------------------

INSTALL = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")
FOR_USERS = {"torch", "jax", "studio", "notebook", "cli", "scipy", "bench"}


def test_the_install_page_lists_every_extra() -> None:
    listed = re.findall(r"^\| `pip install 'rowgrad\[(\w+)\]'` \|", INSTALL, re.MULTILINE)
    assert set(listed) == FOR_USERS
    assert set(PROJECT["optional-dependencies"]) - FOR_USERS == {"docs", "fuzz", "coverage", "dev"}


def test_pages_agree_with_the_install_page() -> None:
    """Only the install page and the page for contributors say how to install from source."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"rowgrad\[(\w+)\]", text)) <= {*PROJECT["optional-dependencies"]}, page
        if page.name != "install.md":
            assert "pip install '.[" not in text, page


# -- the files of a release --------------------------------------------------------------------------------------------


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A folder with the files that are built before `tools/release_files.py` runs, and a site."""
    version = PROJECT["version"]
    (tmp_path / "site/images").mkdir(parents=True)
    (tmp_path / "site/index.html").write_text("<p>", encoding="utf-8")
    (tmp_path / "site/images/a.svg").write_text("<svg/>", encoding="utf-8")
    (tmp_path / "dist").mkdir()
    (tmp_path / f"dist/rowgrad-{version}.tar.gz").write_bytes(b"sdist")
    for processor in ("x86_64", "aarch64"):
        name = f"rowgrad-{version}-cp311-abi3-manylinux_2_24_{processor}.manylinux_2_28_{processor}.whl"
        (tmp_path / "dist" / name).write_bytes(processor.encode())
    return tmp_path / "dist"


def finish_release(dist: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/release_files.py"), "--dist", str(dist)]
    return subprocess.run([*command, "--site", str(dist.parent / "site")], capture_output=True, text=True, check=False)


def test_a_release_has_checksums_and_the_site(dist: Path) -> None:
    done = finish_release(dist)
    assert done.returncode == 0, done.stderr
    sums = (dist / "SHA256SUMS").read_text(encoding="utf-8")
    assert len(sums.splitlines()) == 4
    for line in sums.splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest
    folder = f"rowgrad-{PROJECT['version']}-docs"
    with tarfile.open(dist / f"{folder}.tar.gz") as site:
        assert site.getnames() == [f"{folder}/images/a.svg", f"{folder}/index.html"]
    assert finish_release(dist).returncode == 0
    assert (dist / "SHA256SUMS").read_text(encoding="utf-8") == sums, "the same files make the same archive"


def test_an_incomplete_release_is_rejected(dist: Path) -> None:
    (wheel,) = dist.glob("*_aarch64.whl")
    wheel.rename(dist / "rowgrad-0.0.1-cp311-abi3-linux_aarch64.whl")
    done = finish_release(dist)
    assert done.returncode == 1
    assert "lacks a manylinux wheel for aarch64" in done.stderr
    (dist / "rowgrad-0.0.1-cp311-abi3-linux_aarch64.whl").rename(wheel)
    (dist / "notes.txt").touch()
    assert "files that do not belong to the release: notes.txt" in finish_release(dist).stderr
    assert not (dist / "SHA256SUMS").exists()
    (dist.parent / "site/index.html").unlink()
    assert "has no index.html: run `make docs`" in finish_release(dist).stderr


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
