"""Failed allocations, threads that the OS does not create, and long calls: docs/explanation/threads_and_memory.md."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and /proc are Linux's")
ROOT = Path(__file__).parents[2]

PROLOGUE = """
import resource, sys
import numpy as np
import rowgrad as rg
from rowgrad import optim
from rowgrad.errors import ResourceExhaustedError
from rowgrad.raw_ops import OPS
rng = np.random.default_rng(3)
def leave(megabytes):
    with open("/proc/self/statm") as f:
        now = int(f.read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (now + (megabytes << 20),) * 2)
def raises(call, *texts):
    try:
        call()
    except ResourceExhaustedError as error:
        assert isinstance(error, MemoryError)
        text = str(error)
        missing = [t for t in texts if t not in text]
        assert not missing, (missing, text)
    else:
        raise AssertionError(f"did not raise: {texts}")
"""


def program(text: str) -> None:
    """Run a program that must exit with 0 and print nothing to stderr."""
    code = PROLOGUE + textwrap.dedent(text)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@linux
def test_failed_allocation_of_results() -> None:
    """Within physical memory, so validation passes: the error names op, shape and bytes, every time."""
    program("""
        grad, ids, segments = np.ones((2, 8), np.float32), np.array([0, 1]), np.array([0, 1])
        expected = OPS["SparseSegmentSumGrad"](grad, ids, segments, 4)
        leave(300)
        for _ in range(3):  # the second call is a repeated one
            raises(lambda: OPS["SparseSegmentSumGrad"](grad, ids, segments, 2**26),
                    "SparseSegmentSumGrad: ", "shape[67108864,8]", "type float", "2147483648 bytes")
        raises(lambda: OPS["SparseSegmentSumWithNumSegments"](grad, ids, segments, 2**26),
                "SparseSegmentSumWithNumSegments: ", "shape[67108864,8]", "2147483648 bytes")
        raises(lambda: OPS["Fill"]([2**28], np.float32(1)), "Fill: OOM: ", "1.00 GiB", "(268435456,)")
        wide = np.broadcast_to(np.float32(1), (2**27, 4))  # needs a copy
        raises(lambda: OPS["SparseSegmentSum"](wide, ids, segments), "making data contiguous needs 2147483648 bytes")
        try:
            rg.GradBuffer((2**26, 8))
        except MemoryError as error:
            assert "2147483648 bytes" in str(error), error
        else:
            raise AssertionError("the GradBuffer was allocated")
        assert (OPS["SparseSegmentSumGrad"](grad, ids, segments, 4) == expected).all()
    """)


@linux
def test_failed_allocation_of_workspace() -> None:
    """Tables and `out=` are unchanged, and a GradBuffer stays valid."""
    program("""
        n, rows, bags = 12_000_000, 100_000, 1000
        ids, segments = rng.integers(0, rows, n), np.sort(rng.integers(0, bags, n))
        table, grad = rng.normal(size=(rows, 2)), rng.normal(size=(bags, 2))
        buffer = rg.GradBuffer((rows, 2), np.float64)
        few = OPS["SparseSegmentSumGrad"](grad, ids[:9], segments[:9], rows, out=buffer).copy()
        seven, halves = np.full((rows, 2), 7.0), np.ones((n, 1), np.float16)
        wide = np.full((220_000, 40), 7.0)  # beyond what is written whole
        state = [table, *optim.new_slots("adam", table, 0.5)]
        before = [a.tobytes() for a in state]
        step = optim.Step(lr=0.1)
        rg.set_num_threads(2)
        OPS["SparseSegmentSum"](table, ids[:99_999], segments[:99_999])  # starts the threads
        leave(60)
        raises(lambda: optim.apply_bags("adam", table, state[1:], grad, ids, segments, step, combiner="mean"),
                "apply_bags: ", "workspace for 12000000 elements")
        assert [a.tobytes() for a in state] == before
        order = "blocked"  # always by sorting
        def gradient(ids, segments, out):
            return OPS["SparseSegmentMeanGrad"](grad, ids, segments, rows, order=order, out=out)
        raises(lambda: gradient(ids, segments, seven), "SparseSegmentMeanGrad: ", "workspace for 12000000 elements")
        assert (seven == 7).all()
        calls = {
            "SparseSegmentMeanGrad": ((np.ones((bags, 40)), ids, segments, len(wide)), wide),
            "SparseSegmentSumGradGrad": ((table, ids, segments, bags), np.full((bags, 2), 7.0)),
            "ScatterRows": ((halves, ids, rows), np.full((rows, 1), 7, np.float16)),
        }
        for name, (inputs, out) in calls.items():
            raises(lambda: OPS[name](*inputs, out=out), f"{name}: ", "workspace for 12000000 elements")
            assert (out == 7).all(), name
        raises(lambda: gradient(ids, segments, buffer), "SparseSegmentMeanGrad: ", "workspace for 12000000 elements")
        raises(lambda: OPS["SparseFillEmptyRows"](np.array([[5], [3]]), np.ones(2), [2**26], 1.0),
                "SparseFillEmptyRows: ", "workspace for 67108864 elements")
        # Later calls on the same arrays work.
        again = OPS["SparseSegmentSumGrad"](grad, ids[:9], segments[:9], rows, out=buffer)
        assert again.tobytes() == few.tobytes()
        optim.apply_bags("adam", table, state[1:], grad, ids[:99], segments[:99], step)
        assert table.tobytes() != before[0]
    """)


@linux
def test_failed_thread_creation() -> None:
    """A pool with fewer threads than requested, or without any, returns the same bits."""
    program("""
        n = 200_000
        grad = rng.normal(size=(50, 8)).astype(np.float32)
        ids, segments = rng.integers(0, 1000, n), np.sort(rng.integers(0, 50, n))
        def run():
            return OPS["SparseSegmentMeanGrad"](grad, ids, segments, 1000).tobytes()
        rg.set_num_threads(1)
        expected = run()
        rg.set_num_threads(64)
        leave(100)  # the stacks of about ten threads
        for _ in range(3):
            assert run() == expected
        with open("/proc/self/status") as f:
            threads = next(int(line.split()[1]) for line in f if line.startswith("Threads:"))
        assert threads < 40, threads
        assert rg.num_threads() == 64
    """)


@linux
@pytest.mark.parametrize("runner", ["numpy", "torch", "jax"])
def test_calls_do_not_leak(runner: str) -> None:
    """Counts each kind of call; `tools/leak_check.py` makes a million of them by hand."""
    if importlib.util.find_spec(runner) is None:
        pytest.skip(f"{runner} is not installed")
    command = [sys.executable, str(ROOT / "tools" / "leak_check.py"), "--each", "30", "--runner", runner]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@linux
def test_failed_allocation_in_torch() -> None:
    pytest.importorskip("torch")
    program("""
        import torch
        one = torch.tensor(1.0)
        assert OPS["Fill"]([4], one).tolist() == [1.0] * 4
        leave(100)
        raises(lambda: OPS["Fill"]([2**28], one), "Fill: OOM")
    """)
