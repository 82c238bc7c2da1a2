"""Size limits of results, and results in the caller's `out=` arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._catalog.shapes import check_elements
from .._catalog.spec import TENSORFLOW_NAME, Aval, Op, value_text
from .._core import memory_limit
from ..errors import OpError, make_error, shape_text
from .arrays import NUMPY_DTYPE, Array, aval_of, base_view, is_aligned, is_masked, is_ndarray

_ADDRESSES = (1 << 63) - 1


def check_size(aval: Aval, elsewhere: bool = False) -> None:
    """Raise for outputs with more elements than int64 counts or more bytes than the machine has.

    `elsewhere`: the output is on a device or abstract, so only the address space limits its bytes.
    """
    if None in aval.shape:
        return
    check_elements(aval.shape)
    elements = math.prod(d for d in aval.shape if d is not None)
    if elements * NUMPY_DTYPE[aval.dtype].itemsize > (_ADDRESSES if elsewhere else memory_limit()):
        raise too_large(aval)


def too_large(aval: Aval) -> OpError:
    """Return the error for an output that does not fit into memory."""
    elements = math.prod(d for d in aval.shape if d is not None)
    return make_error(
        "out_of_memory_output",
        shape=shape_text(aval.shape),
        dtype=TENSORFLOW_NAME.get(aval.dtype, aval.dtype),
        value=f"{elements * NUMPY_DTYPE[aval.dtype].itemsize} bytes",
        bound=f"{memory_limit()} bytes",
    )


def out_views(op: Op, avals: Sequence[Aval], out: Any, inputs: dict[str, Array]) -> tuple[Array, ...]:
    """Return plain views of the caller's buffers; raise unless each has the output's dtype and shape and no overlap.

    Attributes that a subclass overrides are not read.
    """
    buffers = out_buffers(out)
    if len(buffers) != len(avals):
        raise make_error("out_count", value=len(buffers), bound=len(avals))
    views = tuple(base_view(b) if is_ndarray(b) and not is_masked(b) else b for b in buffers)
    for spec, aval, view in zip(op.outputs, avals, views, strict=True):
        good = is_ndarray(view) and not is_masked(view) and view.flags.carray and is_aligned(view)
        if not good or view.dtype != NUMPY_DTYPE[aval.dtype] or view.shape != aval.shape:
            state = f"{view.dtype}[{','.join(map(str, view.shape))}]" if is_ndarray(view) else value_text(view)
            if is_masked(view):
                state = "a masked array, whose mask would be lost"
            raise make_error(
                "out_unfit", argument=spec.name, bound=f"a writable, contiguous, aligned {aval}", value=state
            )
        others = (*inputs.items(), *((o.name, b) for o, b in zip(op.outputs, views, strict=True) if o is not spec))
        for name, other in others:
            if is_ndarray(other) and np.may_share_memory(view, other):
                raise make_error("out_overlaps", argument=spec.name, value=name)
    return views


def out_buffers(out: Any) -> tuple[Any, ...]:
    """Return the caller's buffers as a tuple; a list that another thread changes is read once."""
    return out if type(out) is tuple else tuple(out) if isinstance(out, tuple | list) else (out,)


def copy_to_out(op: Op, results: tuple[Array, ...], out: Any, inputs: dict[str, Array]) -> tuple[Array, ...]:
    """Copy results into the caller's buffers, if given."""
    if out is None:
        return results
    buffers = out_buffers(out)
    for view, result in zip(out_views(op, [aval_of(r) for r in results], buffers, inputs), results, strict=True):
        view[...] = result
    return buffers
