"""Clip gradients, dense or sparse, with 16-bit gradients measured and scaled in float32.

For gradients of 32 and 64 bits `torch.nn.utils` has the same results, but rejects sparse tensors that are not
`RowGradient`s, such as those of `torch.nn.EmbeddingBag(sparse=True)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..errors import make_error
from .row_gradient import norm_of, valid_rows
from .row_state import is_dtensor
from .tensors import check_storage


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients in place so that their total norm is at most `max_norm`.

    Works like `torch.nn.utils.clip_grad_norm_`. Duplicate rows of a sparse gradient are added first. The norm and the
    scaling of 16-bit gradients are computed in float32. Gradients may be DTensors, also beside plain ones; then all
    ranks call it together and get the same norm.

    Args:
        parameters: A parameter, or several.
        max_norm: The largest norm allowed.
        norm_type: The order of the norm; may be infinite.
        error_if_nonfinite: Raise if the norm is infinite or NaN.

    Returns:
        The norm before clipping.

    Raises:
        InvalidArgumentError: If `max_norm` is negative, or a number is not one.
        RuntimeError: If the norm is not finite and `error_if_nonfinite` is set.
    """
    max_norm, norm_type = _number("max_norm", max_norm, 0.0), _number("norm_type", norm_type, -math.inf)
    gradients = _gradients(parameters)
    if not gradients:
        return torch.tensor(0.0)
    norms = torch.stack([_norm(grad, norm_type).to(gradients[0].device) for grad in gradients])
    total = torch.linalg.vector_norm(norms, norm_type)
    if error_if_nonfinite and not math.isfinite(float(total)):
        raise RuntimeError(f"the gradients' norm of order {norm_type} is {float(total)}, so they cannot be clipped")
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for v in map(_values, gradients):
        v = v.to_local() if is_dtensor(v) else v
        if v.dtype.itemsize == 2:  # the scale would become 0 in float16
            v.copy_(v.float() * scale.to(v.device, torch.float32))
        else:
            v.mul_(scale.to(v.device, v.dtype))
    return total


@torch.no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Clamp all gradients to [-clip_value, clip_value] in place; duplicate rows are added first.

    Args:
        parameters: A parameter, or several.
        clip_value: The largest absolute value allowed.

    Raises:
        InvalidArgumentError: If `clip_value` is not a number of at least 0.
    """
    clip_value = _number("clip_value", clip_value, 0.0)
    for v in map(_values, _gradients(parameters)):
        v.clamp_(min=-clip_value, max=clip_value)


def _number(argument: str, value: Any, least: float) -> float:
    """Convert what torch's functions accept as a number, such as "inf" or a tensor of one element; check its bound."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not number >= least:
        bound = "a number" if least < 0 else "a number of at least 0"
        raise make_error("number_unfit", argument=argument, value=repr(value), bound=bound)
    return number


def _norm(grad: Tensor, norm_type: float) -> Tensor:
    """Compute a norm; for 16-bit values in float32, because it might overflow and then scale gradients to 0."""
    wide = torch.float32 if grad.dtype.itemsize == 2 else None
    if grad.is_sparse:
        return norm_of(grad, norm_type, wide)
    if grad.numel() == 0:  # torch raises for the maximum of an empty tensor
        return torch.zeros((), dtype=wide or grad.dtype, device=grad.device)
    found: Tensor = torch.linalg.vector_norm(grad, norm_type, dtype=wide)
    return found.full_tensor() if is_dtensor(found) else found  # type: ignore[attr-defined,no-any-return]


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients that exist; repeated rows of sparse ones are added first."""
    found = []
    for p in [parameters] if isinstance(parameters, Tensor) else list(parameters):
        if p.grad is None:
            continue
        if p.grad.is_sparse:
            with torch._C.DisableTorchFunctionSubclass():  # which keeps padding
                check_storage(p.grad._indices(), "grad")
                check_storage(p.grad._values(), "grad")
                is_padded = valid_rows(p.grad) is not None
            if not is_padded:
                p.grad = p.grad.coalesce()
        else:
            check_storage(p.grad, "grad")
        found.append(p.grad)
    return found


def _values(grad: Tensor) -> Tensor:
    """Return the values of a gradient; changing them in place changes the gradient."""
    with torch._C.DisableTorchFunctionSubclass():
        return grad._values() if grad.is_sparse else grad
