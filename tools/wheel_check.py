"""Install a wheel into clean environments, as a user without a compiler would, and check that it works.

    tools/wheel_check.py dist/rowgrad-….whl --pythons "python3.11 python3.13"

Without --pythons: Python 3.11 and every newer one on the path or installed by pyenv. Each environment is in a temporary
folder outside the source tree, and its PATH holds only its own programs. tools/wheel_self_check.py has the checks.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = (3, 11)
NEWEST = 40  # maximal minor version that is searched
VERSION = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="a wheel, or the folder of one")
    parser.add_argument("--pythons", default="", help="names or paths, separated by spaces")
    parser.add_argument("--every", type=int, default=1, help="one golden case of so many")
    args = parser.parse_args()
    wheel = args.wheel.resolve()
    if wheel.is_dir():
        (wheel,) = wheel.glob("*.whl")
    pythons = args.pythons.split() or list(found_pythons())
    for number, python in enumerate(pythons):
        began, spent = time.monotonic(), spent_by_children()
        print(f"{python}: {wheel.name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="rowgrad-wheel-") as folder:
            check(python, wheel, Path(folder), first=number == 0, every=args.every)
        print(f"  {time.monotonic() - began:.0f} s, {spent_by_children() - spent:.0f} of a core's", flush=True)


def found_pythons() -> Iterator[str]:
    """Yield a Python of every supported version, the oldest first."""
    places = os.environ.get("PATH", "").split(os.pathsep)
    pyenv_versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places += [str(folder) for folder in sorted(pyenv_versions.glob("*/bin"))]
    found = False
    for minor in range(OLDEST[1], NEWEST):
        for place in places:
            python = shutil.which(f"python3.{minor}", path=place)
            if python is not None and is_version(python, minor):  # pyenv's shims may not resolve
                found = True
                yield python
                break
    if not found:
        raise SystemExit(f"found no Python {OLDEST[0]}.{OLDEST[1]} or newer on the path: pass --pythons")


def is_version(python: str, minor: int) -> bool:
    said = subprocess.run([python, "-c", VERSION], capture_output=True, text=True)
    return said.stdout.split() == ["3", str(minor), "0"]


def check(python: str, wheel: Path, folder: Path, *, first: bool, every: int) -> None:
    """Create one environment, install the wheel, run the checks; in the first also types and the README."""
    subprocess.run([python, "-m", "venv", str(folder / "env")], check=True)
    programs = folder / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    environment = bare_environment(programs)
    inside = str(programs / "python")
    # The README's blocks use every library: once is enough, because torch and JAX take long to install.
    extras, others = ("studio,torch,jax", ["mypy>=1.15", *pinned_torch()]) if first else ("studio", [])
    needed = [f"{wheel}[{extras}]", *others]
    install = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:", *needed]
    subprocess.run(install, check=True, cwd=folder, env=environment)
    work = folder / "work"
    work.mkdir()
    shutil.copytree(ROOT / "tests" / "golden", work / "golden")
    shutil.copy(ROOT / "tests" / "golden_cases.py", work)
    shutil.copy(ROOT / "tools" / "wheel_self_check.py", work)
    shutil.copy(ROOT / "tools" / "wheel_typed_program.py", work / "typed_program.py")
    shutil.copy(ROOT / "README.md", work)
    options = ["--every", str(every), *(["--types", "--readme"] if first else [])]
    done = subprocess.run([inside, str(work / "wheel_self_check.py"), *options], cwd=work, env=environment)
    if done.returncode:
        raise SystemExit(f"{wheel.name} does not work with {python}")


def pinned_torch() -> list[str]:
    """Return the requirement of the torch that the tests use, which is a small build where one is available."""
    record = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [r for r in record["optional-dependencies"]["dev"] if r.startswith("torch==")]


def bare_environment(programs: Path) -> dict[str, str]:
    """Return an environment without compiler, Node.js and this source tree; package index settings are kept."""
    dropped = re.compile(r"CC|CXX|(C|CXX|LD)FLAGS|(CMAKE|SKBUILD|ROWGRAD)_.*|PYTHON(PATH|HOME)|VIRTUAL_ENV")
    pyenv_versions = {name: value for name, value in os.environ.items() if not dropped.fullmatch(name)}
    return {**pyenv_versions, "PATH": str(programs)}


def spent_by_children() -> float:
    used = os.times()
    return used.children_user + used.children_system


if __name__ == "__main__":
    main()
