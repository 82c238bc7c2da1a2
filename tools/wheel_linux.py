"""Build a Linux wheel for glibc 2.28 and later, on any Linux and without a container, and check it.

    tools/wheel_linux.py --arch x86_64 --out dist

tools/zig_toolchain.py writes the toolchain. Python's symbols are undefined when an extension is linked, so symbols that
old libraries lack would pass unnoticed: this tool rejects undefined symbols that are not Python's. auditwheel reads
which library versions are needed, and names the wheel.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import zig_toolchain
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=("x86_64", "aarch64"), required=True)
    parser.add_argument("--out", type=Path, required=True, help="where the wheel goes")
    parser.add_argument("--gxx", help="use the libstdc++ of this g++ (default: this machine's)")
    args = parser.parse_args()
    tools = ROOT / "build" / f"zig-{args.arch}"
    zig_toolchain.write(args.arch, tools, args.gxx or zig_toolchain.gxx_for(args.arch))
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "cmake.define.CMAKE_TOOLCHAIN_FILE": f"{tools / 'toolchain.cmake'}",
            "build-dir": f"{tools / 'objects'}",
            "wheel.tags": f"cp311-abi3-linux_{args.arch}",  # this Python may be for another machine
        }
        run("build", "--wheel", "-o", folder, *(f"-C{name}={value}" for name, value in settings.items()), str(ROOT))
        (built,) = Path(folder).glob("*.whl")
        if loose := loose_symbols(built):
            raise SystemExit(f"libraries as old as glibc {zig_toolchain.GLIBC} lack {', '.join(loose)}")
        run("auditwheel", "show", str(built))
        repaired = Path(folder, "repaired")
        run("auditwheel", "repair", "--plat", "auto", "-w", str(repaired), str(built))
        (wheel,) = repaired.glob("*.whl")
        if (found := oldest_glibc(wheel)) > tuple(int(n) for n in zig_toolchain.GLIBC.split(".")):
            raise SystemExit(f"{wheel.name} needs glibc {found[0]}.{found[1]}; {zig_toolchain.GLIBC} is required")
        args.out.mkdir(parents=True, exist_ok=True)
        print(shutil.copy(wheel, args.out))


def loose_symbols(wheel: Path) -> list[str]:
    """Return the undefined symbols of the extension that no linked library has, except for Python's."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".so"))
        elf = ELFFile(io.BytesIO(archive.read(name)))
    versions = elf.get_section_by_name(".gnu.version")
    return [
        symbol.name
        for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols())
        if symbol["st_shndx"] == "SHN_UNDEF"
        and symbol["st_info"]["bind"] == "STB_GLOBAL"
        and not isinstance(versions.get_symbol(number).entry["ndx"], int)  # a name instead of a version number
        and not symbol.name.startswith(("Py", "_Py"))
    ]


def oldest_glibc(wheel: Path) -> tuple[int, ...]:
    """Return the version in the wheel's name, which auditwheel chose."""
    return min(tuple(int(n) for n in found) for found in re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name))


def run(module: str, *arguments: str) -> None:
    """Run a module of this environment with its programs on the path, for auditwheel."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, cwd=ROOT, env={**os.environ, "PATH": path})


if __name__ == "__main__":
    main()
