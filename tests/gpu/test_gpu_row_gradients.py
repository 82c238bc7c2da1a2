"""Steps with row-sparse gradients whose number of rows stays on the device: the CPU's bits, eager and replayed."""

from __future__ import annotations

import gc
import os
import random
from typing import Any

import torch
from gpu_calls import DEVICE, FLOATS, fail_if_any, need_streams, result_or_error, same_bits, validating
from test_gpu_many_tables import RULES, in_blocked_order
from torch import Tensor

import rowgrad.torch as rgt
from rowgrad.torch import clip

need_streams()

CASES = int(os.environ.get("ROWGRAD_GPU_TEST_CASES", "1000")) * 96 // 1000  # fewer under a slow memory checker


def batch_of(draw: random.Random, rows: int) -> tuple[Tensor, Tensor]:
    """Return ids and offsets with their end."""
    seeded = torch.Generator().manual_seed(draw.randrange(1 << 30))
    lengths = torch.randint(0, draw.choice((2, 9, 60)), (draw.choice((1, 40, 900)),), generator=seeded)
    lengths[0] = 3
    ids = (
        (torch.rand((int(lengths.sum()),), generator=seeded) ** draw.choice((1, 4)) * rows).long().clamp_(max=rows - 1)
    )
    return ids, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])


class Training:
    """A module with row-sparse gradients, its optimizer and its inputs on a device."""

    def __init__(self, rows: int, columns: int, inputs: tuple[Tensor, Tensor], rule: str, device: str, **options: Any):
        torch.manual_seed(1)
        made = rgt.nn.EmbeddingBag(rows, columns, mode="mean", include_last_offset=True, grad="rows", **options)
        self.module = made.to(device)
        self.optimizer = getattr(rgt.optim, rule)(self.module.parameters(), lr=0.1)
        self.inputs = tuple(x.to(device) for x in inputs)

    def step(self, maximum: float | None = None) -> None:
        """Take one step; `maximum`: of the gradient's norm."""
        self.optimizer.zero_grad(set_to_none=True)
        out = self.module(*self.inputs)
        out.backward(torch.linspace(-1, 1, out.shape[1], dtype=out.dtype, device=out.device).expand_as(out))
        if maximum is not None:
            clip.clip_grad_norm_(self.module.parameters(), maximum)
        self.optimizer.step()

    def state(self) -> list[Tensor]:
        """Return the table and its slots, on the host."""
        weight = self.module.weight
        return [t.detach().cpu() for t in (weight, *self.optimizer.state[weight].values()) if isinstance(t, Tensor)]


def captured(training: Training, **options: Any) -> Any:
    """Return a CUDA graph of one step."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            training.step(**options)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    gc.collect()  # CUDA forbids destroying a graph of another test during capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        training.step(**options)
    return graph


def test_steps_have_the_bits_of_the_cpu() -> None:
    draw, failures = random.Random(15), []
    with validating("async"):
        for number in range(CASES):
            rule, dtype = RULES[number % len(RULES)], FLOATS[number // len(RULES) % len(FLOATS)]
            rows, columns = draw.choice((1, 30, 5000)), draw.choice((1, 7, 16, 64, 200))
            inputs = batch_of(draw, rows)
            with in_blocked_order():
                reference = Training(rows, columns, inputs, rule, "cpu", dtype=dtype)
                reference.step()
                gradient = reference.module.weight.grad.coalesce()
                reference.step()
            own = Training(rows, columns, inputs, rule, DEVICE, dtype=dtype)
            own.step()
            grad = own.module.weight.grad
            unread = rows == 1 or isinstance(grad.count, Tensor)  # a single row has no padding
            values = [grad.values().cpu(), grad.indices().cpu()]  # without padding
            own.step()
            rgt.synchronize()
            same = all(map(same_bits, own.state(), reference.state()))
            same = same and all(map(same_bits, values, [gradient.values(), gradient.indices()]))
            if not same or not unread or not grad.is_coalesced():
                failures.append(f"{number} {rule} {dtype} {rows} x {columns}, {len(inputs[0])} ids, same: {same}")
    fail_if_any(failures, CASES)


def test_a_step_does_not_wait_for_the_device() -> None:
    inputs = batch_of(random.Random(16), 5000)
    training = Training(5000, 64, inputs, "RowWiseAdagrad", DEVICE)
    for _ in range(3):
        training.step(maximum=0.5)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        training.step()
        training.step(maximum=0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda._sleep(2_000_000_000)
    done = torch.cuda.Event()
    training.step()
    done.record()
    assert not done.query()  # queued behind the pause
    rgt.synchronize()


def test_replays_have_the_bits_of_eager_steps() -> None:
    draw = random.Random(17)
    first = batch_of(draw, 5000)
    second = first[0].flip(0).clone(), first[1]
    for rule in ("SGD", "RowWiseAdagrad", "Adagrad"):
        for options in ({}, {"maximum": 0.5}):
            eager, replayed = (Training(5000, 64, first, rule, DEVICE) for _ in range(2))
            graph = captured(replayed, **options)
            for _ in range(3):
                eager.step(**options)
            for inputs in (first, second, first):
                for training in (eager, replayed):
                    training.inputs[0].copy_(inputs[0])
                eager.step(**options)
                graph.replay()
            rgt.synchronize()
            assert all(map(same_bits, replayed.state(), eager.state())), (rule, options)


def test_bad_ids_raise_and_change_nothing() -> None:
    ids, offsets = batch_of(random.Random(18), 50)
    ids[len(ids) // 2] = 50
    _, expected = result_or_error(rgt.nn.EmbeddingBag(50, 8, mode="mean", include_last_offset=True), ids, offsets)
    assert expected is not None
    with validating("async"):
        training = Training(50, 8, (ids, offsets), "Adagrad", DEVICE)
        before = training.module.weight.detach().cpu()
        torch.cuda._sleep(100_000_000)  # so that the step is queued before the host can see the fault
        training.step()
        _, error = result_or_error(rgt.synchronize)
        assert error is not None
        assert (error.message, error.position) == (expected.message, expected.position)
        assert same_bits(training.module.weight.detach().cpu(), before)
        rgt.synchronize()
