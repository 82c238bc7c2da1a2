"""The torch runner: `dispatch` passes calls with torch tensors to `call`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

from .._catalog.spec import Op
from .._runtime.dense import host_dtypes
from .._runtime.results import check_size
from .._runtime.validation import infer
from ..errors import make_error
from . import autograd, dense
from .tensors import DTYPE, Host, admit_tensors, avals_of


def call(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any], out: Any) -> tuple[Any, ...]:
    """Run an op on torch tensors.

    Args:
        op: The record of the op.
        arguments: The arguments by name.
        attrs: All attributes.
        out: None; torch calls do not support it.

    Returns:
        The outputs.

    Raises:
        InvalidArgumentError: If an argument is invalid.
    """
    if out is not None:
        raise make_error("out_unfit", argument=op.outputs[0].name, bound="absent for torch tensors", value="an array")
    if op.kernel is not None:
        return autograd.call(op, arguments, attrs)
    if torch.compiler.is_compiling():
        return dense.call(op, arguments, attrs)
    admitted = admit_tensors(op, arguments)
    host = {k: v.value for k, v in admitted.items() if isinstance(v, Host)}
    outputs = infer(op, avals_of(admitted), host, attrs)
    tensors = list(_tensors(admitted))
    elsewhere = any(not t.is_cpu for _, t in tensors)  # torch itself checks the memory of other devices
    for aval in outputs:
        if all(type(n) is int for n in aval.shape):  # not symbolic
            check_size(aval, elsewhere)
        elif None in aval.shape and elsewhere and any(t.is_meta for _, t in tensors):
            raise make_error("size_traced", bound="call it on concrete tensors")
    if elsewhere and any(t.is_meta for _, t in tensors) and any(t.dtype in dense.BY_NUMPY for _, t in tensors):
        return tuple(torch.empty(o.shape, dtype=DTYPE[o.dtype], device="meta") for o in outputs)  # NumPy needs elements
    if elsewhere and any(t.is_meta for _, t in tensors) and not all(t.is_meta for _, t in tensors):
        # torch.matmul returns unwritten memory if only its second argument is a meta tensor.
        admitted = {k: _on_meta(v) for k, v in admitted.items()}
    try:
        return dense.call(op, {**admitted, **host}, {**attrs, **host_dtypes(op.name, outputs)})
    except RuntimeError as error:
        if "can't allocate memory" in str(error):
            raise make_error("out_of_memory_between") from None
        # torch accepts some tensors of other devices, such as scalars. If it did not, name the argument.
        other, first = tensors[0]
        for name, tensor in tensors:
            if tensor.device != first.device:
                facts = {"value": tensor.device, "other": other, "bound": first.device}
                raise make_error("mixed_devices", argument=name, **facts) from error
        raise


def concrete(tensor: torch.Tensor, argument: str) -> Any:
    """Return a tensor that NumPy can read; under torch.func's transforms, its elements as a NumPy array.

    Args:
        tensor: The tensor.
        argument: Its name, for the error.

    Raises:
        InvalidArgumentError: If torch.func.vmap batches the tensor.
    """
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return tensor
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            raise make_error("batch_unfit", argument=argument, bound="its values determine which rows are looked up")
        tensor = get_unwrapped(tensor)
    with torch._C._DisableFuncTorch():
        return tensor.detach().numpy()


def _on_meta(value: Any) -> Any:
    """Return a tensor, or the tensors of a tuple, on the meta device; other values unchanged."""
    if isinstance(value, tuple):
        return tuple(map(_on_meta, value))
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _tensors(admitted: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in admitted.items():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, torch.Tensor):
                yield name, item
