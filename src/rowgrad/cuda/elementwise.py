"""Sqrt."""

from __future__ import annotations

from torch import Tensor

from .call import TYPE, Call, blocks_for, runs
from .kernel import FLOATS, Kernel

_ROOTS = Kernel("elementwise.cuh", "roots", 256, [(t,) for t in FLOATS])


@runs("sqrt")
def sqrt(call: Call) -> tuple[Tensor, ...]:
    """One kernel; every number is taken."""
    (x,) = call.inputs
    out, size = call.output(0), x.numel()
    _ROOTS.launch(
        call.device, min(blocks_for(size, 256), call.device.processors * 32), (TYPE[x.dtype],),
        x=x.data_ptr(), roots=out.data_ptr(), size=size,
    )  # fmt: skip
    return (out,)
