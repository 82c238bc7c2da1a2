"""Lower kernel calls to XLA custom calls, which the handlers in the extension run, and word their errors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from .._catalog.spec import CATALOG, Aval, Op
from .._core import faults, kernels, set_xla_checker, set_xla_messages, xla_handler
from .._runtime.numpy_runner import CODE, CODE_NAME, KERNEL, constants_of
from .._runtime.validation import infer
from ..errors import OpError, with_notes
from .arrays import Host
from .cuda_call import EARLIER, fault_error

TARGET = "rowgrad_kernel"
_FAULTS = faults()
_KERNEL_NAMES = [name for name, _ in kernels()]
_LOWEST = {"int32": -(1 << 31), "int64": -(1 << 63)}
_CUSTOM_MESSAGES: dict[str, Callable[[str, int], str]] = {}  # by the first word of a call's name


def lower(
    context: Any,
    operands: Sequence[Any],
    op: Op,
    avals: Mapping[str, Aval],
    host: Mapping[str, Host],
    attrs: Mapping[str, Any],
    outputs: Sequence[Aval],
    target: str = TARGET,
) -> Any:
    """Return the custom call, with the attributes that `cpp/bind/xla_call.h` describes."""
    constants = constants_of(op, attrs)
    script = [KERNEL[str(op.kernel)], len(constants), *constants, len(op.inputs)]
    for arg in op.inputs:
        script.append(CODE[avals[arg.name].dtype])
        host_input = host.get(arg.name)
        if host_input is None:
            script.append(-1)
        else:
            values = host_input.value if isinstance(host_input.value, tuple) else (host_input.value,)
            script += [len(host_input.shape), *host_input.shape, *values]
    script += [CODE[o.dtype] for o in outputs]
    got = ", ".join(f"{name}={host[name].value if name in host else aval}" for name, aval in avals.items())
    call = jax.ffi.ffi_lowering(target)
    return call(context, *operands, call=np.array(script, np.int64), got=got, op=op.name)


def register_message(call: str, message: Callable[[str, int], str]) -> None:
    """Register the message of faults in calls named `call REST`: `message(REST, value)`."""
    _CUSTOM_MESSAGES[call] = message


def _message(op: str, fault: int, position: int, value: int, bound: int, got: str, is_earlier: bool) -> str:
    """Return the message of a fault, the same as in a call that is not compiled."""
    call, _, rest = op.partition(" ")
    if call in _CUSTOM_MESSAGES:
        return _CUSTOM_MESSAGES[call](rest, value)
    error = fault_error(op, _FAULTS[fault], position, value, bound)
    return f"{type(error).__name__}: {with_notes(error.in_call(op, None, got, context=EARLIER if is_earlier else ''))}"


def _check(script: list[int], operands: list[list[int]], results: list[list[int]]) -> str:
    """Return what is wrong with a call, or "" if `lower` could have produced it for an op of its kernel.

    A compiled program may come from a file, and any program may name the handler, so calls are not trusted.
    """
    numbers, arrays = deque(script), deque(operands)
    try:
        kernel = _KERNEL_NAMES[_below(numbers.popleft(), len(_KERNEL_NAMES))]
        constants = [numbers.popleft() for _ in range(_below(numbers.popleft(), len(script)))]
        inputs: list[tuple[Aval, Any]] = []  # with the value of a host input
        for _ in range(_below(numbers.popleft(), len(script))):
            dtype, rank = CODE_NAME[_below(numbers.popleft(), len(CODE_NAME))], numbers.popleft()
            if rank == -1:
                inputs.append((Aval(dtype, tuple(arrays.popleft())), None))
                continue
            shape = tuple(_below(numbers.popleft(), len(script)) for _ in range(_below(rank, len(script))))
            values = [numbers.popleft() for _ in range(_below(prod(shape), len(script)))]
            if dtype not in ("int32", "int64") or any(not _LOWEST[dtype] <= v <= -1 - _LOWEST[dtype] for v in values):
                return "rowgrad: a size of a call does not fit its dtype"
            inputs.append((Aval(dtype, shape), tuple(values) if shape else values[0]))
        outputs = [Aval(CODE_NAME[_below(numbers.popleft(), len(CODE_NAME))], tuple(shape)) for shape in results]
    except IndexError:
        return "rowgrad: the script of a call is malformed"
    if numbers or arrays:
        return "rowgrad: a call has more operands or numbers than its script describes"
    for op in CATALOG.values():
        if op.kernel == kernel and _is_call_of(op, constants, inputs, outputs):
            return ""
    return f"rowgrad: a call does not fit {kernel}: its buffers, sizes or constants are not those of any op"


def _below(number: int, bound: int) -> int:
    if not 0 <= number < bound:
        raise IndexError(number)
    return number


def _is_call_of(op: Op, constants: list[int], inputs: list[tuple[Aval, Any]], outputs: list[Aval]) -> bool:
    own = len(op.constants)
    passed = constants[own:]
    if tuple(constants[:own]) != tuple(op.constants) or len(passed) != len(op.passed) or len(inputs) != len(op.inputs):
        return False
    if any(not 0 <= i < len(op.choices[k]) for k, i in zip(op.passed, passed, strict=True)):
        return False
    if any(arg.host != (value is not None) for arg, (_, value) in zip(op.inputs, inputs, strict=True)):
        return False
    attrs = {**op.attrs, **{k: op.choices[k][i] for k, i in zip(op.passed, passed, strict=True)}}
    avals = {arg.name: aval for arg, (aval, _) in zip(op.inputs, inputs, strict=True)}
    host = {arg.name: value for arg, (_, value) in zip(op.inputs, inputs, strict=True) if arg.host}
    try:
        return list(infer(op, avals, host, attrs)) == outputs
    except OpError:
        return False


set_xla_checker(_check)
set_xla_messages(_message)
jax.ffi.register_ffi_target(TARGET, xla_handler(), platform="cpu")
