"""Call an op through the CUDA kernels emulated on the host, and through its CPU kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from emulated_device import HostDevice
from torch import Tensor

from rowgrad._catalog.spec import CATALOG
from rowgrad.cuda.faults import validate
from rowgrad.cuda.run import run
from rowgrad.torch.launch import _prepare, launch, readable
from rowgrad.torch.tensors import Host, admit_tensors


def emulate(name: str, arguments: Mapping[str, Any], seed: int = 1, **attrs: Any) -> tuple[Tensor, ...]:
    """Return the outputs of the op's CUDA kernels; faults raise at once."""
    op = CATALOG[name]
    chosen = {**op.attrs, **attrs}
    admitted = admit_tensors(op, arguments)
    prepared = _prepare(op, admitted, chosen)
    inputs = [v.value if isinstance(v := admitted[n], Host) else readable(v) for n in op.input_names]
    before = validate("sync")
    try:
        return run(op, inputs, prepared.constants, prepared.outputs, HostDevice(seed))
    finally:
        validate(before)


def on_cpu(name: str, arguments: Mapping[str, Any], **attrs: Any) -> tuple[Tensor, ...]:
    op = CATALOG[name]
    return launch(op, dict(arguments), {**op.attrs, **attrs})


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
