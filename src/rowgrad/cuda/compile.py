"""Compile kernels with NVRTC, through ctypes. Compiled kernels are cached on disk."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import UnimplementedError
from .kernel import Kernel, headers

_ELF = b"\x7fELF"  # how machine code begins
# For exact results: no fused multiply-add, IEEE division and square root, float32 subnormals flushed to zero.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=true", "--prec-div=true", "--prec-sqrt=true", "-default-device")


def unit_of(kernel: Kernel, variant: tuple[str, ...]) -> str:
    """Return the translation unit of one variant of a kernel."""
    return (
        f'#include "{kernel.file}"\nusing namespace rowgrad;\n'
        f'extern "C" __global__ void __launch_bounds__({kernel.threads}, {kernel.blocks_of(variant)}) '
        f"{kernel.entry}(const __grid_constant__ {kernel.struct} params) {{ {kernel.signature(variant)}(params); }}\n"
    )


def cubin_of(kernel: Kernel, variant: tuple[str, ...], architecture: str) -> bytes:
    """Return machine code for an architecture such as `sm_90`, from the disk cache if possible."""
    library, version = nvrtc()
    unit = unit_of(kernel, variant)
    parts = (unit, *headers().values(), *OPTIONS, architecture, str(version))
    path = _folder() / (hashlib.sha256("\0".join(parts).encode()).hexdigest() + ".cubin")
    with suppress(OSError):
        code = path.read_bytes()
        if code.startswith(_ELF):  # else the file is damaged, as after a crash of the system
            return code
    code = compile_unit(library, unit, architecture)
    with suppress(OSError):  # the cache may not be writable
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
    return code


def compile_unit(library: ctypes.CDLL, unit: str, architecture: str) -> bytes:
    """Compile a translation unit against the headers of `source/`."""
    names = list(headers())
    texts = [headers()[name].encode() for name in names]
    program = ctypes.c_void_p()
    array = ctypes.c_char_p * len(names)
    named = array(*[name.encode() for name in names])
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), unit.encode(), b"rowgrad.cu", len(names), array(*texts), named
    )
    _ok(library, created)
    try:
        options = [o.encode() for o in (*OPTIONS, f"--gpu-architecture={architecture}")]
        status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if status:
            raise UnimplementedError(f"a CUDA kernel did not compile:\n{_log(library, program)}")
        size = ctypes.c_size_t()
        _ok(library, library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _ok(library, library.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def nvrtc() -> tuple[ctypes.CDLL, tuple[int, int]]:
    """Load NVRTC; return the library and its version."""
    for name in _candidates():
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        _ok(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return library, (major.value, minor.value)
    raise UnimplementedError(
        "NVRTC was not found; it comes with torch's CUDA builds, or: pip install nvidia-cuda-nvrtc"
    )


def _candidates() -> Iterator[str]:
    """Yield the paths of libraries installed beside torch, then names for the system's search."""
    for folder in sys.path:
        for found in sorted(Path(folder or ".").glob("nvidia/*/lib/libnvrtc.so.*[0-9]"), reverse=True):
            if "alt" not in found.name:
                yield str(found)
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


def _folder() -> Path:
    base = os.environ.get("ROWGRAD_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "rowgrad"
    )
    return Path(base) / "cuda"


def _log(library: Any, program: Any) -> str:
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


def _ok(library: Any, status: int) -> None:
    if status:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise UnimplementedError(f"NVRTC: {library.nvrtcGetErrorString(status).decode()}")
