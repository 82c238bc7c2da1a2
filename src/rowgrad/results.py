"""Where results go: how large they may be, and the arrays a caller gives for them with `out=`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._core import memory_limit
from .arrays import NUMPY_DTYPE, Array, aval_of, is_aligned
from .errors import OpError, refuse, shape_text
from .shape import check_elements
from .spec import TENSORFLOW_NAME, Aval, Op

_ADDRESSES = (1 << 63) - 1


def check_size(aval: Aval, elsewhere: bool = False) -> None:
    """Refuse at once what cannot exist: more elements than int64 counts, more bytes than the machine has.

    `elsewhere`: on a device, or nowhere at all; then as many bytes as addresses count.
    """
    if None in aval.shape:
        return
    check_elements(aval.shape)
    elements = math.prod(d for d in aval.shape if d is not None)
    if elements * NUMPY_DTYPE[aval.dtype].itemsize > (_ADDRESSES if elsewhere else memory_limit()):
        raise too_large(aval)


def too_large(aval: Aval) -> OpError:
    """The refusal of an output that does not fit; beside TensorFlow's words, its bytes and those of the machine."""
    error = refuse(
        "out_of_memory_output",
        shape=shape_text(aval.shape),
        value=TENSORFLOW_NAME.get(aval.dtype, aval.dtype),
        bound=f"{memory_limit()} bytes",
    )
    elements = math.prod(d for d in aval.shape if d is not None)
    error.value = f"{elements * NUMPY_DTYPE[aval.dtype].itemsize} bytes"
    return error


def outputs_given(op: Op, avals: Sequence[Aval], out: Any, inputs: dict[str, Array]) -> tuple[Array, ...]:
    """The caller's buffers, each exactly what the call gives and apart from every input."""
    buffers = tuple(out) if isinstance(out, tuple | list) else (out,)
    if len(buffers) != len(avals):
        raise refuse("out_count", value=len(buffers), bound=len(avals))
    for spec, aval, buffer in zip(op.outputs, avals, buffers, strict=True):
        good = isinstance(buffer, np.ndarray) and buffer.flags.carray and is_aligned(buffer)
        if not good or buffer.dtype != NUMPY_DTYPE[aval.dtype] or buffer.shape != aval.shape:
            state = f"{buffer.dtype}[{','.join(map(str, buffer.shape))}]" if isinstance(buffer, np.ndarray) else out
            raise refuse("out_unfit", argument=spec.name, bound=f"a writable, contiguous, aligned {aval}", value=state)
        others = (*inputs.items(), *((o.name, b) for o, b in zip(op.outputs, buffers, strict=True) if o is not spec))
        for name, other in others:
            if np.may_share_memory(buffer, other):
                raise refuse("out_overlaps", argument=spec.name, value=name)
    return buffers


def into(op: Op, results: tuple[Array, ...], out: Any, inputs: dict[str, Array]) -> tuple[Array, ...]:
    """Copy results into the caller's buffers, where given."""
    if out is None:
        return results
    buffers = outputs_given(op, [aval_of(r) for r in results], out, inputs)
    for buffer, result in zip(buffers, results, strict=True):
        buffer[...] = result
    return buffers
