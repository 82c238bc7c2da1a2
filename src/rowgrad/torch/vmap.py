"""torch.func.vmap: the rules of `rowgrad._runtime.vmap` with torch as array namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._catalog.spec import Aval, Op
from .._runtime import vmap
from .._runtime.vmap import Outputs, Run
from . import autograd, dense
from .symbolic_sizes import wrap_sizes
from .tensors import Host, admit_tensors, aval_of

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Namespace(dense.Namespace):
    """torch under the names that `rowgrad._runtime.vmap` uses."""

    moveaxis = staticmethod(torch.movedim)
    stack = staticmethod(torch.stack)
    sizes = staticmethod(wrap_sizes)

    @staticmethod
    def admit(op: Op, arguments: Mapping[str, Any]) -> dict[str, tuple[Any, Aval]]:
        """Return tensors and values of host inputs, and the aval of each."""
        admitted = admit_tensors(op, arguments)
        return {name: (v.value if isinstance(v, Host) else v, aval_of(v)) for name, v in admitted.items()}

    @staticmethod
    def is_array(value: Any) -> bool:
        """Return whether a value is a tensor; sizes are ints or symbolic."""
        return isinstance(value, Tensor)

    @staticmethod
    def astype(x: Any, dtype: Any) -> Any:
        """Convert x to another dtype; x itself if it has that dtype."""
        return x.to(dtype)

    @staticmethod
    def numbers(stop: Any, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Return 0, 1, 2, … on the device of another tensor."""
        return torch.arange(stop, dtype=dtype, device=like.device)

    @staticmethod
    def zeros(shape: Sequence[Any], like: Tensor) -> Tensor:
        """Return zeros of the dtype and on the device of another tensor."""
        return like.new_zeros(shape)

    @staticmethod
    def count(ids: Tensor) -> Tensor:
        """Return the last id plus one, 0 without ids; a tensor, because its value may be traced."""
        return (ids[-1:].to(torch.int64) + 1).sum()

    @staticmethod
    def named(index: Tensor, size: Any) -> Tensor:
        """Return which of `size` positions each row of `index` names."""
        return torch.zeros(index.shape[0], size, dtype=torch.bool, device=index.device).scatter(1, index, True)

    @staticmethod
    def pick(pool: Tensor, index: Tensor) -> Tensor:
        """Return pool[b, index[b, i]] or, for a shared index, pool[b, index[i]]."""
        signed = _SIGNED.get(pool.dtype)
        if signed is not None:  # torch cannot select unsigned integers, which have no gradient
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
    """Run a kernel op for every item of a batch; return outputs and their batch dimensions (None: not batched)."""
    return vmap.batched(Namespace, op, attrs, batch_size, values, in_dims, run)
