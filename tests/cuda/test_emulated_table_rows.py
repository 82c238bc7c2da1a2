"""Row gradients of many tables in one call, and one step with them, through the stand-in driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulated_call import same_bits
from test_emulated_features import batch, by_the_ops, joined, names, tables_of, train, with_rule
from test_emulated_row_gradients import without_reads
from test_emulated_torch import on_cpu_as_gpu, on_gpu
from torch import Tensor

import rowgrad.torch as rgt
from rowgrad._catalog.rules import RULES as SPECS
from rowgrad.errors import InvalidArgumentError
from rowgrad.torch import gpu_features, row_optimizer
from rowgrad.torch.nn import Table

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
RULES = [spec.class_name for spec in SPECS.values()]
OF_TABLES = {"find_tables", "sum_table_rows", "pad_table_gradients", "check_table_lists", "step_table_lists"}
ALONE = {"sum_rows", "step_rows", "pad_row_gradient", "check_row_ids"}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_have_the_bits_of_a_step_per_table(rule: str, dtype: torch.dtype) -> None:
    tables, turn = tables_of(), RULES.index(rule) + DTYPES.index(dtype)
    inputs, options = (batch(tables, has_end := turn % 2 == 0),), {"output": ("features", "stacked")[turn // 2 % 2]}
    options = {**options, "grad": "rows", "dtype": dtype, "include_last_offset": has_end}
    fades = {"lazy": turn % 3 == 0} if rule in ("Adam", "AdamW") else {}
    expected = by_the_ops(tables, inputs, with_rule(rule, **fades), **options)
    with on_gpu() as device:
        got = train(tables, inputs, with_rule(rule, **fades), **options)
    assert len(got) == len(expected)
    assert all(map(same_bits, got, expected))
    own = names(device)
    assert not ALONE & set(own)
    assert [own.count(name) for name in sorted(OF_TABLES)] == [3] * 5
    assert own.count("scan_ids") == 3


@pytest.mark.parametrize("columns", [1, 3, 64, 200])
@pytest.mark.parametrize("rule", ["SGD", "RowWiseAdagrad"])
def test_rows_of_any_width(columns: int, rule: str) -> None:
    tables = tables_of(4, (columns,))
    expected = by_the_ops(tables, (batch(tables),), with_rule(rule), grad="rows")
    with on_gpu() as device:
        got = train(tables, (batch(tables),), with_rule(rule), grad="rows")
    assert all(map(same_bits, got, expected))
    is_wide = columns == 200 and rule == "RowWiseAdagrad"  # rows wider than a group of lanes are stepped one by one
    assert ("step_table_lists" in names(device)) != is_wide


def test_tables_of_several_widths_and_rates() -> None:
    tables = tables_of(5, (8, 3))

    def optimizers(module: Any) -> list[Any]:
        t = [module.weight(f"t{i}") for i in range(5)]
        t[4].requires_grad_(False)
        first = rgt.optim.Adagrad([{"params": t[:1]}, {"params": t[1:2], "lr": 0.5}], lr=0.1)
        return [first, rgt.optim.Adam(t[2:4], lr=0.3)]

    expected = by_the_ops(tables, (batch(tables),), optimizers, grad="rows")
    with on_gpu() as device:
        got = train(tables, (batch(tables),), optimizers, grad="rows")
    assert all(map(same_bits, got, expected))
    assert names(device).count("sum_table_rows") == 6


def test_stochastic_rounding_differs_by_table() -> None:
    tables = [Table(f"t{i}", 40, 8) for i in range(4)]
    optimizers, options = with_rule("SGD", stochastic_rounding=True, seed=5), {"grad": "rows", "dtype": torch.bfloat16}
    expected = by_the_ops(tables, (batch(tables),), optimizers, **options)
    with on_gpu():
        assert all(map(same_bits, train(tables, (batch(tables),), optimizers, **options), expected))


class Training:
    """A module of many tables and its optimizer."""

    def __init__(self, tables: list[Table], rule: str = "Adagrad", **options: Any) -> None:
        torch.manual_seed(1)
        self.module = rgt.nn.Embeddings(tables, grad="rows", include_last_offset=True)
        self.optimizer = getattr(rgt.optim, rule)(self.module.parameters(), **{"lr": 0.1, **options})
        self.features = batch(tables)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        outputs = list(self.module(self.features).values())
        self.upstream = [torch.linspace(-1, 1, o.numel()).reshape(o.shape) for o in outputs]  # a graph reads them again
        torch.autograd.backward(outputs, self.upstream)

    def results(self) -> list[Tensor]:
        params = list(self.module.parameters())
        states = [self.optimizer.state[p] for p in params if p in self.optimizer.state]
        slots = [v for state in states for v in state.values() if isinstance(v, Tensor) and v.dim()]
        return [t.detach().clone() for t in (*params, *slots)]


def on_the_ops(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    with on_cpu_as_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_features, "look_up", lambda *args: None)
        patch.setattr(row_optimizer, "joint_steps", lambda *args: ([], set()))
        return run()


def test_nothing_is_read_and_few_kernels_run() -> None:
    tables = [Table(f"t{i}", 40 + i, 8) for i in range(26)]
    features = {t.name: (torch.arange(20) * 7 % 40, torch.tensor([0, 3, 20])) for t in tables}
    with on_gpu() as device:
        training = Training(tables)
        training.features = features
        training.backward()
        training.optimizer.step()
        device.launched.clear()
        with without_reads():
            training.backward()
            training.optimizer.step()
    assert [n for n in names(device) if n != "put_words"] == [
        "sum_feature_bags", "scan_ids", "sort_pass", "sort_pass", "find_rows", "find_tables", "sum_table_rows",
        "join_runs", "pad_table_gradients", "check_table_lists", "step_table_lists",
    ]  # fmt: skip
    assert names(device).count("put_words") == 3


def test_gradients_are_those_of_the_ops() -> None:
    """Read, clipped, accumulated, of some features only, and of the second order."""
    tables = tables_of(4)

    def run() -> list[Tensor]:
        training = Training(tables)
        training.backward()
        found = [p.grad.to_dense() for p in training.module.parameters()]
        assert all(p.grad.is_coalesced() for p in training.module.parameters())
        outputs = training.module(training.features)
        (outputs["t3"].square().sum() + outputs["t1"].sum()).backward()  # added to the first
        found += [p.grad.to_dense() for p in training.module.parameters()]
        torch.nn.utils.clip_grad_value_(training.module.parameters(), 0.05)
        training.optimizer.step()
        found += training.results()
        loss = sum(o.pow(3).sum() for o in training.module(training.features).values())
        found += [g.to_dense() for g in torch.autograd.grad(loss, list(training.module.parameters()))]
        return found

    expected = on_the_ops(run)
    with on_gpu() as device:
        got = run()
    assert all(map(same_bits, got, expected))
    assert names(device).count("sum_table_rows") == 3


def test_padding_and_counts() -> None:
    """More places than distinct rows: the last row is repeated, with zeros."""
    tables = tables_of(4)
    with on_gpu() as device:
        training = Training(tables)
        with device.capture():  # padding stays
            training.backward()
            for t, weight in enumerate(training.module.parameters()):
                ids, grad = training.features[f"t{t}"][0], weight.grad
                with torch._C.DisableTorchFunctionSubclass():
                    rows, values = grad._indices()[0], grad._values()
                unique = ids.unique().long()
                assert int(grad.count) == len(unique)
                assert rows.shape[0] == min(len(ids), weight.shape[0])
                assert torch.equal(rows[: len(unique)], unique)
                assert bool((rows[len(unique) :] == (unique[-1] if len(unique) else 0)).all())
                assert not values[len(unique) :].any()


@pytest.mark.parametrize("rule", ["Adagrad", "Adam"])
def test_a_captured_step_is_replayed(rule: str) -> None:
    """Forward, backward and step of all tables, with a learning rate on the device."""
    tables, rates = tables_of(4), (0.1, 0.3, 0.05, 0.2)

    def one_by_one() -> list[Tensor]:
        training = Training(tables, rule)
        for lr in rates:
            training.optimizer.param_groups[0]["lr"] = lr
            training.backward()
            training.optimizer.step()
        return training.results()

    expected = on_the_ops(one_by_one)
    with on_gpu() as device:
        lr = torch.tensor(rates[0], dtype=torch.float64)
        training = Training(tables, rule, lr=lr, capturable=True)
        training.backward()
        training.optimizer.step()
        lr.fill_(rates[1])
        with device.capture() as replay:
            training.backward()
            kept = [p.grad for p in training.module.parameters()]
            training.optimizer.step()
        for rate in rates[2:]:
            lr.fill_(rate)
            replay()
        del kept
        got = training.results()
    assert all(map(same_bits, got, expected))


@pytest.mark.parametrize("change", [(3, 40), (3, -1), (3, 2), (0, 2**40), (5, -(2**40))])
def test_bad_row_ids(change: tuple[int, int]) -> None:
    """Ids of a gradient that somebody changed: the message of a single table, and no table is updated."""
    at, value = change

    def spoil(training: Training) -> None:
        grad = training.module.weight("t1").grad
        with torch._C.DisableTorchFunctionSubclass():
            grad._indices()[0, at] = value

    training = Training(tables_of(2))
    training.backward()
    spoil(training)
    training.optimizer.param_groups[0]["params"] = [training.module.weight("t1")]
    with on_gpu() as device:
        training.optimizer.step()
        assert "step_rows" in device.launched[-1]
        with pytest.raises(InvalidArgumentError) as expected:
            rgt.synchronize()
    with on_gpu() as device:
        training = Training(tables_of(4), "Adam")
        training.backward()
        spoil(training)
        before = training.results()
        training.optimizer.step()
        assert "step_table_lists" in device.launched[-1]
        with pytest.raises(InvalidArgumentError) as raised:
            rgt.synchronize()
        for fact in ("message", "argument", "position", "value", "bound", "op"):
            assert getattr(raised.value, fact) == getattr(expected.value, fact), fact
        assert all(map(same_bits, training.results()[: len(before)], before))


def test_a_lookup_with_bad_ids_has_no_gradient() -> None:
    """The backward pass and the step are queued before the host sees the fault."""
    tables = tables_of(3)
    with on_gpu() as device, pytest.MonkeyPatch.context() as patch:
        training = Training(tables)
        before = training.results()
        training.features["t1"][0][5] = 1000
        patch.setattr(device.ledger, "raise_reported", lambda own=0: None)
        outputs = training.module(training.features)
        device.ledger.slots.reported()  # as if the host had not seen it
        sum(o.sum() for o in outputs.values()).backward()
        training.optimizer.step()
        names_now = names(device)
        assert "sum_table_rows" in names_now
        assert all(map(same_bits, training.results()[: len(before)], before))


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dense_gradients(dtype: torch.dtype, vector: bool) -> None:
    """Of tables of two widths, in one sum for each; rows without ids are zeros."""
    tables = tables_of(5, (8, 3))
    inputs = joined(batch(tables)) if vector else (batch(tables),)
    options = {"grad": "dense", "dtype": dtype}
    expected = by_the_ops(tables, inputs, with_rule("Adagrad"), **options)
    with on_gpu() as device:
        got = train(tables, inputs, with_rule("Adagrad"), **options)
    assert all(map(same_bits, got, expected))
    assert names(device).count("sum_stack_rows") == 6
    assert (device.driver.log.count("synchronize"), "sum_rows" in names(device)) == (0, False)


@pytest.mark.parametrize("vector", [False, True])
def test_dense_gradients_of_some_tables(vector: bool) -> None:
    """Frozen tables, outputs without a gradient, gradients that are changed in place and added up."""
    tables = tables_of(4)
    inputs = joined(batch(tables)) if vector else (batch(tables),)

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        module = rgt.nn.Embeddings(tables, grad="dense", include_last_offset=True)
        weights = [module.weight(f"t{i}") for i in range(4)]
        weights[2].requires_grad_(False)
        for _ in range(2):
            outputs = module(*inputs)
            sum(o.square().sum() for f, o in outputs.items() if vector or f != "t1").backward()
        weights[0].grad.mul_(2)  # shares no elements with the others
        (own,) = torch.autograd.grad(module(*inputs)["t3"].sum(), [weights[3]])
        return [own, *(w.grad for w in weights if w.grad is not None)]

    expected = on_the_ops(run)
    with on_gpu() as device, without_reads():
        got = run()
    assert len(got) == len(expected) == (4 if vector else 3)
    assert all(map(same_bits, got, expected))
    assert "sum_stack_rows" in names(device)


@pytest.mark.parametrize("output", ["features", "stacked"])
def test_one_vector(output: str) -> None:
    """The host does not know how many ids a table has, so each gradient has as many places as it may need."""
    tables = tables_of(4)
    options = {"grad": "rows", "output": output}
    inputs = joined(batch(tables))
    expected = by_the_ops(tables, inputs, with_rule("Adam"), **options)
    with on_gpu() as device, without_reads():
        got = train(tables, inputs, with_rule("Adam"), **options)
    assert all(map(same_bits, got, expected))
    own = names(device)
    assert not ALONE & set(own)
    assert [own.count(name) for name in sorted(OF_TABLES)] == [3] * 5
