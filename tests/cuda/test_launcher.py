"""The launcher: streams and captures, work on the side stream, and the limits of devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cpu_comparison import agree
from emulated_call import emulate
from emulated_device import HostDevice
from standin_driver import StandinDriver

import rowgrad as rg
from rowgrad._catalog.enums import Order, Reduction, Rounding
from rowgrad._core import cuda_device
from rowgrad.cuda.device import CODE

BUSY = (1, 2, 3)  # streams of callers


class StreamDriver(StandinDriver):
    """A driver that follows which streams are captured, as CUDA does. Kernels do not run."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None)
        self.captures: dict[int, int] = {}  # of each captured stream
        self.events: dict[int, int | None] = {}  # the capture in which each was recorded
        self.streams = 1000  # the last one that was made
        self.queued: list[tuple[str, int, int]] = []  # what, its stream, an event
        self.device = cuda_device(0, 3, HostDevice._load, self.functions())

    def end(self, capture: int) -> None:
        """End a capture: none of its streams is captured any more."""
        self.captures = {stream: own for stream, own in self.captures.items() if own != capture}

    def _cuStreamCreate(self, stream: Any, _: int) -> None:
        self.streams += 1
        stream[0] = self.streams

    def _cuEventCreate(self, event: Any, _: int) -> None:
        event[0] = len(self.events) + 1
        self.events[len(self.events) + 1] = None

    def _cuStreamIsCapturing(self, stream: int | None, status: Any) -> None:
        status[0] = int((stream or 0) in self.captures)

    def _cuEventRecord(self, event: int, stream: int | None) -> None:
        self.events[event] = self.captures.get(stream or 0)
        self.queued.append(("record", stream or 0, event))

    def _cuStreamWaitEvent(self, stream: int | None, event: int, _: int) -> None:
        theirs, own = self.events[event], self.captures.get(stream or 0)
        assert own is None or own == theirs, "a dependency crosses the bounds of a capture"
        if theirs is not None:
            self.captures[stream or 0] = theirs
        self.queued.append(("wait", stream or 0, event))

    def _cuLaunchKernel(self, *args: Any) -> None:
        self.queued.append(("work", args[8] or 0, 0))

    def _cuMemsetD8Async(self, *args: Any) -> None:
        self.queued.append(("work", args[3] or 0, 0))

    def _cuMemsetD32Async(self, *args: Any) -> None:
        self.queued.append(("work", args[3] or 0, 0))

    def zero(self, stream: int) -> int:
        """Zero memory beside a stream; return the side stream."""
        self.device.zero_on_side_stream(stream, 256, 1024)
        side = self.queued[-1][1]
        self.device.join(stream)
        return side


def test_work_beside_a_captured_stream_has_a_stream_of_its_own() -> None:
    driver = StreamDriver()
    side = driver.zero(BUSY[0])
    driver.captures[BUSY[1]] = 1
    first = driver.zero(BUSY[1])
    assert driver.zero(BUSY[0]) == side  # not captured: other work must not join the capture
    assert side not in driver.captures
    driver.captures[BUSY[2]] = 2
    second = driver.zero(BUSY[2])
    assert len({side, first, second}) == 3
    assert driver.zero(BUSY[1]) == first
    driver.end(1)
    driver.captures[BUSY[0]] = 3
    assert driver.zero(BUSY[0]) == first  # free again
    assert driver.zero(BUSY[2]) == second


def test_a_stream_for_captures_is_made_before_the_first_capture() -> None:
    """A capture may not allow it."""
    driver = StreamDriver()
    driver.zero(BUSY[0])
    made = driver.streams
    driver.captures[BUSY[0]] = 1
    driver.zero(BUSY[0])
    assert driver.streams == made


def test_memory_is_not_released_while_the_side_stream_uses_it() -> None:
    """The stream waits for all work that a call has queued beside it, wherever an allocation fails."""
    size = 200_000  # lists of their own blocks of memory
    grad, weights = torch.ones((9, 4)), torch.ones(size)
    ids, segments = torch.arange(size) % 30, torch.arange(size) % 9
    lists = [(t.data_ptr(), CODE[t.dtype], tuple(t.shape), ()) for t in (grad, ids, segments, weights)]
    out = torch.empty((30, 4))
    for most in range(20):
        driver, memory = StreamDriver(), []

        def allocate(size: int) -> int:
            if len(memory) == most:  # noqa: B023
                raise MemoryError
            memory.append(torch.empty(size + 256, dtype=torch.uint8))  # noqa: B023
            return int(memory[-1].data_ptr())  # noqa: B023

        failed = False
        try:
            driver.device.run_op(
                "weighted_segment_grad", BUSY[0], (0, 0, 0), [Reduction.mean, Rounding.at_end, Order.sequential],
                [*lists, (0, 0, (), (30,))], [(out.data_ptr(), CODE[out.dtype], tuple(out.shape), ())], allocate,
            )  # fmt: skip
        except MemoryError:
            failed = True
        own = [i for i, (what, stream, _) in enumerate(driver.queued) if what == "work" and stream != BUSY[0]]
        last = max(own, default=-1)
        recorded = {e for what, s, e in driver.queued[last + 1 :] if what == "record" and s != BUSY[0]}
        waited = {e for what, s, e in driver.queued[last + 1 :] if (what, s) == ("wait", BUSY[0])}
        assert not own or recorded & waited, most
        if not failed:
            break
    assert not failed
    assert most > 2
    assert own


def test_check_states_are_zeros_before_the_first_call() -> None:
    """The first calls may use several streams, of which only one waits for the zeros."""
    waits = []

    class Waiting(HostDevice):
        def wait(self) -> None:
            waits.append(self)

    assert waits == [Waiting()]


def test_sorts_use_no_more_shared_memory_than_a_block_may_have() -> None:
    """Most GPUs have 99 KiB for a block; tiles are smaller there."""
    draw = torch.Generator().manual_seed(1)
    ids, segments = (torch.randint(0, n, (13_000,), generator=draw) for n in (1000, 20))
    grad = torch.randn((20, 1), generator=draw)
    agree("SparseSegmentSumGrad", grad=grad, indices=ids, segment_ids=segments, output_dim0=1000)


def test_grids_that_cuda_does_not_support() -> None:
    columns = 65_535 * 32 + 1
    with pytest.raises(rg.errors.ResourceExhaustedError, match="65535 blocks, this one needs 1 x 65536"):
        emulate(
            "SparseSegmentSumWithNumSegments",
            {
                "data": torch.zeros((1, columns)),
                "indices": torch.tensor([0]),
                "segment_ids": torch.tensor([0]),
                "num_segments": 1,
            },
        )
