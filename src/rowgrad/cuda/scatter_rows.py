"""ScatterRows."""

from __future__ import annotations

from torch import Tensor

from .call import Call, runs
from .sorting import SortedIds
from .sparse_segment import Shape, cleared, run_shift_of, sum_sorted


@runs("scatter_rows")
def scatter_rows(call: Call) -> tuple[Tensor, ...]:
    """A gradient with one row per id: positions stand for segments."""
    grad, indices, num_rows = call.inputs
    out, size, device = call.output(0), indices.numel(), call.device
    if size == 0:
        device.zero(out)
        return (out,)
    entries = SortedIds(device, size, num_rows, 1)
    with cleared(device, out):
        entries.run(indices, None, call.told(), by_segment=False, order=0)
    sum_sorted(device, entries, grad, out, Shape(grad, out), 0, run_shift_of(0), unique=False)
    return (out,)
