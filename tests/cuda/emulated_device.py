"""CUDA kernels on the host: the source is compiled as C++ and run thread by thread (`emulated.h`)."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from standin_driver import StandinDriver
from torch import Tensor

from rowgrad._core import cuda_device
from rowgrad.cuda.device import Device, kernel_named
from rowgrad.cuda.kernel import KERNELS, Kernel, headers
from rowgrad.torch import devices, row_optimizer

HERE = Path(__file__).parent
_DLPACK_CPU = 1
_OPTIONS = ("-std=c++20", "-Og", "-fPIC", "-shared", "-ffp-contract=off", "-w", "-DROWGRAD_EMULATION")


def unit_of(file: str, kernels: Sequence[Kernel]) -> str:
    """Return C++ source with all variants of a file's kernels, registered by name."""
    entries = "".join(
        f'  if (!std::strcmp(name, "{kernel.signature(variant)}")) return [](const void* args) '
        f"{{ {kernel.signature(variant)}(*static_cast<const {kernel.struct}*>(args)); }};\n"
        for kernel in kernels
        for variant in kernel.variants
    )
    return (
        f'#include "{file}"\nusing namespace rowgrad;\nusing Body = void (*)(const void*);\n'
        f"static Body find(const char* name) {{\n{entries}  return nullptr;\n}}\n"
        'extern "C" int run(const char* name, unsigned x, unsigned y, unsigned threads, long shared, long seed, '
        "const void* args) {\n  const Body body = find(name);\n  if (!body) return 1;\n"
        "  emulated::run_grid({x, y}, {threads}, shared, seed, [&] { body(args); });\n  return 0;\n}\n"
    )


@cache
def library_of(file: str) -> ctypes.CDLL:
    """Return the compiled kernels of a file, cached in the system's temporary folder."""
    kernels = [k for k in KERNELS.values() if k.file == file]
    unit = unit_of(file, kernels)
    emulator = (HERE / "emulated.h").read_text()
    key = hashlib.sha256("\0".join((unit, emulator, *headers().values(), *_OPTIONS)).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / f"rowgrad-emulated-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{file.removesuffix('.cuh')}-{key}.so"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be compiling the same file
        if not path.exists():
            _compile(unit, emulator, path)
    return ctypes.CDLL(str(path))


def _compile(unit: str, emulator: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for name, text in headers().items():
            (Path(folder) / name).write_text(text)
        (Path(folder) / "emulated.h").write_text(emulator)
        (Path(folder) / "unit.cpp").write_text(unit)
        compiler = os.environ.get("CXX", "g++")
        subprocess.run([compiler, *_OPTIONS, "unit.cpp", "-o", "unit.so"], cwd=folder, check=True)
        os.replace(Path(folder) / "unit.so", path)


def compile_all() -> None:
    """Compile every file, several at a time."""
    files = sorted({k.file for k in KERNELS.values()})
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(library_of, files))


def run_kernel(
    file: str, name: str, blocks: tuple[int, int], threads: int, shared: int, struct: int, seed: int
) -> None:  # fmt: skip
    """Run a kernel; `struct` is the address of its parameters."""
    status = library_of(file).run(
        name.encode(), *blocks, threads, ctypes.c_long(shared), ctypes.c_long(seed), ctypes.c_void_p(struct)
    )
    assert status == 0, name


class HostDevice(Device):
    """A device whose memory is the host's. Launches run at once; `seed` shuffles the order of threads."""

    def __init__(self, seed: int = 1) -> None:
        self.seed = seed
        self.launched: list[str] = []  # kernels with their template arguments
        self.driver = StandinDriver(self._run)
        launcher = cuda_device(0, 3, self._load, self.driver.functions())
        super().__init__(launcher, 1 << 34, False, (_DLPACK_CPU, 0, self._torch_empty, torch.device("cpu")))

    def _run(self, file: str, name: str, *launch: Any) -> None:
        self.launched.append(name)
        run_kernel(file, name, *launch, self.seed)

    @staticmethod
    def _load(name: str, variant: str) -> tuple[bytes, str, int]:
        kernel = kernel_named(name)
        signature = kernel.signature(kernel.variant_named(variant))
        return f"{kernel.file}|{signature}".encode() + b"\0", kernel.entry, kernel.threads

    def _torch_empty(self, shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.empty(shape, dtype)

    def stream(self) -> int:
        return 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(tuple(shape), dtype=dtype)
        if tensor.numel():
            tensor.view(torch.uint8 if tensor.dim() else dtype).fill_(
                0xA5 if tensor.dim() else 1
            )  # so that no kernel relies on zeros
        return tensor

    def wait(self) -> None:
        pass

    @contextmanager
    def capture(self) -> Iterator[Callable[[], None]]:
        """Run what is queued, as a capture of a CUDA graph does not, and return a function that runs it again."""
        driver, usual, memory = self.driver, self.empty, []
        graph = driver.graph = []

        def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
            memory.append(usual(shape, dtype))
            return memory[-1]

        def replay(_: list[Tensor] = memory) -> None:  # a graph keeps its memory
            for queued in graph:
                queued()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self, "empty", empty)
            patch.setattr(driver, "capturing", True)
            for module in (devices, row_optimizer):
                patch.setattr(module, "is_captured", lambda: True)
            try:
                yield replay
            finally:
                driver.graph = None
