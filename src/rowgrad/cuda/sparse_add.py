"""SparseAdd, its gradient, and the gradient's transpose."""

from __future__ import annotations

import torch
from torch import Tensor

from .call import TYPE, Call, runs
from .kernel import NUMBERS, Kernel
from .scan import BY_WIDTH, THREADS, counts_of, grid_of, parts_of, put, scan, unit_of

_FILE = "sparse_add.cuh"
_BY_TYPE = [(t,) for t in NUMBERS]
_ORDER = Kernel(_FILE, "check_order", THREADS)
_STEPS = Kernel(_FILE, "add_steps", THREADS, _BY_TYPE)
_COUNT = Kernel(_FILE, "add_count", THREADS)
_MOVE = Kernel(_FILE, "add_move", THREADS, _BY_TYPE)
_GRAD = Kernel(_FILE, "add_grad", THREADS, BY_WIDTH)
_GRAD_GRAD = Kernel(_FILE, "add_grad_grad", THREADS, _BY_TYPE)


def _check_order(call: Call, a: Tensor, b: Tensor, total: Tensor | None) -> Tensor:
    """Raised where a list is not in order; in those with a sum no entry may repeat either."""
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
    """What each step of the merge takes is found first; then steps are counted, and entries moved."""
    a, a_values, shape, b, b_values, _, thresh = call.inputs
    out_shape = call.output(2)
    put(call, out_shape, shape)
    size, form = len(a) + len(b), (TYPE[a_values.dtype],)
    parts = parts_of(call, size)
    order, steps = _check_order(call, a, b, None), call.empty(size, dtype=torch.uint8)
    counts = counts_of(call, parts, 3)
    lists = {
        "a": a.data_ptr(), "a_values": a_values.data_ptr(), "b": b.data_ptr(), "b_values": b_values.data_ptr(),
        "rank": a.shape[1], "steps": steps.data_ptr(),
    }  # fmt: skip
    _STEPS.launch(
        call.device, parts, form, a_rows=len(a), b_rows=len(b), thresh=thresh.data_ptr(), order=order.data_ptr(),
        **lists,
    )  # fmt: skip
    _COUNT.launch(call.device, parts, steps=steps.data_ptr(), size=size, counts=counts.data_ptr())
    scan(call, counts)
    kept = call.number(counts[2, parts])
    out_indices, out_values = call.output(0, kept), call.output(1, kept)
    _MOVE.launch(
        call.device, parts, form, size=size, counts=counts.data_ptr(), to_indices=out_indices.data_ptr(),
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
    """Every entry of the operands is searched in the sum."""
    grad, a, b, total = call.inputs
    to_a, to_b, order = call.output(0), call.output(1), _check_order(call, a, b, total)
    _GRAD.launch(
        call.device, grid_of(call, max(len(a), len(b))), unit_of(grad), grad=grad.data_ptr(), to_a=to_a.data_ptr(),
        to_b=to_b.data_ptr(), order=order.data_ptr(), **_lists(a, b, total),
    )  # fmt: skip
    return to_a, to_b


@runs("sparse_add_grad_grad")
def sparse_add_grad_grad(call: Call) -> tuple[Tensor, ...]:
    """Every entry of the sum is searched in the operands."""
    da, db, a, b, total = call.inputs
    out, order = call.output(0), _check_order(call, a, b, total)
    _GRAD_GRAD.launch(
        call.device, grid_of(call, len(total)), (TYPE[out.dtype],), da=da.data_ptr(), db=db.data_ptr(),
        to=out.data_ptr(), order=order.data_ptr(), **_lists(a, b, total),
    )  # fmt: skip
    return (out,)
