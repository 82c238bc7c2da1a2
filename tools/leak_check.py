"""Call every op repeatedly and check that the memory of the process does not grow.

    tools/leak_check.py                                a million mixed calls on NumPy arrays, some of them invalid
    tools/leak_check.py --runner torch --calls 100000  the same on torch tensors; --runner jax on JAX arrays
    tools/leak_check.py --each 50                      each call fifty times, listing calls that leak

After a warm-up the resident memory is sampled twenty times. Growth is the median of the last quarter of the samples
minus the median of the first quarter; the exit status is 1 if it exceeds `--most` bytes. `--each` instead counts the
blocks of Python's allocator and the bytes of malloc, and names every call that leaks a block each time.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import rowgrad as rg
from rowgrad import optim
from rowgrad._catalog.spec import CATALOG
from rowgrad.raw_ops import OPS
from samples import sample

LOOKS = 20
ROUNDS = 10
SHAPES = 5000  # more shapes than a runner caches
RUNNERS = ("numpy", "torch", "jax")

Call = Callable[[], object]


def calls_of(runner: str) -> list[Call]:
    """Return a valid call of every op that the runner supports; and invalid calls, steps and new shapes."""
    calls = [call for op in CATALOG.values() if op.layer != "graph" for call in op_calls(runner, op)]
    return calls + (extra_calls() if runner == "numpy" else [])


def op_calls(runner: str, op: Any) -> list[Call]:
    if runner == "numpy":
        inputs = sample(op.name, np.random.default_rng(3), np.float32)
        attrs: dict[str, Any] = {}
    else:
        if runner == "torch":
            from torch_arrays import split
        else:
            from jax_arrays import split
        inputs, attrs = split(op, np.float32)
    function = OPS[op.name]

    def good() -> object:
        return function(**inputs, **attrs)

    try:
        good()
    except (rg.errors.OpError, TypeError, ValueError):  # a dtype that this library lacks
        return []
    # An invalid call: the first array with an additional dimension.
    name = next((a.name for a in op.inputs if not a.host and not a.many and hasattr(inputs[a.name], "shape")), None)
    if name is None:
        return [good]
    bad = {**inputs, name: inputs[name].reshape((1, 1, 1, *inputs[name].shape))}

    def invalid() -> object:
        try:
            return function(**bad, **attrs)
        except (rg.errors.OpError, TypeError, ValueError, RuntimeError):
            return None

    good.__name__, invalid.__name__ = op.name, f"{op.name}, invalid"
    return [good, invalid]


def extra_calls() -> list[Call]:
    """Return calls for NumPy only: large results, live results, optimizer steps, varying shapes."""
    rng = np.random.default_rng(5)
    table, grad = rng.normal(size=(500, 8)).astype(np.float32), rng.normal(size=(64, 8)).astype(np.float32)
    ids, segments = rng.integers(0, 500, 300), np.sort(rng.integers(0, 64, 300))
    slots, buffer = optim.new_slots("adam", table), rg.GradBuffer((500, 8))
    step, count = optim.Step(lr=0.01), [0]

    def other_shape() -> object:
        count[0] = count[0] % SHAPES + 1
        return OPS["GatherRows"](table, np.zeros(count[0], np.int64))

    def bad_step() -> object:
        try:
            return optim.apply_bags("adam", table, slots, grad, ids + 1000, segments, step)
        except rg.errors.OpError:
            return None

    return [
        bad_step,
        lambda: optim.apply_bags("adam", table, slots, grad, ids, segments, step),
        lambda: OPS["SparseSegmentSumGrad"](grad, ids, segments, 500, out=buffer),
        lambda: OPS["SparseSegmentSumGrad"](grad, ids, segments, 50_000),  # beyond what malloc caches
        lambda: rg.Plan(ids, segments, num_rows=500),
        other_shape,  # the last: `watch` calls it often
    ]


def resident() -> int:
    """Return the resident memory of the process in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def watch(runner: str, number: int) -> list[int]:
    """Return the resident memory after the warm-up and after each part of the calls."""
    calls, choice = calls_of(runner), random.Random(1)
    for _ in range(3):
        for call in calls:
            call()
    if runner == "numpy":
        for _ in range(SHAPES):  # until cached shapes are evicted
            calls[-1]()
    for _ in range(number // 10):
        choice.choice(calls)()
    measured = []
    for _ in range(LOOKS):
        for _ in range(number // LOOKS):
            choice.choice(calls)()
        measured.append(resident())
    print(f"{runner}: {len(calls)} different calls")
    return measured


class _Malloc(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _names = "arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split(", "))


def in_use() -> tuple[int, int]:
    """Return the blocks of Python's allocator, and the bytes of malloc if it reports them."""
    gc.collect()
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return sys.getallocatedblocks(), 0
    tell.restype = _Malloc
    return sys.getallocatedblocks(), tell().uordblks


def leaking_calls(runner: str, times: int) -> list[str]:
    """Return the calls that leak something every time.

    Memory that is only cached, such as the interpreter's specialized code, stops growing after some rounds.
    """
    calls = calls_of(runner)
    if runner == "numpy":
        calls.pop()  # new shapes are cached, by the thousand
    leaking = []
    gc.freeze()  # existing objects need not be scanned again and again
    for call in calls:
        for _ in range(times):
            call()
        for _ in range(ROUNDS):
            blocks, bytes_used = in_use()
            for _ in range(times):
                call()
            more_blocks, more_bytes = (now - before for now, before in zip(in_use(), (blocks, bytes_used), strict=True))
            if more_blocks < times * 0.9 and more_bytes < times * 16:
                break
        else:
            leaking.append(f"{call.__name__}: {more_blocks} blocks, {more_bytes} bytes in {times} calls")
    return leaking


def growth(measured: list[int]) -> int:
    quarter = len(measured) // 4
    return int(statistics.median(measured[-quarter:]) - statistics.median(measured[:quarter]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--runner", choices=RUNNERS, default="numpy")
    parser.add_argument("--most", type=int, default=1_000_000, help="bytes of growth that do not count as a leak")
    parser.add_argument("--each", type=int, default=0, metavar="TIMES", help="count what each call leaves behind")
    args = parser.parse_args()
    begun = time.perf_counter()
    if args.each:
        found = leaking_calls(args.runner, args.each)
        print("\n".join(found) or f"{args.runner}: no call leaves anything behind")
        return 1 if found else 0
    measured = watch(args.runner, args.calls)
    grown = growth(measured)
    megabytes = ", ".join(f"{look / 1e6:.2f}" for look in measured)
    print(f"{args.calls} calls in {time.perf_counter() - begun:.0f} s; resident MB: {megabytes}")
    print(f"growth: {grown} bytes, {'a leak' if grown > args.most else 'no leak'}")
    return 1 if grown > args.most else 0


if __name__ == "__main__":
    sys.exit(main())
