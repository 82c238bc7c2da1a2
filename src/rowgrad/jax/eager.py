"""Run an op on known arrays without tracing: on a CUDA device if it has the kernel, else with NumPy's runner.

NumPy's runner works on the arrays' memory and raises its errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from .._catalog.spec import Op
from .._runtime import numpy_runner
from .._runtime.arrays import aval_of
from ..errors import make_error
from . import cuda_call, order
from .arrays import NAMES, from_numpy, to_numpy


def call(op: Op, arguments: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run an op on JAX or NumPy arrays, numbers and lists; results are on the device of the arrays."""
    if cuda_call.is_on_device(arguments.values()):
        found = cuda_call.call(op, arguments, order.leave_open(op, attrs))
        if found is not None:
            return found
    attrs = order.choose(attrs, "cpu") if "order" in attrs and attrs is not op.attrs else attrs
    numpy_arguments = {name: to_numpy(value, name) for name, value in arguments.items()}
    outputs = numpy_runner.call(op, numpy_arguments, attrs, None)
    for spec, output in zip(op.outputs, outputs, strict=True):
        dtype = aval_of(output).dtype
        if dtype not in NAMES:
            source = next((a.name for a in op.inputs if a.type == spec.type), spec.name)
            raise make_error("dtype_not_allowed", argument=source, value=dtype, bound=", ".join(NAMES))
    device = device_of(arguments.values())
    return tuple(from_numpy(o, spec.name, device) for o, spec in zip(outputs, op.outputs, strict=True))


def device_of(values: Any) -> Any:
    """Return the one device that the caller committed arrays to; None if JAX may choose."""
    for value in values:
        if isinstance(value, jax.Array) and value.committed and len(value.devices()) == 1:
            return next(iter(value.devices()))
    return None
