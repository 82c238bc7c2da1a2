"""Every kernel as a function of jnp alone, for platforms without kernels of our own: GPU, TPU.

Same rules as the kernels, within the tolerance of floats: 16-bit floats are summed in float32 and rounded once, or at
every addition where the kernel does so. The order of a sum is XLA's: input order on a CPU; on a GPU the order of its
atomic adds, which may change from run to run unless XLA is set to be deterministic. So the attribute `order` changes
nothing here.

A compiled program cannot raise. Where the CPU kernel would refuse a call for its data, the whole output is poisoned:
floats and complex numbers are NaN, signed integers their lowest and unsigned integers their highest value; bool stays
as it is. All of it, not some rows, because

- the CPU kernel refuses the whole call too, and writes nothing;
- a segment id out of range has no row of its own that could be poisoned;
- NaN in the whole output reaches the loss at once, and a poisoned id is out of range for whatever takes it next.
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
    """One call of a kernel op, traceable.

    The shapes of `outputs` are known; where JAX has no int64 and float64, it gives its own types in their place.
    """
    if op.is_data_sized:
        raise ValueError(f"{op.name} has as many output rows as its data says: it cannot be compiled")
    call = Call(op, arrays, host, attrs, outputs)
    return finish(call, *KERNELS[str(op.kernel)](call))
