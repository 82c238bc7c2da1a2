"""Embedding lookups as functions with torch's signatures; the modules call them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._hints import unknown_option
from .._runtime.bags import check_lengths
from ..errors import OpError, make_also, make_error
from ..lookup import COMBINERS, clip_rows, combiner_suffix
from ..lookup import row_number as row_number
from ..plan import Plan
from ..raw_ops import OPS
from . import devices, feature_lookup, gpu_calls
from .bag_lookup import check_bags, gather_unique, reject_replicated
from .bag_lookup import lookup as lookup
from .bags import LIBRARY, Bags, check_storages, drop_padding, fill_empty_bags, read_bags, reject_batched
from .embedding_max import lookup_max
from .saved_call import is_traced
from .tensors import check_storage, tensor_expected

__all__ = ("embedding", "embedding_bag")

GRADIENTS = ("dense", "rows")
MODES = {**COMBINERS, "max": "Max"}  # suffixes of ops; there is no op for "Max"
Inputs = tuple[Any, Any, Any, Any, Any, bool]  # ids, offsets, segment_ids, num_bags, weights, include_last_offset
_INPUT_NAMES = ("weight", "input", "offsets", "segment_ids", "num_bags", "per_sample_weights")
Options = tuple[Any, Any, Any, Any, Any]  # as in _NO_OPTIONS
Run = Callable[[Tensor, Bags, str, Plan | None], Tensor]

# What torch raises where these functions raise the error of a key; it raises ValueError for all other keys.
_BAG_ERRORS: dict[str, type[Exception]] = dict.fromkeys(
    (
        "index_not_in_data",
        "index_not_in_params",
        "dtype_not_allowed",
        "dtype_expected",
        "offsets_begin",
        "offsets_fall",
        "offsets_end",
        "row_outside",
        "frequency_rows",
    ),
    RuntimeError,
)
_ROW_ERRORS: dict[str, type[Exception]] = {
    **_BAG_ERRORS,
    "index_not_in_data": IndexError,
    "index_not_in_params": IndexError,
    "row_outside": AssertionError,
    "rank_exactly": RuntimeError,
}


def embedding_bag(
    input: Any,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    *,
    combiner: str | None = None,
    grad: str | None = None,
    segment_ids: Tensor | None = None,
    num_bags: int | None = None,
    default_id: int | None = None,
    lookup_max_norm: float | None = None,
    plan: Plan | None = None,
) -> Tensor:
    """Look up and combine the rows of every bag: [bags, …] from a table [rows, …].

    The arguments before `combiner` are those of `torch.nn.functional.embedding_bag`; docs/reference/torch.md lists the
    differences. Sums of 16-bit rows are accumulated in float32.

    Args:
        input: The ids: a vector with `offsets` or `segment_ids`, a matrix (one bag per row), a nested tensor of layout
            torch.jagged, TorchRec's JaggedTensor, or a rowgrad SparseTensor.
        weight: The table.
        offsets: Where each bag begins in a vector of ids.
        max_norm: Renormalize the looked-up rows of the table in place to this norm, as torch does, if theirs is larger.
        norm_type: The p of the p-norm for `max_norm`.
        scale_grad_by_freq: Divide the gradient of a row by the number of its ids in the batch.
        mode: "sum", "mean", "max" or "sqrtn"; with weights Σwx, Σwx/Σw and Σwx/√Σw², and not "max".
        sparse: Return a row-sparse gradient for `weight`, like `grad="rows"`.
        per_sample_weights: A weight for each id; not a float64 tensor for a narrower table, as in torch.
        include_last_offset: Whether `offsets` ends with the number of ids.
        padding_idx: A row whose ids are ignored.
        combiner: TensorFlow's name for `mode`, which it overrides.
        grad: The gradient for `weight`: "dense", or "rows" for a `RowGradient` of the rows looked up. While torch
            traces it is dense.
        segment_ids: The bag of each id of a vector, ascending.
        num_bags: The number of bags; by default the last segment id plus one.
        default_id: The row to look up for empty bags; by default their result is zero.
        lookup_max_norm: Shrink longer rows to this norm for this lookup, as TensorFlow's `max_norm` does: the table is
            unchanged, and gradients pass through.
        plan: The Plan of exactly these ids, for a backward pass without a sort.

    Returns:
        A row for each bag.

    Raises:
        InvalidArgumentError: If ids are out of range, or arguments do not fit together. Where torch raises a
            RuntimeError, it is one too.

    >>> import torch, rowgrad.torch as rgt
    >>> table = torch.tensor([[1.0], [2.0], [4.0]])
    >>> rgt.functional.embedding_bag(torch.tensor([0, 2, 1]), table, torch.tensor([0, 2]), mode="sum").tolist()
    [[5.0], [2.0]]
    """
    if combiner is not None:
        mode = one_of("combiner", combiner, "mode", mode, "mean")
        mode_suffix(mode, "combiner")
    rows = wants_rows(grad, sparse)
    if sparse and mode == "max":
        raise make_error("max_sparse")
    return look_up_bags(
        input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, rows, per_sample_weights,
        include_last_offset, padding_idx, segment_ids, num_bags, default_id, lookup_max_norm, plan,
    )  # fmt: skip


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    grad: str | None = None,
) -> Tensor:
    """Look up a row for every id: [*input.shape, columns] from a table [rows, columns].

    The arguments before `grad` are those of `torch.nn.functional.embedding`.

    Args:
        input: The ids, of any shape; also a nested tensor of layout torch.jagged.
        weight: The table.
        padding_idx: A row that gets no gradient.
        max_norm: Renormalize the looked-up rows of the table in place to this norm, as torch does, if theirs is larger.
        norm_type: The p of the p-norm for `max_norm`.
        scale_grad_by_freq: Divide the gradient of a row by the number of its ids in the batch.
        sparse: Return a row-sparse gradient for `weight`, like `grad="rows"`.
        grad: The gradient for `weight`: "dense", or "rows" for a coalesced sparse tensor of the rows looked up. While
            torch traces it is dense.

    Returns:
        The rows.

    Raises:
        InvalidArgumentError: If ids are out of range, which is also an IndexError, or arguments do not fit together,
            which is also a RuntimeError.

    >>> import torch, rowgrad.torch as rgt
    >>> table = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> rgt.functional.embedding(torch.tensor([[1], [0]]), table).tolist()
    [[[3.0, 4.0]], [[1.0, 2.0]]]
    """
    rows = wants_rows(grad, sparse)
    return look_up_rows(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, rows)


def look_up_bags(
    input: Any,
    weight: Tensor,
    offsets: Tensor | None,
    max_norm: float | None,
    norm_type: float,
    scale_grad_by_freq: bool,
    mode: str,
    rows: bool,
    per_sample_weights: Any,
    include_last_offset: bool,
    padding_idx: int | None,
    segment_ids: Tensor | None,
    num_bags: int | None,
    default_id: int | None,
    lookup_max_norm: float | None,
    plan: Plan | None,
    run: Run | None = None,
    sparse_in_ddp: bool = False,
) -> Tensor:
    """Look up bags; errors are also instances of what torch raises.

    `run` replaces `lookup` for fused tables. `sparse_in_ddp`: whether DistributedDataParallel knows that the gradient
    of this table is sparse.
    """
    if (
        not torch.compiler.is_compiling()
        and mode in COMBINERS
        and max_norm is lookup_max_norm is default_id is None
        and plan is segment_ids is num_bags is None
        and not scale_grad_by_freq
        and type(input) is Tensor
        and isinstance(weight, Tensor)
    ):
        found = None
        if devices.is_on_gpu(weight):
            if padding_idx is per_sample_weights is None:
                found = gpu_calls.look_up(weight, mode, input, offsets, include_last_offset, rows, run is not None)
        elif weight.is_cpu and weight.ndim == 2:
            found = feature_lookup.look_up_bags(
                weight, mode, padding_idx, input, offsets, per_sample_weights, include_last_offset,
                rows=rows, fused=run is not None,
            )  # fmt: skip
        if found is not None:
            return found
    inputs = input, offsets, segment_ids, num_bags, per_sample_weights, include_last_offset
    renorm = None if max_norm is None else (max_norm, norm_type)  # torch.compile would treat norm_type as a variable
    options = padding_idx, default_id, renorm, scale_grad_by_freq, lookup_max_norm
    if torch.compiler.is_compiling():
        return _look_up_bags(weight, inputs, options, mode, rows, plan, run, sparse_in_ddp)
    try:
        return _look_up_bags(weight, inputs, options, mode, rows, plan, run, sparse_in_ddp)
    except OpError as error:
        if error.key == "mixed_devices":  # of the op's arguments; raise it for those of the lookup
            devices.check_devices(dict(zip(_INPUT_NAMES, (weight, *inputs), strict=False)))
        if error.key == "segments_match_weights":
            shapes = (error.value,), (error.bound,)
            raise make_error("same_shape", argument="per_sample_weights", value=shapes[0], bound=shapes[1]) from None
        kind = _BAG_ERRORS.get(error.key or "")
        if kind is not None:
            # torch renormalizes before it checks ids, and finds ids beyond the table there.
            is_beyond = max_norm is not None and error.key in ("index_not_in_data", "index_not_in_params")
            make_also(error, IndexError if is_beyond and _is_not_negative(error.value) else kind)
        raise


def _is_not_negative(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _look_up_bags(
    weight: Tensor,
    inputs: Inputs,
    options: Options,
    mode: str,
    rows: bool,
    plan: Plan | None,
    run: Run | None,
    sparse_in_ddp: bool,
) -> Tensor:
    kind = mode_suffix(mode)
    if not isinstance(weight, Tensor):
        raise tensor_expected("weight", weight)
    if weight.ndim == 0:
        raise make_error("bags_unfit", argument="weight", value="0 dimensions", bound="1 or more")
    weights = inputs[4]
    if weights is not None and isinstance(weights, Tensor) and weights.dtype == torch.float64 != weight.dtype:
        raise make_error("dtype_expected", argument="per_sample_weights", value=weights.dtype, bound=weight.dtype,
                         why=", the dtype of the table",
                         advice=f"Convert them: per_sample_weights.to({weight.dtype}).")  # fmt: skip
    if options == _NO_OPTIONS and kind != "Max":
        bags = prepare(*inputs, None, None, plan)
        return run(weight, bags, kind, plan) if run else lookup(weight, bags, kind, rows, plan, sparse_in_ddp)
    return _look_up_with_options(weight, inputs, options, kind, rows, plan, run, sparse_in_ddp)


# padding_idx, default_id, (max_norm, norm_type), scale_grad_by_freq, lookup_max_norm
_NO_OPTIONS = (None, None, None, False, None)


def _look_up_with_options(
    weight: Tensor,
    inputs: Inputs,
    options: Options,
    kind: str,
    rows: bool,
    plan: Plan | None,
    run: Run | None,
    sparse_in_ddp: bool,
) -> Tensor:
    padding_idx, default_id, renorm, scale_grad_by_freq, lookup_max_norm = options
    padding_idx = row_number("padding_idx", padding_idx, weight.shape[0])
    default_id = row_number("default_id", default_id, weight.shape[0])
    rows = rows and not torch.compiler.is_compiling()  # traced gradients are dense
    if kind == "Max":
        for value, wrong in (("scale_grad_by_freq", scale_grad_by_freq), ("fused=True", run is not None),
                             ("lookup_max_norm", lookup_max_norm is not None)):  # fmt: skip
            if wrong:
                raise make_error("max_unfit", value=value)
        if inputs[4] is not None or getattr(inputs[0], "weights_or_none", _none)() is not None:
            raise make_error("max_weights")
    scale = scale_grad_by_freq and _may_need_gradient(weight)
    if scale and (rows or run is not None):
        raise make_error("frequency_rows")
    if plan is not None:
        for bound, wrong in (("lookup_max_norm", lookup_max_norm is not None), ("scale_grad_by_freq", scale),
                             ("mode='max'", kind == "Max")):  # fmt: skip
            if wrong:
                raise make_error("plan_of_other_ids", bound=bound)
    if inputs[5] and (kind == "Max" or padding_idx is not None):
        inputs = _drop_short_end(inputs)

    def look_up() -> Tensor:
        bags = prepare(*inputs, padding_idx, default_id, plan)
        if run is not None:
            return run(weight, bags, kind, plan)
        if kind == "Max":
            return lookup_max(weight, bags, rows, sparse_in_ddp)
        if scale or lookup_max_norm is not None:
            return _look_up_unique(weight, bags, kind, rows, scale, lookup_max_norm, sparse_in_ddp)
        return lookup(weight, bags, kind, rows, plan, sparse_in_ddp)

    if renorm is not None:  # torch also renormalizes rows of ignored ids
        bags = read(inputs)
        check_lengths(bags)
        renormalize_rows(weight, bags, *renorm)
    return with_input_positions(weight, "Sum" if kind == "Max" else kind, inputs, look_up)


def _none() -> None:
    return None


def _drop_short_end(inputs: Inputs) -> Inputs:
    """Drop a last offset that is less than the number of ids, as torch does: the last bag contains the rest of the ids.

    torch does so for mode "max" and with `padding_idx`. Otherwise its result and its gradient contradict each other, so
    it stays an error.
    """
    ids, offsets, segment_ids, num_bags, weights, _ = inputs
    are_vectors = all(isinstance(t, Tensor) and not t.is_nested and t.ndim == 1 for t in (ids, offsets))
    if not are_vectors or not offsets.is_cpu or offsets.shape[0] < 2 or offsets.dtype not in (torch.int32, torch.int64):
        return inputs
    if is_traced((ids, offsets)) or torch._C._are_functorch_transforms_active():
        return inputs
    check_storage(offsets, "offsets")
    before, last = offsets[-2:].tolist()
    if not before <= last < ids.shape[0]:
        return inputs
    return ids, offsets[:-1], segment_ids, num_bags, weights, False


def look_up_rows(
    input: Any,
    weight: Tensor,
    padding_idx: int | None,
    max_norm: float | None,
    norm_type: float,
    scale_grad_by_freq: bool,
    rows: bool,
    run: Run | None = None,
    sparse_in_ddp: bool = False,
) -> Tensor:
    """Look up a row for every id; errors are also instances of what torch raises. Arguments as in `look_up_bags`."""
    if (
        not torch.compiler.is_compiling()
        and max_norm is None
        and not scale_grad_by_freq
        and type(input) is Tensor
        and isinstance(weight, Tensor)
        and weight.is_cpu
        and weight.ndim == 2
        and not devices.is_on_gpu(weight)
        and (padding_idx is None or (_is_row(padding_idx, weight) and not _may_need_gradient(weight)))
    ):
        found = feature_lookup.look_up_rows(weight, input, rows=rows, fused=run is not None)
        if found is not None:
            return found
    options = padding_idx, max_norm, norm_type, scale_grad_by_freq
    if torch.compiler.is_compiling():
        return _look_up_rows(input, weight, *options, rows, run, sparse_in_ddp)
    try:
        return _look_up_rows(input, weight, *options, rows, run, sparse_in_ddp)
    except OpError as error:
        make_also(error, _ROW_ERRORS.get(error.key or "", ValueError))
        raise


def _is_row(number: Any, table: Tensor) -> bool:
    return type(number) is int and -table.shape[0] <= number < table.shape[0]


def _look_up_rows(
    input: Any,
    weight: Tensor,
    padding_idx: int | None,
    max_norm: float | None,
    norm_type: float,
    scale_grad_by_freq: bool,
    rows: bool,
    run: Run | None,
    sparse_in_ddp: bool,
) -> Tensor:
    ids = LIBRARY.integers(input, "ids")
    if not isinstance(weight, Tensor):
        raise tensor_expected("weight", weight)
    if weight.ndim != 2:
        raise make_error("rank_exactly", argument="weight", value=tuple(weight.shape), bound=2)
    padding_idx = row_number("padding_idx", padding_idx, weight.shape[0])
    if ids.is_nested:
        if ids.layout != torch.jagged or ids._lengths is not None:
            raise make_error("bags_unfit", argument="ids", value="another nested tensor",
                             bound="a nested tensor of layout torch.jagged without holes")  # fmt: skip
        found = _look_up_rows(ids.values(), weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, rows, run,
                              sparse_in_ddp)  # fmt: skip
        jagged: Tensor = torch.nested.nested_tensor_from_jagged(found, ids.offsets())
        return jagged
    flat = LIBRARY.flatten(ids, "ids")
    shape = (*ids.shape, weight.shape[1])
    needs_gradient = _may_need_gradient(weight)
    rows = rows and not torch.compiler.is_compiling()  # traced gradients are dense
    scale = scale_grad_by_freq and needs_gradient
    if scale and (rows or run is not None):
        raise make_error("frequency_rows")
    if max_norm is None and (not needs_gradient or not weight.is_floating_point()):
        plain: Tensor = OPS["GatherRows"](weight, flat, gradient="dense")
        return plain.reshape(shape)
    # Each id is a bag: the gradient of SparseSegmentSum is faster than that of GatherRows, and has unique rows.
    bags = Bags(flat, torch.arange(flat.shape[0], dtype=flat.dtype, device=flat.device), flat.shape[0])
    if max_norm is not None:
        renormalize_rows(weight, bags, max_norm, norm_type)
    if run is not None or rows:
        return _look_up_sparse(weight, bags, padding_idx, run, sparse_in_ddp).reshape(shape)
    is_plain = not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
    source = _FrozenRow.apply(weight, padding_idx) if padding_idx is not None and is_plain else weight
    if scale:
        found = _look_up_unique(source, bags, "Sum", False, True, None, sparse_in_ddp)
    else:
        found = lookup(source, bags, "Sum", False, None)
    if padding_idx is not None and not is_plain:
        found = torch.where((flat == padding_idx).unsqueeze(1), found.detach(), found)
    return found.reshape(shape)


def _look_up_sparse(
    weight: Tensor, bags: Bags, padding_idx: int | None, run: Run | None, sparse_in_ddp: bool
) -> Tensor:
    """Look up rows with a row-sparse or fused gradient, which does not contain the padding row."""
    kept = bags if padding_idx is None else drop_padding(bags, padding_idx)
    found = run(weight, kept, "Sum", None) if run else lookup(weight, kept, "Sum", True, None, sparse_in_ddp)
    if padding_idx is None:
        return found
    row = weight.detach()[padding_idx]
    if row.is_cpu and not row.any():  # as it is at first; without the ids, the result is zero too
        return found
    return torch.where((bags.indices == padding_idx).unsqueeze(1), row, found)


class _FrozenRow(torch.autograd.Function):
    """Return the table unchanged; set the gradient of one row to zero."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, row: int) -> Tensor:
        ctx.row = row
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        (gradient,) = ys
        if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            index = torch.tensor([ctx.row], device=gradient.device)
            return gradient.index_fill(0, index, 0.0), None
        gradient[ctx.row] = 0.0  # the lookup's backward pass has just allocated it
        return gradient, None


def renormalize_rows(weight: Tensor, bags: Bags, max_norm: float, norm_type: float) -> None:
    """Shrink the rows of these ids in place to `max_norm`, if their norm is larger. Validate all ids first."""
    if not max_norm >= 0:
        raise make_error("number_unfit", argument="max_norm", value=max_norm, bound="a number of at least 0")
    reject_replicated(weight, "max_norm")
    reject_batched("ids", bags.indices, "max_norm changes the table")
    check_storages(bags)
    check_storage(weight, "weight")  # torch does not check it
    check_bags(bags, weight.shape[0])
    ids = bags.indices
    if devices.is_on_gpu(weight) and not torch.compiler.is_compiling():
        devices.synchronize()  # raises what check_bags found, unless validation is off
        ids = ids[(ids >= 0) & (ids < weight.shape[0])]
        if norm_type == math.inf:  # torch's kernel computes other norms there
            _shrink_largest(weight, ids, max_norm)
            return
    with torch.no_grad():
        torch.embedding_renorm_(weight.detach(), ids.contiguous(), max_norm, norm_type)


@torch.no_grad()
def _shrink_largest(weight: Tensor, ids: Tensor, max_norm: float) -> None:
    """Shrink rows in place so that no element is larger than `max_norm`, with the arithmetic of torch on a CPU."""
    named = torch.unique(ids)
    rows = weight.detach()[named]
    norms = rows.abs().amax(1).double() if weight.shape[1] else rows.new_zeros(len(rows), dtype=torch.float64)
    scales = torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0)
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    weight.detach().index_copy_(0, named, (rows.to(wide) * scales.to(wide).unsqueeze(1)).to(rows.dtype))


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
            with torch.no_grad():
                lookup(weight.detach(), read(inputs), kind, False, None)
        raise


def read(inputs: Sequence[Any]) -> Bags:
    """Return the bags as the user passed them."""
    ids, offsets, segment_ids, num_bags, weights, include_last_offset = inputs
    return read_bags(ids, offsets, segment_ids=segment_ids, num_bags=num_bags, weights=weights,
                     include_last_offset=include_last_offset)  # fmt: skip


def _look_up_unique(
    weight: Tensor,
    bags: Bags,
    kind: str,
    rows: bool,
    scale: bool,
    lookup_max_norm: float | None,
    sparse_in_ddp: bool,
) -> Tensor:
    """Look up each distinct row once, scale its gradient or clip it, and combine the results."""
    option = "scale_grad_by_freq" if scale else "lookup_max_norm"
    reject_batched("ids", bags.indices, f"{option} looks up each distinct row once")
    check_storages(bags)
    reject_replicated(weight, option)
    unique, inverse, counts = torch.unique(bags.indices, return_inverse=True, return_counts=True)
    unique_rows = gather_unique(weight, unique, rows, sparse_in_ddp)
    if scale:
        unique_rows = _DivideGradient.apply(unique_rows, counts)
    if lookup_max_norm is not None:
        unique_rows = clip_rows(unique_rows, lookup_max_norm)
    return lookup(unique_rows, bags._replace(indices=inverse), kind, False, None)


class _DivideGradient(torch.autograd.Function):
    """Return rows unchanged; divide the gradient of each row by its count."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, counts: Tensor) -> Tensor:
        return rows.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *ys: Any) -> Any:
        (counts,) = ctx.saved_tensors
        return ys[0] / counts.reshape(-1, *(1,) * (ys[0].ndim - 1)), None


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


def one_of(name: str, value: Any, alias: str, other: Any, default: Any) -> Any:
    """Return the value of an option that has two names; `default` of the alias means that it was not passed."""
    if value is None:
        return other
    if other not in (default, value):
        raise make_error(
            "bags_unfit", argument=name, value=f"{value!r}, but {alias}={other!r}", bound=f"the same value as {alias}"
        )
    return value


def mode_suffix(mode: str, argument: str = "mode") -> str:
    """Return the suffix of a mode's ops: "Mean" for "mean". `argument` is the name that the user wrote."""
    suffix = MODES.get(mode) if isinstance(mode, str) else None
    if suffix is None:
        raise make_error("combiner_unknown", argument=argument, value=repr(mode), bound=", ".join(MODES))
    return suffix


def wants_rows(grad: str | None, sparse: bool) -> bool:
    """Return whether gradients are row-sparse, by both options."""
    if grad is None:
        return bool(sparse)
    check_options("sum", grad)
    if sparse and grad == "dense":
        raise make_error(
            "bags_unfit", argument="grad", value="'dense', but sparse=True", bound="'rows' or sparse=False"
        )
    return grad == "rows"


def check_options(combiner: str, grad: str) -> tuple[str, bool]:
    """Validate both options; return the suffix of the combiner's ops, and whether gradients are row-sparse."""
    kind = combiner_suffix(combiner)
    if grad not in GRADIENTS:
        raise unknown_option("grad", grad, GRADIENTS)
    return kind, grad == "rows"


def _may_need_gradient(weight: Tensor) -> bool:
    if not torch.is_grad_enabled():
        return False
    return weight.requires_grad or torch._C._are_functorch_transforms_active()
