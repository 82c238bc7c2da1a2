"""The CUDA driver, as far as it is needed: modules, launches, memory set to a value. torch owns memory and streams."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from ..errors import InternalError, UnimplementedError

_BUFFER, _SIZE, _END = 1, 2, 0  # how cuLaunchKernel names the parts of `extra`
_MAX_DYNAMIC_SHARED = 8
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


class Function:
    """A kernel that is loaded on a device."""

    def __init__(self, code: bytes, name: str) -> None:
        module, self._handle = ctypes.c_void_p(), ctypes.c_void_p()
        ok(library().cuModuleLoadData(ctypes.byref(module), code))
        ok(library().cuModuleGetFunction(ctypes.byref(self._handle), module, name.encode()))
        self._launch = library().cuLaunchKernel
        self._shared = _PLAIN_SHARED

    def launch(self, blocks: tuple[int, int], threads: int, shared: int, stream: int, packed: bytes) -> None:
        """Queue it on a stream; the driver copies what it is told before this returns."""
        if shared > self._shared:
            ok(library().cuFuncSetAttribute(self._handle, _MAX_DYNAMIC_SHARED, shared))
            self._shared = shared
        size = ctypes.c_size_t(len(packed))
        told: Any = (ctypes.c_void_p * 5)(
            _BUFFER, ctypes.cast(ctypes.c_char_p(packed), ctypes.c_void_p).value, _SIZE, ctypes.addressof(size), _END
        )
        status = self._launch(
            self._handle, blocks[0], blocks[1], 1, threads, 1, 1, shared, ctypes.c_void_p(stream), None, told
        )
        if status:
            ok(status)


def set_zero(address: int, size: int, stream: int) -> None:
    """Zero `size` bytes, a multiple of 4, on a stream."""
    ok(
        library().cuMemsetD32Async(
            ctypes.c_void_p(address), ctypes.c_uint(0), ctypes.c_size_t(size // 4), ctypes.c_void_p(stream)
        )
    )
