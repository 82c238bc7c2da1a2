"""TorchRec and FBGEMM: the same jagged inputs, outputs and gradients on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, JaggedTensor, KeyedJaggedTensor, PoolingType

import rowgrad as rg
import rowgrad.torch as rgt

BAGS = 6
FEATURES = {"user": "user", "seen": "item", "bought": "item", "word": "word"}  # the table of each feature
SIZES = {"user": (30, 8), "item": (20, 8), "word": (10, 4)}
POOLING = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}


def features_of(table: str) -> list[str]:
    return [f for f, t in FEATURES.items() if t == table]


def pair(combiner: str, is_weighted: bool = False, **options: Any) -> tuple[EmbeddingBagCollection, Any]:
    """Return TorchRec's tables and rowgrad's, with the same rows."""
    theirs = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=t, num_embeddings=n, embedding_dim=d, feature_names=features_of(t), pooling=POOLING[combiner]
            )
            for t, (n, d) in SIZES.items()
        ],
        is_weighted=is_weighted,
    )
    ours = rgt.nn.Embeddings(
        [rgt.nn.Table(t, n, d, combiner, features=tuple(features_of(t))) for t, (n, d) in SIZES.items()], **options
    )
    ours.load_state_dict({k.removeprefix("embedding_bags."): v for k, v in theirs.state_dict().items()})
    return theirs, ours


def batch(keys: list[str], weighted: bool = False) -> KeyedJaggedTensor:
    """Return random bags; some are empty, the first one and the last one too."""
    g = torch.Generator().manual_seed(11)
    lengths, values = [], []
    for key in keys:
        count = torch.randint(0, 5, (BAGS,), generator=g)
        count[[0, 3, -1]] = 0
        lengths.append(count)
        values.append(torch.randint(0, SIZES[FEATURES.get(key, "word")][0], (int(count.sum()),), generator=g))
    ids = torch.cat(values)
    weights = torch.rand(len(ids), generator=g) if weighted else None
    return KeyedJaggedTensor(keys=keys, values=ids, lengths=torch.cat(lengths), weights=weights)


def check(theirs: EmbeddingBagCollection, ours: Any, kjt: KeyedJaggedTensor, ids: Any) -> None:
    """Compare outputs, then gradients: by a step of SGD, whose rate is 1."""
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    steps = torch.optim.SGD(theirs.parameters(), lr=1.0), rgt.optim.SGD(ours.parameters(), lr=1.0)
    expected, found = theirs(kjt).to_dict(), ours(ids)
    assert set(found) == set(FEATURES)
    g = torch.Generator().manual_seed(2)
    for feature in FEATURES:
        assert found[feature].shape == (BAGS, SIZES[FEATURES[feature]][1])
        torch.testing.assert_close(found[feature], expected[feature])
        y = torch.randn(found[feature].shape, generator=g)
        for out in (found, expected):
            out[feature].backward(y, retain_graph=True)
    for step in steps:
        step.step()
    for name, value in theirs.state_dict().items():
        after = ours.state_dict()[name.removeprefix("embedding_bags.")]
        torch.testing.assert_close(after, value)
        assert not torch.equal(after, before[name.removeprefix("embedding_bags.")])


@pytest.mark.parametrize("combiner", ["sum", "mean"])
@pytest.mark.parametrize(
    "keys",
    [list(FEATURES), ["word", "bought", "user", "seen"], ["other", *FEATURES, "more"]],
    ids=["same order", "other order", "more keys"],
)
def test_keyed_jagged_tensors(combiner: str, keys: list[str]) -> None:
    kjt = batch(keys)
    check(*pair(combiner), kjt, kjt)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_jagged_tensors_by_feature(combiner: str) -> None:
    kjt = batch(list(FEATURES))
    check(*pair(combiner), kjt, {key: kjt[key] for key in FEATURES})


def test_weighted_sums() -> None:
    kjt = batch(list(FEATURES), weighted=True)
    check(*pair("sum", is_weighted=True), kjt, kjt)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_pairs_with_torchrecs_offsets(combiner: str) -> None:
    kjt = batch(list(FEATURES))
    pairs = {key: (kjt[key].values(), kjt[key].offsets()) for key in FEATURES}
    check(*pair(combiner, include_last_offset=True), kjt, pairs)
    with pytest.raises(rg.errors.InvalidArgumentError, match="include_last_offset is missing"):
        pair(combiner)[1](pairs)


def test_one_vector_with_all_offsets() -> None:
    kjt = batch(list(FEATURES))
    theirs, ours = pair("sum")
    assert ours.features == list(FEATURES)
    expected = theirs(kjt).to_dict()
    for feature, rows in ours(kjt.values(), kjt.offsets()).items():
        torch.testing.assert_close(rows, expected[feature])
    with pytest.raises(rg.errors.InvalidArgumentError):
        ours(kjt.values(), kjt.offsets()[:-1])


def test_one_jagged_tensor_into_embedding_bag() -> None:
    bag = rgt.nn.EmbeddingBag(30, 4, combiner="mean")
    jt = JaggedTensor(values=torch.tensor([3, 1, 4, 1, 5]), lengths=torch.tensor([0, 2, 3, 0]))
    offsets = jt.offsets()  # end with the number of ids: a module with include_last_offset=False has one bag more
    ends = rgt.nn.EmbeddingBag(30, 4, combiner="mean", include_last_offset=True)
    ends.load_state_dict(bag.state_dict())
    assert torch.equal(bag(jt), ends(jt.values(), offsets))
    assert bag(jt).shape == (4, 4)
    peer = torch.nn.EmbeddingBag.from_pretrained(bag.weight.detach(), mode="mean", include_last_offset=True)
    torch.testing.assert_close(bag(jt), peer(jt.values(), offsets))


def test_keys_that_differ_in_their_number_of_bags_raise() -> None:
    kjt = KeyedJaggedTensor(
        keys=list(FEATURES),
        values=torch.arange(7),
        lengths=torch.tensor([1, 1, 2, 1, 1, 1]),
        stride_per_key_per_rank=[[2], [1], [1], [2]],
    )
    with pytest.raises(rg.errors.InvalidArgumentError, match="differ in their number of bags"):
        pair("sum")[1](kjt)


def fbgemm_bags(weight: Tensor, pooling: PoolingMode) -> SplitTableBatchedEmbeddingBagsCodegen:
    specs = [(*weight.shape, EmbeddingLocation.HOST, ComputeDevice.CPU)]
    bags = SplitTableBatchedEmbeddingBagsCodegen(
        specs, pooling_mode=pooling, optimizer=EmbOptimType.EXACT_SGD, learning_rate=0.0
    )
    bags.split_embedding_weights()[0].copy_(weight)
    return bags


def test_fbgemms_weighted_mean() -> None:
    """FBGEMM divides by the number of ids: a sum whose weights are divided by it. Its offsets have the end."""
    kjt = batch(["user"], weighted=True)
    ids, offsets, w = kjt.values(), kjt.offsets(), kjt.weights()
    bag = rgt.nn.EmbeddingBag(30, 8, combiner="sum", include_last_offset=True)
    theirs = fbgemm_bags(bag.weight.detach(), PoolingMode.MEAN)(ids, offsets, per_sample_weights=w)
    sizes = torch.diff(offsets)
    ours = bag(ids, offsets, per_sample_weights=w / sizes.repeat_interleave(sizes))
    assert ours.shape == (BAGS, 8)
    torch.testing.assert_close(ours, theirs)
