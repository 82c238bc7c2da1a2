"""{Sparse,Ragged}FillEmptyRows on CUDA, their gradient, and the transpose of the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from .call import TYPE, Call, runs
from .kernel import ALL_NUMBERS, COMPLEX, FLOATS, INTEGERS, Kernel
from .sorting import BY_WIDTH, THREADS, counts_of, grid_of, parts_of, scan, sort, unit_of

_FILE = "fill_rows.cuh"
_COUNT = Kernel(_FILE, "fill_count", THREADS)
_ENTRIES = Kernel(_FILE, "fill_entries", THREADS, BY_WIDTH)
_ROWS = Kernel(_FILE, "fill_rows", THREADS, BY_WIDTH)
_NAME = Kernel(_FILE, "name_positions", THREADS)
_COUNT_UNNAMED = Kernel(_FILE, "count_unnamed", THREADS)
_SPLIT = Kernel(_FILE, "split_grad", THREADS, BY_WIDTH)
_ADD_REST = Kernel(_FILE, "add_rest", 256, [(t,) for t in (*FLOATS, *COMPLEX)])
_ADD_REST_INTEGERS = Kernel(_FILE, "add_rest_integers", 512, [(t,) for t in INTEGERS])
_FILL_LISTED_ROWS = Kernel(_FILE, "fill_listed_rows", THREADS, BY_WIDTH)
_ADD_NAMED = Kernel(_FILE, "add_named", 256, [(t,) for t in ALL_NUMBERS])


@runs("fill_empty_rows")
def fill_empty_rows(call: Call) -> tuple[Tensor, ...]:
    """Move entries past the filled rows; entries not ordered by row are sorted first, which synchronizes twice."""
    indices, values, shape, default_value = call.inputs
    rows = shape if isinstance(shape, int) else shape[0]
    size, columns = indices.shape[0], indices.shape[1] if indices.dim() == 2 else 1
    parts, unit = parts_of(call, size), unit_of(values)
    counts, order, checks = counts_of(call, parts), call.checks(), call.checks()

    def count(ids: Tensor, step: int) -> None:
        _COUNT.launch(
            call.device, parts, ids=ids.data_ptr(), step=step, size=size, rows=rows, counts=counts.data_ptr(),
            order=order.data_ptr(), checks=checks.data_ptr(), **call.report_fields(),
        )  # fmt: skip

    ids, step, places = indices, columns, None
    count(ids, step)
    scan(call, counts, unless=order)
    filled = call.number(counts[0, parts])
    if filled < 0:
        ids, places = sort(call, indices, columns, size, rows)
        step = 1
        count(ids, step)
        scan(call, counts)
        filled = call.number(counts[0, parts])
    total = size + rows - filled
    outputs = call.output(0, total), call.output(1, total), call.output(2), call.output(3)
    fields = {
        "ids": ids.data_ptr(), "step": step, "size": size, "order": 0 if places is None else places.data_ptr(),
        "columns": columns, "to_indices": outputs[0].data_ptr(), "to_values": outputs[1].data_ptr(),
        "map": outputs[3].data_ptr(), "checks": checks.data_ptr(),
    }  # fmt: skip
    _ENTRIES.launch(
        call.device,
        parts,
        unit,
        counts=counts.data_ptr(),
        indices=indices.data_ptr(),
        values=values.data_ptr(),
        **fields,
    )
    _ROWS.launch(
        call.device, grid_of(call, rows), unit, rows=rows, default_value=default_value.data_ptr(),
        empty=outputs[2].data_ptr(), **fields,
    )  # fmt: skip
    return outputs


def _name(call: Call, index_map: Tensor, positions: int) -> dict[str, Tensor]:
    """Return which positions the map names, whether one is named twice, and whether one is out of range."""
    found = {"named": call.empty(positions, dtype=torch.int32), "twice": call.checks(), "checks": call.checks()}
    call.device.zero(found["named"])
    size = index_map.numel()
    fields = {name: tensor.data_ptr() for name, tensor in found.items()}
    _NAME.launch(
        call.device,
        grid_of(call, size),
        map=index_map.data_ptr(),
        size=size,
        positions=positions,
        **fields,
        **call.report_fields(),
    )
    return found


@runs("fill_empty_rows_grad")
def fill_empty_rows_grad(call: Call) -> tuple[Tensor, ...]:
    """Gather the values that the map does not name, and sum them in their order."""
    index_map, grad = call.inputs
    positions = grad.numel()
    found = _name(call, index_map, positions)
    parts = parts_of(call, max(positions, index_map.numel()))
    counts, rest = counts_of(call, parts), call.empty(positions, dtype=grad.dtype)
    values, default_value = call.output(0), call.output(1)
    fields = {"named": found["named"].data_ptr(), "positions": positions, "counts": counts.data_ptr()}
    _COUNT_UNNAMED.launch(call.device, parts, **fields)
    scan(call, counts)
    checks = found["checks"].data_ptr()
    _SPLIT.launch(
        call.device, parts, unit_of(grad), map=index_map.data_ptr(), size=index_map.numel(), grad=grad.data_ptr(),
        values=values.data_ptr(), rest=rest.data_ptr(), checks=checks, **fields,
    )  # fmt: skip
    add = _ADD_REST_INTEGERS if TYPE[grad.dtype] in INTEGERS else _ADD_REST
    add.launch(
        call.device, 1, (TYPE[grad.dtype],), rest=rest.data_ptr(), size=counts[0, parts].data_ptr(),
        sum=default_value.data_ptr(), checks=checks,
    )  # fmt: skip
    return values, default_value


@runs("fill_empty_rows_grad_grad")
def fill_empty_rows_grad_grad(call: Call) -> tuple[Tensor, ...]:
    """Copy values; if the map names a position twice, add its values in order."""
    index_map, values, default_value, grad = call.inputs
    positions, size = grad.numel(), index_map.numel()
    found = _name(call, index_map, positions)
    out = call.output(0)
    narrow = out.dtype in (torch.float16, torch.bfloat16)
    sums = call.empty(positions, dtype=torch.float32) if narrow else out
    fields = {
        "map": index_map.data_ptr(), "size": size, "values": values.data_ptr(), "to": out.data_ptr(),
        **{name: tensor.data_ptr() for name, tensor in found.items()},
    }  # fmt: skip
    _FILL_LISTED_ROWS.launch(
        call.device, grid_of(call, positions), unit_of(out), default_value=default_value.data_ptr(),
        positions=positions, **fields,
    )  # fmt: skip
    _ADD_NAMED.launch(call.device, min(size, 1), (TYPE[out.dtype],), sums=sums.data_ptr(), **fields)
    return (out,)
