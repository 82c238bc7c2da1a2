"""Many tables in one lookup and one step, through the stand-in driver: the bits and errors of other ways."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from emulated_call import same_bits
from emulated_device import HostDevice
from test_emulated_torch import on_cpu_as_gpu, on_gpu
from torch import Tensor

import rowgrad.torch as rgt
from rowgrad.errors import InvalidArgumentError, UnimplementedError
from rowgrad.torch import devices, gpu_features, row_optimizer
from rowgrad.torch.nn import Table

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
COMBINERS = ("mean", "sum", "sqrtn")
KINDS = (torch.int32, torch.int64)
BAGS = 5


def tables_of(count: int = 4, columns: tuple[int, ...] = (8,), rows: int = 40) -> list[Table]:
    return [Table(f"t{i}", rows + 3 * i, columns[i % len(columns)], combiner=COMBINERS[i % 3]) for i in range(count)]


def batch(
    tables: list[Table], has_end: bool = True, seed: int = 0, long: int = 700
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return ids and offsets by feature: empty bags, empty features, and a row with very many ids."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for i, table in enumerate(tables):
        lengths = torch.randint(0, 6, (BAGS,), generator=draw)
        lengths[i % BAGS] = 0 if i == 2 else long if i == 1 else 9
        if i == 2:
            lengths[:] = 0
        ids = torch.randint(0, table.num_embeddings, (int(lengths.sum()),), generator=draw)
        if i == 1:
            ids[: long - 100] = 7
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        kind = torch.int32 if i % 2 else torch.int64
        found[table.name] = (
            ids.to(kind),
            (offsets if has_end else offsets[:-1]).to(torch.int32 if i == 0 else torch.int64),
        )
    return found


Features = dict[str, tuple[Tensor, Tensor]]


def joined(features: Features) -> tuple[Tensor, Tensor]:
    """Return one vector of ids, and the offsets of all bags."""
    ids = torch.cat([ids.to(torch.int64) for ids, _ in features.values()])
    ends, begin = [torch.zeros(1, dtype=torch.int64)], 0
    for own, offsets in features.values():
        ends.append(offsets[1:].to(torch.int64) + begin)
        begin += own.shape[0]
    return ids, torch.cat(ends)


def train(
    tables: list[Table], inputs: tuple[Any, ...], optimizers: Callable[[Any], list[Any]], turns: int = 3, **options: Any
) -> list[Tensor]:
    """Return the outputs of each step, then tables and slots."""
    torch.manual_seed(1)
    module = rgt.nn.Embeddings(tables, **{"include_last_offset": True, **options})
    own, found = optimizers(module), []
    for _ in range(turns):
        for optimizer in own:
            optimizer.zero_grad()
        outputs = module(*inputs)
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs.values())
        found += [o.detach().clone() for o in outputs]
        outputs = [o for o in outputs if o.requires_grad]  # the ops' outputs of frozen tables do not
        torch.autograd.backward(
            outputs, [torch.linspace(-1, 1, o.numel()).reshape(o.shape).to(o.dtype) for o in outputs]
        )  # fmt: skip
        for optimizer in own:
            optimizer.step()
    states = [o.state[p] for o in own for p in o._params() if p in o.state]
    slots = [v for state in states for v in state.values() if isinstance(v, Tensor)]
    return [*found, *[p.detach() for p in module.parameters()], *slots]


def by_the_ops(*arguments: Any, **options: Any) -> list[Tensor]:
    """Return what `train` returns on a CPU, table by table, with the order of a GPU."""
    with on_cpu_as_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_features, "look_up", lambda *args: None)
        patch.setattr(row_optimizer, "joint_steps", lambda *args: ([], set()))
        return train(*arguments, **options)


def names(device: HostDevice) -> list[str]:
    return [name.split("<")[0] for name in device.launched]


def with_rule(rule: str, **options: Any) -> Callable[[Any], list[Any]]:
    return lambda module: [getattr(rgt.optim, rule)(module.parameters(), lr=0.1, **options)]


RULES = ["SGD", "Adagrad", "RowWiseAdagrad", "Adam", "AdamW", "Momentum", "Lion", "Ftrl"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_steps_have_the_bits_of_a_step_per_table(rule: str, dtype: torch.dtype) -> None:
    tables = tables_of()
    vector = RULES.index(rule) % 2 == 0
    inputs = joined(batch(tables)) if vector else (batch(tables),)
    expected = by_the_ops(tables, inputs, with_rule(rule), fused=True, dtype=dtype)
    with on_gpu() as device:
        got = train(tables, inputs, with_rule(rule), fused=True, dtype=dtype)
    assert len(got) == len(expected)
    assert all(map(same_bits, got, expected))
    own = names(device)
    assert own.count("sum_feature_bags") == own.count("step_table_rows") == own.count("scan_ids") == 3
    assert not {"sum_offset_bags", "sum_bags", "sum_rows", "step_rows", "stack_bags"} & set(own)


@pytest.mark.parametrize("output", ["features", "stacked"])
@pytest.mark.parametrize("options", [{"fused": True}, {"grad": "rows"}, {"grad": "dense"}], ids=str)
def test_outputs_and_gradients(options: dict[str, Any], output: str) -> None:
    tables = tables_of(3)
    for has_end in (True, False):
        chosen = {**options, "output": output, "include_last_offset": has_end}
        inputs = (batch(tables, has_end),)
        expected = by_the_ops(tables, inputs, with_rule("Adagrad"), **chosen)
        with on_gpu() as device:
            got = train(tables, inputs, with_rule("Adagrad"), **chosen)
        assert all(map(same_bits, got, expected))
        assert names(device).count("sum_feature_bags") == 3


@pytest.mark.parametrize("columns", [1, 3, 64, 200])
@pytest.mark.parametrize("rule", ["SGD", "Adagrad", "RowWiseAdagrad"])
def test_rows_of_any_width(columns: int, rule: str) -> None:
    tables = tables_of(3, (columns,))
    inputs = joined(batch(tables))
    expected = by_the_ops(tables, inputs, with_rule(rule), fused=True)
    with on_gpu() as device:
        got = train(tables, inputs, with_rule(rule), fused=True)
    assert all(map(same_bits, got, expected))
    is_wide = columns == 200 and rule == "RowWiseAdagrad"  # rows wider than a group of lanes are stepped one by one
    assert ("step_table_rows" in names(device)) != is_wide


def test_tables_of_several_widths_form_groups() -> None:
    tables = tables_of(5, (8, 3))
    inputs = (batch(tables),)
    expected = by_the_ops(tables, inputs, with_rule("Adam"), fused=True)
    with on_gpu() as device:
        got = train(tables, inputs, with_rule("Adam"), fused=True)
    assert all(map(same_bits, got, expected))
    assert names(device).count("sum_feature_bags") == names(device).count("step_table_rows") == 6
    with on_gpu() as device, torch.no_grad():
        torch.manual_seed(1)
        module = rgt.nn.Embeddings(tables)
        outputs = module(*joined(inputs[0]))
    with torch.no_grad():
        assert all(same_bits(outputs[f], module(*joined(inputs[0]))[f]) for f in outputs)
    assert names(device) == ["put_words", "sum_feature_bags", "sum_feature_bags"]


def test_tables_with_other_options_and_frozen_ones() -> None:
    """Parameter groups, two optimizers, tables without a gradient."""
    tables = tables_of(5)

    def optimizers(module: Any) -> list[Any]:
        t = [module.weight(f"t{i}") for i in range(5)]
        t[3].requires_grad_(False)
        return [
            rgt.optim.Adagrad([{"params": [t[0]]}, {"params": [t[1]], "lr": 0.5}], lr=0.1),
            rgt.optim.SGD([t[2], t[4]], lr=0.3),
        ]

    for inputs in ((batch(tables),), joined(batch(tables))):
        expected = by_the_ops(tables, inputs, optimizers, fused=True)
        with on_gpu() as device:
            got = train(tables, inputs, optimizers, fused=True)
        assert all(map(same_bits, got, expected))
        assert names(device).count("step_table_rows") == 9  # two groups of options and another optimizer
        assert names(device).count("scan_ids") == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_stochastic_rounding_differs_by_table(dtype: torch.dtype) -> None:
    tables = [Table(f"t{i}", 40, 8) for i in range(3)]
    inputs, optimizers = (batch(tables),), with_rule("SGD", stochastic_rounding=True, seed=5)
    expected = by_the_ops(tables, inputs, optimizers, fused=True, dtype=dtype)
    with on_gpu() as device:
        got = train(tables, inputs, optimizers, fused=True, dtype=dtype)
    assert all(map(same_bits, got, expected))
    assert names(device).count("step_table_rows") == 3


def test_outputs_that_have_no_gradient() -> None:
    tables = tables_of(3)
    features = batch(tables)

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        module = rgt.nn.Embeddings(tables, fused=True, include_last_offset=True)
        optimizer = rgt.optim.Adam(module.parameters(), lr=0.1)
        for _ in range(2):
            module(features)["t1"].square().sum().backward()
            optimizer.step()
        return [p.detach() for p in module.parameters()]

    with on_cpu_as_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_features, "look_up", lambda *args: None)
        expected = run()
    with on_gpu() as device:
        got = run()
    assert all(map(same_bits, got, expected))
    assert "step_table_rows" in names(device)


@pytest.mark.parametrize("vector", [False, True])
def test_a_gradient_that_is_read_is_that_of_an_unfused_table(vector: bool) -> None:
    tables = tables_of(4)
    inputs = joined(batch(tables)) if vector else (batch(tables),)

    def gradients(**options: Any) -> list[Tensor]:
        torch.manual_seed(1)
        module = rgt.nn.Embeddings(tables, include_last_offset=True, **options)
        optimizer = rgt.optim.SGD(module.parameters(), lr=0.1)
        torch.stack(list(module(*inputs).values()), 1).square().sum().backward()
        found = [p.grad.to_dense() for p in module.parameters()]
        optimizer.step()
        return [*found, *[p.detach() for p in module.parameters()]]

    with on_cpu_as_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_features, "look_up", lambda *args: None)
        expected = gradients()
    with on_gpu():
        assert all(map(same_bits, gradients(fused=True), expected))


def test_second_derivatives() -> None:
    tables = tables_of(2)
    features = batch(tables, long=9)

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        module = rgt.nn.Embeddings(tables, grad="dense", include_last_offset=True, dtype=torch.float64)
        total = sum(o.pow(3).sum() for o in module(features).values())
        grads = torch.autograd.grad(total, list(module.parameters()), create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in grads), list(module.parameters())))

    with on_cpu_as_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_features, "look_up", lambda *args: None)
        expected = run()
    with on_gpu():
        got = run()
    assert all(map(same_bits, got, expected))


BAD: list[Callable[[Tensor, Tensor], None]] = [
    lambda ids, offsets: offsets.__setitem__(0, 1),
    lambda ids, offsets: offsets.__setitem__(7, 3),
    lambda ids, offsets: offsets.__setitem__(3, -1),
    lambda ids, offsets: offsets.__setitem__(4, 2**40),
    lambda ids, offsets: offsets.__setitem__(-1, int(offsets[-1]) + 1),
    lambda ids, offsets: offsets.__setitem__(-1, int(offsets[-1]) - 1),
    lambda ids, offsets: ids.__setitem__(7, 1000),
    lambda ids, offsets: ids.__setitem__(-1, -1),
    lambda ids, offsets: ids.__setitem__(slice(5, 9), -(2**40)),
]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_vectors_raise_the_messages_of_a_cpu(number: int, fused: bool) -> None:
    tables = tables_of(3)
    good = joined(batch(tables))
    ids, offsets = good[0].clone(), good[1].clone()
    BAD[number](ids, offsets)
    torch.manual_seed(1)
    module = rgt.nn.Embeddings(tables, fused=fused)
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(InvalidArgumentError) as expected:
        module(ids, offsets)
    with on_gpu() as device, torch.set_grad_enabled(fused):
        module(ids, offsets)
        assert names(device) == ["put_words", "sum_feature_bags"]
        with pytest.raises(InvalidArgumentError) as raised:
            rgt.synchronize()
        assert raised.value.message == expected.value.message
        assert (raised.value.position, raised.value.value) == (expected.value.position, expected.value.value)
        got = module(*good)  # the check state was reset
    assert all(same_bits(got[f].detach(), module(*good)[f].detach()) for f in got)
    assert all(map(same_bits, [p.detach() for p in module.parameters()], before))


@pytest.mark.parametrize("number", range(len(BAD)))
def test_the_first_bad_feature_is_reported(number: int) -> None:
    """The position is that in the feature's own ids."""
    tables = [Table(f"t{i}", 40, 8) for i in range(3)]
    lengths = torch.tensor([2, 3, 0, 4, 1, 1, 1])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    good = {t.name: (torch.arange(12) + i, offsets) for i, t in enumerate(tables)}
    features = {name: (ids.clone(), offsets.clone()) for name, (ids, offsets) in good.items()}
    for name in ("t1", "t2"):
        BAD[number](*features[name])
    torch.manual_seed(1)
    module = rgt.nn.Embeddings(tables, include_last_offset=True)
    with pytest.raises(InvalidArgumentError) as expected:
        module(features)
    with on_gpu() as device:
        module(features)
        with pytest.raises(InvalidArgumentError) as raised:
            rgt.synchronize()
        assert names(device) == ["put_words", "sum_feature_bags"]
        got = module(good)
    assert raised.value.message == expected.value.message
    assert (raised.value.position, raised.value.value) == (expected.value.position, expected.value.value)
    assert "t1" in expected.value.message
    assert all(same_bits(got[f].detach(), module(good)[f].detach()) for f in got)


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_step_after_a_bad_lookup_changes_nothing(number: int) -> None:
    """The step is queued before the host sees the fault, and lists of ids may be unwritten."""
    tables = tables_of(3)
    ids, offsets = joined(batch(tables))
    BAD[number](ids, offsets)
    torch.manual_seed(1)
    module = rgt.nn.Embeddings(tables, fused=True)
    optimizer = rgt.optim.Adam(module.parameters(), lr=0.1)
    before = [p.detach().clone() for p in module.parameters()]
    with on_gpu() as device, pytest.MonkeyPatch.context() as patch:
        outputs = module(ids, offsets)
        with pytest.raises(InvalidArgumentError):
            rgt.synchronize()  # as if the step were queued before
        patch.setattr(device.ledger, "raise_reported", lambda own=0: None)
        torch.autograd.backward(list(outputs.values()), [torch.ones(o.shape) for o in outputs.values()])
        optimizer.step()
        assert "step_table_rows" in names(device)
    assert all(map(same_bits, [p.detach() for p in module.parameters()], before))


def test_a_lookup_and_a_step_are_few_launches() -> None:
    tables = [Table(f"t{i}", 40, 8) for i in range(26)]
    features = batch(tables, long=20)
    with on_gpu() as device:
        module = rgt.nn.Embeddings(tables, fused=True, include_last_offset=True)
        optimizer = rgt.optim.SGD(module.parameters(), lr=0.1)
        for inputs in ((features,), joined(features)):
            outputs = list(module(*inputs).values())
            torch.autograd.backward(outputs, [torch.ones(o.shape) for o in outputs])
            optimizer.step()
            assert names(device) == [
                "put_words", "sum_feature_bags", "put_words", "scan_ids", "sort_pass", "sort_pass", "find_rows",
                "sum_feature_rows", "join_runs", "step_table_rows",
            ]  # fmt: skip
            assert device.driver.log == [*["launch"] * 3, "memset", *["launch"] * 7]
            device.launched.clear()
            device.driver.log.clear()
        assert optimizer.state[module.weight("t0")]["step"] == 2


def test_more_features_than_one_launch_describes() -> None:
    tables = [Table(f"t{i}", 9, 4) for i in range(100)]
    inputs = (batch(tables, long=3),)
    expected = by_the_ops(tables, inputs, with_rule("SGD"), turns=1, fused=True)
    with on_gpu() as device:
        got = train(tables, inputs, with_rule("SGD"), turns=1, fused=True)
    assert all(map(same_bits, got, expected))
    assert names(device).count("put_words") == 5


def test_capture_keeps_slots_and_rejects_rules_that_count() -> None:
    tables = tables_of(2)
    features = batch(tables)
    with on_gpu() as device, pytest.MonkeyPatch.context() as patch:
        for rule in ("SGD", "Adam"):
            device.driver.capturing = False
            patch.undo()
            module = rgt.nn.Embeddings(tables, fused=True, include_last_offset=True)
            optimizer = getattr(rgt.optim, rule)(module.parameters(), lr=0.1)
            for captured in (False, True):
                device.driver.capturing = captured
                for owner in (devices, row_optimizer):
                    patch.setattr(owner, "is_captured", lambda captured=captured: captured)
                torch.stack(list(module(features).values())).sum().backward()
                with pytest.raises(UnimplementedError) if captured and rule == "Adam" else nullcontext():
                    optimizer.step()
        device.driver.capturing = False
        assert device.ledger.slots.captured == 3


def test_weights_go_to_the_ops() -> None:
    tables = tables_of(2)
    features = batch(tables)
    inputs = (features, None, {f: torch.linspace(-1, 1, len(ids)) for f, (ids, _) in features.items()})
    expected = by_the_ops(tables, inputs, with_rule("SGD"), fused=True)
    with on_gpu() as device:
        got = train(tables, inputs, with_rule("SGD"), fused=True)
    assert all(map(same_bits, got, expected))
    assert "sum_feature_bags" not in names(device)


def test_sync_mode_raises_at_once() -> None:
    tables = tables_of(2)
    features = batch(tables)
    features["t1"][0][3] = 1000
    with on_gpu(mode="sync"), pytest.raises(InvalidArgumentError):
        rgt.nn.Embeddings(tables, include_last_offset=True)(features)


def test_gradients_that_autograd_needs() -> None:
    """Tables among the inputs of a backward pass, and tables with hooks, have gradients; the others wait for a step."""
    tables = tables_of(3)
    features = batch(tables, long=20)

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        module = rgt.nn.Embeddings(tables, fused=True, include_last_offset=True)
        optimizer = rgt.optim.SGD(module.parameters(), lr=0.1)
        own, found = [module.weight(f"t{i}") for i in range(3)], []

        def loss() -> Tensor:
            return sum((i + 1) * o.square().sum() for i, o in enumerate(module(features).values()))  # type: ignore[return-value]

        found += [g.to_dense() for g in torch.autograd.grad(loss(), [own[1], own[0]])]
        loss().backward(inputs=[own[0]])
        assert [p.grad is not None for p in own] == [True, False, False]
        optimizer.zero_grad()
        seen: list[Tensor] = []
        handle = own[1].register_hook(lambda g: seen.append(g.to_dense()))
        loss().backward()
        handle.remove()
        found += seen
        optimizer.step()
        return [*found, *[p.detach() for p in own]]

    with on_cpu_as_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_features, "look_up", lambda *args: None)
        expected = run()
    with on_gpu() as device:
        got = run()
    assert len(got) == len(expected) == 6
    assert all(map(same_bits, got, expected))
    assert "sum_feature_bags" in names(device)
