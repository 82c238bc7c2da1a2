"""EmbeddingBag and Embeddings compared with torch's modules and with plain arithmetic."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import rowgrad as rg
import rowgrad.torch as rgt
from checkpoint_files import write_tensors
from golden_cases import FOLDER

ROWS, COLS = 40, 7


def bags(seed: int = 0, n: int = 60, count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and offsets with empty bags at the start, in the middle and at the end."""
    g = torch.Generator().manual_seed(seed)
    inner = torch.sort(torch.randint(0, n + 1, (count - 3,), generator=g)).values
    offsets = torch.cat([torch.tensor([0, 0]), inner, torch.tensor([n])])
    return torch.randint(0, ROWS, (n,), generator=g), offsets


def ours_and_torchs(mode: str, **options: Any) -> tuple[rgt.nn.EmbeddingBag, torch.nn.EmbeddingBag]:
    theirs = torch.nn.EmbeddingBag(ROWS, COLS, mode=mode, dtype=torch.float64, **options)
    ours = rgt.nn.EmbeddingBag(ROWS, COLS, mode=mode, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"padding_idx": 3}, {"include_last_offset": True}], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_equals_torch(mode: str, options: dict[str, Any]) -> None:
    ours, theirs = ours_and_torchs(mode, **options)
    ids, offsets = bags()
    ids[5:9] = 3
    expected, got = theirs(ids, offsets), ours(ids, offsets)
    assert torch.allclose(expected, got, rtol=1e-12, atol=1e-12)
    y = torch.rand_like(expected)
    expected.backward(y)
    got.backward(y)
    dense = [g.to_dense() if g.is_sparse else g for g in (theirs.weight.grad, ours.weight.grad)]
    assert torch.allclose(*dense, rtol=1e-12, atol=1e-12)
    if options.get("sparse"):
        assert ours.weight.grad.is_sparse
        assert ours.weight.grad.is_coalesced()


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_final_offset_without_include_last_offset(mode: str) -> None:
    """Without include_last_offset, a final offset equal to the number of ids starts an empty bag, as in torch."""
    ids, offsets = torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3])
    for closed in (False, True):
        ours, theirs = ours_and_torchs(mode, include_last_offset=closed)
        expected, got = theirs(ids, offsets), ours(ids, offsets)
        assert got.shape == expected.shape == (2 if closed else 3, COLS)
        assert torch.allclose(expected, got, rtol=1e-12, atol=1e-12)
        assert closed or got[2].count_nonzero() == 0
    empty = torch.tensor([], dtype=torch.int64)
    for starts in ([0], [0, 0]):
        ours, theirs = ours_and_torchs(mode)
        assert torch.equal(theirs(empty, torch.tensor(starts)), ours(empty, torch.tensor(starts)))


def test_equals_torch_with_weights_and_matrices() -> None:
    ours, theirs = ours_and_torchs("sum")
    ids, offsets = bags()
    weights = torch.rand(len(ids), dtype=torch.float64, requires_grad=True)
    twin = weights.detach().clone().requires_grad_()
    expected, got = theirs(ids, offsets, per_sample_weights=weights), ours(ids, offsets, per_sample_weights=twin)
    assert torch.allclose(expected, got, rtol=1e-12, atol=1e-12)
    y = torch.rand_like(expected)
    expected.backward(y)
    got.backward(y)
    assert torch.allclose(weights.grad, twin.grad, rtol=1e-12, atol=1e-12)
    matrix = ids.reshape(6, 10)
    assert torch.allclose(theirs(matrix), ours(matrix), rtol=1e-12, atol=1e-12)
    assert ours(torch.zeros(0, 10, dtype=torch.int64)).shape == (0, COLS)
    assert ours(torch.zeros(3, 0, dtype=torch.int64)).abs().sum() == 0


def test_unknown_modes_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="mode must be one of sum, mean, sqrtn, max; got 'median'"):
        rgt.nn.EmbeddingBag(ROWS, COLS, mode="median")


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("grad", ["dense", "rows"])
def test_weights_with_every_combiner(combiner: str, grad: str) -> None:
    """Σwx, Σwx/Σw, Σwx/√Σw² and their gradients, compared with torch's own differentiation."""
    module = rgt.nn.EmbeddingBag(ROWS, COLS, combiner=combiner, grad=grad, dtype=torch.float64)
    ids, offsets = bags()
    w = torch.rand(len(ids), dtype=torch.float64, requires_grad=True)
    got = module(ids, offsets, per_sample_weights=w)
    table, v = (t.detach().clone().requires_grad_() for t in (module.weight, w))
    rows = []
    ends = [*offsets[1:].tolist(), len(ids)]
    for begin, end in zip(offsets.tolist(), ends, strict=True):
        part = v[begin:end]
        total = {"sum": torch.ones(()), "mean": part.sum(), "sqrtn": (part * part).sum().sqrt()}[combiner]
        rows.append((table[ids[begin:end]] * part[:, None]).sum(0) / total if end > begin else torch.zeros(COLS))
    expected = torch.stack(rows)
    assert torch.allclose(expected, got, rtol=1e-12, atol=1e-12)
    y = torch.rand_like(expected)
    expected.backward(y)
    got.backward(y)
    found = module.weight.grad
    assert found.is_sparse == (grad == "rows")
    assert torch.allclose(table.grad, found.to_dense(), rtol=1e-11, atol=1e-12)
    assert torch.allclose(v.grad, w.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("grad", ["dense", "rows"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_gradient_sums_do_not_saturate(dtype: torch.dtype, grad: str, weighted: bool) -> None:
    """4096 gradients of 1.0 into one row sum to 4096."""
    module = rgt.nn.EmbeddingBag(2, 3, combiner="sum", grad=grad, dtype=dtype)
    n = 4096 if dtype == torch.bfloat16 else 12 * 2048
    ids = torch.ones(n, dtype=torch.int64)
    weights = torch.ones(n, dtype=dtype) if weighted else None
    module(ids, torch.arange(n), per_sample_weights=weights).backward(torch.ones(n, 3, dtype=dtype))
    assert module.weight.grad.to_dense().tolist() == [[0.0] * 3, [float(n)] * 3]


def id_formats(ids: torch.Tensor, offsets: torch.Tensor) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    closed = torch.cat([offsets, torch.tensor([len(ids)])])
    segments = torch.arange(len(offsets)).repeat_interleave(closed.diff())
    place = torch.stack([segments, torch.zeros_like(segments)], 1)
    return {
        "segment_ids": ((ids,), {"segment_ids": segments, "num_bags": len(offsets)}),
        "int32": ((ids.int(), offsets.int()), {}),
        "sparse": ((rg.SparseTensor(place, ids, [len(offsets), 1]),), {}),
        "nested": ((torch.nested.nested_tensor_from_jagged(ids, closed),), {}),
        "plan": ((ids, offsets), {"plan": rg.Plan(ids, segments, ROWS, len(offsets))}),
    }


@pytest.mark.parametrize("grad", ["dense", "rows"])
@pytest.mark.parametrize("form", ["segment_ids", "int32", "sparse", "nested", "plan"])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_id_format_returns_the_same_bits(form: str, grad: str, weighted: bool) -> None:
    module = rgt.nn.EmbeddingBag(ROWS, COLS, combiner="sqrtn", grad=grad)
    ids, offsets = bags()
    w = torch.rand(len(ids)) if weighted else None
    expected = module(ids, offsets, w)
    args, options = id_formats(ids, offsets)[form]
    got = module(*args, **options, per_sample_weights=w)
    assert torch.equal(expected, got)
    y = torch.rand_like(expected)
    gradients = [torch.autograd.grad(o, module.weight, y)[0].to_dense() for o in (expected, got)]
    assert torch.equal(*gradients)


def test_default_id_fills_empty_bags() -> None:
    module = rgt.nn.EmbeddingBag(ROWS, COLS, combiner="mean", default_id=-1)
    ids, offsets = bags()
    w = torch.rand(len(ids), requires_grad=True)
    out = module(ids, offsets, per_sample_weights=w)
    empty = [0, len(offsets) - 1]
    for b in empty:
        assert torch.equal(out[b], module.weight[ROWS - 1])
    out[0].sum().backward()
    assert module.weight.grad[ROWS - 1].tolist() == [1.0] * COLS
    assert w.grad.abs().sum() == 0


def test_lookup_max_norm_clips_rows_without_changing_the_table() -> None:
    module = rgt.nn.EmbeddingBag(ROWS, COLS, lookup_max_norm=1.0, combiner="sum", dtype=torch.float64)
    before = module.weight.detach().clone()
    ids, offsets = bags()
    out = module(ids, offsets)
    norm = module.weight.norm(dim=1, keepdim=True)
    short = module.weight * (1.0 / norm.clamp(min=1.0))
    theirs = torch.nn.functional.embedding_bag(ids, short, offsets, mode="sum")
    assert torch.allclose(out, theirs)
    y = torch.rand_like(out)
    assert torch.allclose(*(torch.autograd.grad(o, module.weight, y)[0] for o in (out, theirs)))
    assert torch.equal(before, module.weight)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # raised inside torch's optimizers
def test_rows_train_with_torchs_optimizers_and_clipping() -> None:
    for make in (torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad):
        module = rgt.nn.EmbeddingBag(ROWS, COLS, grad="rows")
        before = module.weight.detach().clone()
        optimizer = make(module.parameters(), lr=0.1)
        ids, offsets = bags()
        module(ids, offsets).sum().backward()
        norm = rgt.clip.clip_grad_norm_(module.parameters(), 0.5)
        assert norm > 0.5
        assert torch.linalg.vector_norm(module.weight.grad.coalesce().values()) <= 0.5001
        optimizer.step()
        touched = (before != module.weight).any(1)
        assert set(touched.nonzero().ravel().tolist()) == set(ids.tolist())


def test_state_dict_is_compatible_with_torch() -> None:
    ours, theirs = ours_and_torchs("mean")
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight"]
    twin = copy.deepcopy(ours)
    assert torch.equal(twin.weight, ours.weight)


def test_from_pretrained() -> None:
    table = torch.rand(5, 3)
    module = rgt.nn.EmbeddingBag.from_pretrained(table, combiner="sum")
    assert not module.weight.requires_grad
    assert module.weight.data_ptr() == table.data_ptr()
    assert rgt.nn.EmbeddingBag.from_pretrained(table, freeze=False).weight.requires_grad


def test_wrong_calls_raise_errors_that_name_the_argument() -> None:
    module = rgt.nn.EmbeddingBag(ROWS, COLS)
    ids, offsets = bags()
    wrong_calls: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((ids,), {}, "a vector of ids needs offsets or segment_ids"),
        ((ids.float(), offsets), {}, "ids"),
        ((ids, offsets + 1), {}, r"offsets\[0\] must be 0, got 1"),
        ((ids, torch.tensor([0, 70])), {}, "offsets must end with the number of ids, 60, got 70"),
        ((ids + ROWS, offsets), {}, "out of range"),
        ((ids, offsets, torch.ones(3)), {}, "weights"),
        ((ids.reshape(6, 10), offsets), {}, "defines its own bags"),
        ((ids, offsets), {"plan": rg.Plan(ids, ids * 0, ROWS + 1)}, "plan"),
    ]
    for args, options, message in wrong_calls:
        with pytest.raises(rg.errors.OpError, match=message):
            module(*args, **options)


def test_compiles_to_a_full_graph() -> None:
    torch._dynamo.reset()
    module = rgt.nn.EmbeddingBag(ROWS, COLS, combiner="sqrtn")
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for seed in range(3):
        ids, offsets = bags(seed, n=30 + 7 * seed)
        w = torch.rand(len(ids))
        expected, got = module(ids, offsets, w), compiled(ids, offsets, w)
        assert torch.equal(expected, got)
        y = torch.rand_like(expected)
        assert torch.equal(*(torch.autograd.grad(o, module.weight, y)[0] for o in (expected, got)))


def test_autocast_does_not_cast_tables() -> None:
    module = rgt.nn.EmbeddingBag(ROWS, COLS)
    ids, offsets = bags()
    with torch.autocast("cpu", torch.bfloat16):
        assert module(ids, offsets).dtype == torch.float32
        assert torch.mm(module(ids, offsets), torch.rand(COLS, 2)).dtype == torch.bfloat16


def test_activation_checkpointing_returns_the_same_gradient() -> None:
    module = rgt.nn.EmbeddingBag(ROWS, COLS)
    ids, offsets = bags()
    plain = torch.autograd.grad(module(ids, offsets).sum(), module.weight)[0]
    again = torch.utils.checkpoint.checkpoint(module, ids, offsets, use_reentrant=False)
    assert torch.equal(plain, torch.autograd.grad(again.sum(), module.weight)[0])


def test_from_checkpoint() -> None:
    folder = FOLDER / "checkpoints"
    found = [p for p in sorted(folder.rglob("*.index")) if "part" in p.name or "mod" in p.name or "shard" in p.name]
    assert found, "the golden checkpoints hold sharded tables"
    from rowgrad.checkpoint import Checkpoint

    checkpoint = Checkpoint(found[0])
    name = next(n for n in checkpoint if checkpoint.dtype(n) == "float32" and len(checkpoint.shape(n)) == 2)
    module = rgt.nn.EmbeddingBag.from_checkpoint(found[0], [name], combiner="sum")
    assert np.array_equal(module.weight.detach().numpy(), checkpoint.read(name))
    assert module.weight.requires_grad


def test_from_a_16_bit_checkpoint(tmp_path: Path) -> None:
    rows = np.array([[1.5, -2.0], [np.nan, 3e38]]).astype(ml_dtypes.bfloat16)
    write_tensors(tmp_path / "model", {"table": rows, "names": np.array([[b"a"]], object)})
    module = rgt.nn.EmbeddingBag.from_checkpoint(tmp_path / "model", "table")
    assert module.weight.dtype == torch.bfloat16
    assert module.weight.detach().view(torch.uint16).tolist() == rows.view(np.uint16).tolist()
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"^table must be one of float16, .*; got object"):
        rgt.nn.EmbeddingBag.from_checkpoint(tmp_path / "model", "names")


TABLES = [
    rgt.nn.Table("user", 30, 8),
    rgt.nn.Table("item", 20, 8, features=("seen", "bought")),
    rgt.nn.Table("word", 25, 4, combiner="sum"),
    rgt.nn.Table("tag", 10, 4, combiner="sqrtn"),
]


def feature_ids(module: rgt.nn.Embeddings, seed: int = 0) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)
    rows = {f: t.num_embeddings for t in module.tables for f in t.read_by}
    found = {}
    for feature in module.features:
        n = int(torch.randint(0, 20, (), generator=g))
        offsets = torch.cat([torch.tensor([0]), torch.sort(torch.randint(0, n + 1, (5,), generator=g)).values])
        found[feature] = (torch.randint(0, rows[feature], (n,), generator=g), offsets)
    return found


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["features", "vector"])
def test_embeddings_equal_one_bag_per_feature(form: str, weighted: bool) -> None:
    module = rgt.nn.Embeddings(TABLES, dtype=torch.float64, include_last_offset=False)
    ids_by_feature = feature_ids(module)
    w = {f: torch.rand(len(ids), dtype=torch.float64) for f, (ids, _) in ids_by_feature.items()} if weighted else None
    if form == "features":
        got = module(ids_by_feature, per_sample_weights=w)
    else:
        ids, starts, total = [], [], 0
        for feature in module.features:
            ids.append(ids_by_feature[feature][0])
            starts.append(ids_by_feature[feature][1] + total)
            total += len(ids[-1])
        offsets = torch.cat(starts)
        numbers = torch.cat([w[f] for f in module.features]) if w else None
        got = module(torch.cat(ids), offsets, numbers)
    loss = sum((o * o).sum() for o in got.values())
    loss.backward()
    for table in TABLES:
        bag = rgt.nn.EmbeddingBag.from_pretrained(
            module.weight(table.name).detach().clone(), freeze=False, combiner=table.combiner
        )
        for feature in table.read_by:
            expected = bag(*ids_by_feature[feature], None if w is None else w[feature])
            assert torch.equal(expected, got[feature])
            (expected * expected).sum().backward()
        assert torch.allclose(module.weight(table.name).grad.to_dense(), bag.weight.grad, rtol=1e-12, atol=1e-12)


def test_embeddings_state_dict_has_one_entry_per_table() -> None:
    module, twin = rgt.nn.Embeddings(TABLES), rgt.nn.Embeddings(TABLES)
    state = module.state_dict()
    assert sorted(state) == ["item.weight", "tag.weight", "user.weight", "word.weight"]
    twin.load_state_dict(state)
    assert all(torch.equal(twin.weight(t.name), module.weight(t.name)) for t in TABLES)
    state["user.weight"] = state["user.weight"][:3]
    with pytest.raises(RuntimeError, match=r"size mismatch for user.weight"):
        twin.load_state_dict(state)
    del state["user.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*user\.weight"):
        twin.load_state_dict(state)


def test_embeddings_name_the_feature_of_a_bad_id() -> None:
    module = rgt.nn.Embeddings(TABLES[:2], output="stacked", include_last_offset=False)
    ids_by_feature = feature_ids(module)
    assert module(ids_by_feature).shape == (6, 3, 8)
    ids_by_feature["seen"] = (torch.tensor([0, 20]), ids_by_feature["seen"][1] * 0)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"= 20 is not in \[0, 20\), the rows of table 'item'"):
        module(ids_by_feature)
    with pytest.raises(rg.errors.InvalidArgumentError, match="features"):
        module({"user": ids_by_feature["user"]})
    with pytest.raises(rg.errors.InvalidArgumentError, match="'stacked'"):
        rgt.nn.Embeddings(TABLES, output="stacked")
    with pytest.raises(rg.errors.InvalidArgumentError, match="twice"):
        rgt.nn.Embeddings([TABLES[0], TABLES[0]])
