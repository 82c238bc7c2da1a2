"""`rowgrad.torch.convert` on whole models: what it keeps, what it leaves, and how converted models train.

Rounding: rows of `Embedding` and maxima have torch's bits. Sums and means of bags, and gradients of tables, add in
another order than torch, so they differ by the rounding of their dtype: the models are compared to 1e-12 in float64.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import rowgrad as rg
import rowgrad.torch as rgt

T = torch.tensor


class Dlrm(nn.Module):
    """Dense features and sums of bags, their pairwise dot products, and two stacks of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, 8, mode="sum") for rows in (20, 30, 5))
        self.top = nn.Sequential(nn.Linear(8 + 6, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense: Tensor, ids: list[tuple[Tensor, Tensor]]) -> Tensor:
        x = self.bottom(dense)
        parts = torch.stack([x, *(table(*i) for table, i in zip(self.tables, ids, strict=True))], 1)
        products = parts @ parts.transpose(1, 2)
        pairs = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([x, products[:, pairs[0], pairs[1]]], 1))


class DeepFm(nn.Module):
    """First- and second-order terms of a factorization machine, and layers on the same rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(40, 1), nn.Embedding(40, 6, scale_grad_by_freq=True)
        self.deep = nn.Sequential(nn.Linear(18, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.second(ids)
        interactions = (rows.sum(1) ** 2 - (rows**2).sum(1)).sum(1, keepdim=True) / 2
        return self.first(ids).sum(1) + interactions + self.deep(rows.flatten(1))


class TwoTower(nn.Module):
    """A tower for users and one for items; both read the table of items."""

    def __init__(self) -> None:
        super().__init__()
        item = nn.Embedding(30, 8, max_norm=2.0)
        self.towers = nn.ModuleDict({"user": nn.ModuleDict({"id": nn.Embedding(25, 8), "seen": item}), "item": item})
        self.genres = nn.EmbeddingBag(6, 8, mode="max", padding_idx=0)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(8))])

    def forward(self, users: Tensor, seen: Tensor, items: Tensor, genres: Tensor) -> Tensor:
        user = self.towers["user"]["id"](users) + self.towers["user"]["seen"](seen).mean(1)
        return (user * self.scales[0] * (self.towers["item"](items) + self.genres(genres))).sum(1, keepdim=True)


class TextClassifier(nn.Module):
    """The mean of a text's words, with sparse gradients, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(50, 8, mode="mean", sparse=True, padding_idx=0, include_last_offset=True)
        self.head = nn.Linear(8, 1)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.head(self.words(ids, offsets))


class Transformer(nn.Module):
    """One layer of a language model whose output layer has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(30, 8, padding_idx=0), nn.Embedding(5, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 30, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.layer(rows)).logsumexp(-1).mean(1, keepdim=True)


def batch(name: str, seed: int) -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(seed)

    def ids(rows: int, *shape: int) -> Tensor:
        return torch.randint(0, rows, shape, generator=g)

    def bags(rows: int, end: bool = False) -> tuple[Tensor, Tensor]:
        lengths = ids(5, 6)
        ends = lengths.cumsum(0)
        return ids(rows, int(ends[-1])), torch.cat([T([0]), ends if end else ends[:-1]])

    if name == "dlrm":
        return torch.rand(6, 4, generator=g, dtype=torch.float64), [bags(20), bags(30), bags(5)]
    if name == "deepfm":
        return (ids(40, 6, 3),)
    if name == "two towers":
        return ids(25, 6), ids(30, 6, 4), ids(30, 6), ids(6, 6, 3)
    return bags(50, True) if name == "text" else (ids(30, 6, 5),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.optim.Optimizer], list[str]]] = {
    "dlrm": (Dlrm, torch.optim.Adagrad, ["tables.0", "tables.1", "tables.2"]),
    "deepfm": (DeepFm, torch.optim.Adam, ["first", "second"]),
    "two towers": (TwoTower, torch.optim.SGD, ["towers.user.id", "towers.user.seen", "genres"]),
    "text": (TextClassifier, torch.optim.SGD, ["words"]),
    "transformer": (Transformer, torch.optim.Adam, ["words", "positions"]),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODELS[name][0]().double()


@pytest.mark.parametrize("name", MODELS)
def test_converted_models_compute_and_train_like_the_originals(name: str) -> None:
    """The optimizer of the converted model was made before the conversion."""
    _, optimizer_class, tables = MODELS[name]
    model, converted = make(name), make(name)
    optimizers = [optimizer_class(m.parameters(), lr=0.05) for m in (model, converted)]
    parameters = dict(converted.named_parameters())
    report = rgt.convert(converted)
    assert [m.names[0] for m in report.replaced] == tables
    assert not report.left
    assert all(parameters[key] is parameter for key, parameter in converted.named_parameters())
    for step in range(5):
        inputs = batch(name, step)
        losses = []
        for m, optimizer in zip((model, converted), optimizers, strict=True):
            optimizer.zero_grad()
            loss = (m(*inputs) - 1).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        assert torch.allclose(*losses, rtol=1e-12, atol=1e-12)
        if name not in ("dlrm", "text") and step == 0:
            assert torch.equal(*losses)  # no sums of bags
    for expected, found in zip(model.parameters(), converted.parameters(), strict=True):
        assert torch.allclose(expected, found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_state_dicts_are_interchangeable(name: str) -> None:
    model, converted = make(name), make(name)
    rgt.convert(converted)
    assert list(model.state_dict()) == list(converted.state_dict())
    inputs = batch(name, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.25
    converted.load_state_dict(model.state_dict())
    assert torch.allclose(model(*inputs), converted(*inputs), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter *= 0.5
    model.load_state_dict(converted.state_dict())
    assert torch.allclose(model(*inputs), converted(*inputs), rtol=1e-12, atol=1e-12)
    stored = io.BytesIO()
    torch.save(converted.state_dict(), stored)
    stored.seek(0)
    make(name).load_state_dict(torch.load(stored))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{"grad": "rows"}, {"fused": True}], ids=str)
def test_row_sparse_and_fused_tables_train_like_dense_ones(name: str, options: dict[str, Any]) -> None:
    model, converted = make(name), make(name)
    rgt.convert(model, grad="dense")
    report = rgt.convert(converted, **options)
    assert len(report.replaced) == len(MODELS[name][2])
    optimizers = [rgt.optim.Adagrad(m.parameters(), lr=0.05) for m in (model, converted)]
    for step in range(4):
        for m, optimizer in zip((model, converted), optimizers, strict=True):
            optimizer.zero_grad()
            (m(*batch(name, step)) - 1).square().mean().backward()
            optimizer.step()
    for expected, found in zip(model.parameters(), converted.parameters(), strict=True):
        assert torch.allclose(expected, found, rtol=1e-12, atol=1e-12)
    if options == {"grad": "rows"}:
        bags = [m for m in converted.modules() if isinstance(m, nn.EmbeddingBag)]
        assert all(m.weight.grad.is_sparse for m in bags)


def test_tied_weights_stay_tied() -> None:
    model = make("transformer")
    rgt.convert(model)
    assert model.head.weight is model.words.weight
    assert len(list(model.parameters())) == len(list(make("transformer").parameters()))


def test_a_shared_module_is_one_module_with_two_names() -> None:
    model = make("two towers")
    report = rgt.convert(model)
    shared = next(m for m in report.replaced if len(m.names) == 2)
    assert shared.names == ("towers.user.seen", "towers.item")
    assert model.towers["item"] is model.towers["user"]["seen"]
    assert type(model.towers["item"]) is rgt.nn.Embedding


def test_options_of_modules_are_kept() -> None:
    model = nn.ModuleList(
        [
            nn.Embedding(9, 3, 2, 1.5, 1.0, True, dtype=torch.float64),
            nn.Embedding(9, 3, sparse=True, device="meta"),
            nn.EmbeddingBag(9, 3, 1.5, 1.0, mode="max", include_last_offset=True, padding_idx=-1, dtype=torch.bfloat16),
            nn.Embedding.from_pretrained(torch.arange(6).view(3, 2)),
        ]
    )
    model[0].requires_grad_(False)
    model[2].eval()
    originals = [{k: v for k, v in vars(m).items() if not k.startswith("_")} for m in model]
    weights, texts = [m.weight for m in model], [repr(m) for m in model]
    report = rgt.convert(model)
    assert len(report.replaced) == 4
    for module, original, weight, text in zip(model, originals, weights, texts, strict=True):
        assert module.weight is weight
        assert all(getattr(module, key) == value for key, value in original.items())
        assert repr(module) == text
        assert isinstance(module, rgt.nn.Embedding | rgt.nn.EmbeddingBag)
        assert not module.fused
    assert not model[0].weight.requires_grad
    assert not model[2].training
    assert model[3](T([2])).tolist() == [[4, 5]]
    assert [m.grad for m in model] == ["dense", "rows", "dense", "dense"]


def test_a_model_that_is_an_embedding_is_converted_itself() -> None:
    table = nn.Embedding(5, 2)
    report = rgt.convert(table)
    assert type(table) is rgt.nn.Embedding
    assert str(report) == "replaced:\n  (the model itself): Embedding(5, 2)\nleft: none"
    again = rgt.convert(table, grad="rows")
    assert str(again) == "replaced: none\nleft:\n  (the model itself): Embedding(5, 2) (it is a rowgrad module)"
    assert table.grad == "dense"
    for copied in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert type(copied) is rgt.nn.Embedding
        assert torch.equal(copied(T([1])), table(T([1])))


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks_are_kept() -> None:
    table, seen = nn.Embedding(5, 2), []
    handles = [
        table.register_forward_pre_hook(lambda module, args: seen.append("before")),
        table.register_forward_hook(lambda module, args, out: out * 2),
        table.register_full_backward_hook(lambda module, inputs, outputs: seen.append("backward")),
        table.weight.register_hook(lambda gradient: gradient * 10),
    ]
    table.register_state_dict_post_hook(lambda module, state, *rest: state.update(extra=T(1)))
    rgt.convert(table)
    table(T([1])).sum().backward()
    assert seen == ["before", "backward"]
    assert table.weight.grad[1].tolist() == [20.0, 20.0]
    assert list(table.state_dict()) == ["weight", "extra"]
    for handle in handles:
        handle.remove()
    table.zero_grad()
    table(T([1])).sum().backward()
    assert table.weight.grad[1].tolist() == [1.0, 1.0]
    assert len(seen) == 2


class Doubled(nn.Embedding):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class Twice(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


def replaced_forward() -> nn.Module:
    table = nn.Embedding(5, 2)
    table.forward = lambda input: torch.zeros(1)  # type: ignore[method-assign]
    return table


def compiled() -> nn.Module:
    table = nn.Embedding(5, 2)
    table.compile(backend="eager")
    return table


def parametrized() -> nn.Module:
    table = nn.Embedding(5, 2)
    parametrize.register_parametrization(table, "weight", Twice())
    return table


def unusual_mode() -> nn.Module:
    return nn.EmbeddingBag(5, 2, mode="median")


def wrong_counts() -> nn.Module:
    return nn.EmbeddingBag(5, 2, scale_grad_by_freq=True)


class Tagged(nn.Parameter):
    """A parameter of a class that rowgrad does not know."""


def tagged() -> nn.Module:
    table = nn.Embedding(5, 2)
    table.weight = Tagged(torch.ones(5, 2))
    return table


LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "subclass": (lambda: Doubled(5, 2), "Doubled is a subclass of torch.nn.Embedding"),
    "forward": (replaced_forward, "its forward method was replaced"),
    "compiled": (compiled, "it was compiled"),
    "parametrized": (parametrized, "its weight is parametrized"),
    "pruned": (lambda: prune.identity(nn.Embedding(5, 2), "weight"), "its weight is not a parameter"),
    "parameter": (tagged, "its weight is a Tagged"),
    "dtype": (lambda: nn.Embedding(5, 2, dtype=torch.complex64), "its weight has dtype torch.complex64"),
    "mode": (unusual_mode, "its mode is 'median'"),
    "counts": (
        wrong_counts,
        "this torch divides its gradient by wrong counts, because of scale_grad_by_freq",
    ),
}


@pytest.mark.parametrize("what", LEFT)
def test_what_cannot_be_kept_is_left(what: str) -> None:
    create, reason = LEFT[what]
    if what == "counts" and rgt.convert(wrong_counts()).replaced:
        pytest.skip("this torch divides by the right counts")
    model = nn.ModuleDict({"odd": create(), "plain": nn.Embedding(5, 2)})
    kind, before = type(model["odd"]), repr(model["odd"])
    report = rgt.convert(model, fused=True)
    assert type(model["odd"]) is kind
    assert [m.names for m in report.replaced] == [("plain",)]
    (left,) = report.left
    assert (left.names, left.note) == (("odd",), reason)
    assert repr(model["odd"]) == before
    assert str(report).endswith(f"({reason})")


def test_options_that_do_not_fit_a_module_are_noted() -> None:
    model = nn.ModuleDict(
        {"max": nn.EmbeddingBag(5, 2, mode="max"), "scaled": nn.Embedding(5, 2, scale_grad_by_freq=True)}
    )
    report = rgt.convert(model, fused=True)
    notes = "not fused, because of mode 'max'", "its gradient stays dense, because of scale_grad_by_freq"
    assert tuple(m.note for m in report.replaced) == notes
    assert [(m.grad, m.fused) for m in model.values()] == [("dense", False), ("dense", False)]
    for module in model.values():
        module(T([[1, 1]])).sum().backward()


def test_gradient_options() -> None:
    model = nn.ModuleList([nn.Embedding(5, 2), nn.EmbeddingBag(5, 2, sparse=True)])
    rgt.convert(model, grad="dense")
    assert [m.grad for m in model] == ["dense", "dense"]
    assert not model[1].sparse
    model = nn.ModuleList([nn.Embedding(5, 2), nn.EmbeddingBag(5, 2, sparse=True)])
    rgt.convert(model, grad="rows")
    assert [(m.grad, m.sparse) for m in model] == [("rows", False), ("rows", True)]


def test_fused_tables_need_an_optimizer_made_after_the_conversion() -> None:
    table = nn.Embedding(5, 2)
    rgt.optim.SGD(table.parameters(), lr=0.1)
    rgt.convert(table, fused=True)
    with pytest.raises(rg.errors.OpError, match="needs a rowgrad optimizer"):
        table(T([1])).sum().backward()


def test_wrong_arguments_convert_nothing() -> None:
    table = nn.Embedding(5, 2)
    with pytest.raises(rg.errors.InvalidArgumentError, match="grad must be one of 'dense', 'rows'"):
        rgt.convert(table, grad="sparse")
    with pytest.raises(rg.errors.InvalidArgumentError, match="does not support grad='dense'"):
        rgt.convert(table, grad="dense", fused=True)
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got list"):
        rgt.convert([table])  # type: ignore[arg-type]
    assert type(table) is nn.Embedding
