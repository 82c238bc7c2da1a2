"""Compile the C++ tests for Windows with Zig's Clang, and run them under Wine: `make test-windows`.

It shows that the kernels compile, link and compute the same numbers there; the Python extension is not built.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from zig_toolchain import WRAPPER

ROOT = Path(__file__).resolve().parent.parent
TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
set(CMAKE_CXX_COMPILER "{folder}/c++")
set(CMAKE_AR "{folder}/ar")
set(CMAKE_RANLIB "{folder}/ranlib")
set(CMAKE_CROSSCOMPILING_EMULATOR "{wine}")
"""


def write_toolchain(folder: Path, wine: str) -> Path:
    """Write wrappers of Zig's tools and a CMake toolchain that uses them."""
    import ziglang

    zig = Path(ziglang.__file__).parent / "zig"
    folder.mkdir(parents=True, exist_ok=True)
    for name, tool in (("c++", "c++ -target x86_64-windows-gnu"), ("ar", "ar"), ("ranlib", "ranlib")):
        wrapper = folder / name
        wrapper.write_text(WRAPPER.format(zig=zig, tool=tool))
        wrapper.chmod(0o755)
    file = folder / "toolchain.cmake"
    file.write_text(TOOLCHAIN.format(folder=folder, wine=wine))
    return file


def main() -> int:
    """Configure, build and run the tests; return their exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "windows")
    build = parser.parse_args().build.resolve()
    if not (wine := shutil.which("wine")):
        print("the tests for Windows run under Wine: apt install wine wine64", file=sys.stderr)
        return 1
    tools = Path(sys.executable).parent
    toolchain = write_toolchain(build / "tools", wine)
    options = [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DROWGRAD_TESTS=ON"]
    subprocess.run([tools / "cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *options], check=True)
    subprocess.run([tools / "cmake", "--build", build], check=True)
    environment = {**os.environ, "WINEPREFIX": str(build / "wine"), "WINEDEBUG": "-all"}
    test = [tools / "ctest", "--test-dir", build, "--output-on-failure", "--timeout", "900"]
    return subprocess.run(test, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
