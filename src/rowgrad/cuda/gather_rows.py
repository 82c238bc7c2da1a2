"""GatherRows."""

from __future__ import annotations

from math import gcd

from torch import Tensor

from .call import Call, blocks_for, is_wide, row_size, runs
from .kernel import FAULTS, Kernel

_UNITS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t", 16: "Block16"}
_CHECK = Kernel("gather_rows.cuh", "check_gather", 256)
_GATHER = Kernel("gather_rows.cuh", "gather_rows", 256, [(unit,) for unit in _UNITS.values()])


@runs("gather_rows")
def gather_rows(call: Call) -> tuple[Tensor, ...]:
    """Ids are checked by one kernel, rows copied by another."""
    params, ids = call.inputs
    out = call.output(0)
    size, most = ids.numel(), call.device.processors * 8
    checks = call.checks()
    told = {"ids": ids.data_ptr(), "wide": is_wide(ids), "size": size, "checks": checks.data_ptr()}
    _CHECK.launch(
        call.device, min(blocks_for(size, 256), most), bound=params.shape[0],
        code=FAULTS.index("index_not_in_params"), **told, **call.told(),
    )  # fmt: skip
    row_bytes = row_size(params) * params.element_size()
    unit = gcd(row_bytes, params.data_ptr(), out.data_ptr(), 16)
    if row_bytes:
        units = row_bytes // unit
        _GATHER.launch(
            call.device, min(blocks_for(size * units, 256), most * 16), (_UNITS[unit],),
            source=params.data_ptr(), to=out.data_ptr(), row_units=units, **told,
        )  # fmt: skip
    return (out,)
