"""Tables with several features and with padding, and matrices of ids, in one lookup and step of all tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from emulated_call import same_bits
from emulated_device import HostDevice
from test_emulated_features import BAD, COMBINERS, DTYPES, RULES, by_the_ops, joined, names, train, with_rule
from test_emulated_row_gradients import without_reads
from test_emulated_torch import on_cpu_as_gpu, on_gpu
from torch import Tensor

import rowgrad.torch as rgt
from rowgrad.errors import InvalidArgumentError
from rowgrad.torch import embeddings, gpu_features, row_optimizer
from rowgrad.torch.nn import Table

BAGS = 37
HOT = 7  # the row that most ids name: its runs of 64 show in which order contributions are added
OPTIONS = [{"fused": True}, {"grad": "rows"}, {"grad": "dense"}]
# The last one would give ids of other features of the table a place far outside of the list.
BAD_LISTS = [*BAD, lambda ids, offsets: offsets.__setitem__(4, 2**31 - 7)]
ALONE = {"sum_offset_bags", "sum_bags", "sum_rows", "step_rows", "stack_bags", "pad_row_gradient"}


def tables_of(columns: int = 64, padding: int | None = None) -> list[Table]:
    """Return tables of one, two and three features; `padding`: of the tables with several."""
    features = {"a": ("x", "y", "z"), "b": ("b",), "c": ("u", "v")}
    return [
        Table(name, 40 + 3 * i, columns, COMBINERS[i], own, padding_idx=padding if len(own) > 1 else None)
        for i, (name, own) in enumerate(features.items())
    ]


def batch(tables: list[Table], seed: int = 0, has_end: bool = True) -> dict[str, tuple[Tensor, Tensor]]:
    """Return ids and offsets by feature: empty bags, an empty feature, and a bag that its block does not list."""
    draw, found = torch.Generator().manual_seed(seed), {}
    for table in tables:
        for i, feature in enumerate(table.read_by):
            lengths = torch.randint(0, 9, (BAGS,), generator=draw)
            if feature == "y":
                lengths[5] = 1500
            if feature == "z":
                lengths[:] = 0
            ids = torch.randint(0, table.num_embeddings, (int(lengths.sum()),), generator=draw)
            ids[torch.rand(ids.shape, generator=draw) < 0.6] = HOT
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            kinds = (torch.int32, torch.int64) if i % 2 else (torch.int64, torch.int32)
            found[feature] = ids.to(kinds[0]), (offsets if has_end else offsets[:-1]).to(kinds[1])
    return found


def with_padding(features: dict[str, Any], padding: int) -> dict[str, Any]:
    """Return ids, half of which are the padding, also whole bags."""
    draw, found = torch.Generator().manual_seed(9), {}
    for feature, (ids, offsets) in features.items():
        own = torch.where(torch.rand(ids.shape, generator=draw) < 0.5, torch.tensor(padding).to(ids.dtype), ids)
        own[int(offsets[3]) : int(offsets[4])] = padding
        found[feature] = own, offsets
    return found


def on_the_ops(run: Callable[[], list[Tensor]]) -> list[Tensor]:
    with on_cpu_as_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_features, "look_up", lambda *args: None)
        patch.setattr(row_optimizer, "joint_steps", lambda *args: ([], set()))
        return run()


def assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    assert len(got) == len(expected)
    assert all(map(same_bits, got, expected))


# -- Tables with several features -------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_several_features_have_the_bits_of_the_ops(dtype: torch.dtype, options: dict[str, Any], vector: bool) -> None:
    tables, number = tables_of(), DTYPES.index(dtype)
    has_end = vector or number % 2 == 0
    features = batch(tables, number, has_end)
    inputs = joined(features) if vector else (features,)
    own = {**options, "dtype": dtype, "output": ("features", "stacked")[number // 2], "include_last_offset": has_end}
    rule = RULES[(2 * number + vector) % len(RULES)]
    expected = by_the_ops(tables, inputs, with_rule(rule), **own)
    with on_gpu() as device, without_reads():
        got = train(tables, inputs, with_rule(rule), **own)
    assert_same(got, expected)
    launched = names(device)
    assert launched.count("sum_feature_bags") == launched.count("scan_ids") == 3
    assert not (ALONE - ({"step_rows"} if options.get("grad") == "dense" else set())) & set(launched)


@pytest.mark.parametrize("columns", [1, 7, 200])
def test_several_features_of_any_width(columns: int) -> None:
    tables = tables_of(columns)
    for inputs in ((batch(tables),), joined(batch(tables))):
        expected = by_the_ops(tables, inputs, with_rule("Adagrad"), turns=1, fused=True)
        with on_gpu() as device:
            assert_same(train(tables, inputs, with_rule("Adagrad"), turns=1, fused=True), expected)
        assert "step_table_rows" in names(device)


def test_several_widths_of_tables_with_several_features() -> None:
    tables = [*tables_of(64), Table("d", 50, 3, features=("p", "q")), Table("e", 60, 3)]
    inputs = (batch(tables),)
    expected = by_the_ops(tables, inputs, with_rule("Adam"), fused=True)
    with on_gpu() as device:
        assert_same(train(tables, inputs, with_rule("Adam"), fused=True), expected)
    assert names(device).count("sum_feature_bags") == names(device).count("step_table_rows") == 6


def test_more_features_than_one_launch_describes() -> None:
    tables = [Table(f"t{i}", 9, 4, features=(f"a{i}", f"b{i}"), padding_idx=2 if i % 3 else None) for i in range(40)]
    draw = torch.Generator().manual_seed(3)
    features = {f: torch.randint(0, 9, (3, 2), generator=draw) for t in tables for f in t.read_by}
    expected = by_the_ops(tables, (features,), with_rule("SGD"), turns=1, fused=True)
    with on_gpu() as device:
        got = train(tables, (features,), with_rule("SGD"), turns=1, fused=True)
    assert_same(got, expected)
    assert "step_table_rows" in names(device)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tables_without_rows_and_vectors_without_ids(options: dict[str, Any]) -> None:
    tables = [
        Table("a", 0, 8, features=("x", "y")),
        Table("b", 64, 8, features=("u", "v"), padding_idx=63),
        Table("c", 9, 3),
    ]
    none = torch.empty(0, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    some = torch.tensor([63, 3, 63, 3, 5]), torch.tensor([0, 3, 3, 5])
    for features in (dict.fromkeys("xyuv", none), {"x": none, "y": none, "u": some, "v": some}):
        features["c"] = none
        for inputs in ((features,), joined(features)):
            expected = by_the_ops(tables, inputs, with_rule("Adam"), turns=2, **options)
            with on_gpu():
                got = train(tables, inputs, with_rule("Adam"), turns=2, **options)
            assert_same(got, expected)


def test_features_of_a_table_that_have_no_gradient() -> None:
    """Their ids are listed with a gradient of zeros, as the ops do."""
    tables = tables_of()
    for options in OPTIONS:
        for inputs in ((batch(tables),), joined(batch(tables))):

            def run(options: dict[str, Any] = options, inputs: Any = inputs) -> list[Tensor]:
                torch.manual_seed(1)
                module = rgt.nn.Embeddings(tables, include_last_offset=True, **options)
                optimizer = rgt.optim.Momentum(module.parameters(), lr=0.1)
                for feature in ("x", "y"):
                    module(*inputs)[feature].square().sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                outputs = module(*inputs)
                (outputs["u"].sum() + outputs["b"].sum()).backward()
                return [
                    *(p.detach() for p in module.parameters()),
                    *(g.to_dense() for p in module.parameters() if (g := p.grad) is not None),
                ]

            expected = on_the_ops(run)
            with on_gpu() as device:
                assert_same(run(), expected)
            assert "sum_feature_bags" in names(device)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("padding", [None, 2])
def test_what_autograd_does_with_the_gradient(padding: int | None, vector: bool) -> None:
    """Gradients that are read, hooks, two lookups before a step, frozen tables, inputs of a backward pass."""
    tables = tables_of(8, padding)
    features = batch(tables)
    if padding is not None:
        features = with_padding(features, padding)
    inputs = joined(features) if vector else (features,)

    def run(**options: Any) -> list[Tensor]:
        torch.manual_seed(1)
        module = rgt.nn.Embeddings(tables, include_last_offset=True, **options)
        optimizer = rgt.optim.Adagrad(module.parameters(), lr=0.1)
        own, found = [module.weight(t.name) for t in tables], []

        def loss(scale: float = 1.0) -> Tensor:
            return sum((i + scale) * o.square().sum() for i, o in enumerate(module(*inputs).values()))  # type: ignore[return-value]

        found += [g.to_dense() for g in torch.autograd.grad(loss(), [own[2], own[0]])]
        loss().backward()
        found += [p.grad.to_dense() for p in own]
        optimizer.step()
        optimizer.zero_grad()
        handle = own[0].register_hook(lambda g: found.append(g.to_dense()))
        loss().backward()
        handle.remove()
        optimizer.step()
        optimizer.zero_grad()
        loss().backward()
        loss(2.0).backward()
        optimizer.step()
        optimizer.zero_grad()
        own[0].requires_grad_(False)
        (loss() + loss(3.0)).backward()
        optimizer.step()
        return [*found, *(p.detach() for p in own)]

    for options in OPTIONS:
        expected = on_the_ops(lambda options=options: run(**options))
        with on_gpu() as device:
            got = run(**options)
        assert_same(got, expected)
        assert "sum_feature_bags" in names(device)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("padding", [None, 2])
def test_second_derivatives(padding: int | None, vector: bool) -> None:
    tables = tables_of(4, padding)
    inputs = joined(batch(tables)) if vector else (batch(tables),)

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        module = rgt.nn.Embeddings(tables, grad="dense", include_last_offset=True, dtype=torch.float64)
        total = sum(o.pow(3).sum() for o in module(*inputs).values())
        grads = torch.autograd.grad(total, list(module.parameters()), create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in grads), list(module.parameters())))

    expected = on_the_ops(run)
    with on_gpu() as device:
        assert_same(run(), expected)
    assert "sum_feature_bags" in names(device)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_captured_step_is_replayed(options: dict[str, Any], padding: int | None, vector: bool) -> None:
    """Replays read the current ids and learning rate."""
    tables, rates = tables_of(8, padding), (0.1, 0.3, 0.05, 0.2)
    features, other = batch(tables), batch(tables)
    for name, (ids, offsets) in other.items():  # other ids, the same sizes
        other[name] = (ids.flip(0), offsets)
    inputs, last = (joined(f) if vector else (f,) for f in (features, other))

    def run(is_captured: bool) -> list[Tensor]:
        lr = torch.tensor(rates[0], dtype=torch.float64)
        torch.manual_seed(1)
        module = rgt.nn.Embeddings(tables, include_last_offset=True, **options)
        optimizer = rgt.optim.Adagrad(module.parameters(), lr=lr, capturable=True)
        copies = tuple(
            x.clone() if isinstance(x, Tensor) else {k: (i.clone(), o) for k, (i, o) in x.items()} for x in inputs
        )
        kept: list[Any] = []

        def step() -> None:
            optimizer.zero_grad()
            outputs = list(module(*copies).values())
            upstream = [torch.linspace(-1, 1, o.numel()).reshape(o.shape) for o in outputs]
            torch.autograd.backward(outputs, upstream)
            kept.append((outputs, upstream, [p.grad for p in module.parameters()] if "grad" in options else None))
            optimizer.step()

        step()
        again = step
        if is_captured:
            with device.capture() as replay:
                step()
            again = replay
        else:
            step()
        for number, rate in enumerate(rates[2:]):
            if number:
                for own, new in zip(copies, last, strict=True):
                    for a, b in [(own, new)] if isinstance(own, Tensor) else [(own[k][0], new[k][0]) for k in own]:
                        a.copy_(b)
            lr.fill_(rate)
            again()
        return [p.detach().clone() for p in module.parameters()]

    with on_gpu() as device:
        expected = run(False)
    with on_gpu() as device:
        assert_same(run(True), expected)
    assert names(device).count("sum_feature_bags") == 4


# -- One vector of ids ------------------------------------------------------------------------------------------------


def test_rows_of_one_vector_have_the_places_they_may_need() -> None:
    tables = [Table(name, rows, 8) for name, rows in (("a", 40), ("b", 5), ("c", 1000))]
    ids, offsets = torch.arange(30) % 5, torch.tensor([0, 3, 10, 12, 15, 20, 30])
    with on_gpu() as device:
        module = rgt.nn.Embeddings(tables, include_last_offset=True)
        with device.capture(), without_reads():  # padding stays
            sum(o.sum() for o in module(ids, offsets).values()).backward()
        for table, count, places in zip("abc", (5, 5, 5), (30, 5, 30), strict=True):
            grad = module.weight(table).grad
            assert int(grad.count) == count
            with torch._C.DisableTorchFunctionSubclass():
                assert grad._indices().shape[1] == places
                assert grad._indices()[0].tolist() == [0, 1, 2, 3, 4, *[4] * (places - 5)]


class UnrunDevice(HostDevice):
    """A device that records launches and does not run them."""

    def _run(self, file: str, name: str, *launch: Any) -> None:
        self.launched.append(name)


@pytest.mark.parametrize(("count", "columns", "is_joint"), [(4, 64, True), (5, 64, False), (5, 32, True)])
def test_rows_that_would_need_much_memory_go_to_the_ops(count: int, columns: int, is_joint: bool) -> None:
    """Each of the tables could have all ids: four rows per id are allowed, and 256 MiB."""
    tables = [Table(f"t{i}", 300_000, columns, initializer=lambda t: t) for i in range(count)]
    ids, offsets = torch.zeros(300_000, dtype=torch.int32), torch.zeros(count + 1, dtype=torch.int64)

    class OpsError(Exception):
        pass

    def fail(*args: Any) -> None:
        raise OpsError

    with on_gpu(UnrunDevice()) as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(embeddings, "read_groups", fail)
        with nullcontext() if is_joint else pytest.raises(OpsError):
            rgt.nn.Embeddings(tables, include_last_offset=True)(ids, offsets)
        assert ("sum_feature_bags" in names(device)) == is_joint
        device.launched.clear()
        for options in OPTIONS[::2]:
            rgt.nn.Embeddings(tables, include_last_offset=True, **options)(ids, offsets)
            assert "sum_feature_bags" in names(device)


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_vector_of_tables_of_several_widths(options: dict[str, Any], padding: int | None) -> None:
    """The ids of the tables of one width are ignored in the sums of the others; outputs without a gradient too."""
    shared = tables_of(16, padding)
    tables = [
        Table("first", 50, 3),
        *shared,
        Table("d", 50, 3, features=("p", "q")),
        Table("e", 60, 5),
        Table("f", 9, 16),
    ]
    features = batch(tables)
    inputs = joined(features if padding is None else with_padding(features, padding))
    features["f"] = features["f"][0] % 9, features["f"][1]
    inputs[0][-len(features["f"][0]) :] %= 9
    expected = by_the_ops(tables, inputs, with_rule("Adam"), **options)
    with on_gpu() as device, without_reads():
        got = train(tables, inputs, with_rule("Adam"), **options)
    assert_same(got, expected)
    assert names(device).count("sum_feature_bags") == names(device).count("scan_ids") == 9

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        module = rgt.nn.Embeddings(tables, include_last_offset=True, **options)
        optimizer = rgt.optim.Adagrad(module.parameters(), lr=0.1)
        outputs = module(*inputs)
        (outputs["p"].square().sum() + outputs["f"].sum()).backward()
        found = [p.grad.to_dense() for p in module.parameters() if p.grad is not None]
        optimizer.step()
        return [*found, *(p.detach() for p in module.parameters())]

    expected = on_the_ops(run)
    with on_gpu():
        assert_same(run(), expected)


# -- Padding and matrices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_padding_has_the_bits_of_the_ops(dtype: torch.dtype, options: dict[str, Any], vector: bool) -> None:
    number = DTYPES.index(dtype)
    has_end = vector or number % 2 == 0
    tables = tables_of(padding=(0, HOT, -1)[number % 3])
    features = with_padding(
        batch(tables, number), tables[0].num_embeddings - 1 if number % 3 == 2 else (0, HOT)[number % 3]
    )
    if not has_end:
        features = {f: (ids, offsets[:-1]) for f, (ids, offsets) in features.items()}
    inputs = joined(features) if vector else (features,)
    own = {**options, "dtype": dtype, "output": ("features", "stacked")[number // 2], "include_last_offset": has_end}
    rule = RULES[(2 * number + vector + 3) % len(RULES)]
    expected = by_the_ops(tables, inputs, with_rule(rule), **own)
    with on_gpu() as device, without_reads():
        got = train(tables, inputs, with_rule(rule), **own)
    assert_same(got, expected)
    launched = names(device)
    assert launched.count("sum_feature_bags") == launched.count("scan_ids") == 3
    assert not (ALONE - ({"step_rows"} if options.get("grad") == "dense" else set())) & set(launched)


def test_padding_of_tables_with_one_feature() -> None:
    """Some of the tables, of two widths; no id is left of a feature; a lookup without a gradient."""
    tables = [Table("a", 40, 8, padding_idx=2), Table("b", 33, 8), Table("c", 32, 3, padding_idx=31), Table("d", 9, 3)]
    features = with_padding(batch(tables), 2)
    features["c"] = torch.full_like(features["c"][0], 31), features["c"][1]
    features["d"] = features["d"][0] % 9, features["d"][1]
    for options in OPTIONS:
        expected = by_the_ops(tables, (features,), with_rule("Adam"), **options)
        with on_gpu() as device:
            assert_same(train(tables, (features,), with_rule("Adam"), **options), expected)
        assert names(device).count("sum_feature_bags") == names(device).count("scan_ids") == 6
    module = rgt.nn.Embeddings(tables, include_last_offset=True)
    with torch.no_grad():
        for inputs in ((features,), joined(features)):
            expected = list(module(*inputs).values())
            with on_gpu() as device:
                assert_same(list(module(*inputs).values()), expected)
            assert names(device) == ["put_words", "sum_feature_bags", "sum_feature_bags"]


def test_ignored_ids_are_not_summed() -> None:
    """They have a row of their own behind those of the tables; if it has many ids, its sum stays unwritten."""
    tables = tables_of(8, padding=2)
    with on_gpu() as device:
        module = rgt.nn.Embeddings(tables, include_last_offset=True)
        with device.capture():  # padding of gradients stays
            sum(o.sum() for o in module(with_padding(batch(tables), 2)).values()).backward()
            with torch._C.DisableTorchFunctionSubclass():
                values = module.weight("c").grad._values()
    own = values.new_empty(0).set_(values.untyped_storage())
    unwritten = torch.full((8,), 0xA5, dtype=torch.uint8).repeat(4).view(torch.float32)
    assert same_bits(own[-8:], unwritten)
    assert not same_bits(own[-16:-8], unwritten)


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("ends", [None, False, True])
def test_matrices(ends: bool | None, padding: int | None) -> None:
    """A bag per row, for all features or some, in int32 and int64."""
    tables = tables_of(8, padding)
    features: dict[str, Any] = {f: torch.randint(0, 40, (BAGS, 1 + i)) for i, f in enumerate("xyzbuv")}
    features["z"], features["v"] = torch.empty((BAGS, 0), dtype=torch.int64), features["v"].int()
    features["x"][:, 0] = HOT
    features["y"][:5] = 3
    if ends is not None:
        offsets = torch.arange(BAGS + ends) * 2
        features["u"] = torch.randint(0, 40, (2 * BAGS,)), offsets
    for options in OPTIONS:
        own = {**options, "include_last_offset": ends}
        expected = by_the_ops(tables, (features,), with_rule("Adagrad"), **own)
        with on_gpu() as device, without_reads():
            got = train(tables, (features,), with_rule("Adagrad"), **own)
        assert_same(got, expected)
        assert names(device).count("sum_feature_bags") == names(device).count("scan_ids") == 3


def test_matrices_of_tables_with_one_feature() -> None:
    tables = [Table(f"t{i}", 40, (64, 3)[i % 2]) for i in range(4)]
    features: dict[str, Any] = {t.name: torch.randint(0, 40, (BAGS, i)) for i, t in enumerate(tables)}
    for options in OPTIONS:
        expected = by_the_ops(tables, (features,), with_rule("Adagrad"), **options)
        with on_gpu() as device, without_reads():
            got = train(tables, (features,), with_rule("Adagrad"), **options)
        assert_same(got, expected)
        assert names(device).count("sum_feature_bags") == names(device).count("scan_ids") == 6


def test_launches() -> None:
    """As many as for tables with one feature and no padding."""
    tables = [Table("a", 40, 8, features=("x", "y"), padding_idx=3), *[Table(f"t{i}", 40, 8) for i in range(24)]]
    features = {f: (torch.arange(20) % 40, torch.tensor([0, 3, 20])) for t in tables for f in t.read_by}
    with on_gpu() as device, without_reads():
        for options in ({"fused": True}, {"grad": "rows"}):
            module = rgt.nn.Embeddings(tables, include_last_offset=True, **options)
            optimizer = rgt.optim.SGD(module.parameters(), lr=0.1)
            for inputs in ((features,), joined(features)):
                device.launched.clear()
                outputs = list(module(*inputs).values())
                torch.autograd.backward(outputs, [torch.ones(o.shape) for o in outputs])
                optimizer.step()
                optimizer.zero_grad()
                sums = ["sum_feature_rows", "join_runs", "step_table_rows"]
                if "grad" in options:
                    sums = ["find_tables", "sum_table_rows", "join_runs", "pad_table_gradients", "check_table_lists",
                            "step_table_lists"]  # fmt: skip
                assert [n for n in names(device) if n != "put_words"] == [
                    "sum_feature_bags", "scan_ids", "sort_pass", "sort_pass", "find_rows", *sums
                ]  # fmt: skip


# -- Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("number", range(len(BAD_LISTS)))
def test_bad_vectors_raise_the_messages_of_a_cpu(number: int, padding: int | None, fused: bool) -> None:
    """Also if a step follows before the host sees the fault: nothing is written, and nothing out of bounds."""
    tables = tables_of(8, padding)
    good = joined(batch(tables))
    ids, offsets = good[0].clone(), good[1].clone()
    BAD_LISTS[number](ids, offsets)
    check_error(tables, good, (ids, offsets), {"fused": True} if fused else {"grad": "rows"})


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("number", range(len(BAD_LISTS)))
def test_bad_vectors_of_tables_of_several_widths(number: int, fused: bool) -> None:
    """No table is updated, also of the widths whose ids are valid."""
    tables = [*tables_of(8, 3), Table("d", 50, 3, features=("p", "q")), Table("e", 60, 3)]
    good = joined(batch(tables))
    ids, offsets = good[0].clone(), good[1].clone()
    BAD_LISTS[number](ids, offsets)
    check_error(tables, good, (ids, offsets), {"fused": True} if fused else {"grad": "rows"}, widths=2)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("feature", ["x", "z", "v"])
@pytest.mark.parametrize("number", range(len(BAD_LISTS)))
def test_bad_features_raise_the_messages_of_a_cpu(number: int, feature: str, fused: bool) -> None:
    tables = tables_of(8, 3)
    good = batch(tables)
    good["z"] = torch.arange(20, dtype=torch.int32), torch.arange(BAGS + 1).clamp(max=20)
    bad = {
        f: (ids.to(torch.int64, copy=True), offsets.to(torch.int64, copy=True)) for f, (ids, offsets) in good.items()
    }
    BAD_LISTS[number](*bad[feature])
    check_error(tables, (good,), (bad,), {"fused": True} if fused else {"grad": "rows"})


def test_offsets_are_validated_before_ids() -> None:
    """Those of all features, as on a CPU."""
    tables = tables_of(8)
    bad = batch(tables)
    bad["x"][0][3] = 1000
    bad["v"][1][3] = -1
    check_error(tables, (batch(tables),), (bad,), {"fused": True})


def test_bad_ids_in_matrices() -> None:
    tables = tables_of(8, 3)
    good = {f: torch.randint(0, 40, (BAGS, 3)) for f in "xyzbuv"}
    bad = {f: ids.clone() for f, ids in good.items()}
    bad["y"][4, 2] = 40
    check_error(tables, (good,), (bad,), {"fused": True})


def check_error(
    tables: list[Table], good: tuple[Any, ...], bad: tuple[Any, ...], options: dict[str, Any], widths: int = 1
) -> None:
    torch.manual_seed(1)
    module = rgt.nn.Embeddings(tables, include_last_offset=True, **options)
    optimizer = rgt.optim.Adam(module.parameters(), lr=0.1)
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(InvalidArgumentError) as expected:
        module(*bad)
    with on_gpu() as device, pytest.MonkeyPatch.context() as patch:
        outputs = module(*bad)
        assert names(device) == ["put_words", *["sum_feature_bags"] * widths]
        with pytest.raises(InvalidArgumentError) as raised:
            rgt.synchronize()
        patch.setattr(device.ledger, "raise_reported", lambda own=0: None)  # as if the step were queued before
        torch.autograd.backward(list(outputs.values()), [torch.ones(o.shape) for o in outputs.values()])
        optimizer.step()
        assert {"step_table_rows", "step_table_lists"} & set(names(device))
    for fact in ("message", "position", "value", "bound"):
        assert getattr(raised.value, fact) == getattr(expected.value, fact), fact
    assert_same([p.detach() for p in module.parameters()], before)
    with on_gpu():  # the check state was reset
        got = [o.detach() for o in module(*good).values()]
    assert_same(got, [o.detach() for o in module(*good).values()])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_last_row_of_a_full_stack_is_not_the_one_of_ignored_ids(options: dict[str, Any]) -> None:
    """Without rows between the last table and the row of ignored ids, these are neighbours in the sorted list."""
    tables = [Table("a", 32, 8, features=("a",), padding_idx=0), Table("b", 64, 8, features=("u", "v"), padding_idx=1)]
    draw, features = torch.Generator().manual_seed(2), {}
    for name, rows in (("a", 32), ("u", 64), ("v", 64)):
        ids = torch.randint(rows - 2, rows, (300,), generator=draw)
        ids[::3] = 0 if name == "a" else 1
        features[name] = ids, torch.arange(0, 301, 10)

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        module = rgt.nn.Embeddings(tables, include_last_offset=True, **options)
        optimizer = rgt.optim.Adagrad(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            sum(o.square().sum() for o in module(features).values()).backward()
            optimizer.step()
        return [p.detach() for p in module.parameters()]

    expected = on_the_ops(run)
    with on_gpu() as device:
        assert_same(run(), expected)
    assert "sum_feature_bags" in names(device)
