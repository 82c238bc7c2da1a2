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
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch.nn.parameter import Parameter, is_lazy

from .._catalog.spec import FLOATS, INDEX, QUANTIZED, Arg, Aval, Op, regroup, spread
from .._runtime.arrays import NUMPY_DTYPE, admit, fit
from .._runtime.arrays import aval_of as array_aval
from .._runtime.memory import new_array
from .._runtime.results import check_size
from ..errors import make_error

# torch's quantized tensors are another thing than TensorFlow's quantized numbers.
DTYPE: dict[str, torch.dtype] = {n: getattr(torch, n) for n in NUMPY_DTYPE if n not in (*QUANTIZED, "string")}
NAME: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPE.items()}
_INT32 = np.iinfo(np.int32)
_BEYOND = 1 << 63
PLAIN = (Tensor, Parameter)
_LARGE = 1 << 20  # bytes from which rowgrad's own pages are cheaper than torch's


_SIZES = (int, torch.SymInt)  # not a union: old tracers do not know those


def is_size(value: Any) -> bool:
    """Return whether a value is an integer or a SymInt."""
    return isinstance(value, _SIZES) and not isinstance(value, bool)


def admit_tensors(op: Op, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Admit arguments: tensors unchanged, host inputs as ints or tuples of ints, all else like NumPy's runner."""
    inputs, given = spread(op, arguments) if op.has_lists else (op.inputs, arguments)
    admitted: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for arg in inputs:
        value = given[arg.name]
        if isinstance(value, Tensor):
            admitted[arg.name] = checked(value, arg.name)
            others[arg.name] = _stand_in(value)
        elif arg.host and _are_sizes(value if isinstance(value, list | tuple) else (value,)):
            admitted[arg.name] = value if is_size(value) else tuple(value)
            others[arg.name] = np.zeros(0 if not is_size(value) else (), np.int32)
        else:
            others[arg.name] = value
    beside = None
    if len(admitted) < len(inputs):
        beside = _device_of(inputs, given)
        arrays = admit(op, regroup(op, others)) if op.has_lists else admit(op, others)
        for name, array in (spread(op, arrays)[1] if op.has_lists else arrays).items():
            admitted.setdefault(name, array)
    said = [(a.type, str(getattr(admitted[a.name], "dtype", "")).removeprefix("torch.")) for a in inputs if a.host]
    kinds = {variable: kind for variable, kind in said if kind in INDEX}
    for arg in inputs:
        value = admitted[arg.name]
        if arg.host:
            admitted[arg.name] = _host(arg, value, kinds.get(arg.type, "int64"))
        elif isinstance(value, np.ndarray):
            tensor = from_numpy(value, arg.name)
            admitted[arg.name] = tensor if beside is None else tensor.to(beside)
        elif arg.type not in op.types:
            admitted[arg.name] = _as_fixed(value, arg)
    ordered = {arg.name: admitted[arg.name] for arg in inputs}  # functions of the dense layer know them by their order
    return regroup(op, ordered) if op.has_lists else ordered


def _device_of(inputs: Sequence[Arg], given: Mapping[str, Any]) -> torch.device | None:
    """Return the device of the tensors unless it is the CPU; lists and arrays are moved there."""
    for arg in inputs:
        value = given[arg.name]
        if isinstance(value, Tensor) and not arg.host and not value.is_cpu:
            return value.device
    return None


def settled(op: Op, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for a backward pass: lists and NumPy arrays, whose writes torch cannot see, are copied."""
    kept = {
        arg.name: copy(arguments[arg.name])
        for arg in op.inputs
        if arg.host and isinstance(arguments[arg.name], list | np.ndarray)
    }
    loose = [a.name for a in op.inputs if not a.host and not isinstance(arguments[a.name], Tensor)]
    if loose:
        admitted = admit_tensors(op, arguments)
        kept |= {name: admitted[name].clone() for name in loose}
    return {**arguments, **kept} if kept else arguments


def checked(tensor: Tensor, argument: str) -> Tensor:
    """Raise unless a tensor is strided, in memory, and of a dtype of the catalog."""
    if is_lazy(tensor):
        raise make_error("not_an_array", argument=argument, value="an uninitialized parameter")
    if tensor.is_nested:
        raise make_error("not_an_array", argument=argument, value="a nested tensor; pass its values and offsets")
    if tensor.layout != torch.strided:
        raise make_error("not_an_array", argument=argument, value=f"a {tensor.layout} tensor; pass a strided one")
    if tensor.dtype not in NAME:
        raise make_error("dtype_not_allowed", argument=argument, value=tensor.dtype, bound=", ".join(DTYPE))
    check_storage(tensor, argument)
    # Torch's zeros without memory are zeros whatever they meet: NaN and signs would be lost.
    return tensor.clone() if tensor._is_zerotensor() else tensor


def check_storage(tensor: Tensor, argument: str) -> None:
    """Raise if a tensor's elements are not all inside its storage, which may be resized or freed at any time.

    Torch itself reads and writes beyond the end. Traced and batched tensors have no storage of their own to check.
    """
    if torch.compiler.is_compiling() or not is_plain(type(tensor)) or not (tensor.is_cpu or tensor.is_cuda):
        return
    try:
        address, held = tensor.data_ptr(), tensor.untyped_storage().nbytes()
    except RuntimeError:  # a wrapper of torch.func, whose content is checked by itself; a sparse tensor
        return
    if tensor.is_contiguous():
        length = tensor.nbytes
    else:
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        length = (last + 1) * tensor.element_size() if tensor.numel() else 0
    extent = tensor.storage_offset() * tensor.element_size() + length
    if (extent > held or address == 0) and length and not tensor._is_zerotensor():
        if torch._is_functional_tensor(tensor):  # a wrapper without memory
            return
        if held == 0 or address == 0:
            raise make_error("no_memory", argument=argument)
        raise make_error("storage_too_small", argument=argument, value=extent, bound=held)


def is_batched(tensor: Tensor) -> bool:
    """Return whether torch.func.vmap batches a tensor, at any level of transforms."""
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False


def is_plain(kind: type) -> bool:
    """Return whether this is a plain tensor type, not a subclass that overrides operations."""
    return kind in PLAIN or getattr(kind, "__torch_dispatch__", None) is _NOT_TAKEN_OVER


_NOT_TAKEN_OVER = Tensor.__torch_dispatch__


def _stand_in(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return an empty array of the tensor's dtype, from which numbers get theirs."""
    return np.zeros((0,) * tensor.ndim, NUMPY_DTYPE[NAME[tensor.dtype]])


def _are_sizes(values: Sequence[Any]) -> bool:
    """Return whether all are integers that a tensor can hold; NumPy's runner rejects the others."""
    return all(is_size(v) and (type(v) is not int or -_BEYOND <= v < _BEYOND) for v in values)


def from_numpy(array: np.ndarray[Any, Any], argument: str) -> Tensor:
    """Return an array as a tensor, sharing memory if it is writable."""
    name = array.dtype.name
    if name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    if name not in DTYPE:
        raise make_error("dtype_not_allowed", argument=argument, value=array.dtype, bound=", ".join(DTYPE))
    own = not array.flags.writeable or any(step < 0 for step in array.strides)  # even of one element
    return torch.from_numpy(array.copy() if own else array)


class Host:
    """A host input: its value (an int or a tuple of ints, perhaps symbolic), and its original shape and dtype."""

    __slots__ = ("aval", "value")

    def __init__(self, value: Any, aval: Aval) -> None:
        self.value = value
        self.aval = aval


def _host(arg: Arg, value: Any, kind: str) -> Host:
    """`kind` is the dtype of numbers, which have none: that of a tensor of the same type variable."""
    fixed = arg.type if arg.type in ("int32", "int64") else None
    if isinstance(value, Tensor | np.ndarray):
        name = NAME[value.dtype] if isinstance(value, Tensor) else array_aval(value).dtype
        aval = Aval(fixed if fixed and name in _INTEGERS else name, tuple(value.shape))
        if name not in _INTEGERS:
            return Host(None, aval)  # refused for its dtype
        if isinstance(value, Tensor) and value.is_meta:
            raise make_error("host_traced", argument=arg.name)
        value = tuple(value.reshape(-1).tolist()) if len(aval.shape) else value.item()
    else:
        aval = Aval(fixed or kind, () if is_size(value) else (len(value),))
    if fixed == "int32":
        for position, size in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(size, int) and not _INT32.min <= size <= _INT32.max:
                raise make_error(
                    "integer_does_not_fit", argument=arg.name, position=position, value=size, bound="int32"
                )
    return Host(value, aval)


_INTEGERS = tuple(name for name in DTYPE if name.startswith(("int", "uint")))


def _as_fixed(tensor: Tensor, arg: Arg) -> Tensor:
    """Convert integers to the one integer dtype of an argument, if they fit."""
    wanted = DTYPE[arg.type]
    if tensor.dtype == wanted or NAME[tensor.dtype] not in _INTEGERS or arg.type not in _INTEGERS:
        return tensor
    if tensor.dtype == torch.uint64 and not tensor.is_meta:
        fit(tensor.cpu().numpy(), arg.name, NUMPY_DTYPE[arg.type])
    return tensor.to(wanted)


def avals_of(admitted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the catalog's view of admitted arguments; for a list, a tuple."""
    return {k: tuple(map(aval_of, v)) if isinstance(v, tuple) else aval_of(v) for k, v in admitted.items()}


def aval_of(value: Any) -> Aval:
    """Return the catalog's view of an admitted argument."""
    return value.aval if isinstance(value, Host) else Aval(NAME[value.dtype], tuple(value.shape))


def new_table(rows: int, columns: int, device: Any, dtype: torch.dtype | None) -> Tensor:
    """Allocate a table, on large pages if possible, because rows are read at random."""
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
    """Reject sizes that are not ints of 0 or more."""
    for argument, size in (("num_embeddings", rows), ("embedding_dim", columns)):
        try:
            good = not isinstance(size, bool) and index(size) >= 0
        except TypeError:
            good = False
        if not good:
            raise make_error("number_unfit", argument=argument, value=repr(size), bound="an int of 0 or more")


def new_tensor(shape: Sequence[int], dtype: torch.dtype, zeros: bool) -> Tensor:
    """Allocate a tensor, zeroed or not; large ones in cached pages, or pages that the system maps on first use."""
    if math.prod(shape) * dtype.itemsize < _LARGE:
        return (torch.zeros if zeros else torch.empty)(shape, dtype=dtype, device="cpu")
    if dtype == torch.bfloat16:
        return torch.from_numpy(new_array(tuple(shape), np.dtype(np.uint16), zeros)).view(dtype)
    return torch.from_numpy(new_array(tuple(shape), NUMPY_DTYPE[NAME[dtype]], zeros))
