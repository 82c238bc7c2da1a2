"""The host's work per call on a GPU, on a machine without one: launches do nothing.

    python3 bench/gpu/host_work.py --out bench/results/gpu_host_work.json

The launcher gets a driver whose functions return at once, and tensors on the CPU are treated as if they were on a GPU.
What is left is what the CPU does for a call: Python, autograd, allocation, and putting launches together. It lacks the
driver's time for a launch, so `launches` counts them, and torch's allocator for GPUs. Small batches, so that nothing
waits for memory; minima, in microseconds. `torch` is its own module and optimizer on the CPU, with their kernels.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import rowgrad as rg
import rowgrad.torch as rgt
from bench import machine
from rowgrad._core import cuda_device
from rowgrad.cuda.device import Device, kernel_named
from rowgrad.torch import devices

ROWS, COLUMNS, BAGS, LENGTH, TABLES = 1000, 16, 64, 5, 26
PROCESSORS = 132
_DLPACK_CPU = 1
# Functions that fill in a result; all others only return 0, for success.
DRIVER = """
#include <stdint.h>
#include <stdlib.h>
long launches;
int nothing(void) { return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGetAttribute(int* value, int which, int device) {
  *value = which == 16 ? %(processors)d : which == 75 ? 9 : which == 97 ? 232448 : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)1; return 0; }
int cuCtxGetCurrent(void** context) { *context = (void*)1; return 0; }
int cuCtxGetDevice(int* device) { *device = 0; return 0; }
int cuStreamGetCtx(void* stream, void** context) { *context = (void*)1; return 0; }
int cuStreamCreate(void** stream, unsigned flags) { *stream = (void*)1; return 0; }
int cuMemAlloc_v2(uint64_t* at, size_t size) { *at = (uint64_t)calloc(1, size); return 0; }
int cuMemHostAlloc(void** at, size_t size, unsigned flags) { *at = calloc(1, size); return 0; }
int cuModuleLoadData(void** module, const void* code) { *module = (void*)1; return 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) { *function = (void*)1; return 0; }
int cuStreamIsCapturing(void* stream, int* status) { *status = 0; return 0; }
int cuEventCreate(void** event, unsigned flags) { *event = (void*)1; return 0; }
int cuLaunchKernel() { ++launches; return 0; }
int cuMemsetD8Async() { ++launches; return 0; }
int cuMemsetD32Async() { ++launches; return 0; }
"""
FUNCTIONS = [
    "cuGetErrorString", "cuDeviceGet", "cuDeviceGetCount", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxGetDevice", "cuCtxSynchronize", "cuStreamGetCtx", "cuStreamCreate",
    "cuStreamSynchronize", "cuMemAlloc_v2", "cuMemHostAlloc", "cuModuleLoadData", "cuModuleGetFunction",
    "cuFuncSetAttribute", "cuLaunchKernel", "cuMemsetD8Async", "cuMemsetD32Async", "cuStreamIsCapturing",
    "cuStreamWaitEvent", "cuEventCreate", "cuEventRecord",
]  # fmt: skip


def idle_driver() -> ctypes.CDLL:
    """Compile the driver that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "driver.c", Path(folder) / "driver.so"
        source.write_text(DRIVER % {"processors": PROCESSORS})
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-w", "-shared", "-fPIC", source, "-o", library], check=True)
        return ctypes.CDLL(str(library))


class IdleDevice(Device):
    """A device whose kernels do nothing, with tensors of the CPU."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        found = {n: getattr(driver, n) if hasattr(driver, n) else driver.nothing for n in FUNCTIONS}
        addresses = {n: ctypes.cast(f, ctypes.c_void_p).value for n, f in found.items()}
        launcher = cuda_device(0, PROCESSORS, self._load, addresses)
        super().__init__(launcher, 1 << 34, False, (_DLPACK_CPU, 0, torch.empty, torch.device("cpu")))

    @staticmethod
    def _load(name: str, variant: str) -> tuple[bytes, str, int]:
        kernel = kernel_named(name)
        return b"-", kernel.entry, kernel.threads

    def stream(self) -> int:
        """Return the address of no stream."""
        return 0

    def empty(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """Allocate uninitialized memory."""
        return torch.empty(tuple(shape), dtype=dtype)

    def wait(self) -> None:
        """Return at once."""


def least(work: Callable[[], Any], runs: int) -> float:
    """Return the shortest time of a call in microseconds."""
    found = float("inf")
    for _ in range(runs):
        begun = time.perf_counter()
        work()
        found = min(found, time.perf_counter() - begun)
    return found * 1e6


def steps_of(module: Any, optimizer: Any, inputs: tuple[Any, ...], y: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Return a step, and the parts of the step that leave it as it was."""

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        module(*inputs).backward(y)
        optimizer.step()

    def backward() -> None:
        optimizer.zero_grad(set_to_none=True)
        module(*inputs).backward(y)

    return {"forward": lambda: module(*inputs), "forward and backward": backward, "step": step}


def cases() -> dict[str, Callable[[], Any]]:
    """Return calls by name."""
    ids = torch.randint(0, ROWS, (BAGS * LENGTH,))
    offsets = torch.arange(0, BAGS * LENGTH + 1, LENGTH)
    segments = torch.repeat_interleave(torch.arange(BAGS), LENGTH)
    y, table = torch.randn(BAGS, COLUMNS), torch.randn(ROWS, COLUMNS)
    found: dict[str, Callable[[], Any]] = {
        "SparseSegmentMeanWithNumSegments": lambda: rg.raw_ops.SparseSegmentMeanWithNumSegments(
            table, ids, segments, BAGS
        ),
        "SparseSegmentMeanGrad": lambda: rg.raw_ops.SparseSegmentMeanGrad(y, ids, segments, ROWS),
        "GatherRows": lambda: rg.raw_ops.GatherRows(table, ids),
    }
    sizes = {"mode": "mean", "include_last_offset": True}
    frozen = rgt.nn.EmbeddingBag(ROWS, COLUMNS, **sizes).requires_grad_(False)
    found["EmbeddingBag, no gradient"] = lambda: frozen(ids, offsets)
    for options, rule in (
        ({"fused": True}, "RowWiseAdagrad"), ({"fused": True}, "SGD"), ({"grad": "rows"}, "RowWiseAdagrad"),
        ({"grad": "dense"}, "RowWiseAdagrad"),
    ):  # fmt: skip
        module = rgt.nn.EmbeddingBag(ROWS, COLUMNS, **sizes, **options)
        optimizer = getattr(rgt.optim, rule)(module.parameters(), lr=1e-3)
        name = ", ".join(f"{k}={v!r}" for k, v in options.items())
        parts = steps_of(module, optimizer, (ids, offsets), y)
        found |= {f"{part}, {name}, {rule}": work for part, work in parts.items()}
    tables = [rgt.nn.Table(f"t{i}", ROWS, COLUMNS, combiner="mean") for i in range(TABLES)]
    shift = torch.arange(TABLES)[:, None] * len(ids)
    ends = torch.cat([(offsets[:-1] + shift).flatten(), torch.tensor([TABLES * len(ids)])])
    module = rgt.nn.Embeddings(tables, fused=True, output="stacked", include_last_offset=True)
    optimizer = rgt.optim.SGD(module.parameters(), lr=1e-3)
    stacked = torch.randn(BAGS, TABLES, COLUMNS)
    parts = steps_of(module, optimizer, (ids.repeat(TABLES), ends), stacked)
    return found | {f"{part}, {TABLES} tables fused, one vector, SGD": work for part, work in parts.items()}


def on_a_cpu() -> dict[str, Callable[[], Any]]:
    """Return the step of torch's module and optimizer."""
    ids = torch.randint(0, ROWS, (BAGS * LENGTH,))
    module = torch.nn.EmbeddingBag(ROWS, COLUMNS, mode="mean", include_last_offset=True, sparse=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    inputs = ids, torch.arange(0, BAGS * LENGTH + 1, LENGTH)
    parts = steps_of(module, optimizer, inputs, torch.randn(BAGS, COLUMNS))
    return {f"torch: {part}, sparse=True, SGD": work for part, work in parts.items()}


def main() -> None:
    """Measure all calls, print each, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", type=int, default=20_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [{"name": name, "host": round(least(work, args.runs), 1)} for name, work in on_a_cpu().items()]
    driver = idle_driver()
    device = IdleDevice(driver)
    devices.device_for = lambda tensor: device if tensor.is_cpu else None
    devices.is_on_gpu = lambda tensor: True
    count = ctypes.c_long.in_dll(driver, "launches")
    for name, work in cases().items():
        work()
        before = count.value
        work()
        rows.append({"name": name, "launches": count.value - before, "host": round(least(work, args.runs), 1)})
    for row in rows:
        print(json.dumps(row), flush=True)
    if args.out:
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        facts = {"machine": machine.facts(1), "torch": torch.__version__, "date": date, "rows": rows}
        args.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
