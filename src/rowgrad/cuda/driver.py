"""The CUDA driver, as far as it is needed: modules, launches, memory set to a value. torch owns memory and streams."""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

from ..errors import InternalError, UnimplementedError

_BUFFER, _SIZE, _END = 1, 2, 0  # how cuLaunchKernel names the parts of `extra`
_MAX_DYNAMIC_SHARED = 8
_MOST_TOLD = 1024  # bytes of a kernel's struct
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


class _Told(threading.local):
    """What a thread hands the driver: made once, since making it costs more than the launch."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(_MOST_TOLD)
        self.size = ctypes.c_size_t()
        self.extra = (ctypes.c_void_p * 5)(
            _BUFFER, ctypes.addressof(self.memory), _SIZE, ctypes.addressof(self.size), _END
        )


_told = _Told()
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
        """Queue it on a stream; the driver copies what it is told before this returns."""
        self.allow(shared)
        told = _told
        ctypes.memmove(told.memory, packed, len(packed))
        told.size.value = len(packed)
        status = self._launch(
            self.handle, blocks[0], blocks[1], 1, threads, 1, 1, shared, _pointer(stream), None, told.extra
        )
        if status:
            ok(status)


def extra_at(address: int, size: int) -> Any:
    """How the driver is told of arguments that stand at an address; the caller keeps it and them alive."""
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
