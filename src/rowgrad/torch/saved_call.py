"""`SavedCall`: what a call saves for its backward pass, which runs the op's adjoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack, is_batchedtensor
from torch.autograd import forward_ad

from .._catalog.rows import IndexedRows
from .._catalog.spec import CATALOG, Call, Op
from .gpu_gradients import row_gradient
from .row_gradient import sparse_rows as sparse_rows
from .tensors import is_plain


class Like:
    """The shape and dtype of a tensor whose values an adjoint does not need."""

    __slots__ = ("dtype", "shape")

    def __init__(self, tensor: Tensor) -> None:
        self.shape: Sequence[Any] = tensor.shape
        self.dtype = tensor.dtype

    @classmethod
    def of(cls, shape: Sequence[Any], dtype: torch.dtype) -> Like:
        """Return a Like without a tensor."""
        like = cls.__new__(cls)
        like.shape, like.dtype = shape, dtype
        return like

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def zeros(self, beside: Iterable[Any]) -> Tensor:
        """Return zeros of this shape, for an op that reads only the shape, or for a missing cotangent."""
        device = next(v.device for v in beside if isinstance(v, Tensor))
        return torch.zeros(self.shape, dtype=self.dtype, device=device)


@cache
def wanted(names: tuple[str, ...], needs_grad: tuple[bool, ...]) -> frozenset[str]:
    """Return the arguments whose gradient is requested."""
    return frozenset(n for n, a in zip(names, needs_grad, strict=True) if a)


class _Facts(NamedTuple):
    """Which arguments a backward pass saves, for a set of requested gradients."""

    shape_only: tuple[str, ...]
    saved: tuple[str, ...]
    sizes: tuple[str, ...]
    ignores_outputs: bool  # a linear op with one output: the cotangent has its shape


@cache
def _facts(op_name: str, wanted: frozenset[str]) -> _Facts:
    op = CATALOG[op_name]
    shape_only = op.linear if wanted.issubset(op.linear) else ()
    return _Facts(
        shape_only,
        tuple(a.name for a in op.inputs if not a.host and a.name not in shape_only),
        tuple(a.name for a in op.inputs if a.host),
        len(op.outputs) == 1 and op.linear == op.differentiable,
    )


class SavedCall:
    """A call for its backward pass: everything but tensors, and which tensors autograd saves."""

    __slots__ = ("attrs", "facts", "likes", "op", "outputs", "sizes", "wanted")

    def __init__(self, op: Op, attrs: Mapping[str, Any], wanted: frozenset[str]) -> None:
        self.op = op
        self.attrs = attrs
        self.wanted = wanted

    def save(self, arguments: Mapping[str, Any], outputs: tuple[Tensor, ...]) -> list[Tensor]:
        """Save the call; return the tensors for autograd to save: arguments, then outputs."""
        self.facts = facts = _facts(self.op.name, self.wanted)
        self.likes = [Like(arguments[name]) for name in facts.shape_only]
        self.sizes = [arguments[name] for name in facts.sizes]
        saved = [arguments[name] for name in facts.saved]
        self.outputs: tuple[Like | None, ...] = ()  # None: saved
        if not facts.ignores_outputs:
            # Adjoints read the values of integer outputs only.
            self.outputs = tuple(Like(o) if is_float(o) else None for o in outputs)
            saved += [o for o in outputs if not is_float(o)]
        return saved

    def backward(
        self, table: Mapping[str, Any], saved: tuple[Tensor, ...], ys: tuple[Any, ...], rows: bool
    ) -> tuple[Any, ...]:
        """Return gradients for the op's differentiable arguments; `rows`: whether they may be sparse."""
        facts = self.facts
        arguments: dict[str, Any] = dict(zip(facts.saved, saved, strict=False))
        arguments.update(zip(facts.shape_only, self.likes, strict=True))
        arguments.update(zip(facts.sizes, self.sizes, strict=True))
        outputs: tuple[Any, ...] = self.outputs
        if None in outputs:
            rest = iter(saved[len(facts.saved) :])
            outputs = tuple([next(rest) if o is None else o for o in outputs])
        attrs = {**self.attrs, **DENSE} if _must_be_dense((*ys, *saved)) else self.attrs
        if rows and attrs.get("sparse_gradient"):
            padded = row_gradient(self.op, arguments, ys[0])
            if padded is not None:
                return (padded,)
        call = Call(arguments, attrs, outputs, self.wanted)
        cotangents: Iterable[Any] = ys
        if outputs and any(y is None for y in ys):
            cotangents = [o.zeros(ys) if y is None and type(o) is Like else y for y, o in zip(ys, outputs, strict=True)]
        assert self.op.adjoint is not None
        gradients = self.op.adjoint(table, call, *cotangents)
        if len(gradients) == 1 and type(gradients[0]) is Tensor:
            return gradients
        return tuple(
            as_torch(table, g, rows) if name in self.wanted else None
            for name, g in zip(self.op.differentiable, gradients, strict=True)
        )


DENSE = {"sparse_gradient": False, "gradient": "dense"}


def _must_be_dense(tensors: Iterable[Any]) -> bool:
    """Return whether gradients are batched by torch.func.vmap or have tangents: torch has no such sparse tensors."""
    in_forward_mode = forward_ad._current_level >= 0
    if torch._C._are_functorch_transforms_active():
        return in_forward_mode or any(level.key() == TransformType.Vmap for level in get_interpreter_stack() or ())
    return in_forward_mode and has_tangent(tensors)


def is_float(tensor: Tensor) -> bool:
    """Return whether a tensor can have a gradient."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def is_traced(values: Iterable[Any]) -> bool:
    """Return whether torch is tracing: a dispatch mode is active, or a tensor has no memory."""
    if torch._C._len_torch_dispatch_stack() or torch.compiler.is_compiling():
        return True
    return any(isinstance(v, Tensor) and (not is_plain(type(v)) or v.is_meta) for v in values)


def unpack_dual(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a tensor without its tangent, and the tangent.

    `torch.autograd.forward_ad.unpack_dual` finds none in compiled graphs, which enter forward mode without that module.
    """
    primal, tangent = torch._VF._unpack_dual(tensor, level=0)  # type: ignore[attr-defined]
    return primal, tangent


def has_tangent(values: Iterable[Any]) -> bool:
    """Return whether a tensor has a tangent that forward mode must propagate.

    The content of a batched tensor is checked in the call on all items.
    """
    if not torch._C._is_fwd_grad_enabled():
        return False
    tensors = (v for v in values if isinstance(v, Tensor) and is_float(v) and not is_batchedtensor(v))
    return any(unpack_dual(v)[1] is not None for v in tensors)


def as_torch(table: Mapping[str, Any], gradient: Any, rows: bool) -> Any:
    """Convert rows to a sparse tensor, or scatter them if they are scalars or torch traces."""
    if not isinstance(gradient, IndexedRows):
        return gradient
    values, indices = gradient.values, gradient.indices
    if not rows or values.ndim == 1 or is_traced((values, indices)):
        return table["ScatterRows"](values, indices, gradient.num_rows)
    return sparse_rows(values, indices, gradient.num_rows, gradient.is_unique)
