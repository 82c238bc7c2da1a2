"""Build a Linux wheel that runs since glibc 2.28, on any Linux and without a container, and check that it is one.

    tools/wheel_linux.py --arch x86_64 --out dist

tools/zig_toolchain.py says what compiles it. auditwheel has the last word: it reads which symbols the extension needs,
names the wheel by what it found and refuses what needs more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import zig_toolchain

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=("x86_64", "aarch64"), required=True)
    parser.add_argument("--out", type=Path, required=True, help="where the wheel goes")
    parser.add_argument("--gxx", help="the g++ whose libstdc++ is used; that of the machine unless told")
    told = parser.parse_args()
    tools = ROOT / "build" / f"zig-{told.arch}"
    zig_toolchain.write(told.arch, tools, told.gxx or zig_toolchain.own_gxx(told.arch))
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "cmake.define.CMAKE_TOOLCHAIN_FILE": f"{tools / 'toolchain.cmake'}",
            "build-dir": f"{tools / 'objects'}",
            "wheel.tags": f"cp311-abi3-linux_{told.arch}",  # this Python may be of another machine
        }
        run("build", "--wheel", "-o", folder, *(f"-C{name}={value}" for name, value in settings.items()), str(ROOT))
        (built,) = Path(folder).glob("*.whl")
        platform = f"manylinux_{zig_toolchain.GLIBC.replace('.', '_')}_{told.arch}"
        run("auditwheel", "show", str(built))
        run("auditwheel", "repair", "--plat", platform, "-w", str(told.out), str(built))


def run(module: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", module, *words], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
