"""Collate samples with ids of variable length into bags, with the Plan of the ids.

A data loader's workers call `Collate`, so ids are sorted there, not in the training process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils.data import default_collate

from ..errors import make_error
from ..optim import check_count
from ..plan import Plan
from .tensors import check_storage


class BagBatch(NamedTuple):
    """The bags of a batch: a pytree of tensors, which data loaders and torch.compile support."""

    indices: Tensor
    offsets: Tensor
    segment_ids: Tensor
    num_bags: int
    weights: Tensor | None
    plan: Plan | None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `EmbeddingBag`: `bag(**batch.arguments())`."""
        return {
            "input": self.indices,
            "segment_ids": self.segment_ids,
            "num_bags": self.num_bags,
            "per_sample_weights": self.weights,
            "plan": self.plan,
        }

    def to(self, device: Any, non_blocking: bool = False) -> BagBatch:
        """Return the batch with its tensors, those of the plan included, on another device."""
        moved: BagBatch = _pytree.tree_map_only(Tensor, lambda t: t.to(device, non_blocking=non_blocking), self)
        return moved


class Collate:
    """A `collate_fn` for data loaders whose samples are mappings with ids of variable length.

    Keys of `num_rows` become a `BagBatch`; all other keys are collated as torch does. A `Collate` can be pickled, so
    workers may be spawned or forked.

    Args:
        num_rows: For each key of ids, the number of rows of its table. Ids out of range raise an error that names the
            sample.
        weights: For a key of ids, the key of their weights. Floating-point arrays and tensors keep their dtype; other
            numbers get torch's default dtype.
        plan: Make the Plan of the ids.
        dtype: The dtype of the ids, int32 or int64.

    Raises:
        InvalidArgumentError: If an option is invalid.

    >>> import rowgrad.torch as rgt
    >>> batch = rgt.data.Collate({"item": 10})([{"item": [1, 2]}, {"item": [3]}])["item"]
    >>> batch.indices.tolist(), batch.offsets.tolist()
    ([1, 2, 3], [0, 2])
    """

    def __init__(
        self, num_rows: Mapping[str, int], *, weights: Mapping[str, str] | None = None, plan: bool = True,
        dtype: torch.dtype = torch.int64,
    ) -> None:  # fmt: skip
        if dtype not in (torch.int32, torch.int64):
            raise make_error("dtype_not_allowed", argument="dtype", value=dtype, bound="int32, int64")
        if not isinstance(num_rows, Mapping):
            raise TypeError(f"num_rows must be a mapping from keys to numbers of rows, got {type(num_rows).__name__}")
        num_rows = {key: int(rows) if isinstance(rows, np.integer) else rows for key, rows in num_rows.items()}
        for key, rows in num_rows.items():
            check_count(f"num_rows[{key!r}]", rows)
            if rows > torch.iinfo(dtype).max + 1:
                raise make_error(
                    "number_unfit", argument="dtype", value=dtype, bound=f"int64 for the {rows} rows of {key!r}"
                )
        for key in weights or ():
            if key not in num_rows:
                bound = f"keys of num_rows: {', '.join(map(repr, num_rows))}"
                raise make_error("number_unfit", argument="weights", value=repr(key), bound=bound)
        self.num_rows = num_rows
        self.weights = dict(weights or {})
        self.plan = plan
        self.dtype = dtype

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the batch, with a `BagBatch` for each key of `num_rows`."""
        batch: dict[str, Any] = {}
        for k, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                kind = type(sample).__name__
                raise make_error("sample_unfit", argument="a sample", position=k, value=kind, bound="a mapping")
        bag_keys = set(self.num_rows) | set(self.weights.values())
        rest = [{k: v for k, v in sample.items() if k not in bag_keys} for sample in samples]
        if rest and rest[0]:
            batch.update(default_collate(rest))
        for key, rows in self.num_rows.items():
            batch[key] = self._bags(key, rows, samples)
        return batch

    def _bags(self, key: str, rows: int, samples: Sequence[Mapping[str, Any]]) -> BagBatch:
        vectors = [_ids(key, k, _get(sample, key, k)) for k, sample in enumerate(samples)]
        lengths = torch.tensor([v.shape[0] for v in vectors], dtype=self.dtype, device="cpu")
        ids = torch.cat(vectors) if vectors else torch.zeros(0, dtype=torch.int64, device="cpu")
        segments = torch.arange(len(vectors), dtype=self.dtype, device="cpu").repeat_interleave(lengths)
        bad = torch.nonzero((ids < 0) | (ids >= rows))
        if len(bad):
            at = int(bad[0])
            raise make_error("id_of_sample", argument=key, position=int(segments[at]), value=int(ids[at]), bound=rows)
        indices = ids.to(self.dtype)
        offsets = torch.cumsum(lengths, 0) - lengths
        return BagBatch(
            indices, offsets, segments, len(vectors), self._numbers(key, samples, lengths),
            Plan(indices, segments, rows, len(vectors)) if self.plan else None,
        )  # fmt: skip

    def _numbers(self, key: str, samples: Sequence[Mapping[str, Any]], lengths: Tensor) -> Tensor | None:
        name = self.weights.get(key)
        if name is None:
            return None
        numbers = [_floats(name, k, _get(sample, name, k)) for k, sample in enumerate(samples)]
        for k, (vector, length) in enumerate(zip(numbers, lengths.tolist(), strict=True)):
            if vector.shape[0] != length:
                raise make_error("lengths_match", argument=name, position=k, value=vector.shape[0], bound=length)
        return torch.cat(numbers) if numbers else torch.zeros(0, device="cpu")


def _get(sample: Mapping[str, Any], key: str, number: int) -> Any:
    if key not in sample:
        raise make_error(
            "sample_unfit", argument=key, position=number, value="no such key", bound="present in every sample"
        )
    return sample[key]


def _tensor(key: str, sample: int, value: Any, bound: str) -> Tensor:
    """Return a sample's numbers as a vector; raise if torch cannot convert them."""
    if isinstance(value, Tensor):
        check_storage(value, key)
    elif isinstance(value, np.ndarray):  # torch rejects negative strides and foreign byte orders
        value = np.array(value, value.dtype.newbyteorder("="), order="C")
    try:
        return torch.as_tensor(value, device="cpu").reshape(-1)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise make_error("sample_unfit", argument=key, position=sample, value=repr(value)[:80], bound=bound) from None


def _floats(key: str, sample: int, value: Any) -> Tensor:
    """Return a sample's weights as a vector of floats."""
    weights = _tensor(key, sample, value, "numbers")
    if weights.dtype.is_complex:
        raise make_error("sample_unfit", argument=key, position=sample, value=weights.dtype, bound="real numbers")
    return weights if weights.dtype.is_floating_point else weights.to(torch.get_default_dtype())


def _ids(key: str, sample: int, value: Any) -> Tensor:
    """Return a sample's ids as a vector of int64; raise unless they are integers."""
    ids = _tensor(key, sample, value, "integers that fit int64")
    if ids.numel() == 0:
        return torch.zeros(0, dtype=torch.int64, device="cpu")
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        raise make_error("ids_of_sample", argument=key, position=sample, value=ids.dtype)
    if ids.dtype == torch.uint64 and bool((ids.view(torch.int64) < 0).any()):
        value = int(ids.tolist()[int((ids.view(torch.int64) < 0).nonzero()[0])])
        raise make_error("sample_unfit", argument=key, position=sample, value=value, bound="integers that fit int64")
    return ids.to(torch.int64)
