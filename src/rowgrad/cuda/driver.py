"""CUDA's driver and NVRTC by ctypes: compile sources, load modules, launch kernels."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import InternalError, UnimplementedError
from .kernel import Kernel, headers

# -- The CUDA driver, as far as it is needed --------------------------------------------------------------------------

# The CUDA driver, as far as it is needed: modules, launches, memory set to a value. torch owns memory and streams.

_BUFFER, _SIZE, _END = 1, 2, 0  # how cuLaunchKernel names the parts of `extra`
_MAX_DYNAMIC_SHARED = 8
_MAX_STRUCT = 1024  # bytes of a kernel's struct
_PLAIN_SHARED = 48 * 1024  # what a block may have without asking


@cache
def library() -> ctypes.CDLL:
    """libcuda, which torch has initialised."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise UnimplementedError("the CUDA driver was not found")


def ok(status: int) -> None:
    """Raise what the driver reports."""
    if status:
        name = ctypes.c_char_p()
        library().cuGetErrorString(status, ctypes.byref(name))
        raise InternalError(f"CUDA: {(name.value or b'unknown error').decode()} ({status})")


def enter(device: int) -> None:
    """Make a device's context, torch's own, the calling thread's."""
    context, handle = ctypes.c_void_p(), ctypes.c_int()
    ok(library().cuDeviceGet(ctypes.byref(handle), device))
    ok(library().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle))
    ok(library().cuCtxSetCurrent(context))


class _Arguments(threading.local):
    """A thread's argument buffer for the driver, allocated once because allocating it costs more than a launch."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(_MAX_STRUCT)
        self.size = ctypes.c_size_t()
        self.extra = (ctypes.c_void_p * 5)(
            _BUFFER, ctypes.addressof(self.memory), _SIZE, ctypes.addressof(self.size), _END
        )


_arguments = _Arguments()
_allowing = threading.Lock()


class Function:
    """A kernel that is loaded on a device."""

    def __init__(self, code: bytes, name: str) -> None:
        module, self.handle = ctypes.c_void_p(), ctypes.c_void_p()
        ok(library().cuModuleLoadData(ctypes.byref(module), code))
        ok(library().cuModuleGetFunction(ctypes.byref(self.handle), module, name.encode()))
        self._launch = library().cuLaunchKernel
        self._shared = _PLAIN_SHARED

    def allow(self, shared: int) -> None:
        """So many bytes of shared memory."""
        if shared > self._shared:
            with _allowing:  # of two threads, the one that asks for less must not be the last to ask
                if shared > self._shared:
                    ok(library().cuFuncSetAttribute(self.handle, _MAX_DYNAMIC_SHARED, shared))
                    self._shared = shared

    def launch(self, blocks: tuple[int, int], threads: int, shared: int, stream: int, packed: bytes) -> None:
        """Queue it on a stream; the driver copies the arguments before this returns."""
        self.allow(shared)
        arguments = _arguments
        ctypes.memmove(arguments.memory, packed, len(packed))
        arguments.size.value = len(packed)
        status = self._launch(
            self.handle, blocks[0], blocks[1], 1, threads, 1, 1, shared, _pointer(stream), None, arguments.extra
        )
        if status:
            ok(status)


def extra_at(address: int, size: int) -> Any:
    """Return the `extra` array for arguments stored at an address; the caller keeps both alive."""
    length = ctypes.c_size_t(size)
    extra = (ctypes.c_void_p * 5)(_BUFFER, address, _SIZE, ctypes.addressof(length), _END)
    extra.length = length  # type: ignore[attr-defined]  # it lives as long
    return extra


@cache
def _pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def queue(launches: list[Any], stream: int) -> None:
    """Queue kernels and zeros whose arguments stand where they were prepared to be."""
    at, launch, zero = _pointer(stream), library().cuLaunchKernel, library().cuMemsetD32Async
    for handle, x, y, threads, shared, extra in launches:
        if handle is None:
            status = zero(ctypes.c_uint64(extra.value), 0, ctypes.c_size_t(x // 4), at)
        else:
            status = launch(handle, x, y, 1, threads, 1, 1, shared, at, None, extra)
        if status:
            ok(status)


def set_zero(address: int, size: int, stream: int) -> None:
    """Zero `size` bytes, a multiple of 4, on a stream."""
    ok(library().cuMemsetD32Async(ctypes.c_uint64(address), 0, ctypes.c_size_t(size // 4), _pointer(stream)))


def new_event() -> ctypes.c_void_p:
    """An event that takes no time."""
    event = ctypes.c_void_p()
    ok(library().cuEventCreate(ctypes.byref(event), 2))
    return event


def mark(event: ctypes.c_void_p, stream: int) -> None:
    """Let an event stand for everything a stream holds now."""
    ok(library().cuEventRecord(event, _pointer(stream)))


def follow(stream: int, event: ctypes.c_void_p) -> None:
    """Let a stream wait for an event."""
    ok(library().cuStreamWaitEvent(_pointer(stream), event, 0))


# -- Source to machine code by NVRTC, the compiler that comes with torch ----------------------------------------------

# Source to machine code by NVRTC, the compiler that comes with torch; what was compiled once is kept on disk.

# Exactness: no product is fused with a sum, divisions and roots are IEEE's, float32's subnormals are zeros.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=true", "--prec-div=true", "--prec-sqrt=true", "-default-device")


def unit_of(kernel: Kernel, form: tuple[str, ...]) -> str:
    """The text of one kernel in one form."""
    return (
        f'#include "{kernel.file}"\nusing namespace rowgrad;\n'
        f'extern "C" __global__ void __launch_bounds__({kernel.threads}, {kernel.blocks_of(form)}) '
        f"{kernel.entry}(const __grid_constant__ {kernel.struct} params) {{ {kernel.signature(form)}(params); }}\n"
    )


def cubin_of(kernel: Kernel, form: tuple[str, ...], architecture: str) -> bytes:
    """Machine code for an architecture such as `sm_90`."""
    library, version = nvrtc()
    unit = unit_of(kernel, form)
    words = (unit, *headers().values(), *OPTIONS, architecture, str(version))
    path = _folder() / (hashlib.sha256("\0".join(words).encode()).hexdigest() + ".cubin")
    with suppress(OSError):
        return path.read_bytes()
    code = compile_unit(library, unit, architecture)
    with suppress(OSError):  # a cache that cannot be written is none
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
    return code


def compile_unit(library: ctypes.CDLL, unit: str, architecture: str) -> bytes:
    """Compile with the headers of `source/` at hand."""
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
    """The library and its version."""
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
    """Beside torch first, then wherever the system looks."""
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
