"""torch.func.vmap: the rules of `rowgrad._runtime.vmap` with torch as their array namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._catalog.spec import Aval, Op
from .._runtime import vmap
from .._runtime.vmap import Outputs, Run
from . import autograd, dense
from .library import wrap_sizes
from .tensors import Host, admit_tensors, aval_of

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Namespace(dense.Namespace):
    """torch under the names `rowgrad._runtime.vmap` knows."""

    moveaxis = staticmethod(torch.movedim)
    stack = staticmethod(torch.stack)
    sizes = staticmethod(wrap_sizes)

    @staticmethod
    def admit(op: Op, arguments: Mapping[str, Any]) -> dict[str, tuple[Any, Aval]]:
        """Tensors, and the values of host inputs; of each its aval."""
        admitted = admit_tensors(op, arguments)
        return {name: (v.value if isinstance(v, Host) else v, aval_of(v)) for name, v in admitted.items()}

    @staticmethod
    def is_array(value: Any) -> bool:
        """Whether it is a tensor: sizes are ints or symbols."""
        return isinstance(value, Tensor)

    @staticmethod
    def astype(x: Any, dtype: Any) -> Any:
        """x in another dtype; x itself where that is its own."""
        return x.to(dtype)

    @staticmethod
    def numbers(stop: Any, like: Tensor, dtype: torch.dtype) -> Tensor:
        """0, 1, 2, … on the device of another tensor."""
        return torch.arange(stop, dtype=dtype, device=like.device)

    @staticmethod
    def zeros(shape: Sequence[Any], like: Tensor) -> Tensor:
        """Zeros of the dtype and on the device of another tensor."""
        return like.new_zeros(shape)

    @staticmethod
    def count(ids: Tensor) -> Tensor:
        """The last id plus one; 0 of none. A tensor, as no tracer may be asked for it."""
        return (ids[-1:].to(torch.int64) + 1).sum()

    @staticmethod
    def named(index: Tensor, size: Any) -> Tensor:
        """Which of `size` positions each row of `index` names."""
        return torch.zeros(index.shape[0], size, dtype=torch.bool, device=index.device).scatter(1, index, True)

    @staticmethod
    def pick(pool: Tensor, index: Tensor) -> Tensor:
        """pool[b, index[b, i]] or, of an index that all share, pool[b, index[i]]."""
        signed = _SIGNED.get(pool.dtype)
        if signed is not None:  # torch selects no unsigned integers; a view of a dtype has no gradient, nor have they
            return Namespace.pick(pool.view(signed), index).view(pool.dtype)
        first = torch.arange(pool.shape[0], device=pool.device).unsqueeze(1) * pool.shape[1]
        picked = pool.flatten().index_select(0, (index + first).flatten())
        return picked.reshape(pool.shape[0], index.shape[-1])


def batched(
    op: Op,
    attrs: Mapping[str, Any],
    batch_size: int,
    values: Sequence[Any],
    in_dims: Sequence[Any],
    run: Run = autograd.call,
) -> Outputs:
    """A kernel op for every item of a batch: outputs, and where each has the batch (None: it is one for all)."""
    return vmap.batched(Namespace, op, attrs, batch_size, values, in_dims, run)
