"""Four processes that check sharded modules against unsharded ones: `python sharded_ranks.py FOLDER`.

They are forked once. Smaller worlds are subgroups of these four; the last check kills one of them. Each check of each
rank leaves a line in FOLDER: its name, and "fine" or a traceback. test_sharded.py reads them.
"""

from __future__ import annotations

import atexit
import copy
import functools
import importlib
import itertools
import os
import pickle
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optimizer_ranks
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import rowgrad as rg
import rowgrad.torch as rgt
from rowgrad.raw_ops import OPS
from rowgrad.torch import sharded

WORLD, ROWS, COLUMNS = 4, 23, 5
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
KINDS = {"sum": "Sum", "mean": "Mean", "sqrtn": "SqrtN"}


class Batch:
    """The bags of all ranks. Rank 1 has no bags, other ranks have empty bags, and one row has more than 64 ids."""

    def __init__(
        self, ranks: int, seed: int, rows: int = ROWS, dtype: torch.dtype = torch.float32, most: int = 12
    ) -> None:
        g = torch.Generator().manual_seed(seed)
        self.lengths, self.ids, self.weights, self.ys = [], [], [], []
        for rank in range(ranks):
            lengths = torch.randint(0, most, (0 if rank == 1 else 17 + rank,), generator=g)
            lengths[::5] = 0
            total = int(lengths.sum())
            ids = torch.randint(0, rows, (total,), generator=g)
            ids[: total // 2] = 3 % rows
            self.lengths.append(lengths)
            self.ids.append(ids)
            self.weights.append(torch.randn(total, generator=g))
            self.ys.append(torch.randn(len(lengths), COLUMNS, generator=g).to(dtype))

    def of(self, rank: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return ids, offsets, weights and upstream gradients of one rank, or of all ranks concatenated."""
        one = slice(None) if rank is None else slice(rank, rank + 1)
        lengths = torch.cat(self.lengths[one])
        offsets = torch.cumsum(lengths, 0) - lengths
        return torch.cat(self.ids[one]), offsets, torch.cat(self.weights[one]), torch.cat(self.ys[one])

    def part_of(self, whole: Tensor, rank: int, by_id: bool = False) -> Tensor:
        """Return a rank's rows of a tensor that has one row per bag, or per id."""
        sizes = [len(x) for x in (self.ids if by_id else self.lengths)]
        return whole.split(sizes)[rank]


def table(dtype: torch.dtype = torch.float32, rows: int = ROWS) -> Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(7)).to(dtype)


def same(a: Tensor, b: Tensor) -> None:
    assert a.dtype == b.dtype
    assert torch.equal(a, b), (a, b)


def pair(group: Any, rows: int = ROWS, **options: Any) -> tuple[Any, Any]:
    """Return a sharded module and an unsharded one with the same table."""
    dtype = options.get("dtype", torch.float32)
    shared = ("combiner", "grad", "fused", "default_id", "padding_idx")
    module = sharded.RowShardedEmbeddingBag(rows, COLUMNS, process_group=group, **options)
    module.load_full(table(dtype, rows))
    one = rgt.nn.EmbeddingBag(
        rows, COLUMNS, _weight=table(dtype, rows), **{k: options[k] for k in shared if k in options}
    )
    return module, one


# -- bits -------------------------------------------------------------------------------------------------------------


def forward_and_gradients(group: Any, rank: int, ranks: int) -> None:
    ways = itertools.cycle(
        [("div", "rows", None), ("mod", "dense", "blocked"), ("mod", "rows", None), ("div", "rows", "blocked"),
         ("div", "dense", None)]
    )  # fmt: skip
    for seed, (dtype, combiner, weighted) in enumerate(itertools.product(DTYPES, KINDS, (False, True))):
        strategy, grad, order = next(ways)
        module, one = pair(group, combiner=combiner, strategy=strategy, grad=grad, order=order, dtype=dtype)
        batch = Batch(ranks, seed, dtype=dtype, most=30)
        ids, offsets, weights, y = batch.of(rank)
        all_ids, all_offsets, all_weights, all_y = batch.of(None)
        own = weights.requires_grad_() if weighted else None
        every = all_weights.requires_grad_() if weighted else None
        out, expected = module(ids, offsets, own), one(all_ids, all_offsets, every)
        same(out, batch.part_of(expected, rank))
        out.backward(y)
        expected.backward(all_y)
        whole = one.weight.grad.to_dense()
        if order == "blocked":
            segments = torch.arange(len(all_y)).repeat_interleave(torch.cat(batch.lengths))
            prefix, extra = ("Weighted", (all_weights.detach(),)) if weighted else ("", ())
            op = OPS[f"{prefix}SparseSegment{KINDS[combiner]}Grad"]
            whole = op(all_y, all_ids, segments, *extra, ROWS, order="blocked")
        mine, found = module.local_ids(), module.weight.grad
        if grad == "rows":
            assert found.is_coalesced()
            named = set(all_ids.tolist())
            assert mine[found.indices()[0]].tolist() == [i for i in mine.tolist() if i in named]
            found = found.to_dense()
        same(found, whole[mine])
        if weighted:
            same(weights.grad, batch.part_of(all_weights.grad, rank, by_id=True))


def id_formats(group: Any, rank: int, ranks: int) -> None:
    for strategy in ("div", "mod"):
        module, one = pair(group, combiner="sqrtn", strategy=strategy, default_id=2, padding_idx=5)
        ids = torch.arange(12).view(4, 3) * (rank + 2) % ROWS
        same(module(ids), one(ids))
        same(module(ids, per_sample_weights=ids / 7), one(ids, per_sample_weights=ids / 7))
        segments = torch.tensor([0, 0, 3, 3, 3])  # bags 1 and 2 are empty
        same(module(ids[0:2].reshape(-1)[:5], segment_ids=segments, num_bags=5),
             one(ids[0:2].reshape(-1)[:5], segment_ids=segments, num_bags=5))  # fmt: skip
        coordinates = [[0, 0], [0, 1], [2, 0]]
        sparse = rg.SparseTensor(coordinates, torch.tensor([4, 5, 6]).numpy(), [3, 2])
        same(module(sparse), one(sparse))
        with torch.no_grad():
            assert not module(ids.to(torch.int32)).requires_grad
        same(module.full_weight(), one.weight.detach())
        whole = module.to_dtensor()
        assert tuple(whole.shape) == (ROWS, COLUMNS)
        same(whole.to_local(), one.weight.detach().chunk(ranks)[rank])
    if ranks == WORLD:
        mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
        even = sharded.RowShardedEmbeddingBag(ranks * 3, 2, device_mesh=mesh)
        assert even.to_dtensor().device_mesh is mesh
        assert even.to_dtensor().to_local().data_ptr() == even.weight.data_ptr()  # Shard(0) splits as "div" does


def fifty_steps(group: Any, rank: int, ranks: int) -> None:
    for optimizer, fused, rows, steps in (
        (rgt.optim.RowWiseAdagrad, False, ROWS, 50),
        (rgt.optim.RowWiseAdagrad, True, ROWS, 5),
        (rgt.optim.Adam, False, 3, 5),  # of four ranks one has no rows, by either rule
        (rgt.optim.Adam, True, 3, 5),
    ):
        weighted, combiner = rows == 3, "mean" if fused else "sqrtn"
        module, one = pair(group, rows, combiner=combiner, fused=fused, grad="rows", strategy="mod" if fused else "div")
        both = [optimizer(m.parameters(), lr=0.1) for m in (module, one)]
        for step in range(steps):
            batch = Batch(ranks, step, rows, most=4)
            if step % 7 == 3:  # only one rank has bags, and one of its rows is touched
                batch.ids = [i[:1] if r == 0 else i[:0] for r, i in enumerate(batch.ids)]
                batch.lengths = [n[:1] * 0 + 1 if r == 0 else n[:0] for r, n in enumerate(batch.lengths)]
                batch.weights = [w[: len(i)] for w, i in zip(batch.weights, batch.ids, strict=True)]
                batch.ys = [y[: len(n)] for y, n in zip(batch.ys, batch.lengths, strict=True)]
            for m, which, opt in ((module, rank, both[0]), (one, None, both[1])):
                ids, offsets, weights, y = batch.of(which)
                m(ids, offsets, weights if weighted else None).backward(y)
                opt.step()
                opt.zero_grad()
        mine = module.local_ids()
        same(module.weight.detach(), one.weight[mine].detach())
        states = [o.state_dict()["state"][0] for o in both]
        assert states[0]["step"] == states[1]["step"]
        for name, value in states[1].items():
            if isinstance(value, Tensor):
                same(states[0][name], value[mine])


def fused_16_bit_tables(group: Any, rank: int, ranks: int) -> None:
    for combiner, weighted in itertools.product(("mean", "sqrtn"), (False, True)):
        module, one = pair(group, combiner=combiner, fused=True, dtype=torch.bfloat16, strategy="mod")
        both = [rgt.optim.Adagrad(m.parameters(), lr=0.1) for m in (module, one)]
        for step in range(3):
            batch = Batch(ranks, step, dtype=torch.bfloat16)
            for m, which, opt in ((module, rank, both[0]), (one, None, both[1])):
                ids, offsets, weights, y = batch.of(which)
                m(ids, offsets, weights if weighted else None).backward(y)
                opt.step()
        same(module.weight.detach(), one.weight[module.local_ids()].detach())


def fused_between_backward_and_step(group: Any, rank: int, ranks: int) -> None:
    """Accumulated, scaled and clipped gradients of a fused table are bitwise those of an unfused table."""
    found = []
    for options in ({"fused": True}, {"grad": "rows"}):
        module, _ = pair(group, combiner="mean", **options)
        optimizer = rgt.optim.Adagrad(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for step in range(2):
            optimizer.zero_grad()
            for k in range(2):
                ids, offsets, _, y = Batch(ranks, 2 * step + k).of(rank)
                scaler.scale((module(ids, offsets) * y).sum()).backward()
            scaler.unscale_(optimizer)
            rgt.clip.clip_grad_value_(module.parameters(), 0.01)
            scaler.step(optimizer)
            scaler.update()
        found.append(module.weight.detach())
        assert not torch.equal(module.full_weight(), table())
    same(*found)


TABLES = [rgt.nn.Table("user", 23, 8), rgt.nn.Table("item", 11, 8, features=("seen", "bought")),
          rgt.nn.Table("page", 3, 8), rgt.nn.Table("word", 50, 3, combiner="sum")]  # fmt: skip


def several_tables(group: Any, rank: int, ranks: int) -> None:
    for strategy, weighted in (("div", False), ("mod", True)):
        module = sharded.RowShardedEmbeddings(TABLES, process_group=group, strategy=strategy, include_last_offset=False)
        one = rgt.nn.Embeddings(TABLES, include_last_offset=False)
        for t in TABLES:
            module.load_full(
                t.name, one.weight(t.name).detach() * 0 + torch.arange(float(t.num_embeddings))[:, None] / 7
            )
            one.weight(t.name).data.copy_(module.full_weight(t.name))
        module.traffic.reset()
        g = torch.Generator().manual_seed(3)
        sizes = [0 if r == 1 else 3 + r for r in range(ranks)]
        most = {f: t.num_embeddings for t in TABLES for f in t.read_by}
        ids = {f: torch.randint(0, n, (sum(sizes), 3), generator=g) for f, n in most.items()}
        numbers = {f: torch.rand(sum(sizes), 3, generator=g) for f in most} if weighted else None
        mine = {f: i.split(sizes)[rank] for f, i in ids.items()}
        my_numbers = {f: n.split(sizes)[rank] for f, n in numbers.items()} if numbers else None
        out = module(mine, per_sample_weights=my_numbers)
        expected = one(ids, per_sample_weights=numbers)
        for f in most:
            same(out[f], expected[f].split(sizes)[rank])
        sum(o.square().sum() for o in out.values()).backward()
        sum(o.square().sum() for o in expected.values()).backward()
        for t in TABLES:
            key, stack, number = module.place(t.name)
            found = getattr(module, key).grad.to_dense()[stack.rows_of(number, rank)]
            whole = one.weight(t.name).grad.to_dense()
            same(found, whole[module.local_ids(t.name)])
        header = 8 * (5 + 2 * 6)  # two widths in one exchange
        assert module.traffic.sizes == header * (ranks - 1)
        vector = torch.cat([mine[f].reshape(-1) for f in module.features])
        again = module(vector, torch.arange(0, len(vector) + 1, 3), _joined(my_numbers, module.features))
        for f in most:
            same(again[f], out[f])
    stacked = sharded.RowShardedEmbeddings(TABLES[:3], process_group=group, output="stacked", include_last_offset=False)
    assert stacked({f: i for f, i in mine.items() if f != "word"}).shape == (sizes[rank], 4, 8)
    bad = {**mine, "seen": torch.full_like(mine["seen"], 50)} if rank == 0 else mine
    kind = rg.errors.OpError if rank == 0 else sharded.RankRefusedError
    text = str(raised(kind, lambda: module(bad, per_sample_weights=my_numbers)))
    assert "50" in text, text
    assert "11" in text, text  # how many rows the table has


def _joined(numbers: dict[str, Tensor] | None, features: list[str]) -> Tensor | None:
    return torch.cat([numbers[f].reshape(-1) for f in features]) if numbers else None


def summed_in_order(rows: Tensor) -> Tensor:
    each = torch.arange(len(rows))
    return OPS["SparseSegmentSum"](rows, each, each * 0)[0]


def pooled(group: Any, rank: int, ranks: int) -> None:
    for combiner, weighted in itertools.product(KINDS, (False, True)):
        exact, _ = pair(group, combiner=combiner, strategy="mod")
        module, _ = pair(group, combiner=combiner, strategy="mod", mode="pooled")
        batch = Batch(ranks, 11, most=60)
        ids, offsets, weights, y = batch.of(rank)
        results = []
        for m in (exact, module, module):
            own = weights.detach().clone().requires_grad_() if weighted else None
            m.traffic.reset()
            m.weight.grad = None
            out = m(ids, offsets, own)
            out.backward(y)
            results.append((out.detach(), m.weight.grad.to_dense(), own.grad if weighted else y, m.traffic.rows))
        for a, b, c in zip(*(r[:3] for r in results), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            same(b, c)  # repeating the call returns the same bits
        same(results[0][1], results[1][1])  # pooling does not change how the owner sums gradients
        if combiner == "sum" and not weighted:  # partial sums are added in rank order
            bag = next(b for b, n in enumerate(batch.lengths[0]) if n > 1)
            named = batch.of(0)[0][offsets[bag] : offsets[bag] + batch.lengths[0][bag]] if rank == 0 else None
            if named is not None:
                parts = [table()[named[named % ranks == r]] for r in range(ranks)]
                sums = torch.stack([summed_in_order(p) for p in parts if len(p)])
                same(results[1][0][bag], summed_in_order(sums))


def wire_dtypes(group: Any, rank: int, ranks: int) -> None:
    batch = Batch(ranks, 4)
    ids, offsets, _, y = batch.of(rank)
    module, one = pair(group, combiner="sum", wire_dtype=torch.bfloat16)
    plain, _ = pair(group, combiner="sum")
    one.weight.data.copy_(one.weight.data.bfloat16())
    same(module(ids, offsets), batch.part_of(one(*batch.of(None)[:2]), rank))
    module(ids, offsets).backward(y)
    rounded = one(*batch.of(None)[:2])
    rounded.backward(batch.of(None)[3].bfloat16().float())
    same(module.weight.grad.to_dense(), one.weight.grad[module.local_ids()])
    module.traffic.reset()
    for m in (module, plain):
        m.traffic.reset()
        m(ids, offsets).backward(y)
    assert module.traffic.rows * 2 == plain.traffic.rows
    assert module.traffic.gradients * 2 == plain.traffic.gradients
    assert plain.traffic.gradients > 0 or ranks == 1 or rank == 1


def initial_rows(group: Any, rank: int, ranks: int) -> None:
    whole = []
    for strategy in ("div", "mod"):
        module = sharded.RowShardedEmbeddingBag(9000, 2, process_group=group, strategy=strategy)
        module.reset_parameters(seed=5)
        whole.append(module.full_weight())
    same(*whole)
    assert abs(float(whole[0].std()) - 1) < 0.05
    assert len(torch.unique(whole[0][:, 0])) > 8900
    if rank == 0:
        same(whole[0], FIRST_RESULTS.setdefault("drawn", whole[0]))  # the same rows for any number of ranks


FIRST_RESULTS: dict[str, Tensor] = {}


# -- errors -----------------------------------------------------------------------------------------------------------


def raised(kind: type[BaseException], call: Callable[[], Any]) -> Any:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def bad_ids_raise_on_every_rank(group: Any, rank: int, ranks: int) -> None:
    module, _ = pair(group)
    ids = torch.tensor([[1, 2], [3, 4]])
    bad = torch.tensor([[1, 2], [ROWS, 4]])
    last = ranks - 1
    if rank == last:
        error = raised(rg.errors.InvalidArgumentError, lambda: module(bad))
        assert (error.position, error.value, error.bound) == (2, ROWS, ROWS)
    else:
        error = raised(sharded.RankRefusedError, lambda: module(ids))
        assert error.ranks == (last,)
        assert error.phase == "sizes"
        assert f"rank {last} rejected its arguments" in str(error)
        assert f"ids[2] = {ROWS} is not in [0, {ROWS})" in str(error)
    wrong = "ids" if rank == last else ids  # not a tensor
    raised(TypeError if rank == last else sharded.RankRefusedError, lambda: module(wrong))
    if ranks > 1:
        with torch.set_grad_enabled(rank != 0):
            error = raised(sharded.RankRefusedError, lambda: module(ids))
        assert "gradients" in str(error)
        weights = torch.ones(2, 2) if rank == 0 else None
        assert "per_sample_weights" in str(raised(sharded.RankRefusedError, lambda: module(ids, None, weights)))
        others = [pair(group, combiner=c)[0] for c in ("sum", "mean")]
        error = raised(sharded.RankRefusedError, lambda: others[rank % 2](ids))
        assert error.ranks == tuple(r for r in range(ranks) if r % 2 != rank % 2), error
        numbers = [m.ranks.number for m in others]
        assert f"is in forward of module {numbers[1 - rank % 2]} (RowShardedEmbeddingBag, call 0)" in str(error), error
        assert f"this rank, {rank}, is in forward of module {numbers[rank % 2]} " in str(error), error
    module(ids).sum().backward()  # the group is still usable


def disagreeing_ranks(group: Any, rank: int, ranks: int) -> None:
    """If one rank does something different, all ranks get an error and can continue."""
    if ranks == 1:
        return
    module, _ = pair(group, combiner="mean")
    embeddings = sharded.RowShardedEmbeddings(TABLES, process_group=group, include_last_offset=False)
    ids = torch.tensor([[1, 2], [0, 2]])
    ids_by_feature = dict.fromkeys(embeddings.features, ids)
    odd = rank == ranks - 1
    last = (ranks - 1,)

    def expect_mismatch(one: Callable[[], Any], all_others: Callable[[], Any], *calls: str) -> None:
        error = raised(sharded.RankRefusedError, one if odd else all_others)
        own, theirs = calls if odd else calls[::-1]
        found = re.fullmatch(r"rank [\d, ]+ is in (.*); this rank, (\d+), is in (.*)", str(error))
        assert found is not None, error
        assert found[1].startswith(theirs), error
        assert int(found[2]) == rank, error
        assert found[3].startswith(own), error
        assert error.ranks == (tuple(range(ranks - 1)) if odd else last), error
        module(ids).sum().backward()
        sum(o.sum() for o in embeddings(ids_by_feature).values()).backward()

    bag, all_tables = (f"module {m.ranks.number} ({type(m).__name__}" for m in (module, embeddings))
    forward, backward = f"forward of {bag}, call", f"backward of {bag}, call"
    expect_mismatch(  # their headers have different lengths
        lambda: embeddings(ids_by_feature), lambda: module(ids), f"forward of {all_tables}, call 0)", f"{forward} 0)"
    )
    expect_mismatch(lambda: module(ids), module.full_weight, forward, f"full_weight of {bag})")
    save = functools.partial(sharded.checkpoint.save, FOLDER / "of one", module)
    expect_mismatch(lambda: module(ids), save, forward, f"checkpoint.save of {bag})")
    nowhere = FOLDER / "nowhere" if odd else FOLDER / "checkpoint_4"
    raised(Exception if odd else sharded.RankRefusedError, lambda: sharded.checkpoint.load(nowhere, module))
    out = module(ids)
    number = module._calls
    expect_mismatch(
        lambda: module(ids), lambda: out.sum().backward(), f"{forward} {number})", f"{backward} {number - 1})"
    )
    first, second = module(ids), module(ids)
    number = module._calls
    expect_mismatch(
        lambda: first.sum().backward(),
        lambda: second.sum().backward(),
        f"{backward} {number - 2})",
        f"{backward} {number - 1})",
    )
    new = functools.partial(sharded.RowShardedEmbeddingBag, ROWS, COLUMNS, process_group=group)
    made = "reset_parameters or the constructor of module"
    error = raised(sharded.RankRefusedError, lambda: new(padding_idx=1 if odd else None))
    assert f"is in {made} {module.ranks.number + 2} (RowShardedEmbeddingBag) with different options;" in str(error)
    error = raised(sharded.RankRefusedError, lambda: new(timeout=20 if odd else 30))
    assert "with different options;" in str(error), error
    expect_error(odd, last, lambda: module(ids, None, torch.ones(2, 2, dtype=torch.int64 if odd else None)))
    error = expect_error(odd, last, lambda: module(ids.view(-1), torch.tensor([0, 9 if odd else 2])))
    assert odd or "ids[" not in str(error), error  # the offsets were wrong, not an id
    fused, _ = pair(group, fused=True)
    optimizers = [] if odd else [rgt.optim.RowWiseAdagrad(fused.parameters(), lr=0.1)]
    out = fused(ids)
    expect_error(odd, last, lambda: out.sum().backward(retain_graph=True))  # the last rank has no optimizer
    optimizers.append(rgt.optim.RowWiseAdagrad(fused.parameters(), lr=0.1))
    out.sum().backward()


def expect_error(odd: bool, last: tuple[int], call: Callable[[], Any]) -> Any:
    error = raised(rg.errors.OpError if odd else sharded.RankRefusedError, call)
    assert odd or error.ranks == last, error
    return error


def weights_of_one_rank(group: Any, rank: int, ranks: int) -> None:
    """With a frozen table, only one rank needs the gradient of its weights."""
    found = []
    for mode in ("exact", "pooled"):
        module, _ = pair(group, mode=mode)
        module.weight.requires_grad_(False)
        weights = torch.tensor([[0.5, 2.0]], requires_grad=rank == 0)
        out = module(torch.tensor([[1, ROWS - 1]]), None, weights)
        if mode == "pooled" or rank == 0:
            out.sum().backward()
        found.append(weights.grad)
    assert module.weight.grad is None
    if rank == 0:
        torch.testing.assert_close(*found)
    else:
        assert found == [None, None]


def no_columns(group: Any, rank: int, ranks: int) -> None:
    module = sharded.RowShardedEmbeddingBag(ROWS, 0, process_group=group)
    out = module(torch.tensor([[1, 2], [3, ROWS - 1]]))
    out.sum().backward()
    assert (out.shape, module.full_weight().shape) == ((2, 0), (ROWS, 0))


def misuse(group: Any, rank: int, ranks: int) -> None:
    module, _ = pair(group)
    out = module(torch.tensor([[1]]))
    raised(rg.errors.OpError, lambda: torch.autograd.grad(out.sum(), module.weight, create_graph=True))
    out.sum().backward(retain_graph=True)
    once = module.weight.grad.to_dense()
    out.sum().backward()
    same(module.weight.grad.to_dense(), 2 * once)
    assert "a second time" in str(raised(RuntimeError, lambda: out.sum().backward()))
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        raised(rg.errors.UnimplementedError, lambda c=copied: c(module))
    for shape in ((ROWS + 1, COLUMNS), (ROWS, 1), (ROWS - 1, COLUMNS)):
        raised(rg.errors.InvalidArgumentError, lambda s=shape: module.load_full(torch.zeros(s)))
    for timeout in (0, -1.0, 0.09, float("nan"), float("inf")):
        call = functools.partial(sharded.RowShardedEmbeddingBag, 4, 2, process_group=group, timeout=timeout)
        raised(rg.errors.InvalidArgumentError, call)
    changed, _ = pair(group, mode="pooled")
    weights = torch.ones(1, 1, requires_grad=True)
    out = changed(torch.tensor([[1]]), None, weights)
    changed.load_full(table() * 2)  # the gradient of weights would use the new rows
    assert "modified by an inplace operation" in str(raised(RuntimeError, lambda: out.sum().backward()))
    raised(rg.errors.OpError, lambda: sharded.RowShardedEmbeddingBag(4, 2, process_group=group, mode="other"))
    raised(ValueError, lambda: sharded.RowShardedEmbeddingBag(4, 2, process_group=group, strategy="other"))
    fused, _ = pair(group, fused=True)
    raised(rg.errors.OpError, lambda: fused(torch.tensor([[1]])).sum().backward())  # no optimizer


# -- checkpoints ------------------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self, group: Any, strategy: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.bag = sharded.RowShardedEmbeddingBag(ROWS, COLUMNS, process_group=group, strategy=strategy)
        self.all = sharded.RowShardedEmbeddings(
            TABLES, process_group=group, strategy=strategy, fused=True, include_last_offset=False
        )
        self.head = torch.nn.Linear(COLUMNS, 1)

    def train_on(self, seeds: range, rank: int, ranks: int, optimizer: Any) -> None:
        """Train on the same samples for any number of ranks: rank 0 has all of them."""
        for seed in seeds:
            g = torch.Generator().manual_seed(seed)
            ids = torch.randint(0, 3, (6 if rank == 0 else 0, 2), generator=g)
            out = self.all(dict.fromkeys(self.all.features, ids))
            loss = self.head(self.bag(ids * 7)).sum() + sum((o * o).sum() for o in out.values())
            loss.backward()
            for p in self.head.parameters():  # replicated on every rank
                dist.all_reduce(p.grad, group=self.bag.ranks.group)
            optimizer.step()
            optimizer.zero_grad()

    def state(self) -> list[Tensor]:
        return [
            self.bag.full_weight(),
            *(self.all.full_weight(t.name) for t in TABLES),
            *self.head.state_dict().values(),
        ]


def write_checkpoint(group: Any, rank: int, ranks: int) -> None:
    model = Model(group, "mod" if ranks == 3 else "div")
    optimizer = rgt.optim.Adam(model.parameters(), lr=0.1)
    model.train_on(range(4), rank, ranks, optimizer)
    sharded.checkpoint.save(FOLDER / f"checkpoint_{ranks}", model, optimizer, {"step": 4})
    model.train_on(range(4, 8), rank, ranks, optimizer)
    for name, value in zip(itertools.count(), model.state(), strict=False):
        same(value, FIRST_RESULTS.setdefault(f"trained {name}", value))


def read_checkpoints(group: Any, rank: int, ranks: int) -> None:
    assert sharded.checkpoint.latest(FOLDER) == FOLDER / "checkpoint_4"
    for written in (4, 3):
        model = Model(group, "mod" if ranks == 2 else "div")
        optimizer = rgt.optim.Adam(model.parameters(), lr=0.5)
        model.bag.reset_parameters(seed=99)
        extra = sharded.checkpoint.load(FOLDER / f"checkpoint_{written}", model, optimizer)
        assert extra == {"step": 4}
        assert optimizer.param_groups[0]["lr"] == 0.1
        model.train_on(range(4, 8), rank, ranks, optimizer)
        for name, value in zip(itertools.count(), model.state(), strict=False):
            same(value, FIRST_RESULTS[f"trained {name}"])


def shared_modules(group: Any, rank: int, ranks: int) -> None:
    """One module under two names in a model is saved and loaded once."""
    model = torch.nn.Module()
    model.one = model.other = pair(group)[0]
    sharded.checkpoint.save(FOLDER / "shared" / str(ranks), model)
    model.one.reset_parameters(seed=1)
    sharded.checkpoint.load(FOLDER / "shared" / str(ranks), model)
    same(model.other.full_weight(), table())


def state_dicts(group: Any, rank: int, ranks: int) -> None:
    """A module loads only a state dict that contains the rows it owns."""
    rows = 4 * ranks  # all shards have the same size
    one = sharded.RowShardedEmbeddingBag(rows, 2, process_group=group)
    one.load_full(torch.arange(2.0 * rows).view(rows, 2))
    state = one.state_dict()
    for strategy in ("div", "mod"):
        other = sharded.RowShardedEmbeddingBag(rows, 2, process_group=group, strategy=strategy)
        before = other.weight.detach().clone()
        if strategy == "div" or ranks == 1:
            other.load_state_dict(state)
            same(other.full_weight(), one.full_weight())
            continue
        error = raised(RuntimeError, lambda other=other: other.load_state_dict(state, strict=False))
        assert "the state dict holds other rows" in str(error), error
        same(other.weight.detach(), before)
    moved = {**state, "_extra_state": state["_extra_state"].clone()}
    if ranks > 1:  # the shard of another rank
        parts: list[Any] = [None] * ranks
        dist.all_gather_object(parts, moved, group=group)
        error = raised(RuntimeError, lambda: one.load_state_dict(parts[(rank + 1) % ranks]))
        assert "the state dict holds other rows" in str(error), error


def optimizer_states(group: Any, rank: int, ranks: int) -> None:
    """An optimizer loads only state that belongs to the rows it owns."""
    rows = 4 * ranks  # all shards have the same size

    def trained(strategy: str) -> tuple[Any, Any]:
        module = sharded.RowShardedEmbeddingBag(rows, 2, process_group=group, strategy=strategy)
        optimizer = rgt.optim.Adagrad(module.parameters(), lr=0.1)
        module(torch.arange(rows).view(-1, 2)).square().sum().backward()
        optimizer.step()
        return module, optimizer

    one = trained("div")[1]
    state = one.state_dict()
    assert "layout" not in one.state[one.param_groups[0]["params"][0]]
    bare = {**state, "state": {0: {k: v for k, v in state["state"][0].items() if k != "layout"}}}
    parts: list[Any] = [None] * ranks
    dist.all_gather_object(parts, state, group=group)
    for strategy in ("div", "mod"):
        module, optimizer = trained(strategy)
        weight = module.weight
        before = optimizer.state[weight]["sum"].clone()
        cases = [(state, "belongs to other rows" if strategy == "mod" else ""), (bare, "has no layout")]
        cases.append((parts[(rank + 1) % ranks], "belongs to other rows"))
        for own, message in cases:
            if not message or ranks == 1:
                optimizer.load_state_dict(own)
                same(optimizer.state[weight]["sum"], own["state"][0]["sum"])
                optimizer.state[weight]["sum"].copy_(before)
            else:
                error = raised(ValueError, lambda o=optimizer, g=own: o.load_state_dict(g))
                assert message in error.message, error
                same(optimizer.state[weight]["sum"], before)
        repaired = {**bare, "state": {0: {**bare["state"][0], "layout": weight.rowgrad_layout}}}
        optimizer.load_state_dict(repaired)
    plain = rgt.optim.Adagrad([torch.nn.Parameter(torch.zeros(4, 2))], lr=0.1)
    if ranks == 1:
        plain.load_state_dict(state)
    else:
        error = raised(ValueError, lambda: plain.load_state_dict(state))
        assert "belongs to other rows" in error.message, error


def checkpoint_extra_objects(group: Any, rank: int, ranks: int) -> None:
    folder = FOLDER / f"anything {ranks}"
    module, _ = pair(group)
    extra = {"rate": torch.tensor(0.5), "ids": torch.arange(3), "options": {"a": 1, "b": [2, {"c": 3}]}, "none": None}
    sharded.checkpoint.save(folder / "one", module, extra=extra)
    found = sharded.checkpoint.load(folder / "one", module)
    for name in ("rate", "ids"):
        same(found.pop(name), extra.pop(name))
    assert found == extra
    assert sharded.checkpoint.latest(folder) == folder / "one"
    dist.barrier(group)
    raised(BaseException, lambda: sharded.checkpoint.save(folder / "one", module, extra={"bad": lambda: 0}))
    dist.barrier(group)
    assert sharded.checkpoint.latest(folder) is None  # one of its files was overwritten


# -- failures ---------------------------------------------------------------------------------------------------------


def tell(name: str) -> None:
    """Set a key in the store, for `await_ranks`."""
    dist.distributed_c10d._get_default_store().set(f"{name} {os.environ['RANK']}", "")


def await_ranks(name: str, ranks: list[int]) -> None:
    """Wait until these ranks have called `tell`."""
    dist.distributed_c10d._get_default_store().wait([f"{name} {r}" for r in ranks])


def busy_rank(group: Any, rank: int, ranks: int) -> None:
    """The others wait for a rank that is busy, and see its heartbeat meanwhile."""
    module, _ = pair(group)
    if rank == 0:
        await_ranks("saw the heartbeat of rank 0", [1, 2, 3])
    else:

        def watch() -> None:
            known = module.ranks.pulse._groups[group.group_name]
            while known.silence is None or 0 not in known.silence.alive:
                time.sleep(0.01)
            tell("saw the heartbeat of rank 0")

        threading.Thread(target=watch).start()
    assert module(torch.tensor([[1]])).shape == (1, COLUMNS)


def stopped_rank(group: Any, rank: int, ranks: int) -> None:
    module = sharded.RowShardedEmbeddingBag(ROWS, COLUMNS, process_group=group, timeout=3.0)
    processes: list[Any] = [None] * ranks
    dist.all_gather_object(processes, os.getpid(), group=group)
    module(torch.tensor([[1]]))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    error = raised(sharded.RankLostError, lambda: module(torch.tensor([[1]])))
    assert (error.ranks, error.phase) == ((1,), "sizes"), error
    assert "rank 1 does not answer: no heartbeat for 3 s" in str(error)
    again = raised(sharded.RankLostError, lambda: module(torch.tensor([[1]])))  # not mixed with the exchange before
    assert "cannot be used after an earlier failure: rank 1 does not answer" in str(again), again
    tell("named rank 1")
    if rank == 0:
        await_ranks("named rank 1", [0, 2, 3])
        os.kill(processes[1], signal.SIGCONT)


def failing_rank(group: Any, rank: int, ranks: int) -> None:
    """A rank that raises in the middle of a lookup tells the others, which wait for its rows."""
    module, _ = pair(group)
    if rank == 2:
        module.weight.data = module.weight.data[:1]  # has fewer rows than its placement says
        raised(rg.errors.InvalidArgumentError, lambda: module(torch.arange(ROWS).view(1, -1)))
        raised(sharded.RankLostError, lambda: module(torch.tensor([[1]])))
        return
    error = raised(sharded.RankLostError, lambda: module(torch.arange(ROWS).view(1, -1)))
    assert (error.ranks, error.phase) == ((2,), "rows"), error
    assert "rank 2 failed in forward: InvalidArgumentError: " in str(error), error


def rank_killed_between_forward_and_backward(group: Any, rank: int, ranks: int) -> None:
    """A rank that is busy meanwhile is not blamed, by itself or by others."""
    module, _ = pair(group)
    out = module(torch.arange(ROWS).view(1, -1))
    if rank == 3:
        note("rank_killed_between_forward_and_backward 4", "fine")
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        await_ranks("named rank 3", [0, 1])
    error = raised(sharded.RankLostError, lambda: out.sum().backward())
    assert (error.ranks, error.phase) == ((3,), "calls"), error
    assert "rank 3 does not answer" in str(error), error
    tell("named rank 3")


def rank_ended_by_an_error_in_its_step(group: Any, rank: int, ranks: int) -> None:
    module, _ = pair(group)
    optimizer = rgt.optim.Adagrad(module.parameters(), lr=0.1)
    module(torch.arange(ROWS).view(1, -1)).sum().backward()
    if rank == 2:
        optimizer.param_groups[0]["lr"] = "fast"
        try:
            optimizer.step()
        except Exception as error:
            sys.last_value = error  # as the interpreter does, which then calls what is registered for the end
            note("rank_ended_by_an_error_in_its_step 3", "fine")
            atexit._run_exitfuncs()
            os._exit(1)
    optimizer.step()
    error = raised(sharded.RankLostError, lambda: module(torch.tensor([[1]])))
    assert (error.ranks, error.phase) == ((2,), "sizes"), error
    assert re.search(r"rank 2 ended with \w*Error: ", str(error)), error


def rank_killed_during_backward(group: Any, rank: int, ranks: int) -> None:
    module, _ = pair(group)
    out = module(torch.arange(ROWS).view(1, -1))
    if rank == 1:
        note("rank_killed_during_backward 2", "fine")
        sharded.lookup.Exchange.needed = die_in_second_call(sharded.lookup.Exchange.needed)
    error = raised(sharded.RankLostError, lambda: out.sum().backward())
    assert (error.ranks, error.phase) == ((1,), "gradients"), error
    assert "rank 1 does not answer" in str(error), error


def die_in_second_call(real: Any) -> Any:
    calls = itertools.count()

    def call(*args: Any) -> Any:
        if next(calls) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    return call


FAILURES = [(busy_rank, 4), (stopped_rank, 4), (failing_rank, 4), (rank_killed_between_forward_and_backward, 4),
            (rank_ended_by_an_error_in_its_step, 3), (rank_killed_during_backward, 2)]  # fmt: skip
CHECKS = [forward_and_gradients, id_formats, fifty_steps, fused_16_bit_tables,
          fused_between_backward_and_step, several_tables, pooled,
          wire_dtypes, initial_rows, bad_ids_raise_on_every_rank, weights_of_one_rank, no_columns, misuse,
          write_checkpoint, read_checkpoints, disagreeing_ranks, shared_modules, state_dicts, optimizer_states,
          checkpoint_extra_objects, *optimizer_ranks.CHECKS]  # fmt: skip
FOLDER = Path()


def note(name: str, text: str) -> None:
    with (FOLDER / f"results_{os.environ['RANK']}").open("a") as file:
        file.write(f"{name}\0{text}\0\n")


def attempt(check: Any, group: Any, rank: int, ranks: int) -> None:
    name, start = f"{check.__name__} {ranks}", time.monotonic()
    try:
        check(group, rank, ranks)
        note(name, "fine")
    except BaseException:  # torch's CheckpointException is not an Exception
        note(name, traceback.format_exc())
        os._exit(1)  # the other ranks get an error at once instead of a timeout
    if "-v" in sys.argv and rank == 0:
        print(f"{name}: {time.monotonic() - start:.2f} s", flush=True)


def run(rank: int, folder: str) -> None:
    global FOLDER
    FOLDER = Path(folder)
    os.environ["RANK"] = str(rank)
    signal.alarm(120)  # ends this process even if the parent hangs
    torch.set_num_threads(1)
    rg.set_num_threads(1)
    sharded.liveness.GRACE, sharded.liveness.INTERVAL = 3.0, 0.2
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    worlds = [dist.new_group(list(range(n))) for n in range(1, WORLD)] + [dist.group.WORLD]
    # A group in which a rank was lost cannot be used again.
    for_failures = [dist.new_group(list(range(n))) for _, n in FAILURES]
    for check in CHECKS:
        for n, group in zip(range(1, WORLD + 1), worlds, strict=True):
            if rank < n:
                attempt(check, group, rank, n)
        dist.barrier()
    for (check, n), group in zip(FAILURES, for_failures, strict=True):
        if rank < n:
            attempt(check, group, rank, n)
    os._exit(0)  # destroy_process_group would hang on the dead ranks


if __name__ == "__main__":
    for slow in ("torch._dynamo", "rowgrad.torch.sharded.checkpoint"):  # import before the fork, not once per child
        importlib.import_module(slow)
    torch.set_num_threads(1)
    children = [mp.get_context("fork").Process(target=run, args=(r, sys.argv[1])) for r in range(WORLD)]
    for child in children:
        child.start()
    deadline = time.monotonic() + 110
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
