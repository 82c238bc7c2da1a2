"""`RowGradient`: the gradient of some rows of a table, a sparse tensor that torch can also measure, scale and clip.

Autograd rebuilds a sparse tensor when it stores it in `weight.grad`, and drops its class and the knowledge that its
rows are unique. `keep_coalesced` restores both. It recognizes ids by their storage, so it never waits for a GPU.

A backward pass on a GPU does not wait for the number of its rows: it leaves padding after them. Optimizers, norms,
scaling and clipping read the number on the device. Every other function sees a gradient from which `_drop_padding` has
removed the padding, unless a CUDA graph is being captured.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import make_error
from . import devices
from .tensors import check_storage

__all__ = ("RowGradient",)


class _Ids(NamedTuple):
    """Ids that ascend strictly: all of them, or the first `valid` ones, followed by repetitions of the last."""

    storage: StorageWeakRef
    valid: Tensor | None
    is_hidden: bool = False  # whether the padding is removed when the gradient is read


# By address, offset and length. A weak reference keeps the address of a storage from being used again.
_KNOWN_IDS: dict[tuple[int, int, int], _Ids] = {}
_LEAST = 32  # entries before expired ones are removed: few, so that they do not set off garbage collections
_prune_at = _LEAST


def _remember(ids: Tensor, count: Tensor | None, is_hidden: bool = False) -> None:
    global _prune_at  # no lock, which a fork could leave locked; all changes are single operations of a dict
    storage = ids.untyped_storage()
    _KNOWN_IDS[storage._cdata, ids.storage_offset(), ids.numel()] = _Ids(StorageWeakRef(storage), count, is_hidden)
    if len(_KNOWN_IDS) >= _prune_at:
        for key, known in list(_KNOWN_IDS.items()):
            if known.storage.expired():
                _KNOWN_IDS.pop(key, None)
        _prune_at = max(_LEAST, 2 * len(_KNOWN_IDS))


def valid_rows(grad: Tensor) -> Tensor | None:
    """Return the number of valid rows, a tensor, if a gradient that is not coalesced has padding after them."""
    known = _recall(grad)
    return None if known is None else known.valid


def _recall(grad: Tensor) -> _Ids | None:
    ids = grad._indices()
    known = _KNOWN_IDS.get((ids.untyped_storage()._cdata, ids.storage_offset(), ids.numel()))
    return None if known is None or known.storage.expired() else known


class RowGradient(Tensor):
    """The gradient of some rows of a table: a sparse COO tensor whose first dimension is sparse.

    Modules return it with unique, ascending rows, so it is coalesced. On a GPU the number of rows stays on the device
    until the gradient is read; see `count`. Everything that torch does with sparse tensors works. So do
    `clip_grad_norm_`, `clip_grad_value_` and `get_total_norm` of torch.nn.utils, and these functions of the whole
    tensor, with the result of the dense gradient: norms, `max`, `min`, `mean`, `any`, `all`, `count_nonzero`,
    `isfinite`, and `clamp` if 0 is within its bounds. Repeated rows are added first.

    Args:
        ids: The row of the table to which each row of the gradient belongs; repeated rows add up.
        rows: The rows of the gradient.
        num_rows: The number of rows of the table.

    Raises:
        InvalidArgumentError: If ids are out of range, or shapes do not fit together.

    >>> import torch, rowgrad.torch as rgt
    >>> grad = rgt.RowGradient(torch.tensor([1, 3]), torch.tensor([[3.0, 0.0], [0.0, 4.0]]), num_rows=5)
    >>> grad.shape, grad.is_sparse, grad.ids().tolist()
    (torch.Size([5, 2]), True, [1, 3])
    >>> torch.linalg.vector_norm(grad).item()
    5.0
    >>> grad.mul_(2).clamp_(max=7).rows().tolist()
    [[6.0, 0.0], [0.0, 7.0]]
    """

    def __new__(cls, ids: Tensor, rows: Tensor, num_rows: int) -> Self:
        """Create the gradient of a table with `num_rows` rows."""
        for name, value in (("ids", ids), ("rows", rows)):
            if not isinstance(value, Tensor):
                raise make_error("not_a_tensor", argument=name, value=type(value).__name__)
        if ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64):
            bound = "a vector of int32 or int64"
            raise make_error("number_unfit", argument="ids", value=f"{ids.dtype}{list(ids.shape)}", bound=bound)
        if rows.ndim < 1 or rows.shape[0] != ids.shape[0]:
            bound = f"a tensor of {ids.shape[0]} rows, one for each id"
            raise make_error("number_unfit", argument="rows", value=f"shape {list(rows.shape)}", bound=bound)
        if ids.numel():
            low, high = torch.aminmax(ids)
            if low < 0 or high >= num_rows:
                at = int(torch.nonzero((ids < 0) | (ids >= num_rows))[0])
                raise make_error("index_not_in_output", argument="ids", position=at, value=int(ids[at]), bound=num_rows)
        grad = sparse_rows(rows, ids, num_rows, unique=False)
        _mark_if_ascending(grad, wait=True)
        grad.__class__ = cls
        return grad  # type: ignore[return-value]

    def ids(self) -> Tensor:
        """Return the row of the table to which each row of the gradient belongs, as a vector."""
        with torch._C.DisableTorchFunctionSubclass():
            _drop_padding(self)
            return self._indices()[0]

    def rows(self) -> Tensor:
        """Return the rows of the gradient; to change them in place changes the gradient."""
        with torch._C.DisableTorchFunctionSubclass():
            _drop_padding(self)
            return self.values() if self.is_coalesced() else self._values()

    @property
    def count(self) -> int | Tensor:
        """How many rows are valid: all of them, or the number in a tensor on the device.

        Rows beyond the latter are padding: zeros for the last valid row, which change nothing. On a GPU, a backward
        pass does not wait for the number, nor do rowgrad's optimizers, norms, scaling and clipping. To read the
        gradient in any other way removes the padding, except while a CUDA graph is captured.
        """
        with torch._C.DisableTorchFunctionSubclass():
            known = None if self.is_coalesced() else _recall(self)
            return self._nnz() if known is None or known.valid is None else known.valid

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self.grad_fn is not None:
            return super().__deepcopy__(memo)  # type: ignore[no-any-return,no-untyped-call]  # torch raises
        copied: Self = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        with torch._C.DisableTorchFunctionSubclass():
            _drop_padding(self)
            return _restored, (self.detach(), self.requires_grad)  # a plain sparse tensor, as torch saves them

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            answer, result = _ANSWERS.get(func), NotImplemented
            if answer is not None:
                named = {} if args else {k: v for k, v in options.items() if k in ("input", "x", "A")}
                rest = {k: v for k, v in options.items() if k not in named}
                result = answer(func, *args, *named.values(), **rest)
            if result is NotImplemented:
                if func not in _OF_ALL_ROWS:
                    for value in (*args, *options.values()):
                        for item in value if type(value) in (list, tuple) else (value,):
                            if type(item) is RowGradient:
                                _drop_padding(item)
                result = func(*args, **options)
            return _with_class(result)


def _with_class(result: Any) -> Any:
    """Return a result whose sparse tensors of rows have the class `RowGradient`."""
    if type(result) is Tensor:
        if result.layout == torch.sparse_coo and result.sparse_dim() == 1:
            result.__class__ = RowGradient
    elif type(result) in (list, tuple):
        for item in result:
            _with_class(item)
    return result


# Functions that depend on no row, so that padding does not matter.
_OF_ALL_ROWS = {
    *(
        getattr(Tensor, name).__get__
        for name in ("shape", "dtype", "device", "layout", "is_sparse", "is_cuda", "is_cpu", "is_meta", "requires_grad",
                     "grad_fn", "is_leaf", "ndim", "_version", "_backward_hooks")
    ),
    Tensor.size, Tensor.dim, Tensor.sparse_dim, Tensor.dense_dim, Tensor.numel, Tensor.element_size, Tensor.get_device,
    Tensor.is_floating_point, Tensor.is_complex, Tensor.requires_grad_, Tensor.detach, Tensor.__hash__,
}  # fmt: skip


@torch.no_grad()
def _drop_padding(grad: Tensor) -> None:
    """Remove the padding that a backward pass left, in place; waits for the GPU."""
    known = None if grad.is_coalesced() else _recall(grad)
    if known is None or not known.is_hidden or devices.is_captured():
        return
    assert known.valid is not None
    count, values = int(known.valid), grad._values()
    device = devices.device_for(values)
    if device is not None:
        device.ledger.raise_reported()  # of a call with bad ids, whose number of rows is -1
    count = max(count, 0)
    grad.copy_(_sparse_tensor(grad._indices()[:, :count], values[:count], grad.shape[0], True))
    _remember(grad._indices(), None)


def _restored(grad: Tensor, requires_grad: bool) -> Tensor:
    """Return an unpickled gradient; pickles contain this name."""
    restored: Tensor = _with_class(grad)
    return restored.requires_grad_(requires_grad)


torch.serialization.add_safe_globals([_restored])  # for torch.load(weights_only=True)


# -- Gradients of a backward pass -------------------------------------------------------------------------------------

_chose_checks = False


def sparse_rows(values: Tensor, indices: Tensor, num_rows: int, unique: bool, count: Tensor | None = None) -> Tensor:
    """Return a RowGradient without validating its ids.

    Args:
        values: The rows.
        indices: Their ids.
        num_rows: The number of rows of the table.
        unique: Whether the ids ascend strictly, up to `count`.
        count: How many rows are valid, if that is known only on the device. The rows after them must be zeros whose id
            is that of the last valid row (0 without any): a sparse tensor adds them to it, so they change nothing.
    """
    check_storage(values, "values")
    check_storage(indices, "indices")
    ids = indices.unsqueeze(0).to(torch.int64)
    grad = _sparse_tensor(ids, values, num_rows, unique and count is None)
    if is_functorch_wrapped_tensor(grad):  # torch.func unwraps it, and so returns another object
        return grad
    if unique:
        _remember(grad._indices(), count)
    grad.__class__ = RowGradient
    return grad


def new_unique_rows(values: Tensor, ids: Tensor, num_rows: int) -> Tensor:
    """Return a RowGradient of new rows, and of new ids in a matrix with one row, which ascend strictly."""
    grad = _sparse_tensor(ids, values, num_rows, True)
    _remember(ids, None)
    grad.__class__ = RowGradient
    return grad


def new_padded_rows(values: Tensor, ids: Tensor, count: Tensor, num_rows: int) -> Tensor:
    """Return a RowGradient of new rows, of which the first `count` are valid, as for `sparse_rows`.

    The padding is removed when the gradient is read.
    """
    grad = _sparse_tensor(ids, values, num_rows, False)
    _remember(ids, count, is_hidden=True)
    grad.__class__ = RowGradient
    return grad


def _sparse_tensor(ids: Tensor, values: Tensor, num_rows: int, is_coalesced: bool) -> Tensor:
    global _chose_checks
    if not _chose_checks:  # torch.optim.Adagrad lets torch choose, and torch warns that it does
        _chose_checks = True
        if not torch.sparse.check_sparse_tensor_invariants.is_enabled():
            torch.sparse.check_sparse_tensor_invariants.disable()
    return torch.sparse_coo_tensor(
        ids, values, (num_rows, *values.shape[1:]), is_coalesced=is_coalesced, check_invariants=False
    )


def keep_coalesced(weight: Tensor) -> None:
    """Make `weight.grad` of a leaf a RowGradient, coalesced if its rows are unique: torch drops both.

    Raises:
        InvalidArgumentError: If FSDP shards the table.
    """
    if torch.compiler.is_compiling() or getattr(weight, "rowgrad_fused", False):
        return
    hooks = weight._post_accumulate_grad_hooks if weight.is_leaf else None
    if hooks and _restore_class in hooks.values():
        return
    if is_in_fsdp(weight):
        raise make_error("rows_in_fsdp")
    if weight.is_leaf:
        weight.register_post_accumulate_grad_hook(_restore_class)


def is_in_fsdp(weight: Tensor) -> bool:
    """Return whether FSDP gathered this table from shards: its gradient must be dense.

    Reads private attributes of torch. If a version lacks them, the backward pass raises torch's own error.
    """
    if getattr(weight._base, "_is_flat_param", False):  # a view of FSDP1's parameter
        return True
    composable = sys.modules.get("torch.distributed._composable_state")
    for reference in list(getattr(composable, "_module_state_mapping", {}).values()):
        state = reference() if isinstance(reference, weakref.ref) else reference
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for param in (p for group in groups for p in getattr(group, "fsdp_params", ())):
            if getattr(param, "_unsharded_param", None) is weight:
                return True
    return False


def _restore_class(weight: Tensor) -> None:
    grad = weight.grad
    if grad is None or not grad.is_sparse:
        return
    with torch._C.DisableTorchFunctionSubclass():
        if not grad.is_coalesced():
            known = _recall(grad)
            if known is None:
                _mark_if_ascending(grad)  # a sum of gradients
            elif known.valid is None:
                grad._coalesced_(True)
        _with_class(grad)


def _mark_if_ascending(grad: Tensor, wait: bool = False) -> None:
    """Mark a gradient as coalesced if its ids ascend strictly; `wait`: read them also if they are on a GPU."""
    ids = grad._indices()[0]
    if (wait or ids.is_cpu) and bool((ids[1:] > ids[:-1]).all()):
        grad._coalesced_(True)


# -- Functions that torch lacks for sparse tensors --------------------------------------------------------------------

# By torch function; run without `__torch_function__`. NotImplemented means that torch's own function is called.
_ANSWERS: dict[Any, Callable[..., Any]] = {}
_Answer = Callable[..., Any]


def _answers(*names: str) -> Callable[[_Answer], _Answer]:
    """Register an answer for the functions of these names in torch and in Tensor."""

    def register(answer: _Answer) -> _Answer:
        owners = [(owner, name) for name in names for owner in (torch, Tensor) if hasattr(owner, name)]
        _ANSWERS.update({getattr(owner, name): answer for owner, name in owners})
        return answer

    return register


def is_row_gradient(value: Any) -> bool:
    """Return whether a value is a sparse tensor of rows, of any class."""
    return isinstance(value, Tensor) and value.layout == torch.sparse_coo and value.sparse_dim() == 1


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) or (isinstance(value, Tensor) and value.ndim == 0 and not value.requires_grad)


def _is_padded(grad: Tensor) -> bool:
    known = None if grad.is_coalesced() else _recall(grad)
    return known is not None and known.valid is not None


def unique_values(grad: Tensor, padding: bool = False) -> Tensor:
    """Return the rows after repeated ones were added; `padding`: whether rows of zeros may be among them."""
    with torch._C.DisableTorchFunctionSubclass():  # which would remove the padding first
        return grad._values() if padding and _is_padded(grad) else grad.coalesce().values()


def make_unique_(grad: Tensor) -> Tensor:
    """Add repeated rows in place; return the rows, perhaps with padding. To change them changes the gradient."""
    with torch._C.DisableTorchFunctionSubclass():  # which would remove the padding first
        if not grad.is_coalesced() and not _is_padded(grad):
            grad.copy_(grad.coalesce())
        return grad._values()


def norm_of(grad: Tensor, order: float = 2.0, dtype: torch.dtype | None = None) -> Tensor:
    """Return the vector norm of a sparse tensor of rows."""
    values = unique_values(grad, padding=order > 0)
    is_zero = values.numel() == 0 or (order < 0 and values.numel() < grad.numel())  # rows that are not stored are zeros
    found: Tensor = torch.linalg.vector_norm(values.new_zeros(1) if is_zero else values, order, dtype=dtype)
    return found


def _vector_norm(_: Any, x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    if dim is not None or options.keys() - {"dtype"} or not is_row_gradient(x):
        return NotImplemented
    found = norm_of(x, float(ord), options.get("dtype"))
    return found.reshape([1] * x.ndim) if keepdim else found


def _whole_norm(_: Any, x: Tensor, ord: Any = None, *arguments: Any, **options: Any) -> Any:
    return NotImplemented if ord is not None else _vector_norm(_, x, 2, *arguments, **options)  # else one of matrices


_ANSWERS |= {torch.linalg.vector_norm: _vector_norm, torch.linalg.norm: _whole_norm}


@_answers("norm")
def _norm(_: Any, x: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, *out: Any, **options: Any) -> Any:
    if out or p == "nuc":
        return NotImplemented
    return _vector_norm(_, x, 2 if p in ("fro", None) else p, dim, keepdim, **options)


@_answers("_foreach_norm")
def _foreach_norm(func: Any, tensors: Sequence[Tensor], ord: Any = 2, dtype: torch.dtype | None = None) -> Any:
    def of_rows(grad: Tensor) -> Tensor:
        return norm_of(grad, float(ord), dtype)

    return _each(tensors, of_rows, lambda dense: func(dense, ord, dtype))


def _each(tensors: Sequence[Tensor], rows: Callable[[Tensor], Any], dense: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return results in order: of `rows` for each row gradient, and of one call of `dense` for all other tensors."""
    others = [t for t in tensors if not is_row_gradient(t)]
    results = iter(dense(others) or others if others else ())
    return tuple([rows(t) if is_row_gradient(t) else next(results) for t in tensors])


@_answers("mul_", "multiply_", "div_", "divide_", "true_divide_", "__imul__", "__itruediv__", "__idiv__")
def _scale(func: Any, grad: Tensor, other: Any, **options: Any) -> Any:
    """Scale in place; torch's own function forgets that the rows are unique."""
    if options or not is_row_gradient(grad) or not _is_number(other) or grad.requires_grad:
        return NotImplemented
    func(grad._values(), other)
    torch.autograd.graph.increment_version(grad)
    return grad


@_answers("mul", "multiply", "__mul__", "__rmul__", "div", "divide", "true_divide", "__truediv__", "neg", "__neg__")
def _scaled(func: Any, grad: Any, *factor: Any, **options: Any) -> Any:
    """Return a scaled copy, which shares the ids; torch's own function forgets that the rows are unique."""
    if options or not is_row_gradient(grad) or not all(map(_is_number, factor)) or grad.requires_grad:
        return NotImplemented
    values = func(grad._values(), *factor)
    return torch.sparse_coo_tensor(
        grad._indices(), values, grad.shape, is_coalesced=grad.is_coalesced(), check_invariants=False
    )


@_answers("_foreach_mul_", "_foreach_div_")
def _foreach_scale(func: Any, tensors: Sequence[Tensor], other: Any) -> Any:
    if not _is_number(other):
        return NotImplemented
    name = func.__name__.removeprefix("_foreach")[1:]
    return _each(tensors, lambda g: _scale(getattr(Tensor, name), g, other), lambda dense: func(dense, other))


@_answers("clamp_", "clip_", "clamp_min_", "clamp_max_")
def _clamp_(func: Any, grad: Tensor, *bounds: Any, **options: Any) -> Any:
    """Clamp in place, if rows that are not stored stay zeros."""
    given = [b for b in (*bounds, *options.values()) if b is not None]
    if not is_row_gradient(grad) or not all(map(_is_number, given)) or grad.requires_grad:
        return NotImplemented
    if float(func(torch.zeros((), dtype=grad.dtype), *bounds, **options)) != 0:
        raise make_error("clamp_moves_zero", value=", ".join(str(float(b)) for b in given))
    func(make_unique_(grad), *bounds, **options)
    torch.autograd.graph.increment_version(grad)
    return grad


@_answers("clamp", "clip", "clamp_min", "clamp_max")
def _clamp(func: Any, grad: Tensor, *bounds: Any, **options: Any) -> Any:
    if grad.requires_grad or not is_row_gradient(grad):
        return NotImplemented
    return _clamp_(getattr(Tensor, f"{func.__name__}_"), grad.clone(), *bounds, **options)


@_answers("_foreach_clamp_min_", "_foreach_clamp_max_")
def _foreach_clamp(func: Any, tensors: Sequence[Tensor], bound: Any) -> Any:
    if not _is_number(bound):
        return NotImplemented
    name = func.__name__.removeprefix("_foreach")[1:]
    return _each(tensors, lambda g: _clamp_(getattr(Tensor, name), g, bound), lambda dense: func(dense, bound))


@_answers("isfinite")
def _isfinite(func: Any, grad: Tensor) -> Any:
    """Return a dense tensor, because rows that are not stored are finite."""
    if not is_row_gradient(grad):
        return NotImplemented
    values = unique_values(grad)
    found = torch.ones(grad.shape, dtype=torch.bool, device=values.device)
    found[grad.coalesce().indices()[0]] = func(values)
    return found


@_answers("max", "min", "amax", "amin", "all")
def _extremum(func: Any, grad: Tensor, *arguments: Any, **options: Any) -> Any:
    """Reduce all elements; those that are not stored are zeros."""
    if arguments or options or not is_row_gradient(grad):
        return NotImplemented
    values = unique_values(grad)
    if values.numel() < grad.numel():
        values = torch.cat([values.reshape(-1), values.new_zeros(1)])
    return func(values)


@_answers("any", "count_nonzero")
def _of_values(func: Any, grad: Tensor, *arguments: Any, **options: Any) -> Any:
    if arguments or options or not is_row_gradient(grad):
        return NotImplemented
    return func(unique_values(grad))


@_answers("mean")
def _mean(func: Any, grad: Tensor, *arguments: Any, **options: Any) -> Any:
    if arguments or options or not is_row_gradient(grad):
        return NotImplemented
    return func(unique_values(grad)) if grad.numel() == 0 else unique_values(grad).sum() / grad.numel()


@_answers("add_", "__iadd__", "add", "__add__", "__radd__", "sub_", "__isub__", "sub", "__sub__")
def _add_halves(func: Any, grad: Any, other: Any, *, alpha: float = 1, **options: Any) -> Any:
    """Append the rows of the other gradient: torch cannot add sparse tensors of float16 on a CPU."""
    if options or not (is_row_gradient(grad) and is_row_gradient(other)) or grad.requires_grad or other.requires_grad:
        return NotImplemented
    if not grad.is_cpu or grad.dtype != torch.float16 or other.dtype != grad.dtype or grad.shape != other.shape:
        return NotImplemented
    scale = -alpha if "sub" in func.__name__ else alpha
    values = other._values() if scale == 1 else other._values() * scale
    ids = torch.cat([grad._indices(), other._indices()], 1)[0]
    total = sparse_rows(torch.cat([grad._values(), values]), ids, grad.shape[0], unique=False)
    return grad.copy_(total) if func.__name__ in ("add_", "__iadd__", "sub_", "__isub__") else total
