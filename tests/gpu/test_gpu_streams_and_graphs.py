"""Streams other than the default one, CUDA graphs, several threads, and deferred errors."""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch
from gpu_calls import call, need_streams, on_device, result_or_error, same_bits, validating
from torch import Tensor

from rowgrad.errors import InvalidArgumentError

need_streams()

GRADIENTS = ("SparseSegmentMeanGrad", "SparseSegmentSumGrad")
FORWARDS = ("SparseSegmentMeanWithNumSegments", "SparseSegmentSqrtNWithNumSegments")
ROWS, BAGS, IDS, COLUMNS = 3000, 700, 20_000, 24
_PAUSE_CYCLES = 40_000_000  # long enough that a kernel on the wrong stream would run too early


def batch(op: str, seed: int) -> dict[str, Any]:
    """Return inputs on the CPU; the sizes are the same for every seed."""
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


def refill(buffers: dict[str, Any], contents: dict[str, Any]) -> None:
    """Write new contents into the same memory, on the current stream."""
    for name, value in buffers.items():
        if isinstance(value, Tensor):
            value.copy_(contents[name])


def synchronize() -> None:
    import rowgrad.torch as rgt

    rgt.synchronize()


def test_kernels_go_to_the_current_stream() -> None:
    """Inputs become valid only after a pause on that stream: kernels on another stream would read old contents."""
    for op in (*GRADIENTS, *FORWARDS, "SparseSegmentMeanGradV2"):
        name = op.removesuffix("V2")
        buffers, contents = (on_device(name, batch(name, seed)) for seed in (1, 2))
        if op.endswith("V2"):
            for inputs in (buffers, contents):
                inputs["dense_output_dim0"] = inputs.pop("output_dim0")
        attrs = attrs_of(name)
        call(op, buffers, **attrs)  # compile and load before the pause
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(_PAUSE_CYCLES)
            refill(buffers, contents)
            got = call(op, buffers, **attrs)
        stream.synchronize()
        on_cpu = call(op, {k: v.cpu() if isinstance(v, Tensor) else v for k, v in contents.items()}, **attrs)
        assert all(same_bits(a.cpu(), b) for a, b in zip(got, on_cpu, strict=True)), op


def test_a_graph_is_replayed_with_other_contents() -> None:
    for op in (*GRADIENTS, *FORWARDS):
        buffers = on_device(op, batch(op, 1))
        graph, out = captured(op, buffers)
        for seed in (1, 2, 3, 1):
            refill(buffers, on_device(op, batch(op, seed)))
            graph.replay()
            torch.cuda.synchronize()
            assert same_bits(out.cpu(), expected(op, seed)), f"{op}, contents {seed}"


def captured(op: str, buffers: dict[str, Any]) -> tuple[Any, Tensor]:
    """Return a CUDA graph of one call, and the tensor it writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call(op, buffers, **attrs_of(op))
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    gc.collect()  # CUDA forbids destroying a graph of another test during capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = call(op, buffers, **attrs_of(op))
    return graph, out


def test_a_bad_id_in_a_replay_raises_and_the_next_replay_is_correct() -> None:
    op = "SparseSegmentMeanGrad"
    buffers = on_device(op, batch(op, 1))
    with validating("async"):
        graph, out = captured(op, buffers)
        for _ in range(3):
            buffers["indices"][IDS // 2] = ROWS
            graph.replay()
            _, error = result_or_error(synchronize)
            corrupted = batch(op, 1)
            corrupted["indices"][IDS // 2] = ROWS
            _, wrong = result_or_error(call, op, corrupted, **attrs_of(op))
            assert isinstance(error, InvalidArgumentError), repr(error)
            assert wrong is not None
            assert (error.message, error.position) == (wrong.message, wrong.position)
            refill(buffers, on_device(op, batch(op, 1)))
            graph.replay()
            synchronize()
            assert same_bits(out.cpu(), expected(op, 1))


def test_errors_are_raised_by_the_next_call_or_on_request() -> None:
    op = "SparseSegmentMeanGrad"
    good, bad = (on_device(op, batch(op, 1)) for _ in range(2))
    bad["indices"][7] = -1
    with validating("async"):
        synchronize()
        call(op, bad, **attrs_of(op))  # queued, not yet executed
        _, error = result_or_error(synchronize)
        assert isinstance(error, InvalidArgumentError), repr(error)
        synchronize()  # the error was raised once
        call(op, bad, **attrs_of(op))
        torch.cuda.synchronize()
        _, error = result_or_error(call, op, good, **attrs_of(op))
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
        _, error = result_or_error(call, op, bad, **attrs_of(op))
    assert isinstance(error, InvalidArgumentError), repr(error)


def test_two_threads() -> None:
    """Each thread has its own stream and its own batches."""
    on_cpu = {(op, seed): expected(op, seed) for op in (*GRADIENTS, *FORWARDS) for seed in range(4)}
    failures: list[str] = []

    def work(first: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for number in range(100):
                    op, seed = (*GRADIENTS, *FORWARDS)[number % 4], (first + number // 4) % 4
                    got = call(op, on_device(op, batch(op, seed)), **attrs_of(op))[0].cpu()
                    if not same_bits(got, on_cpu[op, seed]):
                        failures.append(f"thread {first}, call {number}: {op}")
        except BaseException as error:
            failures.append(f"thread {first}: {error!r}")

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:5]


def test_a_capture_while_another_thread_calls() -> None:
    """Both zero large outputs beside the sort; the work of one must not join the capture of the other."""
    op = "SparseSegmentSumGrad"
    large = {**batch(op, 1), "output_dim0": 400_000}
    inputs = on_device(op, large)
    (on_cpu,) = call(op, large, **attrs_of(op))
    is_over, failures = threading.Event(), []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                while not is_over.is_set():
                    if not same_bits(call(op, inputs, **attrs_of(op))[0].cpu(), on_cpu):
                        failures.append("a call beside a capture returned other bits")
        except BaseException as error:
            failures.append(repr(error))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call(op, inputs, **attrs_of(op))
    stream.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                (out,) = call(op, inputs, **attrs_of(op))
            graph.replay()
            torch.cuda.current_stream().synchronize()
            assert same_bits(out.cpu(), on_cpu)
    finally:
        is_over.set()
        thread.join()
    assert not failures, failures[:5]
