"""A CUDA driver for tests: it records launches and runs kernels on the host.

The C++ launcher calls it through the same table of functions as the installed driver, so tests exercise the code that
runs on a GPU. A kernel's "machine code" is its file and its name with template arguments.
"""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

# Runs a kernel: file, name with template arguments, blocks, threads, shared memory, the address of its struct.
Run = Callable[[str, str, tuple[int, int], int, int, int], None]
_TYPES: dict[str, tuple[Any, ...]] = {
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxGetDevice": (POINTER(c_int),),
    "cuCtxSynchronize": (),
    "cuStreamGetCtx": (c_void_p, POINTER(c_void_p)),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuModuleLoadData": (POINTER(c_void_p), c_void_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, POINTER(c_char)),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p)),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuMemsetD32Async": (c_uint64, c_uint, c_size_t, c_void_p),
    "cuStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
}
_MAX_SHARED = 8  # the attribute that allows more shared memory
_PLAIN_SHARED = 48 * 1024
_MOST_SHARED = 99 * 1024  # of a block, on the supported devices with the least
_ATTRIBUTES = {16: 3, 75: 9, 76: 0, 97: _MOST_SHARED}  # multiprocessors, compute capability, shared memory


class StandinDriver:
    """The functions of a driver; `log` has every call that queues work, or orders it, by name."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.log: list[str] = []
        self.failing: dict[str, int] = {}  # the status that a function returns
        self.capturing = False
        self.context = 1  # the current one
        self.graph: list[Callable[[], None]] | None = None  # gets what is queued, to run it again
        self.on_wait: Callable[[], None] = lambda: None  # called when the host waits for a stream
        self._kernels: list[str] = []
        self._shared: dict[int, int] = {}
        self._allocated: list[Any] = []
        self._text = ctypes.create_string_buffer(b"a message of the driver")
        self._callbacks = {name: self._callback(name, types) for name, types in _TYPES.items()}

    def functions(self) -> dict[str, int]:
        """Return the addresses of the functions by name."""
        return {name: ctypes.cast(callback, c_void_p).value or 0 for name, callback in self._callbacks.items()}

    def _callback(self, name: str, types: tuple[Any, ...]) -> Any:
        own = getattr(self, f"_{name}", None)

        def call(*args: Any) -> int:
            if name in self.failing:
                return self.failing[name]
            try:
                if own is not None:
                    own(*args)
            except BaseException:  # cannot pass through C++, which reports the status
                traceback.print_exc()
                return 999
            return 0

        return CFUNCTYPE(c_int, *types)(call)

    def _cuGetErrorString(self, _: int, text: Any) -> None:
        text[0] = ctypes.cast(self._text, c_char_p)

    def _cuDevicePrimaryCtxRetain(self, context: Any, _: int) -> None:
        context[0] = 1

    def _cuCtxGetCurrent(self, context: Any) -> None:
        context[0] = self.context

    def _cuCtxSetCurrent(self, context: int | None) -> None:
        self.context = context or 0

    def _cuDeviceGet(self, handle: Any, index: int) -> None:
        handle[0] = index

    def _cuDeviceGetCount(self, count: Any) -> None:
        count[0] = 1

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, _: int) -> None:
        value[0] = _ATTRIBUTES[attribute]

    def _cuCtxGetDevice(self, handle: Any) -> None:
        handle[0] = 0

    def _cuCtxSynchronize(self) -> None:
        self.log.append("synchronize")

    def _cuStreamGetCtx(self, _: int, context: Any) -> None:
        context[0] = 1

    def _cuStreamCreate(self, stream: Any, _: int) -> None:
        stream[0] = 0x51DE

    def _cuMemAlloc_v2(self, address: Any, size: int) -> None:
        address[0] = self._allocate(size)

    def _cuMemHostAlloc(self, address: Any, size: int, _: int) -> None:
        address[0] = self._allocate(size)

    def _allocate(self, size: int) -> int:
        self._allocated.append(ctypes.create_string_buffer(b"\xa5" * size, size))
        return ctypes.addressof(self._allocated[-1])

    def _cuModuleLoadData(self, module: Any, code: int) -> None:
        self._kernels.append(ctypes.string_at(code).decode())
        module[0] = len(self._kernels)

    def _cuModuleGetFunction(self, function: Any, module: int, _: Any) -> None:
        function[0] = module

    def _cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> None:
        assert attribute == _MAX_SHARED
        assert value <= _MOST_SHARED, "more shared memory than a block may have"
        self._shared[function] = value

    def _cuLaunchKernel(
        self, function: int, x: int, y: int, z: int, tx: int, ty: int, tz: int, shared: int, _: Any, __: Any, extra: Any
    ) -> None:
        assert (z, ty, tz) == (1, 1, 1)
        assert min(x, y) > 0
        assert shared <= self._shared.get(function, _PLAIN_SHARED), "more shared memory than the kernel may use"
        assert (extra[0], extra[2], extra[4]) == (1, 2, None)  # the struct, its size, the end
        file, name = self._kernels[function - 1].split("|")
        self.log.append("launch")
        self.run(file, name, (x, y), tx, shared, extra[1])
        if self.graph is not None:  # a graph has a copy of the struct
            struct = ctypes.string_at(extra[1], ctypes.cast(extra[3], POINTER(c_size_t))[0])
            self.graph.append(
                lambda: self.run(file, name, (x, y), tx, shared, ctypes.cast(struct, c_void_p).value or 0)
            )

    def _cuMemsetD8Async(self, at: int, value: int, size: int, _: Any) -> None:
        self.log.append("memset")
        self._memset(at, value, size)

    def _cuMemsetD32Async(self, at: int, value: int, size: int, _: Any) -> None:
        assert (value, at % 4) == (0, 0)
        self.log.append("memset")
        self._memset(at, 0, 4 * size)

    def _memset(self, at: int, value: int, size: int) -> None:
        ctypes.memset(at, value, size)
        if self.graph is not None:
            self.graph.append(lambda: ctypes.memset(at, value, size) and None)

    def _cuStreamSynchronize(self, _: Any) -> None:
        self.on_wait()

    def _cuStreamIsCapturing(self, _: Any, status: Any) -> None:
        status[0] = int(self.capturing)

    def _cuEventCreate(self, event: Any, _: int) -> None:
        event[0] = 1

    def _cuEventRecord(self, *_: Any) -> None:
        self.log.append("record event")

    def _cuStreamWaitEvent(self, *_: Any) -> None:
        self.log.append("wait for event")
