"""Find a clang with libFuzzer, or install one: `make fuzz-clang`. Needs only Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ["clang++", *(f"clang++-{version}" for version in range(21, 13, -1))]
MISSING = """no clang with libFuzzer was found, which the fuzz targets of cpp/fuzz are built with.
On Debian and Ubuntu: apt-get install clang libclang-rt-dev (or libclang-rt-14-dev, as the version is); on macOS:
brew install llvm. CXX_FUZZ may name another one."""


def find() -> str | None:
    """Return a compiler that links a fuzz target; Debian packages libFuzzer and the sanitizers separately."""
    chosen = os.environ.get("CXX_FUZZ")
    return next(
        (found for name in ([chosen] if chosen else NAMES) if (found := shutil.which(name)) and _links(found)), None
    )


def _links(compiler: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "one.cpp"
        source.write_text('extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n')
        command = [compiler, "-fsanitize=fuzzer,address,undefined", str(source), "-o", str(source.with_suffix(""))]
        return subprocess.run(command, capture_output=True).returncode == 0


def install() -> str | None:
    """Install it from the system's packages, if that needs no confirmation."""
    if not Path("/etc/debian_version").exists() or os.geteuid() != 0 or not shutil.which("apt-get"):
        return None
    print("installing clang with apt-get …", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    get = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
    # Debian 12 has a runtime package per version, later releases one for all.
    commands = [["apt-get", "update", "-qq"], [*get, "clang"]]
    if subprocess.run(["apt-cache", "show", "libclang-rt-dev"], capture_output=True).returncode == 0:
        commands.append([*get, "libclang-rt-dev"])
    else:
        commands.append([*get, "libclang-rt-14-dev"])
    for command in commands:
        done = subprocess.run(command, env=quiet, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
    return find()


def compiler() -> str:
    """Return the compiler, installed if necessary."""
    return find() or install() or sys.exit(MISSING)


if __name__ == "__main__":
    print(compiler())
