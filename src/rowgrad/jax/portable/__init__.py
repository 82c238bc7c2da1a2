"""Every kernel in jax.numpy, for platforms and ops without our kernels (TPU; some ops on CUDA).

Results equal those of the kernels up to the rounding of sums: 16-bit floats are summed in float32 and rounded once, or
at every addition if the kernel does so. The order of a sum is XLA's: input order on a CPU; on a GPU the order of atomic
adds, which may change from run to run unless XLA is set to be deterministic. So the attribute `order` has no effect.

A compiled program cannot raise. If the CPU kernel would reject the data of a call, the whole output is poisoned: floats
and complex numbers are NaN, signed integers their lowest and unsigned integers their highest value; bool is unchanged.
The whole output, not some rows, because

- the CPU kernel rejects the whole call too, and writes nothing;
- a segment id out of range has no row that could be poisoned;
- NaN in the whole output reaches the loss at once, and a poisoned id is out of range in the next op.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from ..._catalog.spec import Aval, Op
from . import rows, segments
from .call import Call, Kernel, finish

KERNELS: dict[str, Kernel] = {
    **segments.KERNELS,
    **rows.KERNELS,
    **segments.WEIGHTED_SEGMENT_KERNELS,
    **segments.PLAN_KERNELS,
    **rows.BAG_IDS_KERNELS,
    **rows.FILL_ROWS_KERNELS,
    **rows.COORDINATES_KERNELS,
}


def run(
    op: Op,
    arrays: Mapping[str, jax.Array],
    host: Mapping[str, int | tuple[int, ...]],
    attrs: Mapping[str, Any],
    outputs: tuple[Aval, ...],
) -> tuple[jax.Array, ...]:
    """Run a kernel op; traceable. `outputs` have static shapes and dtypes that JAX has (no int64 without x64)."""
    if op.is_data_sized:
        raise ValueError(f"{op.name} cannot be compiled: its number of output rows depends on data")
    call = Call(op, arrays, host, attrs, outputs)
    return finish(call, *KERNELS[str(op.kernel)](call))
