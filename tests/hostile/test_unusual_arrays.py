"""Unusual tensors and JAX arrays: without memory, lazy, sparse, nested, negated, deleted, keys.

Each call returns NumPy's bits for the values that the array represents, or raises an error that names op and argument.
A read of freed memory would end pytest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hostile_runners import Rejection, as_tuple, computed_ops, converted, from_tensor, jax_of, rejection_of, tensor_of
from jax.experimental import sparse
from outcome_checks import check_named, good_call, is_right
from torch import Tensor

from jax_arrays import x64
from rowgrad._catalog.spec import Op
from rowgrad.errors import OpError
from rowgrad.raw_ops import OPS

# -- tensors -----------------------------------------------------------------------------------------------------------


class OwnTensor(Tensor):
    """A user's subclass."""


def _freed(x: Tensor) -> Tensor:
    copy = x.clone()
    copy.untyped_storage().resize_(0)
    return copy


def _in_inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


def _unaligned(x: Tensor) -> Tensor:
    raw = torch.zeros(x.numel() * x.element_size() + 1, dtype=torch.uint8)
    raw[1:] = x.contiguous().reshape(-1).view(torch.uint8)
    return torch.frombuffer(raw.numpy(), dtype=x.dtype, offset=1, count=x.numel()).reshape(x.shape)


def _nested(layout: torch.layout) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.nested.nested_tensor([x, x], layout=layout)


# The same elements: the result is that of a plain tensor.
TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "negated_view": lambda x: torch._neg_view(-x),
    "conjugated_view": lambda x: x.to(torch.complex64).conj(),
    "imaginary_part": lambda x: torch.complex(x, x).conj().imag,
    "zeros_without_memory": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "of_inference": _in_inference,
    "own_class": lambda x: x.as_subclass(OwnTensor),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "with_gradient": lambda x: x.clone().requires_grad_(),
    "not_a_leaf": lambda x: x.clone().requires_grad_() * 1,
    "expanded": lambda x: x.reshape(-1)[:1].expand(x.numel()).reshape(x.shape),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "transposed": lambda x: x.mT.contiguous().mT,
    "unaligned": _unaligned,
}
# Elements that are not contiguous, of an unknown dtype, or missing.
NO_TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "freed": _freed,
    "lazy": lambda x: torch.nn.UninitializedParameter(),
    "sparse_coo": lambda x: x.to_sparse_coo(),
    "sparse_csr": lambda x: x.reshape(-1, 1).to_sparse_csr(),
    "mkldnn": lambda x: x.float().to_mkldnn(),
    "nested": _nested(torch.strided),
    "jagged": _nested(torch.jagged),
    "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "float8": lambda x: x.float().to(torch.float8_e4m3fn),
    "complex32": lambda x: torch.zeros(x.shape, dtype=torch.complex32),
}

# -- arrays of JAX -----------------------------------------------------------------------------------------------------


def _deleted(x: jax.Array) -> jax.Array:
    made = jax.device_put(np.array(x), may_alias=False)
    made.delete()
    return made


def _donated(x: jax.Array) -> jax.Array:
    made = jax.device_put(np.array(x), may_alias=False)
    jax.device_put(made, donate=True)
    made.delete()  # if the platform did not delete it
    return made


def _on_a_mesh(x: jax.Array) -> jax.Array:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("a",))
    return jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))


def _sparse(x: jax.Array) -> sparse.BCOO:
    where = np.zeros((1, x.ndim), np.int32)
    return sparse.BCOO((jax.device_put(np.ones(1, x.dtype)), jax.device_put(where)), shape=x.shape)


JAX_ARRAYS: dict[str, Callable[[jax.Array], Any]] = {
    "on_a_mesh": _on_a_mesh,
}
NO_JAX_ARRAYS: dict[str, Callable[[jax.Array], Any]] = {
    "deleted": _deleted,
    "donated": _donated,
    "key": lambda x: jax.random.key(0),
    "keys": lambda x: jax.random.split(jax.random.key(0), 3),
    "sparse": _sparse,
    "only_a_shape": lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
    "int4": lambda x: jax.device_put(np.zeros(x.shape, jax.numpy.int4)),
    "float8": lambda x: jax.device_put(np.zeros(x.shape, jax.numpy.float8_e4m3fn)),
    "no_gradient": lambda x: np.zeros(x.shape, jax.dtypes.float0),
}

# -- calls -------------------------------------------------------------------------------------------------------------


def check_op(op: Op, convert: Callable[[Any], Any], kind: type, variant: Callable[[Any], Any], rejected: bool) -> int:
    """Call an op with each of its arguments as such an array; return the number of calls."""
    arguments, attrs = good_call(op)
    calls = 0
    for arg in op.inputs:
        inputs = converted(op, dict(arguments), convert)
        first = inputs[arg.name][0] if arg.many else inputs[arg.name]
        if not isinstance(first, kind):
            continue
        try:
            unusual = variant(first)
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
            continue  # this variant does not exist for these elements
        inputs[arg.name] = [unusual, *inputs[arg.name][1:]] if arg.many else unusual
        calls += 1
        where = f"{op.name}: {arg.name}"
        found = _outcome(op, inputs, attrs, where)
        if rejected:
            assert isinstance(found, Rejection), f"{where} returned: {found}"
            check_named(op, found)
            assert (found.argument or "").partition("[")[0] == arg.name, f"{where}: {found}"
            continue
        want = _outcome(op, _plain_call(op, arguments, arg.name, unusual), attrs, where)
        if isinstance(found, Rejection) or isinstance(want, Rejection):  # unsupported complex numbers
            assert found == want, where
            continue
        assert all(isinstance(o, kind) for o in found), f"{where}: {[type(o) for o in found]}"
        for a, b in zip(map(_numpy, found), want, strict=True):
            assert is_right(op, a, b), f"{where}: {a}\nNumPy: {b}"
    return calls


def _outcome(op: Op, inputs: dict[str, Any], attrs: dict[str, Any], where: str) -> tuple[Any, ...] | Rejection:
    try:
        return as_tuple(OPS[op.name](**inputs, **attrs))
    except OpError as error:
        return rejection_of(error)
    except Exception as error:
        error.add_note(where)
        raise


def _plain_call(op: Op, arguments: dict[str, Any], name: str, unusual: Any) -> dict[str, Any]:
    plain = _numpy(unusual)
    return {**arguments, name: [plain, *arguments[name][1:]] if isinstance(arguments[name], list) else plain}


def _numpy(value: Any) -> np.ndarray:
    if not isinstance(value, Tensor):
        return np.asarray(value)
    plain = value.detach().as_subclass(Tensor).clone().resolve_conj().resolve_neg().contiguous()
    return from_tensor(plain)


def _ops(variants: dict[str, Any], name: str, most: int) -> tuple[Op, ...]:
    """Return a subset of the ops, a different one for every variant."""
    ops = computed_ops()
    step = max(1, len(ops) // most)
    return ops[list(variants).index(name) % step :: step]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that nested, quantized and sparse tensors are prototypes
        yield


def tensors(name: str, most: int) -> None:
    rejected = name in NO_TENSORS
    variants = NO_TENSORS if rejected else TENSORS
    assert sum(check_op(op, tensor_of, Tensor, variants[name], rejected) for op in _ops(variants, name, most))


def jax_arrays(name: str, most: int) -> None:
    rejected = name in NO_JAX_ARRAYS
    variants = NO_JAX_ARRAYS if rejected else JAX_ARRAYS
    with x64():
        assert sum(check_op(op, jax_of, jax.Array, variants[name], rejected) for op in _ops(variants, name, most))


@pytest.mark.parametrize("name", [*TENSORS, *NO_TENSORS])
def test_tensors(name: str) -> None:
    tensors(name, 20)


@pytest.mark.parametrize("name", [*TENSORS, *NO_TENSORS])
@pytest.mark.slow
def test_tensors_of_every_op(name: str) -> None:
    tensors(name, len(computed_ops()))


@pytest.mark.parametrize("name", [*JAX_ARRAYS, *NO_JAX_ARRAYS])
def test_jax_arrays(name: str) -> None:
    jax_arrays(name, 20)


@pytest.mark.parametrize("name", [*JAX_ARRAYS, *NO_JAX_ARRAYS])
@pytest.mark.slow
def test_jax_arrays_of_every_op(name: str) -> None:
    jax_arrays(name, len(computed_ops()))


def test_meta_tensors_mixed_with_others() -> None:
    """A tensor without memory only goes with others of its kind, in every op of several tensors."""
    for op in computed_ops():
        arguments, attrs = good_call(op)
        inputs = converted(op, dict(arguments), tensor_of)
        names = [n for n, v in inputs.items() if isinstance(v, Tensor) and v.ndim]
        if len(names) < 2:
            continue
        for name in names:
            mixed = {**inputs, name: inputs[name].to("meta")}
            try:
                found = as_tuple(OPS[op.name](**mixed, **attrs))
            except OpError as error:
                check_named(op, rejection_of(error))
            else:
                assert all(o.is_meta for o in found), (op.name, name)
