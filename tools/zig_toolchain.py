"""Write a CMake toolchain that compiles for an old glibc with Zig's Clang, on any Linux.

    tools/zig_toolchain.py --target x86_64 --out build/zig-x86_64

Zig ships the C library of any version. The C++ library must be libstdc++, because `_core` exchanges exceptions with
nanobind's backend, which uses it; Zig has only libc++. So the headers are those of g++, and the linked library is a
stub with the symbols of the libstdc++ of the oldest supported system: a newer symbol stays undefined when `_core` is
linked, and tools/wheel_linux.py reports it. This tool also writes `young_symbols.cpp`, with the few newer symbols that
g++'s headers need anyway.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

GLIBC = "2.28"
# What manylinux_2_28 guarantees: the libraries of GCC 8.
OLDEST = {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1")
HIDDEN = 0x8000  # bit of a version number: not the default version

# Since 2.32 glibc exports whether a process has one thread, and libstdc++ reads it. Assume several threads.
SINGLE_THREADED = "#pragma once\nconstexpr char __libc_single_threaded = 0;\n"

YOUNG_SYMBOLS = """\
// What g++'s headers call and GCC 8's libstdc++ has not.
#include <new>

namespace std {
__attribute__((visibility("hidden"))) void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std

// exception_ptr is counted inline since GCC 12, by two new functions; here by its old copy constructor and destructor.
extern "C" {
void copy_construct(void** to, void* const* from) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void destroy(void** self) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");
void add_reference(void** self) __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void release(void** self) __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");

__attribute__((visibility("hidden"))) void add_reference(void** self) {
  void* never_destroyed;
  copy_construct(&never_destroyed, self);
}

__attribute__((visibility("hidden"))) void release(void** self) {
  destroy(self);
  *self = nullptr;
}
}
"""

# Zig writes the levels of x86-64 with underscores: a hyphen would disable a feature.
WRAPPER = """\
#!/bin/sh
for word in "$@"; do
  shift
  case $word in -march=x86-64-v*) word=-march=x86_64_${{word##*-}} ;; esac
  set -- "$@" "$word"
done
exec '{zig}' {tool} "$@"
"""

TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {machine})
set(CMAKE_C_COMPILER "{out}/cc")
set(CMAKE_CXX_COMPILER "{out}/c++")
set(CMAKE_AR "{out}/ar")
set(CMAKE_RANLIB "{out}/ranlib")
set(CMAKE_CXX_STANDARD_LIBRARIES "{out}/young_symbols.o {libraries}")
"""


@dataclass(frozen=True)
class Symbol:
    """An exported symbol: its name, its version, and whether it is a function."""

    name: str
    version: str
    is_code: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("x86_64", "aarch64"), required=True)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write `toolchain.cmake` to")
    parser.add_argument("--gxx", help="use the libstdc++ of this g++ (default: the target's)")
    args = parser.parse_args()
    gxx = args.gxx or gxx_for(args.target)
    write(args.target, args.out.resolve(), gxx)


def gxx_for(machine: str) -> str:
    """Return the g++ for a machine: by its full name, as cross compilers have, or the plain one if it targets it."""
    for name in (f"{machine}-linux-gnu-g++", "g++"):
        if shutil.which(name) and output_of(name, "-dumpmachine").startswith(f"{machine}-"):
            return name
    raise SystemExit(f"found no g++ for {machine}, whose libstdc++ is needed: install {machine}-linux-gnu-g++")


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write(machine: str, out: Path, gxx: str) -> None:
    """Write everything CMake needs to `out`."""
    import ziglang

    zig = Path(ziglang.__file__).parent / "zig"
    (out / "include" / "sys").mkdir(parents=True, exist_ok=True)
    update(out / "include" / "sys" / "single_threaded.h", SINGLE_THREADED)
    # Not -isystem: the C++ headers must precede those of the C library, which Zig puts first.
    includes = " ".join(f"-I'{folder}'" for folder in (out / "include", *cxx_headers(gxx)))
    target = f"-target {machine}-linux-gnu.{GLIBC}"
    for name, tool in {
        "cc": f"cc {target}",
        "c++": f"cc {target} {includes}",  # `zig c++` would link libc++
        "ar": "ar",
        "ranlib": "ranlib",
    }.items():
        update(out / name, WRAPPER.format(zig=zig, tool=tool))
        (out / name).chmod(0o755)
    for library in LIBRARIES:
        write_stub(Path(output_of(gxx, f"-print-file-name={library}")), out)
    update(out / "young_symbols.cpp", YOUNG_SYMBOLS)
    compiled = [str(out / "c++"), "-std=c++20", "-O2", "-fPIC", "-c"]
    output_of(*compiled, str(out / "young_symbols.cpp"), "-o", str(out / "young_symbols.o"))
    # Last, symbols that are in no shared library, such as the processor's features.
    static = output_of(gxx, "-print-libgcc-file-name")
    libraries = " ".join([*(str(out / library) for library in LIBRARIES), static])
    update(out / "toolchain.cmake", TOOLCHAIN.format(machine=machine, out=out, libraries=libraries))


def update(path: Path, text: str) -> None:
    """Write a file if its content changed; unchanged files keep their time, so that nothing is rebuilt."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def cxx_headers(gxx: str) -> list[str]:
    """Return the folders where g++ looks for the headers of libstdc++."""
    said = subprocess.run(
        [gxx, "-E", "-x", "c++", "-v", "/dev/null"], check=True, capture_output=True, text=True
    ).stderr
    search_list = re.search(r"#include <\.\.\.> search starts here:\n(.*?)End of search list", said, re.DOTALL)
    return [line.strip() for line in search_list[1].splitlines() if "c++" in line] if search_list else []


def write_stub(library: Path, out: Path) -> None:
    """Write a stub library of the same name that exports the old symbols and has no code."""
    by_version = defaultdict(list)
    assembly = [".text"]
    for symbol in old_symbols(library):
        by_version[symbol.version].append(symbol.name)
        kind = "function" if symbol.is_code else "object"
        assembly += [f".globl {symbol.name}", f".type {symbol.name}, %{kind}", f"{symbol.name}: .quad 0"]
        if not symbol.is_code:
            assembly.append(f".size {symbol.name}, 8")
    source, script = out / f"{library.name}.s", out / f"{library.name}.map"
    update(source, "\n".join(assembly) + "\n")
    versions = (f"{v} {{ global: {' '.join(n + ';' for n in names)} }};\n" for v, names in by_version.items())
    update(script, "".join(versions))
    options = ["-shared", "-nostdlib", f"-Wl,-soname,{library.name}", f"-Wl,--version-script={script}"]
    output_of(str(out / "cc"), *options, str(source), "-o", str(out / library.name))


def old_symbols(library: Path) -> list[Symbol]:
    """Return what a library exports in versions old enough; for each name, the newest of these.

    A name without a default version is only for old programs and cannot be linked.
    """
    best: dict[str, tuple[tuple[int, ...], Symbol]] = {}
    with_default = set()
    with library.open("rb") as file:
        elf = ELFFile(file)
        versions = elf.get_section_by_name(".gnu.version")
        definitions = elf.get_section_by_name(".gnu.version_d").iter_versions()
        defined = {version.entry["vd_ndx"]: next(names).name for version, names in definitions}
        for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            index = versions.get_symbol(number).entry["ndx"]
            if (
                symbol["st_shndx"] == "SHN_UNDEF"
                or not isinstance(index, int)
                or symbol["st_info"]["type"] == "STT_TLS"
            ):
                continue
            if not index & HIDDEN:
                with_default.add(symbol.name)
            version = defined.get(index & ~HIDDEN, "")
            version_numbers = numbers_of(version)
            if version_numbers is None or symbol["st_value"] == 0:
                continue
            is_code = symbol["st_info"]["type"] != "STT_OBJECT"
            if symbol.name not in best or best[symbol.name][0] < version_numbers:
                best[symbol.name] = (version_numbers, Symbol(symbol.name, version, is_code))
    return [symbol for _, symbol in best.values() if symbol.name in with_default]


def numbers_of(version: str) -> tuple[int, ...] | None:
    """Return the numbers of `GLIBCXX_3.4.11`; None if it is too new or not such a version."""
    family, _, numbers = version.partition("_")
    if family not in OLDEST or not re.fullmatch(r"\d+(\.\d+)*", numbers):
        return None
    version_numbers = tuple(int(n) for n in numbers.split("."))
    return version_numbers if version_numbers <= OLDEST[family] else None


if __name__ == "__main__":
    main()
