"""Embedding modules: torch's `EmbeddingBag` and `Embedding`, and `Embeddings` for many tables and features."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor

from ..checkpoint import read_table
from ..errors import OpError, make_also, make_error
from ..plan import Plan
from . import functional
from .embeddings import Embeddings as Embeddings
from .embeddings import Table as Table
from .fused import FusedWeight, TableModule, between_graphs, fused_lookup, needs_fused_lookup
from .tensors import check_table_size, from_numpy, new_table, tensor_expected

__all__ = ("Embedding", "EmbeddingBag", "Embeddings", "Table")

# What torch raises where a constructor raises the error of a key; it raises ValueError for all other keys.
_OPTION_ERRORS: dict[str, type[Exception]] = {
    "row_outside": AssertionError,
    "same_shape": AssertionError,
    "rank_exactly": AssertionError,
    "dtype_not_allowed": RuntimeError,
}


class _TorchTable(TableModule):
    """What both modules share: torch's attributes, `grad` and `fused`.

    `sparse` is torch's attribute: DistributedDataParallel reads it, and then expects sparse gradients. `grad="rows"`
    does not set it, so that the gradient is dense there.
    """

    num_embeddings: int
    embedding_dim: int
    max_norm: float | None
    norm_type: float
    scale_grad_by_freq: bool
    sparse: bool
    weight: Tensor
    _rows: bool = False
    _path = ""  # its name in the model that `convert` converted

    def _set_gradient(self, sparse: bool, grad: str | None, fused: bool) -> None:
        if fused and grad is None and not sparse:
            grad = "rows"
        self._rows = functional.wants_rows(grad, sparse) and not sparse
        self.sparse, self.fused = sparse, fused
        if fused and self.grad == "dense":
            raise make_error("fused_unfit", value="grad='dense'")
        if fused and self.scale_grad_by_freq:
            raise make_error("fused_unfit", value="scale_grad_by_freq")

    @property
    def grad(self) -> str:
        """The gradient for `weight`: "rows" (also if `sparse` is set) or "dense"."""
        return "rows" if self.sparse or self._rows else "dense"

    @grad.setter
    def grad(self, value: str) -> None:
        functional.check_options("sum", value)
        self._rows = value == "rows"
        self.sparse = self.sparse and self._rows

    def _new_weight(self, existing: Tensor | None, requires_grad: bool, device: Any, dtype: Any) -> None:
        shape = self.num_embeddings, self.embedding_dim
        data = new_table(*shape, device, dtype) if existing is None else existing.detach()
        if tuple(data.shape) != shape:
            raise make_error("same_shape", argument="_weight", value=tuple(data.shape), bound=shape)
        kind = FusedWeight if self.fused else torch.nn.Parameter
        self.weight = kind(data, requires_grad)

    def _name_table(self, error: OpError) -> None:
        """Add to the error of a bad id which table of a converted model it is of."""
        if self._path and error.argument == "indices" and error.position is not None:
            error.advice = f"The table is {self._path!r}."

    def _fused_run(self, weight: Tensor) -> functional.Run | None:
        """Return the lookup of a fused table; None for an unfused one, and where no gradient is recorded."""
        return fused_lookup if self.fused and needs_fused_lookup(self, weight) else None

    @classmethod
    def from_checkpoint(cls, path: Any, name: Any, freeze: bool = False, *, partition_strategy: str = "div",
                        **options: Any) -> Self:  # fmt: skip
        """Return a module with a table of a TensorFlow checkpoint, as `rowgrad.checkpoint.read_table` reads it."""
        table = from_numpy(read_table(path, name, partition_strategy=partition_strategy), "table")
        module: Self = cls.from_pretrained(table, freeze, **options)  # type: ignore[attr-defined]
        return module


class EmbeddingBag(_TorchTable, torch.nn.EmbeddingBag):
    """A table, and lookups that combine its rows by bag: a `torch.nn.EmbeddingBag` that computes with rowgrad.

    The arguments before `combiner` are torch's, and so are attributes, state dict and initial values;
    docs/reference/torch.md lists the differences. `rowgrad.torch.functional.embedding_bag` describes the options that
    are not listed here.

    Args:
        num_embeddings: The number of rows.
        embedding_dim: The number of columns.
        max_norm: Renormalize looked-up rows in place to this norm, as torch does, if theirs is larger.
        norm_type: The p of the p-norm for `max_norm`.
        scale_grad_by_freq: Divide the gradient of a row by the number of its ids in the batch.
        mode: "sum", "mean", "max" or "sqrtn".
        sparse: Return row-sparse gradients, also under DistributedDataParallel.
        include_last_offset: Whether `offsets` ends with the number of ids.
        padding_idx: A row whose ids are ignored.
        device: Where to store the table.
        dtype: The dtype of the table.
        combiner: TensorFlow's name for `mode`, which it overrides.
        grad: The gradient for `weight`, "dense" or "rows"; DistributedDataParallel and FSDP
            reduce "rows" only with `replicate_rows`.
        default_id: The row to look up for empty bags; by default their result is zero.
        lookup_max_norm: Shrink longer rows for one lookup, as TensorFlow does; gradients pass through.
        fused: Let the step of a rowgrad optimizer sum the bags' gradient by row and update the rows in one pass, so
            that the rows' gradient is not stored. Results have the same bits; `weight.grad` is computed when it is
            read. Not supported under torch.func and FSDP; see docs/reference/torch.md.

    Raises:
        InvalidArgumentError: If options contradict each other. Where torch raises an AssertionError, a RuntimeError or
            a TypeError, it is one too.

    >>> import torch, rowgrad.torch as rgt
    >>> bag = rgt.nn.EmbeddingBag(10, 4, mode="sum", sparse=True)
    >>> bag(torch.tensor([1, 2, 4]), torch.tensor([0, 2])).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
        *,
        combiner: str | None = None,
        grad: str | None = None,
        default_id: int | None = None,
        lookup_max_norm: float | None = None,
        fused: bool = False,
    ) -> None:
        torch.nn.Module.__init__(self)  # torch's constructor would allocate a table
        with _torch_errors():
            _check_sizes(num_embeddings, embedding_dim)
            self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
            self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
            self.mode = functional.one_of("combiner", combiner, "mode", mode, "mean")
            self.include_last_offset = include_last_offset
            self.padding_idx = functional.row_number("padding_idx", padding_idx, num_embeddings)
            self.default_id = functional.row_number("default_id", default_id, num_embeddings)
            self.lookup_max_norm = lookup_max_norm
            functional.mode_suffix(self.mode, "mode" if combiner is None else "combiner")
            self._set_gradient(sparse, grad, fused)
            if fused and lookup_max_norm is not None:
                raise make_error("fused_unfit", value="lookup_max_norm")
            if fused and self.mode == "max":
                raise make_error("fused_unfit", value="mode='max'")
            self._new_weight(_weight, True, device, dtype)
        if _weight is None:
            self.reset_parameters()

    @property
    def combiner(self) -> str:
        """TensorFlow's name for `mode`."""
        return self.mode

    @combiner.setter
    def combiner(self, value: str) -> None:
        functional.mode_suffix(value, "combiner")
        self.mode = value

    @between_graphs
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
        sparse, mode = self.sparse, self.mode
        if sparse and mode == "max":
            raise make_error("max_sparse")
        arguments = (
            input, weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, mode, sparse or self._rows,
            per_sample_weights, self.include_last_offset, self.padding_idx, segment_ids, num_bags, self.default_id,
            self.lookup_max_norm, plan, self._fused_run(weight) if self.fused else None, sparse,
        )  # fmt: skip
        if torch.compiler.is_compiling():
            return functional.look_up_bags(*arguments)
        try:
            return functional.look_up_bags(*arguments)
        except OpError as error:
            self._name_table(error)
            raise

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        **options: Any,
    ) -> Self:
        """Return a module with an existing table; `freeze` excludes it from training. `options`: rowgrad's own."""
        rows, columns = _check_pretrained(embeddings, must_be_float=True)
        module = cls(
            rows, columns, max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings, include_last_offset,
            padding_idx, **options,
        )  # fmt: skip
        module.weight.requires_grad = not freeze
        return module

    def extra_repr(self) -> str:
        """Return the options that the module's repr shows."""
        shown = [super().extra_repr(), *([f"grad={self.grad!r}"] if self.grad == "rows" else [])]
        names = ("default_id", "lookup_max_norm", "fused")
        shown += [f"{n}={value!r}" for n in names if (value := getattr(self, n)) is not None and value is not False]
        return ", ".join(shown)


class Embedding(_TorchTable, torch.nn.Embedding):
    """A table, and lookups of its rows: a `torch.nn.Embedding` that computes with rowgrad.

    The arguments before `grad` are torch's, and so are attributes, state dict and initial values;
    docs/reference/torch.md lists the differences.

    Args:
        num_embeddings: The number of rows.
        embedding_dim: The number of columns.
        padding_idx: A row that gets no gradient and is zero at first.
        max_norm: Renormalize looked-up rows in place to this norm, as torch does, if theirs is larger.
        norm_type: The p of the p-norm for `max_norm`.
        scale_grad_by_freq: Divide the gradient of a row by the number of its ids in the batch.
        sparse: Return row-sparse gradients, also under DistributedDataParallel.
        device: Where to store the table.
        dtype: The dtype of the table.
        grad: The gradient for `weight`, "dense" or "rows"; DistributedDataParallel and FSDP
            reduce "rows" only with `replicate_rows`.
        fused: Sum gradients by row inside the step of a rowgrad optimizer; see `EmbeddingBag`.

    Raises:
        InvalidArgumentError: If options contradict each other. Where torch raises an AssertionError, a RuntimeError or
            a TypeError, it is one too.

    >>> import torch, rowgrad.torch as rgt
    >>> table = rgt.nn.Embedding(10, 4, padding_idx=0, sparse=True)
    >>> table(torch.tensor([[1, 2], [4, 0]])).shape
    torch.Size([2, 2, 4])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        grad: str | None = None,
        fused: bool = False,
    ) -> None:
        torch.nn.Module.__init__(self)  # torch's constructor would allocate a table
        with _torch_errors():
            _check_sizes(num_embeddings, embedding_dim)
            self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
            self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
            self.padding_idx = functional.row_number("padding_idx", padding_idx, num_embeddings)
            self._set_gradient(sparse, grad, fused)
            self._new_weight(_weight, not _freeze, device, dtype)
        if _weight is None:
            self.reset_parameters()

    @between_graphs
    def forward(self, input: Tensor) -> Tensor:
        """Return the row of every id, [*input.shape, embedding_dim]."""
        weight = self.weight
        sparse = self.sparse
        arguments = (
            input, weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq,
            sparse or self._rows, self._fused_run(weight) if self.fused else None, sparse,
        )  # fmt: skip
        if torch.compiler.is_compiling():
            return functional.look_up_rows(*arguments)
        try:
            return functional.look_up_rows(*arguments)
        except OpError as error:
            self._name_table(error)
            raise

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        **options: Any,
    ) -> Self:
        """Return a module with an existing table; `freeze` excludes it from training. `options`: rowgrad's own."""
        rows, columns = _check_pretrained(embeddings, must_be_float=not freeze)
        return cls(rows, columns, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, embeddings, freeze,
                   **options)  # fmt: skip

    def extra_repr(self) -> str:
        """Return the options that the module's repr shows."""
        shown = [super().extra_repr()]
        shown += ["grad='rows'"] if self._rows else []
        shown += ["fused=True"] if self.fused else []
        return ", ".join(shown)


@contextmanager
def _torch_errors() -> Iterator[None]:
    """Make errors of a constructor also instances of what torch raises."""
    try:
        yield
    except OpError as error:
        make_also(error, _OPTION_ERRORS.get(error.key or "", ValueError))
        raise


def _check_sizes(num_embeddings: Any, embedding_dim: Any) -> None:
    """Raise unless both sizes are ints of 0 or more."""
    try:
        check_table_size(num_embeddings, embedding_dim)
    except OpError as error:
        size = num_embeddings if error.argument == "num_embeddings" else embedding_dim
        make_also(error, RuntimeError if isinstance(size, int) else TypeError)
        raise


def _check_pretrained(embeddings: Any, must_be_float: bool) -> tuple[int, int]:
    """Return the rows and columns of an existing table; raise unless it is a matrix."""
    if not isinstance(embeddings, Tensor):
        raise tensor_expected("embeddings", embeddings)
    if must_be_float and not embeddings.dtype.is_floating_point:
        bound = "float16, bfloat16, float32, float64"
        error = make_error("dtype_not_allowed", argument="embeddings", value=embeddings.dtype, bound=bound)
        make_also(error, RuntimeError)
        raise error
    if embeddings.ndim != 2:
        error = make_error("bags_unfit", argument="embeddings", value=f"{embeddings.ndim} dimensions", bound="2")
        make_also(error, AssertionError)
        raise error
    return embeddings.shape[0], embeddings.shape[1]
