"""Convert and validate torch arguments, and allocate results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _get_tracing_state, _len_torch_dispatch_stack
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn.parameter import Parameter, is_lazy

from .._catalog.spec import FLOATS, INDEX, QUANTIZED, Arg, Aval, Op, regroup, spread
from .._runtime.arrays import NUMPY_DTYPE, admit, fit
from .._runtime.arrays import aval_of as array_aval
from .._runtime.memory import new_array
from .._runtime.results import check_size
from ..errors import make_error

# torch's quantized dtypes are not TensorFlow's.
DTYPE: dict[str, torch.dtype] = {n: getattr(torch, n) for n in NUMPY_DTYPE if n not in (*QUANTIZED, "string")}
NAME: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPE.items()}
_INT32 = np.iinfo(np.int32)
_INT64_END = 1 << 63
PLAIN: set[type] = {Tensor, Parameter}  # and fused tables, which override no operation
_LARGE = 1 << 20  # bytes; rowgrad allocates larger tensors faster than torch
_SIZES = (int, torch.SymInt)  # not a union, which old tracers do not support


def tensor_expected(argument: str, value: Any, expected: str = "a tensor") -> TypeError:
    """Return the error for an argument that is not a tensor, with the conversion for arrays and lists."""
    module = type(value).__module__.partition(".")[0]
    name = f"numpy.{type(value).__name__}" if module == "numpy" else type(value).__name__
    text = f"{argument} must be {expected}, got {name}"
    if isinstance(value, np.ndarray):
        return TypeError(f"{text}. Convert it: torch.from_numpy({argument}).")
    if module in ("jax", "jaxlib"):
        return TypeError(f"{text}, an array of JAX. Convert it: torch.from_dlpack({argument}).")
    if isinstance(value, list | tuple | int | float | np.generic):
        return TypeError(f"{text}. Convert it: torch.tensor({argument}).")
    return TypeError(text)


def is_size(value: Any) -> bool:
    """Return whether a value is an integer or a SymInt."""
    return isinstance(value, _SIZES) and not isinstance(value, bool)


def admit_tensors(op: Op, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert and validate arguments: tensors stay as they are, host inputs become `Host`, arrays become tensors."""
    inputs, values = spread(op, arguments) if op.has_lists else (op.inputs, arguments)
    admitted: dict[str, Any] = {}
    others: dict[str, Any] = {}  # for NumPy's rules: empty arrays of the same dtype in place of tensors and sizes
    for arg in inputs:
        value = values[arg.name]
        if isinstance(value, Tensor):
            admitted[arg.name] = check_tensor(value, arg.name)
            others[arg.name] = _empty_array(value)
        elif arg.host and _are_sizes(value if isinstance(value, list | tuple) else (value,)):
            admitted[arg.name] = value if is_size(value) else tuple(value)
            others[arg.name] = np.zeros(0 if not is_size(value) else (), np.int32)
        else:
            others[arg.name] = value
    device = None
    if len(admitted) < len(inputs):
        device = _device_of(inputs, values)
        arrays = admit(op, regroup(op, others)) if op.has_lists else admit(op, others)
        for name, array in (spread(op, arrays)[1] if op.has_lists else arrays).items():
            admitted.setdefault(name, array)
    dtypes = [(a.type, str(getattr(admitted[a.name], "dtype", "")).removeprefix("torch.")) for a in inputs if a.host]
    index_types = {variable: dtype for variable, dtype in dtypes if dtype in INDEX}
    for arg in inputs:
        value = admitted[arg.name]
        if arg.host:
            admitted[arg.name] = _host(arg, value, index_types.get(arg.type, "int64"))
        elif isinstance(value, np.ndarray):
            tensor = from_numpy(value, arg.name)
            admitted[arg.name] = tensor if device is None else tensor.to(device)
        elif arg.type not in op.types:
            admitted[arg.name] = _as_fixed_dtype(value, arg)
    ordered = {arg.name: admitted[arg.name] for arg in inputs}  # dense functions take them by position
    return regroup(op, ordered) if op.has_lists else ordered


def _device_of(inputs: Sequence[Arg], values: Mapping[str, Any]) -> torch.device | None:
    """Return the device to which lists and arrays are moved: that of the tensors; None for the CPU."""
    for arg in inputs:
        value = values[arg.name]
        if isinstance(value, Tensor) and not arg.host and not value.is_cpu:
            return value.device
    return None


def copy_for_backward(op: Op, arguments: dict[str, Any]) -> dict[str, Any]:
    """Copy lists and NumPy arrays for the backward pass: torch does not notice when they are changed."""
    copies = {
        arg.name: copy(arguments[arg.name])
        for arg in op.inputs
        if arg.host and isinstance(arguments[arg.name], list | np.ndarray)
    }
    arrays = [a.name for a in op.inputs if not a.host and not isinstance(arguments[a.name], Tensor)]
    if arrays:
        admitted = admit_tensors(op, arguments)
        copies |= {name: admitted[name].clone() for name in arrays}
    return {**arguments, **copies} if copies else arguments


def check_tensor(tensor: Tensor, argument: str) -> Tensor:
    """Raise unless a tensor is strided, in memory, and of a dtype of the catalog; return it."""
    if is_lazy(tensor):
        raise make_error("not_an_array", argument=argument, value="an uninitialized parameter")
    if tensor.is_nested:
        raise make_error("not_an_array", argument=argument, value="a nested tensor; pass its values and offsets")
    if tensor.layout != torch.strided:
        raise make_error("not_an_array", argument=argument, value=f"a {tensor.layout} tensor; pass a strided one")
    if tensor.dtype not in NAME:
        raise make_error("dtype_not_allowed", argument=argument, value=tensor.dtype, bound=", ".join(DTYPE))
    check_storage(tensor, argument)
    # torch's zero tensors without memory stay zero in any operation, which would lose NaN and signs.
    return tensor.clone() if tensor._is_zerotensor() else tensor


def check_storage(tensor: Tensor, argument: str) -> None:
    """Raise if a tensor exceeds its storage, which may have been resized or freed.

    torch itself reads and writes beyond the end. Traced and batched tensors have no storage to check.
    """
    if torch.compiler.is_compiling() or not is_plain(type(tensor)) or not (tensor.is_cpu or tensor.is_cuda):
        return
    try:
        address, available = tensor.data_ptr(), tensor.untyped_storage().nbytes()
    except RuntimeError:  # a sparse tensor, or a wrapper of torch.func, whose content is checked separately
        return
    if tensor.is_contiguous():
        length = tensor.nbytes
    else:
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        length = (last + 1) * tensor.element_size() if tensor.numel() else 0
    extent = tensor.storage_offset() * tensor.element_size() + length
    if (extent > available or address == 0) and length and not tensor._is_zerotensor():
        if torch._is_functional_tensor(tensor):  # a wrapper without memory
            return
        if available == 0 or address == 0:
            raise make_error("no_memory", argument=argument)
        raise make_error("storage_too_small", argument=argument, value=extent, bound=available)


def is_batched(tensor: Tensor) -> bool:
    """Return whether a tensor is batched by torch.func.vmap, at any level of transforms."""
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False


def is_plain(kind: type) -> bool:
    """Return whether this is a plain tensor type, not a subclass that overrides operations."""
    return kind in PLAIN or getattr(kind, "__torch_dispatch__", None) is _PLAIN_DISPATCH


_PLAIN_DISPATCH = Tensor.__torch_dispatch__


def _empty_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return an empty array of the tensor's dtype and rank, which decides the dtype of numbers."""
    return np.zeros((0,) * tensor.ndim, NUMPY_DTYPE[NAME[tensor.dtype]])


def _are_sizes(values: Sequence[Any]) -> bool:
    """Return whether all values are integers that fit int64; NumPy's rules reject the others."""
    return all(is_size(v) and (type(v) is not int or -_INT64_END <= v < _INT64_END) for v in values)


def from_numpy(array: np.ndarray[Any, Any], argument: str) -> Tensor:
    """Return an array as a tensor, which shares its memory if that is writable."""
    name = array.dtype.name
    if name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    if name not in DTYPE:
        raise make_error("dtype_not_allowed", argument=argument, value=array.dtype, bound=", ".join(DTYPE))
    # torch rejects negative strides even if there is only one element.
    needs_copy = not array.flags.writeable or any(step < 0 for step in array.strides)
    return torch.from_numpy(array.copy() if needs_copy else array)


class Host:
    """A host input: its value (an int or a tuple of ints, perhaps symbolic), and its original shape and dtype."""

    __slots__ = ("aval", "value")

    def __init__(self, value: Any, aval: Aval) -> None:
        self.value = value
        self.aval = aval


def _host(arg: Arg, value: Any, default_dtype: str) -> Host:
    """Convert a host input; `default_dtype` is for numbers, which have no dtype."""
    fixed = arg.type if arg.type in ("int32", "int64") else None
    if isinstance(value, Tensor | np.ndarray):
        name = NAME[value.dtype] if isinstance(value, Tensor) else array_aval(value).dtype
        aval = Aval(fixed if fixed and name in _INTEGERS else name, tuple(value.shape))
        if name not in _INTEGERS:
            return Host(None, aval)  # validation rejects its dtype
        if isinstance(value, Tensor) and value.is_meta:
            raise make_error("host_traced", argument=arg.name)
        value = tuple(value.reshape(-1).tolist()) if len(aval.shape) else value.item()
    else:
        aval = Aval(fixed or default_dtype, () if is_size(value) else (len(value),))
    if fixed == "int32":
        for position, size in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(size, int) and not _INT32.min <= size <= _INT32.max:
                raise make_error(
                    "integer_does_not_fit", argument=arg.name, position=position, value=size, bound="int32"
                )
    return Host(value, aval)


_INTEGERS = tuple(name for name in DTYPE if name.startswith(("int", "uint")))


def _as_fixed_dtype(tensor: Tensor, arg: Arg) -> Tensor:
    """Convert integers to the only integer dtype that an argument accepts; raise if they do not fit."""
    wanted = DTYPE[arg.type]
    if tensor.dtype == wanted or NAME[tensor.dtype] not in _INTEGERS or arg.type not in _INTEGERS:
        return tensor
    if tensor.dtype == torch.uint64 and not tensor.is_meta:
        fit(tensor.cpu().numpy(), arg.name, NUMPY_DTYPE[arg.type])
    return tensor.to(wanted)


def avals_of(admitted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shape and dtype of each admitted argument; for a list, a tuple of them."""
    return {k: tuple(map(aval_of, v)) if isinstance(v, tuple) else aval_of(v) for k, v in admitted.items()}


def aval_of(value: Any) -> Aval:
    """Return the shape and dtype of an admitted argument."""
    return value.aval if isinstance(value, Host) else Aval(NAME[value.dtype], tuple(value.shape))


def new_table(rows: int, columns: int, device: Any, dtype: torch.dtype | None) -> Tensor:
    """Allocate a table, on large pages if possible, because rows are accessed at random."""
    check_table_size(rows, columns)
    dtype = dtype or torch.get_default_dtype()
    if dtype not in _TABLES:
        bound = ", ".join(map(str, _TABLES))
        raise make_error("dtype_not_allowed", argument="dtype", value=dtype, bound=bound)
    place = torch.device(device) if device is not None else torch.get_default_device()
    if place.type != "cpu":
        return torch.empty((rows, columns), device=place, dtype=dtype)
    check_size(Aval(NAME[dtype], (rows, columns)))
    return new_tensor((rows, columns), dtype, zeros=True)


_TABLES = tuple(DTYPE[name] for name in FLOATS)


def check_table_size(rows: Any, columns: Any) -> None:
    """Raise unless both sizes are ints of 0 or more."""
    for argument, size in (("num_embeddings", rows), ("embedding_dim", columns)):
        try:
            is_valid = not isinstance(size, bool) and index(size) >= 0
        except TypeError:
            is_valid = False
        if not is_valid:
            raise make_error("number_unfit", argument=argument, value=repr(size), bound="an int of 0 or more")


def new_tensor(shape: Sequence[int], dtype: torch.dtype, zeros: bool) -> Tensor:
    """Allocate a tensor on the CPU, with zeros or uninitialized; a large one in rowgrad's cached pages."""
    if math.prod(shape) * dtype.itemsize < _LARGE:
        return (torch.zeros if zeros else torch.empty)(shape, dtype=dtype, device="cpu")
    if dtype == torch.bfloat16:
        return torch.from_numpy(new_array(tuple(shape), np.dtype(np.uint16), zeros)).view(dtype)
    return torch.from_numpy(new_array(tuple(shape), NUMPY_DTYPE[NAME[dtype]], zeros))


def is_eager() -> bool:
    """Return whether a call runs now, on the tensors themselves: torch neither traces nor transforms it."""
    return not (
        is_compiling()
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or _get_tracing_state() is not None
    )
