"""Threads, forks, signals and interpreter shutdown while kernels run: docs/explanation/threads_and_memory.md."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from rowgrad import optim
from rowgrad._catalog.spec import CATALOG
from rowgrad.raw_ops import OPS
from samples import sample

needs_fork = pytest.mark.skipif(
    not hasattr(os, "fork") or bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="no fork on this system, or a Python whose own dictionaries do not survive one while threads work",
)
quiet_fork = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def large_calls() -> list[Callable[[], tuple[Any, ...]]]:
    """Return calls whose work is shared among threads."""
    rng = np.random.default_rng(7)
    n, rows, bags = 60_000, 4_000, 2_000
    table, grad = rng.normal(size=(rows, 9)).astype(np.float32), rng.normal(size=(bags, 9)).astype(np.float32)
    ids, segments = rng.integers(0, rows, n), np.sort(rng.integers(0, bags, n))
    segments[-1] = bags - 1

    def step() -> tuple[Any, ...]:
        table_copy, slots = table.copy(), optim.new_slots("adam", table)
        optim.apply_bags("adam", table_copy, slots, grad, ids, segments, optim.Step(lr=0.1), combiner="mean")
        return (table_copy, *slots)

    return [
        lambda: (OPS["SparseSegmentMean"](table, ids, segments),),
        lambda: (OPS["SparseSegmentSqrtNGrad"](grad, ids, segments, rows),),
        lambda: tuple(OPS["SparseSegmentSumGradV2"](grad, ids, segments, rows)),
        lambda: tuple(OPS["RowPlan"](ids, segments, rows, bags)),
        step,
    ]


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the arrays of a call, or the message of its error."""
    try:
        result = call()
    except rg.errors.OpError as error:
        return (str(error),)
    return result if isinstance(result, tuple) else (result,)


def small_calls() -> list[Callable[[], tuple[Any, ...]]]:
    """Return a call of every op of the catalogue, and calls beyond available memory."""
    calls: list[Callable[[], tuple[Any, ...]]] = []
    for op in CATALOG.values():
        if op.layer == "graph":
            continue
        for dtype in (np.float32, np.float64):
            x = sample(op.name, np.random.default_rng(5), dtype)
            calls.append(lambda f=OPS[op.name], x=x: outcome(lambda: f(**x)))
    x = sample("SparseSegmentSumGrad", np.random.default_rng(5))
    calls.append(lambda: outcome(lambda: OPS["SparseSegmentSumGrad"](**{**x, "output_dim0": 1})))
    place, value = np.zeros((1, 1), np.int64), np.ones(1)
    calls.append(lambda: outcome(lambda: OPS["SparseFillEmptyRows"](place, value, [2**60], 1.0)))  # too large
    return calls


def equal(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return len(a) == len(b) and all(
        x == y if isinstance(x, str) else same_bits(x, y) for x, y in zip(a, b, strict=True)
    )


@contextmanager
def resizing_the_pool() -> Iterator[None]:
    """Keep changing the number of threads in another thread."""
    done = threading.Event()

    def resize() -> None:
        for k in range(10**9):
            if done.wait(0.003):
                return
            rg.set_num_threads(1 + k % 4)

    thread = threading.Thread(target=resize)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def call_from_many_threads(threads: int, calls: int, one_large_in: int) -> None:
    rg.set_num_threads(1)
    small, large = small_calls(), large_calls()
    expected_small, expected_large = [c() for c in small], [c() for c in large]
    failures: list[str] = []

    def work(seed: int) -> None:
        choice = random.Random(seed)
        try:
            for k in range(calls):
                group, expected = (
                    (large, expected_large) if k % one_large_in == seed % one_large_in else (small, expected_small)
                )
                i = choice.randrange(len(group))
                if not equal(group[i](), expected[i]):
                    failures.append(
                        f"thread {seed}, call {k}: {'large' if group is large else 'small'} call {i} differs"
                    )
        except BaseException as error:
            failures.append(f"thread {seed}: {error!r}")

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    with resizing_the_pool():
        for w in workers:
            w.start()
        for w in workers:
            w.join()
    assert failures == []


def test_mixed_calls_from_many_threads() -> None:
    call_from_many_threads(8, 300, 50)


@pytest.mark.slow
def test_ten_thousand_mixed_calls_from_64_threads() -> None:
    call_from_many_threads(64, 10_000, 500)


# -- forks ------------------------------------------------------------------------------------------------------------


def is_right(large: list[Callable[[], Any]], expected: list[tuple[Any, ...]]) -> bool:
    return all(equal(call(), w) for call, w in zip(large, expected, strict=True))


@contextmanager
def busy_threads(count: int, large: list[Callable[[], Any]], expected: list[tuple[Any, ...]]) -> Iterator[None]:
    """Keep calling in other threads; all their results must be correct."""
    done, wrong = threading.Event(), []

    def work(k: int) -> None:
        while not done.is_set():
            i = k % len(large)
            if not equal(large[i](), expected[i]):
                wrong.append(i)
            k += 1

    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for t in threads:
        t.start()
    try:
        yield
    finally:
        done.set()
        for t in threads:
            t.join()
    assert wrong == []


@needs_fork
@quiet_fork
def test_fork_while_other_threads_call() -> None:
    rg.set_num_threads(3)
    large = large_calls()
    expected = [c() for c in large]
    with busy_threads(4, large, expected):
        for _ in range(8):
            child = os.fork()
            if child == 0:
                signal.alarm(100)  # a child that waits for threads it does not have is killed
                status = 1
                try:
                    status = 0 if rg.num_threads() == 3 and is_right(large, expected) else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_right(large, expected)


def _answer(k: int) -> bytes:
    return b"".join(np.ascontiguousarray(a).tobytes() for a in large_calls()[k]())


@needs_fork
@quiet_fork
def test_forked_workers_while_other_threads_call() -> None:
    rg.set_num_threads(3)
    large = large_calls()
    expected = [c() for c in large]
    with busy_threads(2, large, expected), multiprocessing.get_context("fork").Pool(2) as pool:
        answers = pool.map_async(_answer, range(len(large))).get(timeout=100)
    assert answers == [b"".join(a.tobytes() for a in w) for w in expected]


@needs_fork
@quiet_fork
def test_loader_workers_while_other_threads_call() -> None:
    data = pytest.importorskip("torch.utils.data")
    large = large_calls()
    expected = [c() for c in large]

    class Answers(data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return len(large)

        def __getitem__(self, k: int) -> bool:
            return equal(large[k](), expected[k])

    rg.set_num_threads(3)
    with busy_threads(2, large, expected):
        loader = data.DataLoader(Answers(), None, num_workers=2, multiprocessing_context="fork", timeout=100)
        assert list(loader) == [True] * len(large)


# -- separate processes ------------------------------------------------------------------------------------------------

PROLOGUE = """
import os, signal, sys, threading, time
import numpy as np
import rowgrad as rg
from rowgrad import optim
from rowgrad.raw_ops import OPS
rng = np.random.default_rng(3)
def batch(n, rows=5000, bags=2000, columns=16):
    ids, segments = rng.integers(0, rows, n), np.sort(rng.integers(0, bags, n))
    return rng.normal(size=(bags, columns)).astype(np.float32), ids, segments, rows
"""


def program(text: str, **more: Any) -> subprocess.CompletedProcess[str]:
    code = PROLOGUE + textwrap.dedent(text)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, **more
    )


@pytest.mark.parametrize("ids", [1_000, 1_500_000])
def test_interpreter_exit_while_threads_call(ids: int) -> None:
    """Calls that return during finalization, and calls that are still running then."""
    done = program(f"""
        x = batch({ids})
        begun = threading.Semaphore(0)
        def work():
            while True:
                begun.release()
                OPS["SparseSegmentSumGrad"](*x)
        for _ in range(6):
            threading.Thread(target=work, daemon=True).start()
        for _ in range(6):
            begun.acquire()
        time.sleep(0.05)
        print("end")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_interpreter_exit_after_everything_was_used() -> None:
    """With an idle pool, live arrays and a traceback that refers to a call, nothing is reported at exit."""
    done = program("""
        rg.set_num_threads(4)
        x = batch(200_000)
        alive = OPS["SparseSegmentSumGradV2"](*x), rg.Plan(x[1], x[2], num_rows=x[3]), rg.GradBuffer((9, 2))
        try:
            OPS["SparseSegmentSumGrad"](*x[:3], 1)
        except ValueError as error:
            rejection = error
        print("end")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@needs_fork
def test_interrupts_are_raised_after_the_current_step() -> None:
    """Ctrl-C ends a loop of updates between two of them: the table never has a partial step."""
    done = program("""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        grad, ids, segments, rows = batch(400_000)
        step = optim.Step(lr=0.125)
        def take(table):
            optim.apply_bags("adagrad", table, slots, grad, ids, segments, step)
        table = np.zeros((rows, 16), np.float32)
        slots = optim.new_slots("adagrad", table)
        main = threading.main_thread().ident
        def interrupt():
            time.sleep(0.15)
            signal.pthread_kill(main, signal.SIGINT)
        threading.Thread(target=interrupt).start()
        steps = 0
        try:
            while True:
                take(table)
                steps += 1
        except KeyboardInterrupt:
            pass
        final = table.copy()
        table, slots = np.zeros_like(table), optim.new_slots("adagrad", table)
        whole = False
        for k in range(steps + 1):  # the interrupt may have come before the last was counted
            take(table)
            whole |= k + 1 >= steps and (table.tobytes() == final.tobytes())
        print(steps > 0 and whole)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def longest_stall(call: Callable[[], object]) -> tuple[float, float]:
    """Return how long a call took, and the longest time in it without progress of another Python thread."""
    ticks, done = [0.0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    while len(ticks) < 3:
        time.sleep(0.001)
    begun = time.perf_counter()
    call()
    ended = time.perf_counter()
    done.set()
    thread.join()
    inside = [begun, *(t for t in ticks if begun < t < ended), ended]
    return ended - begun, max(b - a for a, b in pairwise(inside))


def test_other_threads_continue_during_a_call() -> None:
    """Kernels run without the GIL."""
    rg.set_num_threads(1)
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 200_000, 1_500_000)
    grad, segments = np.ones((1000, 16), np.float32), np.sort(rng.integers(0, 1000, len(ids)))
    shares = []
    for _ in range(100):  # other programs may occupy the processor for a while
        took, silent = longest_stall(lambda: OPS["SparseSegmentSumGrad"](grad, ids, segments, 200_000))
        shares.append(silent / took)
        if shares[-1] < 0.5:
            return
    pytest.fail(f"another thread stood still for {shares} of the calls")
