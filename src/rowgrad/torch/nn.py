"""Embedding modules: `EmbeddingBag` for one table, `Embeddings` for many tables and features."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from ..checkpoint import read_table
from ..errors import make_error
from ..plan import Plan
from . import functional
from .embeddings import Embeddings as Embeddings
from .embeddings import Table as Table
from .fused import FusedWeight, TableModule, fused_lookup, needs_fused_lookup
from .tensors import check_table_size, from_numpy, new_table

__all__ = ("EmbeddingBag", "Embeddings", "Table")


class EmbeddingBag(TableModule):
    """A table, and lookups that combine its rows by bag.

    The state dict is that of `torch.nn.EmbeddingBag`: one entry, `weight`. `rowgrad.torch.functional.embedding_bag`
    describes the accepted ids and the options that are not listed here.

    Args:
        num_embeddings: The number of rows.
        embedding_dim: The number of columns.
        combiner: "mean" (the default), "sum" or "sqrtn"; `mode` is torch's name for it.
        grad: The gradient for `weight`, "dense" or "rows"; `sparse=True` is torch's name for `grad="rows"`.
        fused: Let the step of a rowgrad optimizer sum the bags' gradient by row and update the rows in one pass, so
            that the rows' gradient is not stored. Results have the same bits; `weight.grad` is computed when it is
            read. Not supported under DDP, torch.compile and torch.func; see docs/torch.md.
        device: Where to store the table.
        dtype: The dtype of the table.

    Raises:
        InvalidArgumentError: If options contradict each other.

    >>> import torch, rowgrad.torch as rgt
    >>> bag = rgt.nn.EmbeddingBag(10, 4, combiner="sqrtn", grad="rows")
    >>> bag(torch.tensor([1, 2, 4]), torch.tensor([0, 2])).shape
    torch.Size([2, 4])
    """

    __constants__ = ("num_embeddings", "embedding_dim", "combiner")

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        *,
        combiner: str | None = None,
        mode: str | None = None,
        grad: str | None = None,
        sparse: bool | None = None,
        padding_idx: int | None = None,
        default_id: int | None = None,
        include_last_offset: bool = False,
        fused: bool = False,
        device: Any = None,
        dtype: Any = None,
        _weight: Tensor | None = None,
    ) -> None:
        check_table_size(num_embeddings, embedding_dim)
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.max_norm = max_norm
        self.combiner = _one_of("combiner", combiner, "mode", mode, "mean")
        sparse_grad = None if sparse is None else "rows" if sparse else "dense"
        self.grad = _one_of("grad", grad, "sparse", sparse_grad, "rows" if fused else "dense")
        functional.check_options(self.combiner, self.grad)
        self.padding_idx = functional.row_number("padding_idx", padding_idx, num_embeddings)
        self.default_id = functional.row_number("default_id", default_id, num_embeddings)
        self.include_last_offset = include_last_offset
        self.fused = fused
        if fused and max_norm is not None:
            raise make_error("fused_unfit", value="max_norm")
        if fused and self.grad == "dense":
            raise make_error("fused_unfit", value="grad='dense'")
        data = new_table(num_embeddings, embedding_dim, device, dtype) if _weight is None else _weight.detach()
        if tuple(data.shape) != (num_embeddings, embedding_dim):
            raise make_error(
                "same_shape", argument="_weight", value=tuple(data.shape), bound=(num_embeddings, embedding_dim)
            )
        self.weight = FusedWeight(data) if fused else torch.nn.Parameter(data)
        if _weight is None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw rows from a standard normal distribution, like torch's module; the padding row is zero."""
        torch.nn.init.normal_(self.weight)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].fill_(0)

    def forward(
        self,
        input: Any,
        offsets: Tensor | None = None,
        per_sample_weights: Any = None,
        *,
        segment_ids: Tensor | None = None,
        num_bags: int | None = None,
        plan: Plan | None = None,
    ) -> Tensor:
        """Return the combined rows of every bag, [bags, embedding_dim]; arguments as in `embedding_bag`."""
        weight = self.weight  # read once: torch looks up parameters in Python
        if self.fused and needs_fused_lookup(self, weight):
            inputs = input, offsets, segment_ids, num_bags, per_sample_weights, self.include_last_offset
            kind = functional.check_options(self.combiner, self.grad)[0]

            def look_up() -> Tensor:
                bags = functional.prepare(*inputs, self.padding_idx, self.default_id, plan)
                return fused_lookup(weight, bags, kind, plan)

            changes_ids = self.padding_idx is not None or self.default_id is not None
            return functional.with_input_positions(weight, kind, inputs, look_up) if changes_ids else look_up()
        return functional.embedding_bag(
            weight, input, offsets, segment_ids=segment_ids, num_bags=num_bags,
            per_sample_weights=per_sample_weights, combiner=self.combiner, grad=self.grad, plan=plan,
            include_last_offset=self.include_last_offset, padding_idx=self.padding_idx, default_id=self.default_id,
            max_norm=self.max_norm,
        )  # fmt: skip

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **options: Any) -> Self:
        """Return a module with an existing table; `freeze` excludes it from training."""
        if not isinstance(embeddings, Tensor):
            raise TypeError(f"embeddings must be a tensor, got {type(embeddings).__name__}")
        if not embeddings.dtype.is_floating_point:
            bound = "float16, bfloat16, float32, float64"
            raise make_error("dtype_not_allowed", argument="embeddings", value=embeddings.dtype, bound=bound)
        if embeddings.ndim != 2:
            raise make_error("bags_unfit", argument="embeddings", value=f"{embeddings.ndim} dimensions", bound="2")
        module = cls(embeddings.shape[0], embeddings.shape[1], _weight=embeddings, **options)
        module.weight.requires_grad = not freeze
        return module

    @classmethod
    def from_checkpoint(cls, path: Any, name: Any, freeze: bool = False, *, partition_strategy: str = "div",
                        **options: Any) -> Self:  # fmt: skip
        """Return a module with a table of a TensorFlow checkpoint, as `rowgrad.checkpoint.read_table` reads it."""
        table = from_numpy(read_table(path, name, partition_strategy=partition_strategy), "table")
        return cls.from_pretrained(table, freeze, **options)

    def extra_repr(self) -> str:
        """Return the options that the module's repr shows."""
        shown = [f"{self.num_embeddings}, {self.embedding_dim}, combiner={self.combiner!r}, grad={self.grad!r}"]
        names = ("max_norm", "padding_idx", "default_id", "fused")
        shown += [f"{n}={getattr(self, n)!r}" for n in names if getattr(self, n) not in (None, False)]
        return ", ".join(shown)


def _one_of(name: str, value: Any, alias: str, other: Any, default: Any) -> Any:
    """Return the value of an option that has two names."""
    if value is not None and other is not None and value != other:
        raise make_error(
            "bags_unfit", argument=name, value=f"{value!r}, but {alias}={other!r}", bound=f"the same value as {alias}"
        )
    return value if value is not None else other if other is not None else default
