"""TorchRec's JaggedTensor and KeyedJaggedTensor as ids, and offsets that include the last one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rowgrad as rg
import rowgrad.torch as rgt

Table = rgt.nn.Table


class Jagged:
    """The methods of a JaggedTensor that modules read; offsets include the last one."""

    def __init__(self, values: Any, offsets: Any, weights: Any = None) -> None:
        self._values, self._offsets, self._weights = torch.as_tensor(values), torch.as_tensor(offsets), weights

    def values(self) -> Tensor:
        return self._values

    def offsets(self) -> Tensor:
        return self._offsets

    def weights_or_none(self) -> Any:
        return self._weights


class Keyed(Jagged):
    """The methods of a KeyedJaggedTensor that modules read."""

    def __init__(self, keys: list[str], lengths: list[int], weighted: bool = False, strides: Any = None) -> None:
        ends = torch.tensor([0, *lengths]).cumsum(0)
        count = int(ends[-1])
        weights = torch.arange(1.0, count + 1) / 4 if weighted else None
        super().__init__(torch.arange(count) * 7 % 10, ends, weights)
        self._keys, self._strides = keys, strides

    def keys(self) -> list[str]:
        return self._keys

    def stride(self) -> int:
        return (len(self._offsets) - 1) // max(len(self._keys), 1)

    def variable_stride_per_key(self) -> bool:
        return self._strides is not None

    def inverse_indices_or_none(self) -> None:
        return None

    def __getitem__(self, key: str) -> Jagged:
        first = self._keys.index(key) * self.stride()
        ends = self._offsets[first : first + self.stride() + 1]
        inside = slice(int(ends[0]), int(ends[-1]))
        weights = None if self._weights is None else self._weights[inside]
        return Jagged(self._values[inside], ends - ends[0], weights)


def embeddings_of(*dims: int, **options: Any) -> rgt.nn.Embeddings:
    tables = [Table("user", 10, dims[0], "sum"), Table("item", 10, dims[1], "mean", ("seen", "bought"))]
    torch.manual_seed(0)
    return rgt.nn.Embeddings(tables, **options)


@pytest.mark.parametrize("dims", [(4, 4), (4, 3)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "keys", [["user", "seen", "bought"], ["bought", "user", "seen"], ["seen", "other", "bought", "user"]]
)
@pytest.mark.parametrize("lengths", [(2, 1), (0, 3), (1, 0), (0, 0), (2,), ()])
def test_keyed_jagged_tensors_have_one_bag_per_example(
    dims: tuple[int, int], weighted: bool, keys: list[str], lengths: tuple[int, ...]
) -> None:
    keyed, module = Keyed(keys, list(lengths) * len(keys), weighted), embeddings_of(*dims)
    found = module(keyed)
    by_feature = module({f: keyed[f] for f in module.features})
    closed = embeddings_of(*dims, include_last_offset=True)
    pairs = {f: (keyed[f].values(), keyed[f].offsets()) for f in module.features}
    numbers = {f: keyed[f].weights_or_none() for f in module.features} if weighted else None
    by_pairs = closed(pairs, per_sample_weights=numbers)
    for feature in module.features:
        table, kind = module.weight("user" if feature == "user" else "item"), "sum" if feature == "user" else "mean"
        assert found[feature].shape == (len(lengths), table.shape[1])
        one = keyed[feature]
        expected = rgt.functional.embedding_bag(
            one.values(), table, one.offsets()[:-1], per_sample_weights=one.weights_or_none(), combiner=kind
        )
        assert torch.equal(found[feature], expected)
        assert torch.equal(by_feature[feature], expected)
        assert torch.equal(by_pairs[feature], expected)


def test_embedding_bag_takes_jagged_tensors() -> None:
    bag = rgt.nn.EmbeddingBag(10, 4)
    jagged = Jagged([1, 2, 3], [0, 2, 2, 3], torch.tensor([1.0, 2.0, 3.0]))
    expected = bag(torch.tensor([1, 2, 3]), torch.tensor([0, 2, 2]), torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(bag(jagged), expected)


def test_pairs_of_ids_and_offsets_need_include_last_offset() -> None:
    users, items = torch.tensor([3, 1, 4]), torch.tensor([7])
    jagged = {"user": (users, torch.tensor([0, 2, 3])), "item": (items, torch.tensor([0, 1, 1]))}
    tables = [Table("user", 10, 4), Table("item", 10, 4)]
    for module in (rgt.nn.Embeddings(tables), torch.compile(rgt.nn.Embeddings(tables), backend="eager")):
        with pytest.raises(
            Exception, match=r"feature user: include_last_offset is missing\. Construct the module with"
        ):
            module(jagged)
    closed, opened = (rgt.nn.Embeddings(tables, include_last_offset=option) for option in (True, False))
    assert closed(jagged)["user"].shape == (2, 4)
    assert opened(jagged)["user"].shape == (3, 4)
    jagged["user"] = (users, torch.tensor([0, 2]))
    with pytest.raises(rg.errors.OpError, match="offsets must end with the number of ids, 3, got 2"):
        closed(jagged)


KEYS = "expected features ['bought', 'seen', 'user'], each once"
OWN = "expected None, because the KeyedJaggedTensor has its own"
THREE = ["user", "seen", "bought"]


@pytest.mark.parametrize(
    ("keyed", "options", "message"),
    [
        (Keyed(["user", "seen"], [1, 1]), {}, f"ids: got keys ['user', 'seen'], {KEYS}"),
        (Keyed([*THREE, "user"], [1] * 4), {}, f"ids: got keys ['user', 'seen', 'bought', 'user'], {KEYS}"),
        (Keyed(THREE, [1] * 3), {"offsets": torch.tensor([0])}, f"offsets: got a value, {OWN}"),
        (Keyed(THREE, [1] * 3), {"per_sample_weights": torch.ones(3)}, f"per_sample_weights: got a value, {OWN}"),
        (Keyed(THREE, [1] * 4), {}, "ids: got offsets of 4 bags, expected 1 for each of 3 keys"),
        (
            Keyed(THREE, [1] * 3, strides=[1, 1, 1]),
            {},
            "ids: got a KeyedJaggedTensor whose keys differ in their number of bags, expected the same number of bags"
            " for all features",
        ),
    ],
)
def test_inconsistent_keyed_jagged_tensors_raise(keyed: Keyed, options: dict[str, Any], message: str) -> None:
    with pytest.raises(rg.errors.OpError) as raised:
        embeddings_of(4, 3)(keyed, **options)
    assert raised.value.message == message


def test_inconsistent_jagged_tensors_raise() -> None:
    bag = rgt.nn.EmbeddingBag(10, 4)
    jagged = Jagged([1, 2], [0, 2], torch.ones(2))
    for call, message in (
        (lambda: bag(Keyed(THREE, [1] * 3)), "ids: got a KeyedJaggedTensor, expected the JaggedTensor of one key"),
        (
            lambda: bag(jagged, torch.tensor([0])),
            "offsets must be None, because a JaggedTensor defines its own bags. Drop offsets, or pass a vector of ids.",
        ),
        (
            lambda: bag(jagged, per_sample_weights=torch.ones(2)),
            "per_sample_weights: got a value, expected None, because the JaggedTensor has weights",
        ),
        (lambda: bag(Jagged([1, 2, 3], [0, 2])), "offsets must end with the number of ids, 3, got 2"),
        (lambda: bag(Jagged([1.0], [0, 1])), "ids must be one of int32, int64; got torch.float32"),
    ):
        with pytest.raises(rg.errors.OpError) as raised:
            call()
        assert raised.value.message == message
