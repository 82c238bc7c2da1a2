"""Build rowgrad in place on a machine without a package index, so that `PYTHONPATH=src python3` imports it.

    tools/gpu_build.py --fetch    on a machine with an index: copy nanobind's sources into build/nanobind
    tools/gpu_build.py            on the target machine: build `_core` with CMake, unless build/gpu has it already

The result is cached in build/gpu, which can be copied to the next machine. The cache key is a hash of the sources,
because copying does not preserve modification times. A `dist-info` folder is written beside the package, as an
installation would: `importlib.metadata` needs it to find the runners.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "rowgrad"
NANOBIND = ROOT / "build" / "nanobind"
KEPT = ROOT / "build" / "gpu"
PARTS = ("cmake", "include", "src", "ext/robin_map")
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
NAME = f"_core{SUFFIX}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fetch", action="store_true", help="copy the installed nanobind into build/nanobind")
    parser.add_argument("--force", action="store_true", help="build even if build/gpu has what is needed")
    parser.add_argument("--jobs", type=int, default=0, help="parallel compilers (default: all cores)")
    args = parser.parse_args()
    if args.fetch:
        fetch()
        return
    if args.force or not is_current():
        build(args.jobs or os.cpu_count() or 1)
    else:
        print(f"{NAME} is up to date")
    install()
    write_metadata()
    check()


def fetch() -> None:
    """Copy the parts of the installed nanobind that CMake needs."""
    try:
        import nanobind
    except ImportError:
        raise SystemExit("nanobind is not installed here: pip install nanobind") from None
    source = Path(nanobind.cmake_dir()).parent
    new_folder = NANOBIND.with_name("nanobind.new")
    shutil.rmtree(new_folder, ignore_errors=True)
    for part in PARTS:
        shutil.copytree(source / part, new_folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(NANOBIND, ignore_errors=True)
    new_folder.rename(NANOBIND)
    print(f"nanobind {nanobind.__version__} is in {NANOBIND.relative_to(ROOT)}")


def sources() -> Iterator[Path]:
    """Yield the sources of the extension."""
    yield ROOT / "CMakeLists.txt"
    for folder in ("cpp/bind", "cpp/cuda", "cpp/include", "cpp/kernels", "cpp/third_party"):
        yield from sorted(p for p in (ROOT / folder).rglob("*") if p.is_file())


def key() -> str:
    """Return a hash of the contents of all sources."""
    digest = hashlib.sha256()
    for path in sources():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def is_current() -> bool:
    """Return whether build/gpu has an extension of these sources that this Python can load."""
    stamp = KEPT / f"{NAME}.key"
    if not (KEPT / NAME).exists() or not stamp.exists() or stamp.read_text() != key():
        return False
    loaded = subprocess.run([sys.executable, "-c", LOADS, str(KEPT / NAME)], capture_output=True, text=True)
    if loaded.returncode:  # it may be from a machine with another C++ library
        why = [f"status {loaded.returncode}", *loaded.stderr.strip().splitlines()][-1]
        print(f"the {NAME} in {KEPT.relative_to(ROOT)} does not load here: {why}")
    return loaded.returncode == 0


LOADS = (
    "import sys; from importlib.machinery import ExtensionFileLoader; from importlib.util import *; "
    "module_from_spec(spec_from_loader('_core', ExtensionFileLoader('_core', sys.argv[1])))"
)


def build(jobs: int) -> None:
    """Configure and compile in a folder for this Python, and cache the result."""
    cmake = tool("cmake")
    if not (NANOBIND / "cmake").is_dir():
        raise SystemExit(
            "build/nanobind is missing: run `tools/gpu_build.py --fetch` where nanobind is installed, "
            "and copy the folder here"
        )
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        raise SystemExit(f"Python.h is missing in {sysconfig.get_paths()['include']}: Python's headers are needed")
    folder = ROOT / "build" / f"gpu-cmake{SUFFIX.removesuffix('.so')}"
    # Remove earlier configurations, possibly of another machine.
    (folder / "CMakeCache.txt").unlink(missing_ok=True)
    options = [
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DPython_ROOT_DIR={sys.prefix}",
        "-DPython_FIND_VIRTUALENV=FIRST",
        f"-Dnanobind_DIR={NANOBIND / 'cmake'}",
        "-DCMAKE_BUILD_TYPE=Release",
        *(["-G", "Ninja"] if shutil.which("ninja") else []),
    ]
    print(f"building {NAME} with {jobs} compilers …", flush=True)
    step([cmake, "-S", str(ROOT), "-B", str(folder), *options])
    step([cmake, "--build", str(folder), "--target", "_core", "-j", str(jobs)])
    built = folder / NAME
    if not built.exists():
        raise SystemExit(f"CMake did not build {NAME}, only {[p.name for p in folder.glob('_core*')]}")
    KEPT.mkdir(parents=True, exist_ok=True)
    replace(built, KEPT / NAME)
    (KEPT / f"{NAME}.key").write_text(key())


def step(command: list[str]) -> None:
    """Run a command quietly; print its output if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout[-20000:])
        raise SystemExit(f"{command[0]} failed")


def tool(name: str) -> str:
    """Return a program next to this Python or on the path."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise SystemExit(f"{name} was not found")
    return found


def install() -> None:
    """Copy the extension into the package."""
    replace(KEPT / NAME, PACKAGE / NAME)


def replace(source: Path, target: Path) -> None:
    """Copy next to the target and rename: a process that has loaded the old file keeps it."""
    part = target.with_name(target.name + ".part")
    shutil.copy2(source, part)
    os.replace(part, target)


def write_metadata() -> None:
    """Write `rowgrad-<version>.dist-info` in src/: name, version, entry points."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    for old in PACKAGE.parent.glob(f"{project['name']}-*.dist-info"):
        shutil.rmtree(old)
    folder = PACKAGE.parent / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        f"Summary: {project['description']}\nRequires-Python: {project['requires-python']}\n",
        encoding="utf-8",
    )
    (folder / "entry_points.txt").write_text(entry_points(project), encoding="utf-8")
    (folder / "INSTALLER").write_text("tools/gpu_build.py\n", encoding="utf-8")


def entry_points(project: dict[str, Any]) -> str:
    """Return the file's text: a section for each group."""
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in groups.items()
        if points
    )


CHECK = """
import importlib.metadata, numpy, rowgrad
found = {p.name for p in importlib.metadata.entry_points(group="rowgrad.runners")}
assert {"numpy", "torch"} <= found, found
rowgrad.raw_ops.SparseSegmentSum(numpy.ones((2, 2), numpy.float32), [0], [0])
print("rowgrad", rowgrad.__version__, "at", rowgrad.__path__[0])
"""


def check() -> None:
    """Check that a new Python imports this package and finds its runners."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run([sys.executable, "-c", CHECK], check=True, env=environment, cwd=ROOT)


if __name__ == "__main__":
    main()
