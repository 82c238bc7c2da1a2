"""The CUDA driver and NVRTC through ctypes: compile sources, load modules, launch kernels.

torch owns memory and streams. Compiled kernels are cached on disk.
"""

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

# -- Driver -----------------------------------------------------------------------------------------------------------

_BUFFER, _SIZE, _END = 1, 2, 0  # tags of the parts of cuLaunchKernel's `extra`
_MAX_DYNAMIC_SHARED = 8
_MAX_STRUCT = 1024  # bytes of a kernel's struct
_PLAIN_SHARED = 48 * 1024  # available to a block without opting in


@cache
def library() -> ctypes.CDLL:
    """Load libcuda, which torch has initialized."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise UnimplementedError("the CUDA driver was not found")


def ok(status: int) -> None:
    """Raise InternalError for a driver error."""
    if status:
        name = ctypes.c_char_p()
        library().cuGetErrorString(status, ctypes.byref(name))
        raise InternalError(f"CUDA: {(name.value or b'unknown error').decode()} ({status})")


def enter(device: int) -> None:
    """Make a device's primary context, which torch uses, current in the calling thread."""
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
_shared_memory_lock = threading.Lock()


class Function:
    """A kernel loaded on a device."""

    def __init__(self, code: bytes, name: str) -> None:
        module, self.handle = ctypes.c_void_p(), ctypes.c_void_p()
        ok(library().cuModuleLoadData(ctypes.byref(module), code))
        ok(library().cuModuleGetFunction(ctypes.byref(self.handle), module, name.encode()))
        self._launch = library().cuLaunchKernel
        self._shared = _PLAIN_SHARED

    def allow(self, shared: int) -> None:
        """Allow launches with this many bytes of shared memory."""
        if shared > self._shared:
            with _shared_memory_lock:  # a smaller limit must not overwrite a larger one
                if shared > self._shared:
                    ok(library().cuFuncSetAttribute(self.handle, _MAX_DYNAMIC_SHARED, shared))
                    self._shared = shared

    def launch(self, blocks: tuple[int, int], threads: int, shared: int, stream: int, packed: bytes) -> None:
        """Queue the kernel on a stream; the driver copies the arguments before this returns."""
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
    extra.length = length  # type: ignore[attr-defined]  # keeps `length` alive
    return extra


@cache
def _pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def queue(launches: list[Any], stream: int) -> None:
    """Queue prepared kernels and memsets."""
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
    """Create an event without timing."""
    event = ctypes.c_void_p()
    ok(library().cuEventCreate(ctypes.byref(event), 2))
    return event


def record_event(event: ctypes.c_void_p, stream: int) -> None:
    """Record an event on a stream."""
    ok(library().cuEventRecord(event, _pointer(stream)))


def wait_event(stream: int, event: ctypes.c_void_p) -> None:
    """Make a stream wait for an event."""
    ok(library().cuStreamWaitEvent(_pointer(stream), event, 0))


# -- NVRTC ------------------------------------------------------------------------------------------------------------

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
        return path.read_bytes()
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
