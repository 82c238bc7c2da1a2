"""Learning rates in tensors and counts of steps on the device: the bits of steps whose numbers the host knows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulated_call import same_bits
from emulated_device import HostDevice
from test_emulated_features import batch, joined, tables_of
from test_emulated_row_gradients import without_reads
from test_emulated_torch import on_cpu_as_gpu, on_gpu
from torch import Tensor

import rowgrad.torch as rgt
from rowgrad._catalog.rules import RULES as SPECS
from rowgrad._catalog.rules import power
from rowgrad.errors import InvalidArgumentError, UnimplementedError
from rowgrad.torch import feature_lookup, gpu_calls, gpu_features, row_optimizer

RULES = {spec.class_name: spec for spec in SPECS.values()}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SCHEDULE = (0.1, 0.025, 0.3)
KINDS = ("dense", "rows", "fused", "tables", "vector", "weighted")


class Training:
    """Some tables, an optimizer, and a batch that has the same gradient in every step."""

    def __init__(self, kind: str, rule: str, dtype: torch.dtype = torch.float32, lr: Any = 0.1, **options: Any) -> None:
        torch.manual_seed(1)
        self.kind = kind
        if kind in ("tables", "vector"):
            tables = tables_of(3)
            self.module: Any = rgt.nn.Embeddings(tables, fused=True, include_last_offset=True, dtype=dtype)
            self.inputs: tuple[Any, ...] = joined(batch(tables)) if kind == "vector" else (batch(tables),)
        else:
            chosen = {"fused": True} if kind in ("fused", "weighted") else {"grad": kind}
            mode = "sum" if kind == "weighted" else "mean"
            self.module = rgt.nn.EmbeddingBag(40, 8, mode=mode, include_last_offset=True, dtype=dtype, **chosen)
            self.inputs = batch(tables_of(1))["t0"]
            if kind == "weighted":
                weights = torch.linspace(0.5, 2, len(self.inputs[0])).to(dtype)
                self.inputs = (*self.inputs, weights)
        self.optimizer = getattr(rgt.optim, rule)(self.module.parameters(), lr=lr, **options)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        found = self.module(*self.inputs)
        outputs = [found] if isinstance(found, Tensor) else list(found.values())
        torch.autograd.backward(
            outputs, [torch.linspace(-1, 1, o.numel()).reshape(o.shape).to(o.dtype) for o in outputs]
        )

    def step(self) -> None:
        self.backward()
        self.optimizer.step()

    @property
    def lr(self) -> Any:
        return self.optimizer.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value: Any) -> None:
        self.optimizer.param_groups[0]["lr"] = value

    def results(self) -> list[Tensor]:
        """Return copies of tables and slots."""
        names = [slot.name for slot in RULES[type(self.optimizer).__name__].slots]
        slots = [state[name] for state in self.optimizer.state.values() for name in names]
        return [t.detach().clone() for t in (*self.module.parameters(), *slots)]


def on_the_ops(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Run on a CPU with the order of a GPU, table by table."""
    with on_cpu_as_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_features, "look_up", lambda *args: None)
        patch.setattr(gpu_calls, "look_up", lambda *args: None)
        patch.setattr(gpu_calls, "fused_step", lambda *args: None)
        patch.setattr(row_optimizer, "joint_steps", lambda *args: ([], set()))
        patch.setattr(row_optimizer, "numbers_on_device", lambda *args: feature_lookup.ON_HOST)
        return run()


def names(device: HostDevice) -> list[str]:
    return [name.split("<")[0] for name in device.launched]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_a_learning_rate_in_a_tensor(kind: str, rule: str) -> None:
    """The bits of the number in the tensor, float32 or float64, whatever the dtype of the table; nothing is read."""
    turn = list(RULES).index(rule) + KINDS.index(kind)
    dtype, precision = DTYPES[turn % 4], (torch.float32, torch.float64)[turn // 4 % 2]

    def by_numbers() -> list[Tensor]:
        training = Training(kind, rule, dtype)
        for lr in SCHEDULE:
            training.lr = torch.tensor(lr, dtype=precision).item()
            training.step()
        return training.results()

    expected = on_the_ops(by_numbers)
    with on_gpu() as device:
        training = Training(kind, rule, dtype, lr=torch.tensor(0.5, dtype=precision))
        training.lr = torch.tensor(0.1, dtype=precision)
        for lr in SCHEDULE:
            training.lr.fill_(lr)
            training.backward()
            with without_reads(), pytest.MonkeyPatch.context() as patch:
                patch.setattr(row_optimizer, "check_row_ids", lambda grad: None)  # reads ids of a CPU only
                training.optimizer.step()
        got = training.results()
    assert all(map(same_bits, got, expected))
    assert names(device).count("read_numbers") == 3
    assert [state["step"] for state in training.optimizer.state.values()] == [3] * len(
        list(training.module.parameters())
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_replays_follow_a_schedule_and_count(kind: str, rule: str) -> None:
    """A captured step, replayed: the bits of steps that are not captured."""
    turn = list(RULES).index(rule) + KINDS.index(kind)
    dtype, random = DTYPES[turn % 4], turn % 2 == 0
    options = {"stochastic_rounding": random, "seed": 3, **({"lazy": turn % 3 > 0} if RULES[rule].fades else {})}
    schedule = (*SCHEDULE, 0.05)

    def one_by_one() -> list[Tensor]:
        training = Training(kind, rule, dtype, **options)
        for lr in schedule:
            training.lr = lr
            training.step()
        return training.results()

    expected = on_the_ops(one_by_one)
    with on_gpu() as device:
        lr = torch.tensor(schedule[0], dtype=torch.float64)
        training = Training(kind, rule, dtype, lr=lr, capturable=True, **options)
        training.step()
        lr.fill_(schedule[1])
        training.backward()
        kept = [
            getattr(param, "rowgrad_pending", None) for param in training.module.parameters()
        ]  # what the step reads
        with without_reads(), device.capture() as replay, pytest.MonkeyPatch.context() as patch:
            patch.setattr(row_optimizer, "check_row_ids", lambda grad: None)
            training.optimizer.step()  # runs, too
        for value in schedule[2:]:
            lr.fill_(value)
            replay()
        del kept
        got = training.results()
        counts = [state["step"] for state in training.optimizer.state.values()]
    assert all(map(same_bits, got, expected))
    assert [(count.item(), count.dtype) for count in counts] == [(4.0, torch.float64)] * len(counts)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9999), (0.5, 1 - 2**-50), (2.0**-70, 1e-320), (0.97, 0.95)])
def test_powers_have_the_bits_of_the_host(betas: tuple[float, float]) -> None:
    """At many counts of steps, in float64, also where the C library's pow is rounded in another way."""
    counts = [0, 1, 2, 6, 63, 493, 2903, 4629, 7219, 12345, 2**24 - 1, 2**24, 2**31, 2**52 + 1]

    def run(**options: Any) -> list[Tensor]:
        training = Training("rows", "Adam", torch.float64, betas=betas, **options)
        found = []
        training.step()
        for count in counts:
            state = training.optimizer.state[training.module.weight]
            if isinstance(state["step"], Tensor):
                state["step"].fill_(count)
            else:
                state["step"] = count
            training.step()
            found += training.results()
        return found

    expected = on_the_ops(run)
    with on_gpu():
        assert all(map(same_bits, run(capturable=True), expected))


def test_power_is_the_nearest_double() -> None:
    for base, exponent, nearest in [
        (0.5, 3, 0.125),
        (0.75, 1, 0.75),
        (0.0, 5, 0.0),
        (1e-300, 1, 0.0),
        (0.5, 128, 2.0**-128),
    ]:
        assert power(base, exponent) == nearest
    for exponent in range(1, 2000, 7):
        assert abs(power(0.999, exponent) - math.pow(0.999, exponent)) <= math.ulp(math.pow(0.999, exponent))


@pytest.mark.parametrize("kind", ["dense", "rows", "fused", "vector", "weighted"])
@pytest.mark.parametrize(
    ("rule", "lr", "message"),
    [
        ("SGD", math.nan, "lr must be a finite number; got nan"),
        ("Adam", math.inf, "lr must be a finite number; got inf"),
        ("Adagrad", 1e39, "lr must be a number that fits float32; got 1e+39"),
        ("Ftrl", 0.0, "lr must be above 0 for ftrl; got 0.0"),
    ],
)
def test_a_bad_learning_rate(kind: str, rule: str, lr: float, message: str) -> None:
    """The message of a number; nothing is changed, and the step is not counted."""
    on_cpu = Training("rows", rule)
    on_cpu.lr = lr
    with pytest.raises(InvalidArgumentError) as expected:
        on_cpu.step()
    assert expected.value.message == message
    with on_gpu():
        training = Training(kind, rule, lr=torch.tensor(0.1, dtype=torch.float64), capturable=True)
        training.step()
        training.backward()
        before = training.results()
        training.lr.fill_(lr)
        training.optimizer.step()
        with pytest.raises(InvalidArgumentError) as raised:
            rgt.synchronize()
        assert raised.value.message == message
        assert raised.value.argument == "lr"
        assert all(map(same_bits, training.results(), before))
        assert {float(state["step"]) for state in training.optimizer.state.values()} == {1.0}
        training.lr.fill_(0.1)
        training.step()
        assert {float(state["step"]) for state in training.optimizer.state.values()} == {2.0}


@pytest.mark.parametrize("kind", KINDS)
def test_sync_mode_raises_in_the_step(kind: str) -> None:
    with on_gpu(mode="sync"):
        training = Training(kind, "Adam", lr=torch.tensor(0.1), capturable=True)
        training.step()
        before = training.results()
        training.lr.fill_(-math.inf)
        training.backward()
        with pytest.raises(InvalidArgumentError, match="lr must be a finite number; got -inf"):
            training.optimizer.step()
        assert all(map(same_bits, training.results(), before))
        training.lr.fill_(0.1)
        training.step()
        assert {float(state["step"]) for state in training.optimizer.state.values()} == {2.0}


def test_a_rejected_step_is_not_counted() -> None:
    with on_gpu():
        training = Training("fused", "Adam", capturable=True)
        training.step()
        before = training.results()
        ids = training.inputs[0]
        good = ids.clone()
        training.backward()
        ids[3] = 40
        ids._version  # noqa: B018
        training.module.weight.rowgrad_pending[0].versions[:] = [
            t._version for t in training.module.weight.rowgrad_pending[0].tensors
        ]
        training.optimizer.step()
        with pytest.raises(InvalidArgumentError):
            rgt.synchronize()
        assert all(map(same_bits, training.results(), before))
        assert training.optimizer.state[training.module.weight]["step"].item() == 1
        ids.copy_(good)


def test_tables_with_their_own_rates_and_counts() -> None:
    """Groups of an optimizer: a tensor, a number, another count."""

    def run(lr: Any, **options: Any) -> list[Tensor]:
        training = Training("tables", "Adam")
        t = list(training.module.parameters())
        groups = [{"params": t[:1], "lr": lr}, {"params": t[1:2], "lr": 0.02}, {"params": t[2:], "lr": 0.3, **options}]
        training.optimizer = rgt.optim.Adam(groups)
        training.step()
        state = training.optimizer.state[t[2]]
        if isinstance(state["step"], Tensor):
            state["step"].fill_(40)
        else:
            state["step"] = 40
        training.step()
        training.step()
        return training.results()

    expected = on_the_ops(lambda: run(0.1))
    with on_gpu() as device:
        got = run(torch.tensor(0.1, dtype=torch.float64), capturable=True)
    assert all(map(same_bits, got, expected))
    assert names(device).count("read_numbers") == 3


def test_schedulers_fill_the_tensor() -> None:
    """A scheduler of torch keeps the tensor, so that graphs follow it."""

    def run(lr: Any) -> list[Tensor]:
        training = Training("tables", "AdamW", torch.float64, lr=lr)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, gamma=0.7)
        for _ in range(3):
            training.step()
            scheduler.step()
        assert not isinstance(lr, Tensor) or training.lr is lr
        return training.results()

    expected = on_the_ops(lambda: run(0.1))
    with on_gpu() as device:
        assert all(map(same_bits, run(torch.tensor(0.1, dtype=torch.float64)), expected))
    assert names(device).count("read_numbers") == 3


def test_a_learning_rate_of_another_dtype() -> None:
    with on_gpu() as device:
        results = []
        for lr in (torch.tensor(0.1, dtype=torch.bfloat16), torch.tensor(0.1, dtype=torch.bfloat16).item()):
            training = Training("rows", "SGD", lr=lr)
            training.step()
            results.append(training.results())
    assert all(map(same_bits, *results))
    assert names(device).count("read_numbers") == 1


def test_a_learning_rate_of_several_elements_is_rejected() -> None:
    with on_gpu():
        training = Training("rows", "SGD")
        training.lr = torch.ones(2)
        with pytest.raises(InvalidArgumentError, match="lr must be a finite number"):
            training.step()


@pytest.mark.parametrize("kind", ["rows", "tables"])
def test_states_are_saved_and_loaded(kind: str) -> None:
    """A resumed run has the bits of one that was not interrupted, with and without `capturable`."""
    with on_gpu():
        whole = Training(kind, "Adam", torch.float64, capturable=True)
        for _ in range(2):
            whole.step()
        counts = [state["step"] for state in whole.optimizer.state.values()]
        counts[0].fill_(2**25 + 1)  # a number that float32 does not have
        saved = copy.deepcopy(whole.optimizer.state_dict())
        weights = copy.deepcopy(whole.module.state_dict())
        whole.step()
        for capturable in (True, False):
            resumed = Training(kind, "Adam", torch.float64, capturable=True)
            resumed.module.load_state_dict(weights)
            resumed.optimizer.load_state_dict(saved)
            resumed.optimizer.param_groups[0]["capturable"] = capturable
            resumed.step()
            assert all(map(same_bits, resumed.results(), whole.results()))
            first = next(iter(resumed.optimizer.state.values()))["step"]
            assert isinstance(first, Tensor) == capturable
            assert float(first) == 2**25 + 2
        assert all(float(state["step"]) in (2, 2**25 + 1) for state in saved["state"].values())  # not changed


def test_the_first_step_is_not_captured() -> None:
    for rule in ("Adagrad", "Adam", "SGD"):
        for capturable in (False, True):
            with on_gpu() as device:
                training = Training("rows", rule, capturable=capturable)
                training.backward()
                before = training.module.weight.detach().clone()
                if rule == "SGD" and not capturable:
                    with device.capture():
                        training.optimizer.step()  # has no state
                    continue
                text = (
                    "every replay would create its state again"
                    if capturable or rule == "Adagrad"
                    else "bias correction"
                )
                with device.capture(), pytest.raises(UnimplementedError, match=text):
                    training.optimizer.step()
                assert same_bits(training.module.weight.detach(), before)


def test_steps_that_do_not_count_on_the_device_are_not_captured() -> None:
    with on_gpu() as device:
        training = Training("rows", "Adam")
        training.step()
        training.backward()
        with device.capture(), pytest.raises(UnimplementedError, match="Pass capturable=True"):
            training.optimizer.step()
