"""Streams other than the default one, CUDA graphs, several threads, and errors that are raised later."""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch
from gpu_calls import call, need_streams, on_device, refusal_of, same_bits, validating
from torch import Tensor

from rowgrad.errors import InvalidArgumentError

need_streams()

GRADIENTS = ("SparseSegmentMeanGrad", "SparseSegmentSumGrad")
FORWARDS = ("SparseSegmentMeanWithNumSegments", "SparseSegmentSqrtNWithNumSegments")
ROWS, BAGS, IDS, COLUMNS = 3000, 700, 20_000, 24
_PAUSE_CYCLES = 40_000_000  # long enough that a kernel on the wrong stream would come too early


def batch(op: str, seed: int) -> dict[str, Any]:
    """Inputs on the CPU; every seed has the same sizes."""
    seeded = torch.Generator().manual_seed(seed)
    indices = (torch.rand(IDS, generator=seeded) ** 3 * ROWS).long().clamp_(max=ROWS - 1)
    segment_ids = torch.randint(0, BAGS, (IDS,), generator=seeded).sort().values
    if op in FORWARDS:
        data = torch.randn(ROWS, COLUMNS, generator=seeded)
        return {"data": data, "indices": indices, "segment_ids": segment_ids, "num_segments": BAGS}
    grad = torch.randn(BAGS, COLUMNS, generator=seeded)
    return {"grad": grad, "indices": indices, "segment_ids": segment_ids, "output_dim0": ROWS}


def attrs_of(op: str) -> dict[str, str]:
    return {"order": "blocked"} if op in GRADIENTS else {}


def expected(op: str, seed: int) -> Tensor:
    return call(op, batch(op, seed), **attrs_of(op))[0]


def refill(held: dict[str, Any], fresh: dict[str, Any]) -> None:
    """New contents in the same memory, on the current stream."""
    for name, value in held.items():
        if isinstance(value, Tensor):
            value.copy_(fresh[name])


def synchronize() -> None:
    import rowgrad.torch as rgt

    rgt.synchronize()


def test_kernels_go_to_the_current_stream() -> None:
    """Inputs become valid only after a pause on that stream: kernels on another stream would read old ones."""
    for op in (*GRADIENTS, *FORWARDS, "SparseSegmentMeanGradV2"):
        name = op.removesuffix("V2")
        held, fresh = (on_device(name, batch(name, seed)) for seed in (1, 2))
        if op.endswith("V2"):
            for inputs in (held, fresh):
                inputs["dense_output_dim0"] = inputs.pop("output_dim0")
        attrs = attrs_of(name)
        call(op, held, **attrs)  # compiled and loaded before the pause
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(_PAUSE_CYCLES)
            refill(held, fresh)
            got = call(op, held, **attrs)
        stream.synchronize()
        wanted = call(op, {k: v.cpu() if isinstance(v, Tensor) else v for k, v in fresh.items()}, **attrs)
        assert all(same_bits(a.cpu(), b) for a, b in zip(got, wanted, strict=True)), op


def test_a_graph_is_replayed_with_other_contents() -> None:
    for op in (*GRADIENTS, *FORWARDS):
        held = on_device(op, batch(op, 1))
        graph, out = captured(op, held)
        for seed in (1, 2, 3, 1):
            refill(held, on_device(op, batch(op, seed)))
            graph.replay()
            torch.cuda.synchronize()
            assert same_bits(out.cpu(), expected(op, seed)), f"{op}, contents {seed}"


def captured(op: str, held: dict[str, Any]) -> tuple[Any, Tensor]:
    """A CUDA graph of one call, and the tensor it writes to."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call(op, held, **attrs_of(op))
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    gc.collect()  # a graph of another test must not be destroyed while this one is captured: CUDA forbids it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = call(op, held, **attrs_of(op))
    return graph, out


def test_a_bad_id_in_a_replay_raises_and_the_next_replay_is_correct() -> None:
    op = "SparseSegmentMeanGrad"
    held = on_device(op, batch(op, 1))
    with validating("async"):
        graph, out = captured(op, held)
        for _ in range(3):
            held["indices"][IDS // 2] = ROWS
            graph.replay()
            _, error = refusal_of(synchronize)
            spoilt = batch(op, 1)
            spoilt["indices"][IDS // 2] = ROWS
            _, wrong = refusal_of(call, op, spoilt, **attrs_of(op))
            assert isinstance(error, InvalidArgumentError), repr(error)
            assert wrong is not None
            assert (error.message, error.position) == (wrong.message, wrong.position)
            refill(held, on_device(op, batch(op, 1)))
            graph.replay()
            synchronize()
            assert same_bits(out.cpu(), expected(op, 1))


def test_errors_are_raised_by_the_next_call_or_on_request() -> None:
    op = "SparseSegmentMeanGrad"
    good, bad = (on_device(op, batch(op, 1)) for _ in range(2))
    bad["indices"][7] = -1
    with validating("async"):
        synchronize()
        call(op, bad, **attrs_of(op))  # it is queued
        _, error = refusal_of(synchronize)
        assert isinstance(error, InvalidArgumentError), repr(error)
        synchronize()  # the error was raised once
        call(op, bad, **attrs_of(op))
        torch.cuda.synchronize()
        _, error = refusal_of(call, op, good, **attrs_of(op))
        assert isinstance(error, InvalidArgumentError), repr(error)
        assert same_bits(call(op, good, **attrs_of(op))[0].cpu(), expected(op, 1))
        synchronize()


def test_nothing_is_raised_when_checks_are_off() -> None:
    op = "SparseSegmentMeanGrad"
    good, bad = (on_device(op, batch(op, 1)) for _ in range(2))
    bad["indices"][7] = 2**62
    bad["segment_ids"][9] = -(2**62)
    with validating("off"):
        for _ in range(20):
            call(op, bad, **attrs_of(op))
            synchronize()
        assert same_bits(call(op, good, **attrs_of(op))[0].cpu(), expected(op, 1))
    synchronize()


def test_sync_mode_raises_in_the_call() -> None:
    op = "SparseSegmentMeanGrad"
    bad = on_device(op, batch(op, 1))
    bad["segment_ids"][0] = BAGS
    with validating("sync"):
        _, error = refusal_of(call, op, bad, **attrs_of(op))
    assert isinstance(error, InvalidArgumentError), repr(error)


def test_two_threads() -> None:
    """Each thread has its own stream and its own batches."""
    wanted = {(op, seed): expected(op, seed) for op in (*GRADIENTS, *FORWARDS) for seed in range(4)}
    failures: list[str] = []

    def work(first: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for number in range(100):
                    op, seed = (*GRADIENTS, *FORWARDS)[number % 4], (first + number // 4) % 4
                    got = call(op, on_device(op, batch(op, seed)), **attrs_of(op))[0].cpu()
                    if not same_bits(got, wanted[op, seed]):
                        failures.append(f"thread {first}, call {number}: {op}")
        except BaseException as error:
            failures.append(f"thread {first}: {error!r}")

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:5]
