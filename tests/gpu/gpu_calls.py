"""Call ops on a CUDA device and on the CPU.

ROWGRAD_GPU_TEST_DEVICE=cpu runs the tests that need no streams on CPU tensors: this tests the tests, not the kernels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import SkipTest

try:
    import torch
except ImportError:
    raise SkipTest("needs torch") from None
from torch import Tensor

import rowgrad as rg
from rowgrad._catalog.spec import CATALOG
from rowgrad.errors import OpError

DEVICE = os.environ.get("ROWGRAD_GPU_TEST_DEVICE", "cuda")
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def need_device() -> None:
    """Skip the file without a device."""
    if DEVICE.startswith("cuda") and not torch.cuda.is_available():
        raise SkipTest("needs a CUDA device")


def need_streams() -> None:
    """Skip the file without streams."""
    if not torch.cuda.is_available() or not DEVICE.startswith("cuda"):
        raise SkipTest("needs a CUDA device")


def on_device(op: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs as tensors on the device; host inputs stay numbers."""
    host = {a.name for a in CATALOG[op].inputs if a.host}
    return {k: v.to(DEVICE) if isinstance(v, Tensor) and k not in host else v for k, v in inputs.items()}


def call(op: str, inputs: Mapping[str, Any], **attrs: Any) -> tuple[Any, ...]:
    """Call the op by its public name."""
    result = getattr(rg.raw_ops, op)(**inputs, **attrs)
    return tuple(result) if isinstance(result, tuple) else (result,)


def device_call(op: str, inputs: Mapping[str, Any], **attrs: Any) -> tuple[Tensor, ...]:
    """Call the op on the device and check that the results are on it."""
    outputs = call(op, on_device(op, inputs), **attrs)
    for output in outputs:
        assert output.device.type == torch.device(DEVICE).type, f"{op} returned a tensor on {output.device}"
    return tuple(o.cpu() for o in outputs)


def result_or_error(run: Any, *args: Any, **kwargs: Any) -> tuple[Any, OpError | None]:
    """Return the result of a call and the error it raised; one of them is None."""
    try:
        return run(*args, **kwargs), None
    except OpError as error:
        return None, error


@contextmanager
def validating(mode: str) -> Iterator[None]:
    """Set the validation mode temporarily."""
    if DEVICE == "cpu":
        yield
        return
    import rowgrad.torch as rgt

    before = rgt.validate(mode)
    try:
        yield
    finally:
        rgt.validate(before)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether both are equal to the last bit; any NaN equals any NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.is_complex:
        return same_bits(torch.view_as_real(a), torch.view_as_real(b))
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool(((a.view(width) == b.view(width)) | (a.isnan() & b.isnan())).all())


def fail_if_any(failures: list[str], tried: int, heading: str = "") -> None:
    """Fail with the first few failures."""
    shown = heading + "\n".join(failures[:12])
    assert not failures, f"{len(failures)} of {tried} failed, such as:\n{shown}"
