"""JAX programs whose kernels run through the CUDA handler, emulated on the host.

Kernel calls are lowered for CPUs as they are for CUDA. XLA's CPU runtime then calls `_Trampoline`, which passes its
call frames on to a handler of CUDA devices, with a stream and scratch memory that only exist on a device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import CFUNCTYPE, c_char, c_void_p, py_object, pythonapi
from typing import Any

import jax
import pytest
from emulated_device import run_kernel
from jax.interpreters import mlir
from standin_driver import StandinDriver

import rowgrad.jax as rgj
from rowgrad._catalog.spec import CATALOG
from rowgrad._core import xla_cuda_handler, xla_cuda_open, xla_cuda_reported, xla_cuda_step_handler
from rowgrad.cuda.kernel import KERNELS
from rowgrad.jax import cuda_call, primitive, row_step

# Offsets in XLA's structs (cpp/third_party/xla/ffi/api/c_api.h): of the API in a call frame, and of its functions.
_API, _STREAM_GET, _ALLOCATE, _FREE = 16, 80, 120, 128
_STREAM = 0x57BEA
_ONE_THREAD = ThreadPoolExecutor(1)  # of all of XLA's threads: the emulator keeps the stacks of a block for each

pythonapi.PyCapsule_New.restype = py_object
pythonapi.PyCapsule_New.argtypes = (c_void_p, c_void_p, c_void_p)
pythonapi.PyCapsule_GetPointer.restype = c_void_p
pythonapi.PyCapsule_GetPointer.argtypes = (py_object, c_void_p)


def _words(address: int) -> Any:
    """Return memory as an array of 64-bit words."""
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64))


class _Trampoline:
    """A handler for XLA's CPU runtime, in place of one of CUDA devices."""

    def __init__(self, handler: Any) -> None:
        self.scratch: dict[int, Any] = {}
        self._api: Any = None
        self._handler = CFUNCTYPE(c_void_p, c_void_p)(pythonapi.PyCapsule_GetPointer(handler, None))
        one_argument = CFUNCTYPE(c_void_p, c_void_p)
        self._functions = {
            _STREAM_GET: one_argument(self._stream_get),
            _ALLOCATE: one_argument(self._allocate),
            _FREE: one_argument(self._free),
        }
        self._call = one_argument(self._run)
        self.capsule = pythonapi.PyCapsule_New(ctypes.cast(self._call, c_void_p), None, None)

    def _run(self, frame: int) -> Any:
        words = _words(frame)
        own = words[_API // 8]
        if own == 0 or words[1] != 0:  # at registration
            return self._handler(frame)
        if self._api is None:
            self._api = (c_char * int(_words(own)[0])).from_buffer_copy(ctypes.string_at(own, int(_words(own)[0])))
            for offset, function in self._functions.items():
                _words(ctypes.addressof(self._api))[offset // 8] = ctypes.cast(function, c_void_p).value
        words[_API // 8] = ctypes.addressof(self._api)
        try:
            return self._handler(frame)
        finally:
            words[_API // 8] = own

    def _stream_get(self, args: int) -> None:
        _words(args)[3] = _STREAM

    def _allocate(self, args: int) -> None:
        words = _words(args)
        size, alignment = words[3], words[4]
        assert 0 < alignment <= 16, "XLA has scratch memory of this alignment only"
        memory = ctypes.create_string_buffer(b"\xa5" * size, size)
        words[5] = ctypes.addressof(memory)
        self.scratch[words[5]] = memory

    def _free(self, args: int) -> None:
        size, data = _words(args)[3], _words(args)[4]
        assert ctypes.sizeof(self.scratch.pop(data)) == size


class EmulatedXla:
    """The device: its driver and what was launched."""

    def __init__(self, seed: int = 1) -> None:
        self.seed = seed
        self.launched: list[str] = []
        self.driver = StandinDriver(self._run)

    def _run(self, file: str, name: str, *launch: Any) -> None:
        self.launched.append(name)
        _ONE_THREAD.submit(run_kernel, file, name, *launch, self.seed).result()

    def load(self, architecture: str, name: str, variant: str) -> tuple[bytes, str, int]:
        from rowgrad.cuda import features, launcher_kernels  # noqa: F401

        assert architecture == "sm_90"
        kernel = KERNELS[name]
        signature = kernel.signature(kernel.variant_named(variant))
        return f"{kernel.file}|{signature}".encode() + b"\0", kernel.entry, kernel.threads


_TRAMPOLINES = {
    cuda_call.TARGET: _Trampoline(xla_cuda_handler()),
    row_step.TARGETS["cuda"]: _Trampoline(xla_cuda_step_handler()),
}
_REGISTERED: list[bool] = []


def _lower_for(platform: str) -> None:
    for op in CATALOG.values():
        if cuda_call.has_kernel(op):
            mlir.register_lowering(
                primitive.PRIMITIVES[op.name], primitive._lower_to_kernel(op, platform), platform="cpu"
            )  # fmt: skip
    mlir.register_lowering(row_step._STEP, row_step._lower_to_kernel(platform), platform="cpu")
    jax.clear_caches()


@contextmanager
def on_cuda(seed: int = 1) -> Iterator[EmulatedXla]:
    """Treat CPU devices of JAX as CUDA devices; raise pending faults at the end."""
    if not _REGISTERED:
        for target, trampoline in _TRAMPOLINES.items():
            jax.ffi.register_ffi_target(target, trampoline.capsule, platform="cpu")
        _REGISTERED.append(True)
    device = EmulatedXla(seed)
    xla_cuda_open(device.load, device.driver.functions())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_call, "_is_cuda", lambda device: True)
        patch.setattr(cuda_call, "_devices", jax.local_devices)
        _lower_for("cuda")
        try:
            yield device
            rgj.synchronize()
            assert not any(trampoline.scratch for trampoline in _TRAMPOLINES.values())
        finally:
            _lower_for("cpu")
            xla_cuda_reported()
            xla_cuda_open(cuda_call._load, None)
