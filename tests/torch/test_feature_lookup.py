"""Many tables in one kernel call: the bits of the ops, and everything that ordinary parameters do."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch

import rowgrad as rg
import rowgrad.torch as rgt
from rowgrad.torch import feature_lookup

T = torch.tensor
ROWS = {"a": 50, "x": 7, "y": 7, "c": 3000}  # of each feature's table; "x" and "y" share one
Table = rgt.nn.Table


def tables(chosen: random.Random, columns: int, other: int) -> list[Table]:
    kinds = [chosen.choice(("sum", "mean", "sqrtn")) for _ in range(3)]
    padding = chosen.choice((None, 2))
    return [
        Table("a", 50, columns, kinds[0]),
        Table("b", 7, other, kinds[1], features=("x", "y"), padding_idx=padding),
        Table("c", 3000, columns, kinds[2]),
    ]


def batch(bags: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    found = {}
    for feature, rows in ROWS.items():
        lengths = torch.randint(0, 6, (bags,))
        offsets = torch.cat([T([0]), torch.cumsum(lengths, 0)])
        found[feature] = (torch.randint(0, rows, (int(offsets[-1]),)), offsets)
    return found


def trained(seed: int, by_ops: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], int]:
    """Return everything that two training steps compute, and how many lookups were one kernel call."""
    chosen, fast = random.Random(seed), 0
    torch.manual_seed(seed)
    stacked, joined, weighted, fused, ends = (chosen.random() < 0.5 for _ in range(5))
    grad = "rows" if fused else chosen.choice(("rows", "dense"))
    columns = chosen.choice((1, 3, 8, 17, 32))
    module = rgt.nn.Embeddings(
        tables(chosen, columns, columns if stacked else 5), grad=grad, fused=fused, include_last_offset=ends,
        output="stacked" if stacked else "features",
        dtype=chosen.choice((torch.float32, torch.float64, torch.bfloat16, torch.float16)),
    )  # fmt: skip
    rule, lazy = chosen.choice(("RowWiseAdagrad", "Adam", "SGD")), chosen.random() < 0.5
    options = {"lazy": lazy} if rule == "Adam" else {}
    optimizer = getattr(rgt.optim, rule)(module.parameters(), lr=0.1, **options)
    run = feature_lookup._Call.run

    def counted(self: Any, *arguments: Any) -> bool:
        nonlocal fast
        done = run(self, *arguments)
        fast += done
        return done

    monkeypatch.setattr(feature_lookup._Call, "run", (lambda *_: False) if by_ops else counted)
    integers, needs = chosen.choice((torch.int32, torch.int64)), chosen.random() < 0.3
    pairs = batch(chosen.choice((0, 1, 5, 40)))
    found: list[torch.Tensor] = []
    for _ in range(2):
        optimizer.zero_grad()
        weights = {f: torch.rand(len(ids), requires_grad=needs) for f, (ids, _) in pairs.items()} if weighted else None
        if joined:
            sizes = torch.cat([torch.diff(offsets) for _, offsets in pairs.values()])
            starts = torch.cat([T([0]), torch.cumsum(sizes, 0)])
            own = None if weights is None else torch.cat(list(weights.values())).detach().requires_grad_(needs)
            leaves = [] if own is None else [own]
            ids = torch.cat([ids for ids, _ in pairs.values()]).to(integers)
            out = module(ids, starts if ends else starts[:-1], own)
        else:
            by_feature = {f: (i.to(integers), o if ends else o[:-1]) for f, (i, o) in pairs.items()}
            out, leaves = module(by_feature, per_sample_weights=weights), list((weights or {}).values())
        outs = [out] if stacked else list(out.values())
        found += [o.detach().clone() for o in outs]
        sum((o * torch.arange(o.numel(), dtype=o.dtype).reshape(o.shape).sin()).sum() for o in outs).backward()
        found += [w.grad for w in leaves if needs and w.grad is not None]
        if not fused:
            found += [p.grad.to_dense() for p in module.parameters() if p.grad is not None]
        optimizer.step()
        found += [p.detach().clone() for p in module.parameters()]
        states = (optimizer.state[p].values() for p in module.parameters())
        found += [v.clone() for state in states for v in state if isinstance(v, torch.Tensor)]
    return found, fast


def bits(tensor: torch.Tensor) -> bytes:
    data = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor  # NumPy lacks bfloat16
    return data.numpy(force=True).tobytes()


@pytest.mark.parametrize("seed", range(60))
def test_one_kernel_call_has_the_bits_of_the_ops(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = rg.num_threads()
    try:
        rg.set_num_threads(1 + seed % 3)
        together, fast = trained(seed, False, monkeypatch)
        alone, none = trained(seed, True, monkeypatch)
    finally:
        rg.set_num_threads(threads)
    assert (fast, none) == (2, 0)
    assert len(together) == len(alone)
    for a, b in zip(together, alone, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert bits(a) == bits(b)


def small(**options: Any) -> rgt.nn.Embeddings:
    torch.manual_seed(1)
    return rgt.nn.Embeddings([Table("a", 5, 2, "sum"), Table("b", 6, 2, "sum")], **options)


IDS = {"a": T([[1, 2], [3, 3]]), "b": T([[0, 5], [5, 4]])}


def test_tables_have_their_own_learning_rate_and_can_be_frozen() -> None:
    for fused in (False, True):
        module = small(fused=fused)
        before = {n: p.detach().clone() for n, p in module.named_parameters()}
        assert list(before) == list(module.state_dict()) == ["a.weight", "b.weight"]
        groups = [{"params": [module.weight("a")], "lr": 0.5}, {"params": [module.weight("b")]}]
        optimizer = rgt.optim.SGD(groups, lr=0.25)
        sum(o.sum() for o in module(IDS).values()).backward()
        optimizer.step()
        torch.testing.assert_close(before["a.weight"][1] - module.weight("a")[1].detach(), T([0.5, 0.5]))
        torch.testing.assert_close(before["b.weight"][0] - module.weight("b")[0].detach(), T([0.25, 0.25]))
        module.weight("a").requires_grad_(False)
        frozen = module.weight("a").detach().clone()
        optimizer.zero_grad()
        sum(o.sum() for o in module(IDS).values()).backward()
        optimizer.step()
        assert torch.equal(module.weight("a"), frozen)
        torch.testing.assert_close(before["b.weight"][0] - module.weight("b")[0].detach(), T([0.5, 0.5]))


def test_unused_features_have_no_gradient() -> None:
    module = small()
    module(IDS)["b"].sum().backward()
    assert module.weight("a").grad is None
    assert module.weight("b").grad.to_dense()[5].tolist() == [2.0, 2.0]


def test_lengths_and_triples() -> None:
    module = small(include_last_offset=True)
    expected = module(IDS)
    ids = torch.cat([IDS["a"].reshape(-1), IDS["b"].reshape(-1)])
    found = module(ids, lengths=T([2, 2, 2, 2]))
    assert all(torch.equal(found[f], expected[f]) for f in "ab")
    ones = {f: (i.reshape(-1), T([0, 2, 4]), torch.full((4,), 2.0)) for f, i in IDS.items()}
    assert all(torch.equal(rows, expected[f] * 2) for f, rows in module(ones).items())
    with pytest.raises(rg.errors.InvalidArgumentError, match="offsets must not decrease"):
        module(ids, lengths=T([3, -1, 2, 4]))
    with pytest.raises(rg.errors.InvalidArgumentError, match="because offsets are given"):
        module(ids, T([0, 2, 4, 6, 8]), lengths=T([2, 2, 2, 2]))
    with pytest.raises(rg.errors.InvalidArgumentError, match="weights in its tuple and in per_sample_weights"):
        module(ones, per_sample_weights={f: torch.ones(4) for f in "ab"})


def test_tables_with_their_own_options() -> None:
    torch.manual_seed(2)
    ones = Table("a", 5, 2, "sum", padding_idx=-1, initializer=torch.nn.init.ones_)
    module = rgt.nn.Embeddings([ones, Table("b", 6, 2, "sum", dtype=torch.float64)])
    assert module.weight("a").tolist() == [[1.0, 1.0]] * 4 + [[0.0, 0.0]]
    out = module({"a": T([[1, 4], [4, 4]]), "b": IDS["b"]})
    assert (out["a"].tolist(), out["b"].dtype) == ([[1.0, 1.0], [0.0, 0.0]], torch.float64)
    sum(o.sum() for o in out.values()).backward()
    assert module.weight("a").grad.indices().tolist() == [[1]]
    assert module.weight("b").grad.dtype == torch.float64
    with pytest.raises(rg.errors.InvalidArgumentError, match="tables of one width and dtype"):
        rgt.nn.Embeddings([ones, Table("b", 6, 2, dtype=torch.float64)], output="stacked")


@pytest.mark.parametrize("name", ["", "a.b", "forward", "training", "weight"])
def test_names_that_cannot_be_parameters_raise(name: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="a name without dots"):
        rgt.nn.Embeddings([Table(name, 5, 2, features=("f",))])


def test_results_may_change_in_place_and_ids_after_the_lookup() -> None:
    module = small(grad="dense")
    ids = {f: i.clone() for f, i in IDS.items()}
    out = module(ids)
    out["a"].mul_(2)
    for i in ids.values():
        i.zero_()  # the kernel has its own copy
    (out["a"].sum() + out["b"].sum()).backward()
    assert module.weight("a").grad[:, 0].tolist() == [0.0, 2.0, 2.0, 4.0, 0.0]
    assert module.weight("b").grad[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0, 1.0, 2.0]


def test_gradients_have_gradients() -> None:
    module = small(grad="dense").double()
    tables = [module.weight("a"), module.weight("b")]
    first = torch.autograd.grad(sum(o.pow(3).sum() for o in module(IDS).values()), tables, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), tables)
    bags = [rgt.nn.EmbeddingBag.from_pretrained(t.detach(), freeze=False, combiner="sum") for t in tables]
    weights = [bag.weight for bag in bags]
    out = sum(bag(i).pow(3).sum() for bag, i in zip(bags, IDS.values(), strict=True))
    expected = torch.autograd.grad(out, weights, create_graph=True)
    for a, b in zip(second, torch.autograd.grad(sum(g.square().sum() for g in expected), weights), strict=True):
        torch.testing.assert_close(a, b)


def test_overwritten_gradients_and_resized_storages_raise() -> None:
    module = small(fused=True, output="stacked")
    optimizer = rgt.optim.SGD(module.parameters(), lr=1.0)
    grad = torch.ones(2, 2, 2)
    module(IDS).backward(grad)
    grad.zero_()
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(rg.errors.OpError, match=r"overwritten|changed"):
        optimizer.step()
    assert all(torch.equal(p, b) for p, b in zip(module.parameters(), before, strict=True))
    optimizer.zero_grad()
    short = T([1, 2, 3, 3])
    short.untyped_storage().resize_(8)
    with pytest.raises(rg.errors.OpError, match=r"storage|memory"):
        small(include_last_offset=True)({"a": (short, T([0, 4])), "b": (T([1]), T([0, 1]))})


def test_gradients_of_every_layout() -> None:
    dense = torch.randn(2, 2)
    short = torch.ones(2, 2)
    short.untyped_storage().resize_(4)
    for fused in (False, True):
        expected = None
        for grad in (dense, dense.t().contiguous().t(), torch.stack([dense, dense], 1)[:, 1], dense.to_sparse()):
            module = small(fused=fused)
            optimizer = rgt.optim.SGD(module.parameters(), lr=1.0)
            module(IDS)["b"].backward(grad)
            optimizer.step()
            found = module.weight("b").detach()
            expected = found if expected is None else expected
            assert torch.equal(found, expected)
        module(IDS)["b"].sum()
        with pytest.raises(rg.errors.OpError, match="grad"):
            module(IDS)["b"].backward(short)


def test_tied_tables_step_one_after_the_other() -> None:
    """Tables that share memory are not stepped in one call."""
    module = small(fused=True)
    shared = torch.zeros(6, 2)
    module.weight("a").data, module.weight("b").data = shared[:5], shared
    optimizer = rgt.optim.SGD(module.parameters(), lr=1.0)
    sum(o.sum() for o in module(IDS).values()).backward()
    optimizer.step()
    assert shared[:, 0].tolist() == [-1.0, -1.0, -1.0, -2.0, -1.0, -2.0]


def test_row_gradients_of_many_tables_step_like_each_alone() -> None:
    together, alone = small(), small()
    optimizers = [rgt.optim.Adagrad(together.parameters(), lr=0.1)]
    optimizers += [rgt.optim.Adagrad([p], lr=0.1) for p in alone.parameters()]
    for _ in range(3):
        for module in (together, alone):
            sum(o.square().sum() for o in module(IDS).values()).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(together.parameters(), alone.parameters(), strict=True))
    sum(o.sum() for o in together(IDS).values()).backward()
    together.weight("b").grad._indices().fill_(6)  # there is no row 6
    before = [p.detach().clone() for p in together.parameters()]
    with pytest.raises(rg.errors.OpError, match="6"):
        optimizers[0].step()
    assert all(torch.equal(p, b) for p, b in zip(together.parameters(), before, strict=True))


def test_row_gradients_can_be_clipped_beside_hooks_of_the_user() -> None:
    module, seen = small(), []
    module.weight("a").register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.is_sparse))
    for _ in range(2):
        module.zero_grad()
        sum(o.sum() for o in module(IDS).values()).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        assert all(type(p.grad) is rgt.RowGradient and p.grad.is_coalesced() for p in module.parameters())
    assert seen == [True, True]
    assert len(module.weight("a")._post_accumulate_grad_hooks) == 2


def test_two_threads_may_run_one_backward_pass_each() -> None:
    module = small()
    faults: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                gradients = torch.autograd.grad(sum(o.sum() for o in module(IDS).values()), list(module.parameters()))
                assert gradients[1].to_dense()[5].tolist() == [2.0, 2.0]
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
