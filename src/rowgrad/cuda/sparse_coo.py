"""SparseSlice and SparseAdd on CUDA, their gradients, and the transposes of the gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from .._catalog.shapes import wrap_int64
from .call import TYPE, Call, runs
from .kernel import ALL_NUMBERS, Kernel
from .sorting import BY_WIDTH, THREADS, counts_of, grid_of, parts_of, put, scan, unit_of

# -- SparseSlice ------------------------------------------------------------------------------------------------------

_FILE = "sparse_slice.cuh"
_COUNT = Kernel(_FILE, "slice_count", THREADS)
_MOVE = Kernel(_FILE, "slice_move", THREADS, BY_WIDTH)
_BOX = Kernel(_FILE, "slice_box", THREADS)
_BOX_COUNT = Kernel(_FILE, "box_count", THREADS)
_BOX_MATCH = Kernel(_FILE, "box_match", THREADS)
_WALK = Kernel(_FILE, "slice_walk", 32)
_SPREAD = Kernel(_FILE, "slice_spread", THREADS, BY_WIDTH)
_PICK = Kernel(_FILE, "slice_pick", THREADS, BY_WIDTH)


@runs("sparse_slice")
def sparse_slice(call: Call) -> tuple[Tensor, ...]:
    """Count the entries of the slice, allocate the outputs, then copy them."""
    indices, values, shape, start, size = call.inputs
    out_shape = call.output(2)
    put(call, out_shape, [_extent(*dims) for dims in zip(shape, start, size, strict=True)])
    ends = [wrap_int64(begin + extent) for begin, extent in zip(start, size, strict=True)]
    entries, rank = indices.shape
    if entries == 0 or any(end <= begin for begin, end in zip(start, ends, strict=True)):  # also if an end wraps
        return call.output(0, 0), call.output(1, 0), out_shape
    box = call.empty(2, rank, dtype=torch.int64)
    put(call, box.view(-1), [*start, *(end - 1 for end in ends)])
    parts = parts_of(call, entries)
    counts = counts_of(call, parts)
    fields = {
        "indices": indices.data_ptr(), "size": entries, "rank": rank, "start": box[0].data_ptr(),
        "last": box[1].data_ptr(), "counts": counts.data_ptr(),
    }  # fmt: skip
    _COUNT.launch(call.device, parts, **fields)
    scan(call, counts)
    total = call.number(counts[0, parts])
    out_indices, out_values = call.output(0, total), call.output(1, total)
    _MOVE.launch(
        call.device, parts if total else 0, unit_of(values), values=values.data_ptr(),
        to_indices=out_indices.data_ptr(), to_values=out_values.data_ptr(), **fields,
    )  # fmt: skip
    return out_indices, out_values, out_shape


def _extent(dim: int, start: int, size: int) -> int:
    """Return one dimension of the slice, clipped to the shape."""
    if start < wrap_int64(dim - size):
        return size
    return wrap_int64(dim - start) if start < dim else 0


def _match(call: Call) -> dict[str, Tensor]:
    """Return `taken`, the input entry of each output entry, and `checks`, which is set if one is missing."""
    _, inputs, start, outputs = call.inputs
    size, rank, wanted = inputs.shape[0], inputs.shape[1], outputs.shape[0]
    found = {"taken": call.empty(wanted, dtype=torch.int64), "checks": call.checks()}
    if wanted == 0:
        return found
    box, differ, parts = call.empty(2 * rank, dtype=torch.int64), call.checks(), parts_of(call, size)
    call.device.zero(box)
    counts = counts_of(call, parts)
    both = {"start": start.data_ptr(), "rank": rank, "output": outputs.data_ptr()}
    source = {"input": inputs.data_ptr(), "size": size}
    counted = {"box": box.data_ptr(), "counts": counts.data_ptr()}
    matched = {"output_size": wanted, "taken": found["taken"].data_ptr(), "differ": differ.data_ptr()}
    _BOX.launch(call.device, parts_of(call, wanted), size=wanted, box=box.data_ptr(), **both)
    _BOX_COUNT.launch(call.device, parts, rank=rank, **source, **counted)
    scan(call, counts)
    _BOX_MATCH.launch(call.device, parts, **both, **source, **counted, **matched)
    _WALK.launch(call.device, 1, checks=found["checks"].data_ptr(), **both, **source, **matched, **call.report_fields())
    return found


def _launch_matched(call: Call, kernel: Kernel, to: Tensor) -> None:
    grad, wanted = call.inputs[0], call.inputs[3].shape[0]
    found = _match(call)
    fields = {name: tensor.data_ptr() for name, tensor in found.items()}
    kernel.launch(
        call.device, grid_of(call, wanted), unit_of(grad), size=wanted, grad=grad.data_ptr(), to=to.data_ptr(), **fields
    )


@runs("sparse_slice_grad")
def sparse_slice_grad(call: Call) -> tuple[Tensor, ...]:
    """Write each output entry's gradient to its input entry; zero elsewhere."""
    out = call.output(0)
    call.device.zero(out)
    _launch_matched(call, _SPREAD, out)
    return (out,)


@runs("sparse_slice_grad_grad")
def sparse_slice_grad_grad(call: Call) -> tuple[Tensor, ...]:
    """Read each output entry's value from its input entry."""
    out = call.output(0)
    _launch_matched(call, _PICK, out)
    return (out,)


# -- SparseAdd --------------------------------------------------------------------------------------------------------

_ADD_FILE = "sparse_add.cuh"
_BY_TYPE = [(t,) for t in ALL_NUMBERS]
_ORDER = Kernel(_ADD_FILE, "check_order", THREADS)
_STEPS = Kernel(_ADD_FILE, "add_steps", THREADS, _BY_TYPE)
_ADD_COUNT = Kernel(_ADD_FILE, "add_count", THREADS)
_ADD_MOVE = Kernel(_ADD_FILE, "add_move", THREADS, _BY_TYPE)
_GRAD = Kernel(_ADD_FILE, "add_grad", THREADS, BY_WIDTH)
_GRAD_GRAD = Kernel(_ADD_FILE, "add_grad_grad", THREADS, _BY_TYPE)


def _check_order(call: Call, a: Tensor, b: Tensor, total: Tensor | None) -> Tensor:
    """Return a flag that is set if a list is not sorted or, with `total`, has duplicates."""
    order = call.checks()
    rows = max(len(a), len(b), 0 if total is None else len(total))
    _ORDER.launch(
        call.device, grid_of(call, rows), a=a.data_ptr(), a_rows=len(a), b=b.data_ptr(), b_rows=len(b),
        sum=0 if total is None else total.data_ptr(), sum_rows=0 if total is None else len(total),
        rank=a.shape[1], repeats=int(total is None), order=order.data_ptr(),
    )  # fmt: skip
    return order


@runs("sparse_add")
def sparse_add(call: Call) -> tuple[Tensor, ...]:
    """Find what each step of the merge takes, count the steps, then copy the entries."""
    a, a_values, shape, b, b_values, _, thresh = call.inputs
    out_shape = call.output(2)
    put(call, out_shape, shape)
    size, variant = len(a) + len(b), (TYPE[a_values.dtype],)
    parts = parts_of(call, size)
    order, steps = _check_order(call, a, b, None), call.empty(size, dtype=torch.uint8)
    counts = counts_of(call, parts, 3)
    lists = {
        "a": a.data_ptr(), "a_values": a_values.data_ptr(), "b": b.data_ptr(), "b_values": b_values.data_ptr(),
        "rank": a.shape[1], "steps": steps.data_ptr(),
    }  # fmt: skip
    _STEPS.launch(
        call.device, parts, variant, a_rows=len(a), b_rows=len(b), thresh=thresh.data_ptr(), order=order.data_ptr(),
        **lists,
    )  # fmt: skip
    _ADD_COUNT.launch(call.device, parts, steps=steps.data_ptr(), size=size, counts=counts.data_ptr())
    scan(call, counts)
    total = call.number(counts[2, parts])
    out_indices, out_values = call.output(0, total), call.output(1, total)
    _ADD_MOVE.launch(
        call.device, parts, variant, size=size, counts=counts.data_ptr(), to_indices=out_indices.data_ptr(),
        to_values=out_values.data_ptr(), **lists,
    )  # fmt: skip
    return out_indices, out_values, out_shape


def _lists(a: Tensor, b: Tensor, total: Tensor) -> dict[str, int]:
    return {
        "a": a.data_ptr(), "a_rows": len(a), "b": b.data_ptr(), "b_rows": len(b),
        "sum": total.data_ptr(), "sum_rows": len(total), "rank": total.shape[1],
    }  # fmt: skip


@runs("sparse_add_grad")
def sparse_add_grad(call: Call) -> tuple[Tensor, ...]:
    """Search each entry of the operands in the sum."""
    grad, a, b, total = call.inputs
    to_a, to_b, order = call.output(0), call.output(1), _check_order(call, a, b, total)
    _GRAD.launch(
        call.device, grid_of(call, max(len(a), len(b))), unit_of(grad), grad=grad.data_ptr(), to_a=to_a.data_ptr(),
        to_b=to_b.data_ptr(), order=order.data_ptr(), **_lists(a, b, total),
    )  # fmt: skip
    return to_a, to_b


@runs("sparse_add_grad_grad")
def sparse_add_grad_grad(call: Call) -> tuple[Tensor, ...]:
    """Search each entry of the sum in the operands."""
    da, db, a, b, total = call.inputs
    out, order = call.output(0), _check_order(call, a, b, total)
    _GRAD_GRAD.launch(
        call.device, grid_of(call, len(total)), (TYPE[out.dtype],), da=da.data_ptr(), db=db.data_ptr(),
        to=out.data_ptr(), order=order.data_ptr(), **_lists(a, b, total),
    )  # fmt: skip
    return (out,)
