"""Embedding lookups as functions; the modules call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..errors import OpError, make_error
from ..lookup import clip_rows, combiner_suffix
from ..lookup import row_number as row_number
from ..plan import Plan
from ..raw_ops import OPS
from .bags import Bags, check_storages, drop_padding, fill_empty_bags, read_bags, reject_batched
from .devices import is_captured

__all__ = ("embedding_bag",)

GRADIENTS = ("dense", "rows")


def embedding_bag(
    weight: Tensor,
    ids: Any,
    offsets: Tensor | None = None,
    *,
    segment_ids: Tensor | None = None,
    num_bags: int | None = None,
    per_sample_weights: Any = None,
    combiner: str = "mean",
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    default_id: int | None = None,
    max_norm: float | None = None,
    grad: str = "dense",
    plan: Plan | None = None,
) -> Tensor:
    """Look up and combine the rows of every bag: [bags, …] from a table [rows, …].

    Sums of 16-bit rows are accumulated in float32.

    Args:
        weight: The table.
        ids: A vector with `offsets` or `segment_ids`, a matrix (one bag per row), a nested tensor of layout
            torch.jagged, TorchRec's JaggedTensor, or a rowgrad SparseTensor.
        offsets: Where each bag begins in a vector of ids.
        segment_ids: The bag of each id of a vector, ascending.
        num_bags: The number of bags; by default the last segment id plus one.
        per_sample_weights: A weight for each id.
        combiner: "sum", "mean" or "sqrtn"; with weights these are Σwx, Σwx/Σw and Σwx/√Σw².
        include_last_offset: Whether `offsets` ends with the number of ids.
        padding_idx: A row whose ids are ignored.
        default_id: The row to look up for empty bags; by default their result is zero.
        max_norm: Shrink longer rows to this norm for this lookup, as TensorFlow does: the table is unchanged, and
            gradients pass through.
        grad: The gradient for `weight`: "dense", or "rows" for a coalesced sparse tensor of the rows looked up. While
            torch traces it is dense.
        plan: The Plan of exactly these ids, for a backward pass without a sort.

    Returns:
        A row for each bag.

    Raises:
        InvalidArgumentError: If ids are out of range, or arguments do not fit together.

    >>> import torch, rowgrad.torch as rgt
    >>> table = torch.tensor([[1.0], [2.0], [4.0]])
    >>> rgt.functional.embedding_bag(table, torch.tensor([0, 2, 1]), torch.tensor([0, 2]), combiner="sum").tolist()
    [[5.0], [2.0]]
    """
    kind, rows = check_options(combiner, grad)
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight must be a tensor, got {type(weight).__name__}")
    if weight.ndim == 0:
        raise make_error("bags_unfit", argument="weight", value="0 dimensions", bound="1 or more")
    if padding_idx is not None or default_id is not None:
        padding_idx = row_number("padding_idx", padding_idx, weight.shape[0])
        default_id = row_number("default_id", default_id, weight.shape[0])
    if plan is not None and max_norm is not None:
        raise make_error("plan_of_other_ids", bound="max_norm")
    inputs = ids, offsets, segment_ids, num_bags, per_sample_weights, include_last_offset
    if padding_idx is None and default_id is None and max_norm is None:
        return lookup(weight, prepare(*inputs, None, None, plan), kind, rows, plan)

    def look_up() -> Tensor:
        bags = prepare(*inputs, padding_idx, default_id, plan)
        if max_norm is None:
            return lookup(weight, bags, kind, rows, plan)
        return _lookup_clipped(weight, bags, kind, rows, max_norm)

    return with_input_positions(weight, kind, inputs, look_up)


def with_input_positions(weight: Tensor, kind: str, inputs: Sequence[Any], look_up: Callable[[], Tensor]) -> Tensor:
    """Return `look_up()`; make its errors name an id by its position among the ids that the user passed.

    Positions change when padding is dropped, empty bags are filled, or ids are made unique.
    """
    if torch.compiler.is_compiling():
        return look_up()
    try:
        return look_up()
    except OpError as error:
        if error.position is not None:
            ids, offsets, segment_ids, num_bags, weights, include_last_offset = inputs
            bags = read_bags(ids, offsets, segment_ids=segment_ids, num_bags=num_bags, weights=weights,
                             include_last_offset=include_last_offset)  # fmt: skip
            with torch.no_grad():
                lookup(weight.detach(), bags, kind, False, None)
        raise


def _lookup_clipped(weight: Tensor, bags: Bags, kind: str, rows: bool, max_norm: float) -> Tensor:
    reject_batched("ids", bags.indices, "max_norm looks up each distinct row once")
    check_storages(bags)
    if REPLICAS and weight in REPLICAS:
        raise make_error("replicated_unfit", value="max_norm")
    unique, inverse = torch.unique(bags.indices, return_inverse=True)
    clipped = clip_rows(OPS["GatherRows"](weight, unique, gradient="rows" if rows else "dense"), max_norm)
    return lookup(clipped, bags._replace(indices=inverse), kind, False, None)


def prepare(
    ids: Any,
    offsets: Tensor | None,
    segment_ids: Tensor | None,
    num_bags: int | None,
    per_sample_weights: Any,
    include_last_offset: bool,
    padding_idx: int | None,
    default_id: int | None,
    plan: Plan | None,
) -> Bags:
    """Read the bags, drop padding, and fill empty bags."""
    if plan is not None and not (padding_idx is None and default_id is None):
        raise make_error("plan_of_other_ids", bound="padding_idx or default_id")
    bags = read_bags(ids, offsets, segment_ids=segment_ids, num_bags=num_bags, weights=per_sample_weights,
                     include_last_offset=include_last_offset)  # fmt: skip
    if padding_idx is not None:
        bags = drop_padding(bags, padding_idx)
    return bags if default_id is None else fill_empty_bags(bags, default_id)


def check_options(combiner: str, grad: str) -> tuple[str, bool]:
    """Validate both options; return the suffix of the combiner's ops, and whether gradients are row-sparse."""
    kind = combiner_suffix(combiner)
    if grad not in GRADIENTS:
        raise make_error("attr_not_allowed", argument="grad", value=repr(grad), bound=", ".join(map(repr, GRADIENTS)))
    return kind, grad == "rows"


def is_in_ddp() -> bool:
    """Return whether a forward pass of DistributedDataParallel is running."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    return torch.nn.parallel.DistributedDataParallel._get_active_ddp_module() is not None


REPLICAS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # tables of `replicate_rows`, and how they are looked up
REPLICATED = "rowgrad"  # their `_ddp_ignored`, which pickled copies have too; True if the user reduces gradients


def replica_of(weight: Tensor) -> Any:
    """Return the replica of a table that `replicate_rows` registered; None for other tables.

    Raises:
        InvalidArgumentError: If DistributedDataParallel would reduce the row gradient of this table.
    """
    replica = REPLICAS.get(weight) if REPLICAS else None
    if replica is None and is_in_ddp() and getattr(weight, "_ddp_ignored", None) is not True:
        raise make_error("rows_in_ddp")
    return replica


_HOOKS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # attributes of a tensor would be pickled


def keep_coalesced(weight: Tensor) -> None:
    """Make the gradient of a leaf stay coalesced: torch clears that flag when it stores a gradient."""
    if not torch.compiler.is_compiling() and weight not in _HOOKS and not getattr(weight, "rowgrad_fused", False):
        _HOOKS[weight] = weight.register_post_accumulate_grad_hook(_mark_coalesced)


def _mark_coalesced(weight: Tensor) -> None:
    grad = weight.grad
    if grad is not None and grad.is_sparse and not grad.is_coalesced() and not is_captured():
        ids = grad._indices()[0]
        if bool((ids[1:] > ids[:-1]).all()):
            grad._coalesced_(True)


def lookup(weight: Tensor, bags: Bags, kind: str, rows: bool, plan: Plan | None) -> Tensor:
    """Run the op of a combiner on prepared bags."""
    if plan is not None and plan.num_segments != bags.num_bags:
        raise make_error("plan_unfit", value=f"{plan.num_segments} bags", bound=bags.num_bags)
    rows = rows and not torch.compiler.is_compiling()  # traced gradients are dense
    if rows and weight.is_leaf and weight.requires_grad and torch.is_grad_enabled():
        replica = replica_of(weight)
        if replica is not None:
            exchanged: Tensor = replica.look_up(weight, bags, kind)
            return exchanged
        keep_coalesced(weight)
    prefix = "" if bags.weights is None else "Weighted"
    op = OPS[f"{prefix}SparseSegment{kind}WithNumSegments"]
    weights = () if bags.weights is None else (bags.weights,)
    options: dict[str, Any] = {} if not rows and plan is None else {"sparse_gradient": rows, "plan": plan}
    result: Tensor = op(weight, bags.indices, bags.segment_ids, *weights, bags.num_bags, **options)
    return result
