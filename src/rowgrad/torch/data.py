"""Batches for data loaders: ids of variable length become bags, and their Plan is made where they are collated.

A data loader's workers call `Collate`, so the ids are sorted there, not in the training process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils.data import default_collate

from ..errors import refuse
from ..plan import Plan
from .tensors import check_storage


class BagBatch(NamedTuple):
    """The bags of a batch, as tensors; it passes through data loaders and torch.compile as a tree of them."""

    indices: Tensor
    offsets: Tensor
    segment_ids: Tensor
    num_bags: int
    weights: Tensor | None
    plan: Plan | None

    def arguments(self) -> dict[str, Any]:
        """What `EmbeddingBag` is called with: `bag(**batch.arguments())`."""
        return {
            "input": self.indices,
            "segment_ids": self.segment_ids,
            "num_bags": self.num_bags,
            "per_sample_weights": self.weights,
            "plan": self.plan,
        }

    def to(self, device: Any, non_blocking: bool = False) -> BagBatch:
        """The batch with its tensors, the plan's among them, on another device."""
        moved: BagBatch = _pytree.tree_map_only(Tensor, lambda t: t.to(device, non_blocking=non_blocking), self)
        return moved


class Collate:
    """Makes a batch of samples that are mappings: keys of `num_rows` hold ids, as many as there are.

    `num_rows` says how many rows the table of each such key has; an id outside is refused, naming the sample. `weights`
    names, for a key of ids, the key that holds a number per id. With `plan=True` every `BagBatch` brings the Plan of
    its ids. All other keys are collated as torch does. A `Collate` can be pickled, so workers may be spawned or forked.
    """

    def __init__(
        self, num_rows: Mapping[str, int], *, weights: Mapping[str, str] | None = None, plan: bool = True,
        dtype: torch.dtype = torch.int64,
    ) -> None:  # fmt: skip
        self.num_rows = dict(num_rows)
        self.weights = dict(weights or {})
        self.plan = plan
        self.dtype = dtype

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The batch: a `BagBatch` for every key of ids."""
        batch: dict[str, Any] = {}
        apart = set(self.num_rows) | set(self.weights.values())
        rest = [{k: v for k, v in sample.items() if k not in apart} for sample in samples]
        if rest and rest[0]:
            batch.update(default_collate(rest))
        for key, rows in self.num_rows.items():
            batch[key] = self._bags(key, rows, samples)
        return batch

    def _bags(self, key: str, rows: int, samples: Sequence[Mapping[str, Any]]) -> BagBatch:
        vectors = [_ids(key, k, sample[key]) for k, sample in enumerate(samples)]
        lengths = torch.tensor([v.shape[0] for v in vectors], dtype=self.dtype)
        wide = torch.cat(vectors) if vectors else torch.zeros(0, dtype=torch.int64)
        segments = torch.arange(len(vectors), dtype=self.dtype).repeat_interleave(lengths)
        bad = torch.nonzero((wide < 0) | (wide >= rows))
        if len(bad):
            at = int(bad[0])
            raise refuse("id_of_sample", argument=key, position=int(segments[at]), value=int(wide[at]), bound=rows)
        indices = wide.to(self.dtype)
        offsets = torch.cumsum(lengths, 0) - lengths
        return BagBatch(
            indices, offsets, segments, len(vectors), self._numbers(key, samples, lengths),
            Plan(indices, segments, rows, len(vectors)) if self.plan else None,
        )  # fmt: skip

    def _numbers(self, key: str, samples: Sequence[Mapping[str, Any]], lengths: Tensor) -> Tensor | None:
        name = self.weights.get(key)
        if name is None:
            return None
        for sample in samples:
            if isinstance(sample[name], Tensor):
                check_storage(sample[name], name)
        numbers = [torch.as_tensor(sample[name], dtype=torch.float32).reshape(-1) for sample in samples]
        for k, (found, wanted) in enumerate(zip(numbers, lengths.tolist(), strict=True)):
            if found.shape[0] != wanted:
                raise refuse("lengths_match", argument=name, position=k, value=found.shape[0], bound=wanted)
        return torch.cat(numbers) if numbers else torch.zeros(0)


def _ids(key: str, sample: int, value: Any) -> Tensor:
    """A sample's ids as a vector of int64; what is no whole number is refused."""
    if isinstance(value, Tensor):
        check_storage(value, key)
    ids = torch.as_tensor(value, device="cpu").reshape(-1)
    if ids.numel() == 0:
        return torch.zeros(0, dtype=torch.int64, device="cpu")
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        raise refuse("ids_of_sample", argument=key, position=sample, value=ids.dtype)
    return ids.to(torch.int64)
