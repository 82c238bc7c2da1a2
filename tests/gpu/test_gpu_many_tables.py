"""Training steps of many tables on the device: the CPU's bits in blocked order, eager and as replays of CUDA graphs."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from gpu_calls import DEVICE, FLOATS, fail_if_any, need_streams, result_or_error, same_bits, validating
from torch import Tensor

import rowgrad.torch as rgt
from rowgrad.errors import InvalidArgumentError
from rowgrad.torch import devices, gpu_calls, gpu_features, row_optimizer

need_streams()

RULES = ("SGD", "Adagrad", "RowWiseAdagrad", "Adam", "AdamW", "Momentum", "Lion", "Ftrl")
CASES = int(os.environ.get("ROWGRAD_GPU_TEST_CASES", "1000")) * 12 // 100  # fewer under a slow memory checker


@contextmanager
def in_blocked_order() -> Iterator[None]:
    """Run the ops of the CPU, table by table, in the order of a GPU."""
    with (
        patch.object(devices, "is_on_gpu", lambda tensor: True),
        patch.object(gpu_features, "look_up", lambda *args: None),
        patch.object(gpu_calls, "look_up", lambda *args: None),
        patch.object(gpu_calls, "fused_step", lambda *args: None),
        patch.object(row_optimizer, "joint_steps", lambda *args: ([], set())),
    ):
        yield


def tables_of(draw: random.Random, dtype: torch.dtype) -> list[Any]:
    """Return tables of one or two widths, some of few rows, some with several features or padding."""
    widths = [draw.choice((1, 4, 7, 16, 64, 130)) for _ in range(draw.choice((1, 1, 2)))]
    has_padding, is_shared = draw.random() < 0.3, draw.random() < 0.5
    found = []
    for i in range(draw.choice((1, 2, 5, 30))):
        rows, features = draw.choice((1, 3, 50, 4000)), draw.choice((1, 2, 3)) if is_shared else 1
        padding = draw.randrange(rows) if has_padding and draw.random() < 0.5 else None
        found.append(
            rgt.nn.Table(
                f"t{i}", rows, draw.choice(widths), dtype=dtype, combiner=draw.choice(("sum", "mean", "sqrtn")),
                features=tuple(f"t{i}_{k}" for k in range(features)), padding_idx=padding,
            )
        )  # fmt: skip
    return found


def batch_of(draw: random.Random, tables: list[Any], bags: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return ids and offsets by feature, a few ids of which are in most bags; for some tables many ids are padding."""
    seeded = torch.Generator().manual_seed(draw.randrange(1 << 30))
    most = draw.choice((0, 1, 4, 30))
    found = {}
    for table in tables:
        for feature in table.read_by:
            lengths = torch.randint(0, most + 1, (bags,), generator=seeded)
            if most and draw.random() < 0.1:
                lengths[draw.randrange(bags)] = 5000  # more than a block lists
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            skewed = torch.rand((int(offsets[-1]),), generator=seeded) ** draw.choice((1, 4)) * table.num_embeddings
            ids = skewed.long().clamp_(max=table.num_embeddings - 1)
            if table.padding_idx is not None:
                ids[torch.rand(ids.shape, generator=seeded) < draw.choice((0.1, 0.9))] = table.padding_idx
            found[feature] = ids.to(draw.choice((torch.int32, torch.int64))), offsets
    return found


def matrices_of(draw: random.Random, tables: list[Any], bags: int) -> dict[str, Tensor]:
    """Return a matrix of ids for each feature, one bag per row."""
    seeded = torch.Generator().manual_seed(draw.randrange(1 << 30))
    return {
        feature: torch.randint(0, table.num_embeddings, (bags, draw.choice((0, 1, 5, 40))), generator=seeded)
        for table in tables
        for feature in table.read_by
    }


def joined(features: dict[str, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return one vector of ids, and the offsets of all bags."""
    begins, begin = [torch.zeros(1, dtype=torch.int64)], 0
    for ids, offsets in features.values():
        begins.append(offsets[1:] + begin)
        begin += len(ids)
    return torch.cat([ids.long() for ids, _ in features.values()]), torch.cat(begins)


def placed(inputs: Any, device: str) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, dict):
        return {k: placed(v, device) for k, v in inputs.items()}
    return tuple(v.to(device) for v in inputs)


class Training:
    """A module, its optimizer and its inputs on a device."""

    def __init__(self, tables: list[Any], inputs: Any, rule: str, device: str, own: Any = None, **options: Any) -> None:
        """`own`: options of the optimizer."""
        torch.manual_seed(1)
        made = rgt.nn.Embeddings(tables, include_last_offset=True, **options)
        self.module = made.to(device)
        self.optimizer = getattr(rgt.optim, rule)(self.module.parameters(), **{"lr": 0.1, **(own or {})})
        self.inputs = placed(inputs, device)
        self.inputs = (self.inputs,) if isinstance(inputs, dict) else self.inputs

    def step(self) -> list[Tensor]:
        """Return the outputs of one step."""
        self.optimizer.zero_grad()
        outputs = list(self.module(*self.inputs).values())
        upstream = [torch.linspace(-1, 1, o.shape[1], dtype=o.dtype, device=o.device).expand_as(o) for o in outputs]
        torch.autograd.backward(outputs, upstream)
        self.optimizer.step()
        return outputs

    def state(self) -> list[Tensor]:
        """Return tables and slots, on the host."""
        states = [self.optimizer.state[p] for p in self.module.parameters()]
        slots = [v for state in states for name, v in state.items() if name != "step"]
        return [t.detach().cpu() for t in (*self.module.parameters(), *slots)]


def test_steps_have_the_bits_of_the_cpu() -> None:
    draw, failures = random.Random(5), []
    with validating("async"):
        for number in range(CASES):
            rule, dtype = RULES[number % len(RULES)], FLOATS[number % len(FLOATS)]
            tables = tables_of(draw, dtype)
            bags, kind = draw.choice((1, 40, 700)), draw.random()
            features = batch_of(draw, tables, bags)
            inputs: Any = (
                joined(features) if kind < 0.5 else features if kind < 0.9 else matrices_of(draw, tables, bags)
            )
            options = draw.choice(({"fused": True}, {"fused": True}, {"grad": "rows"}, {"grad": "dense"}))
            with in_blocked_order():
                reference = Training(tables, inputs, rule, "cpu", **options)
                expected = [o.detach() for _ in range(2) for o in reference.step()] + reference.state()
            own = Training(tables, inputs, rule, DEVICE, **options)
            got = [o.detach().cpu() for _ in range(2) for o in own.step()] + own.state()
            rgt.synchronize()
            if len(got) != len(expected) or not all(map(same_bits, got, expected)):
                shapes = [(t.num_embeddings, t.embedding_dim) for t in tables]
                failures.append(f"{number} {rule} {dtype} {options} {shapes}")
    fail_if_any(failures, CASES)


def test_fifty_steps_repeat_to_the_bit() -> None:
    draw = random.Random(6)
    tables = [rgt.nn.Table(f"t{i}", 5000, 32, combiner="mean") for i in range(24)]
    tables.append(rgt.nn.Table("item", 5000, 32, features=("viewed", "bought", "rated"), padding_idx=0))
    features = batch_of(draw, tables, 3000)
    states = []
    for _ in range(2):
        training = Training(tables, joined(features), "RowWiseAdagrad", DEVICE, fused=True)
        for _ in range(50):
            training.step()
        states.append(training.state())
    assert all(map(same_bits, *states))


def captured(training: Training) -> Any:
    """Return a CUDA graph of one step."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            training.step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    gc.collect()  # CUDA forbids destroying a graph of another test during capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        training.step()
    return graph


def test_replays_have_the_bits_of_eager_steps() -> None:
    tables = [rgt.nn.Table(f"t{i}", 500, 16, combiner="mean") for i in range(24)]
    tables.append(rgt.nn.Table("item", 500, 16, features=("viewed", "bought"), padding_idx=0))
    first, second = (batch_of(random.Random(8), tables, 300) for _ in range(2))
    for name, (ids, _) in second.items():  # other ids, the same sizes
        second[name] = (ids.flip(0), second[name][1])
    for vector in (True, False):
        one, two = (joined(x) if vector else x for x in (first, second))
        for rule in ("SGD", "RowWiseAdagrad"):
            options = {"grad": "rows"} if rule == "SGD" else {"fused": True}
            eager, replayed = (Training(tables, one, rule, DEVICE, **options) for _ in range(2))
            graph = captured(replayed)
            for _ in range(3):
                eager.step()
            for inputs in (one, two, one):
                for training in (eager, replayed):
                    refill(training.inputs, placed(inputs, DEVICE))
                eager.step()
                graph.replay()
            rgt.synchronize()
            assert all(map(same_bits, replayed.state(), eager.state())), (rule, vector)


def test_replays_follow_a_schedule_and_count_their_steps() -> None:
    """All rules, with a learning rate and a count of steps on the device."""
    tables = [rgt.nn.Table(f"t{i}", 500, 16, combiner="mean") for i in range(8)]
    inputs = batch_of(random.Random(10), tables, 300)
    for number, rule in enumerate(RULES):
        dtype, options = FLOATS[number % len(FLOATS)], ({"fused": True}, {"grad": "rows"})[number // 2 % 2]
        own = {"stochastic_rounding": number % 3 == 0, "seed": 2}
        eager = Training(tables, inputs, rule, DEVICE, own, dtype=dtype, **options)
        lr = torch.tensor(0.1, dtype=torch.float64, device=DEVICE)
        own = {**own, "lr": lr, "capturable": True}
        replayed = Training(tables, inputs, rule, DEVICE, own, dtype=dtype, **options)
        graph = captured(replayed)
        for _ in range(3):
            eager.step()
        for rate in (0.05, 0.3, 0.01):
            eager.optimizer.param_groups[0]["lr"] = rate
            lr.fill_(rate)
            eager.step()
            graph.replay()
        rgt.synchronize()
        assert all(map(same_bits, replayed.state(), eager.state())), (rule, dtype, options)
        assert {float(state["step"]) for state in replayed.optimizer.state.values()} == {6.0}


def test_steps_do_not_wait_for_the_device() -> None:
    tables = [rgt.nn.Table(f"t{i}", 500, (16, 8)[i % 2], combiner="mean") for i in range(8)]
    tables.append(rgt.nn.Table("item", 500, 16, features=("viewed", "bought"), padding_idx=0))
    features = batch_of(random.Random(11), tables, 300)
    matrices = matrices_of(random.Random(12), tables, 300)
    for options in ({"fused": True}, {"grad": "rows"}, {"grad": "dense"}):
        for inputs in (features, joined(features), matrices):
            lr = torch.tensor(0.1, device=DEVICE)
            training = Training(tables, inputs, "Adam", DEVICE, {"lr": lr, "capturable": True}, **options)
            for _ in range(3):
                training.step()
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                training.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            rgt.synchronize()


def test_a_bad_learning_rate_changes_nothing() -> None:
    tables = [rgt.nn.Table(f"t{i}", 500, 16) for i in range(3)]
    inputs = batch_of(random.Random(12), tables, 40)
    for options in ({"fused": True}, {"grad": "rows"}, {"grad": "dense"}):
        lr = torch.tensor(0.1, device=DEVICE)
        training = Training(tables, inputs, "Adam", DEVICE, {"lr": lr, "capturable": True}, **options)
        training.step()
        before = training.state()
        lr.fill_(float("nan"))
        with validating("async"):
            training.step()
            _, error = result_or_error(rgt.synchronize)
        assert isinstance(error, InvalidArgumentError), repr(error)
        assert error.message == "lr must be a finite number; got nan"
        assert all(map(same_bits, training.state(), before))
        assert {float(state["step"]) for state in training.optimizer.state.values()} == {1.0}


def refill(buffers: Any, contents: Any) -> None:
    """Write new contents into the same memory."""
    if isinstance(buffers, Tensor):
        buffers.copy_(contents)
    elif isinstance(buffers, dict):
        for name, value in buffers.items():
            refill(value, contents[name])
    else:
        contents = (contents,) if isinstance(contents, dict) else contents
        for own, value in zip(buffers, contents, strict=True):
            refill(own, value)


def test_bad_ids_raise_and_change_nothing() -> None:
    draw = random.Random(9)
    tables = [rgt.nn.Table(f"t{i}", 500, 16, combiner="mean", features=(f"x{i}", f"y{i}")) for i in range(5)]
    ids, offsets = joined(batch_of(draw, tables, 300))
    ids = torch.cat([ids, ids[:5]])
    offsets[-1] += 5
    for break_ids in (True, False):
        bad = ids.clone(), offsets.clone()
        if break_ids:
            bad[0][len(ids) // 2] = 500
        else:
            bad[1][700] = len(ids) + 1
        reference = rgt.nn.Embeddings(tables, include_last_offset=True)
        _, expected = result_or_error(reference, *bad)
        assert expected is not None
        with validating("async"):
            training = Training(tables, bad, "Adagrad", DEVICE, fused=True)
            before = [p.detach().cpu() for p in training.module.parameters()]
            torch.cuda._sleep(100_000_000)  # so that the step is queued before the host can see the fault
            training.step()
            _, error = result_or_error(rgt.synchronize)
        assert isinstance(error, InvalidArgumentError), repr(error)
        assert (error.message, error.position) == (expected.message, expected.position)
        assert all(map(same_bits, [p.detach().cpu() for p in training.module.parameters()], before))
        rgt.synchronize()
