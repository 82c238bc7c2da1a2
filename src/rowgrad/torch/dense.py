"""Run dense ops on tensors: the functions of `rowgrad._runtime.dense` with torch as array namespace.

They call torch's own operations, so torch differentiates, traces and batches them. torch supports few operations on
unsigned integers of 16 bits or more; NumPy computes those on the same memory, or on a copy if they are on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._catalog.spec import COMPLEX, FLOATS, REALS, Op
from .._runtime.dense import FUNCTIONS
from .._runtime.numpy_dense import Namespace as NumPy
from ..errors import make_error
from .tensors import DTYPE, from_numpy, is_batched

Axes = tuple[int, ...]
BY_NUMPY = frozenset((torch.uint16, torch.uint32, torch.uint64))


class Namespace:
    """torch under the names of the array API standard, and a few more."""

    dtype = staticmethod(DTYPE.__getitem__)
    bool, int64, float32 = torch.bool, torch.int64, torch.float32
    short_floats = frozenset((torch.float16, torch.bfloat16))
    integers = frozenset(DTYPE[n] for n in REALS if n not in FLOATS)
    complexes = frozenset(DTYPE[n] for n in COMPLEX)

    where = staticmethod(torch.where)
    zeros_like = staticmethod(torch.zeros_like)
    ones_like = staticmethod(torch.ones_like)
    full_like = staticmethod(torch.full_like)
    full = staticmethod(torch.full)
    asarray = staticmethod(torch.asarray)
    broadcast_to = staticmethod(torch.broadcast_to)
    reshape = staticmethod(torch.reshape)
    permute_dims = staticmethod(torch.permute)
    argwhere = staticmethod(torch.argwhere)
    matmul = staticmethod(torch.matmul)
    real = staticmethod(torch.real)
    sqrt = staticmethod(torch.sqrt)
    exp = staticmethod(torch.exp)
    expm1 = staticmethod(torch.expm1)
    log = staticmethod(torch.log)
    log1p = staticmethod(torch.log1p)
    logaddexp = staticmethod(torch.logaddexp)
    sin = staticmethod(torch.sin)
    cos = staticmethod(torch.cos)
    tanh = staticmethod(torch.tanh)
    sigmoid = staticmethod(torch.sigmoid)
    floor = staticmethod(torch.floor)
    ceil = staticmethod(torch.ceil)
    round = staticmethod(torch.round)
    pow = staticmethod(torch.pow)
    floor_divide = staticmethod(torch.floor_divide)
    max = staticmethod(torch.amax)
    min = staticmethod(torch.amin)
    all = staticmethod(torch.all)
    any = staticmethod(torch.any)

    @staticmethod
    def device(x: Any) -> Any:
        """Return the device of x."""
        return x.device

    @staticmethod
    def abs(x: Any) -> Any:
        """Return |x|; torch's own gradient at NaN would be 0."""
        return torch.abs(x) * torch.where(x != x, x.detach(), 1.0) if x.is_floating_point() else torch.abs(x)

    @staticmethod
    def sign(x: Any) -> Any:
        """Return −1, 0 or 1; torch's own sign of NaN would be 0."""
        return torch.where(x != x, x.detach(), torch.sign(x)) if x.is_floating_point() else torch.sign(x)

    @staticmethod
    def fmod(x: Any, y: Any) -> Any:
        """Return the remainder of x / y rounded towards zero."""
        return _exact_fmod(x, y) if _overflows(x, y) else torch.fmod(x, y)

    @staticmethod
    def remainder(x: Any, y: Any) -> Any:
        """Return the remainder of x / y rounded down."""
        if not _overflows(x, y):
            return torch.remainder(x, y)
        left = _exact_fmod(x, y)
        return torch.where((left != 0) & ((left < 0) != (y < 0)), left + y, left)

    @staticmethod
    def copy(x: Any) -> Any:
        """Return a contiguous copy."""
        return x.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def astype(x: Any, dtype: Any) -> Any:
        """Convert x to another dtype; always a copy."""
        return x.to(dtype) if x.dtype != dtype else x.clone()

    @staticmethod
    def stop_gradient(x: Any) -> Any:
        """Return x detached from gradients."""
        return x.detach()

    @staticmethod
    def arange(start: Any, stop: Any, step: Any, dtype: Any, device: Any) -> Any:
        """Return start, start + step, …; torch would compute large values in floating point."""
        far = isinstance(start, int) and isinstance(stop, int) and max(abs(stop - start), abs(step)) > 1 << 53
        if far:
            count = -((start - stop) // step)
            return torch.arange(count, dtype=dtype, device=device) * step + start
        return torch.arange(start, stop, step, dtype=dtype, device=device)

    @staticmethod
    def concat(arrays: Sequence[Tensor], axis: int = 0) -> Any:
        """Concatenate arrays into a new one; torch would return a single one itself."""
        return torch.cat(tuple(arrays), axis)

    @staticmethod
    def pad(x: Any, widths: Sequence[tuple[int, int]]) -> Any:
        """Pad each dimension with zeros."""
        return torch.nn.functional.pad(x, [n for ends in reversed(widths) for n in ends]) if widths else x.clone()

    @staticmethod
    def sum(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Sum in the dtype of x."""
        return torch.sum(x, axis, keepdims, dtype=x.dtype)

    @staticmethod
    def long_sum(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Sum integers in 64 bits."""
        return torch.sum(x, axis, keepdims, dtype=torch.int64) if axis else x.to(torch.int64)

    @staticmethod
    def prod(x: Any, axis: Axes, keepdims: Any) -> Any:
        """Multiply in the dtype of x; torch reduces one dimension at a time."""
        for a in sorted(axis, reverse=True):
            x = torch.prod(x, a, keepdims, dtype=x.dtype)
        return x

    @staticmethod
    def argmax(x: Any, axis: int) -> Any:
        """Return the first position of the maximum."""
        return torch.argmax(x.to(torch.uint8) if x.dtype == torch.bool else x, axis)

    @staticmethod
    def argmin(x: Any, axis: int) -> Any:
        """Return the first position of the minimum."""
        return torch.argmin(x.to(torch.uint8) if x.dtype == torch.bool else x, axis)

    @staticmethod
    def lowest(dtype: Any) -> Any:
        """Return the smallest value of a dtype."""
        return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min

    @staticmethod
    def highest(dtype: Any) -> Any:
        """Return the largest value of a dtype."""
        return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max

    @staticmethod
    def lowest_finite(dtype: Any) -> Any:
        """Return the lowest finite value of a dtype."""
        return torch.finfo(dtype).min if dtype.is_floating_point else torch.iinfo(dtype).min

    @staticmethod
    def last_positions(indices: Any, size: int) -> Any:
        """Return for each of `size` slots the last position that names it, or -1. Indices from `size` on name none."""
        last = torch.full((size + 1,), -1, dtype=torch.int64, device=indices.device)
        numbers = torch.arange(indices.shape[0], dtype=torch.int64, device=indices.device)
        return last.scatter_reduce(0, indices.clamp(max=size), numbers, "amax")[:size]

    @staticmethod
    def take(x: Any, indices: Any) -> Any:
        """Gather rows."""
        return torch.index_select(x, 0, indices)

    @staticmethod
    def first_true(mask: Any) -> int:
        """Return the first flat position that is true; -1 if all are false, or if torch traces or batches."""
        if torch.compiler.is_compiling() or mask.is_meta or is_batched(mask) or not mask.any():
            return -1
        return int(mask.reshape(-1).to(torch.uint8).argmax())


def _overflows(x: Tensor, y: Tensor) -> bool:
    """Return whether a quotient of finite numbers overflows: torch's vectorized remainder would be NaN."""
    if not x.is_floating_point():
        return False
    return Namespace.first_true(torch.isinf(x / y) & torch.isfinite(x) & (y != 0)) >= 0


def _exact_fmod(x: Tensor, y: Tensor) -> Tensor:
    """Subtract multiples of y first, so that no quotient overflows; every step is exact."""
    left, by = x.double(), y.double()
    if x.dtype == torch.float64:
        for power in (2.0**700, 1.0):
            left = torch.fmod(left, by * 2.0**700 * power)
    return torch.fmod(left, by).to(x.dtype)


def call(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run a dense op on admitted tensors."""
    values = [tuple(v) if isinstance(v, list) else v for v in arguments.values()]
    flat = [t for v in values for t in (v if isinstance(v, tuple) else (v,)) if isinstance(t, Tensor)]
    computed = flat[:1] if op.name == "ReshapeLike" else flat  # it reads only the shape of its second argument
    if any(t.dtype in BY_NUMPY for t in computed):
        return _by_numpy(op, values, attrs)
    result = FUNCTIONS[op.name](Namespace, *values, **attrs)
    return result if isinstance(result, tuple) else (result,)


def _by_numpy(op: Op, values: list[Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run a dense op on unsigned integers with NumPy. They have no gradient."""
    if torch.jit.is_tracing():
        raise make_error("jit_trace")
    flat = [t for v in values for t in (v if isinstance(v, tuple) else (v,)) if isinstance(t, Tensor)]
    device = flat[0].device
    arrays = [tuple(map(_array, v)) if isinstance(v, tuple) else _array(v) for v in values]
    with np.errstate(all="ignore"):
        result = FUNCTIONS[op.name](NumPy, *arrays, **attrs)
    results = result if isinstance(result, tuple) else (result,)
    return tuple(from_numpy(np.array(r), op.name).to(device) for r in results)


def _array(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    if value.dtype == torch.bfloat16:
        return value.view(torch.uint16).numpy().view(NumPy.dtype("bfloat16"))
    return value.numpy()
