"""Lower a kernel call on CPU to XLA's custom call of the handler in the extension."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from .._catalog.spec import CATALOG, Aval, Op
from .._core import faults, kernels, set_xla_checker, set_xla_words, xla_handler
from .._runtime.numpy_runner import CODE, CODE_NAME, KERNEL, constants_of
from .._runtime.validation import infer
from ..errors import OpError, make_error, with_notes
from .arrays import Host

_TARGET = "rowgrad_kernel"
_FAULTS = faults()
_KERNEL_NAMES = [name for name, _ in kernels()]
_LEAST = {"int32": -(1 << 31), "int64": -(1 << 63)}
_SPEAKERS: dict[str, Callable[[str, int], str]] = {}


def lower(
    context: Any,
    operands: Sequence[Any],
    op: Op,
    avals: Mapping[str, Aval],
    host: Mapping[str, Host],
    attrs: Mapping[str, Any],
    outputs: Sequence[Aval],
) -> Any:
    """Return the custom call, with the attributes that `cpp/bind/xla.cpp` reads."""
    constants = constants_of(op, attrs)
    script = [KERNEL[str(op.kernel)], len(constants), *constants, len(op.inputs)]
    for arg in op.inputs:
        script.append(CODE[avals[arg.name].dtype])
        given = host.get(arg.name)
        if given is None:
            script.append(-1)
        else:
            values = given.value if isinstance(given.value, tuple) else (given.value,)
            script += [len(given.shape), *given.shape, *values]
    script += [CODE[o.dtype] for o in outputs]
    got = ", ".join(f"{name}={host[name].value if name in host else aval}" for name, aval in avals.items())
    call = jax.ffi.ffi_lowering(_TARGET)
    return call(context, *operands, call=np.array(script, np.int64), got=got, op=op.name)


def speak_for(call: str, words: Callable[[str, int], str]) -> None:
    """Register the message of faults in calls named `call REST`: `words(REST, value)`."""
    _SPEAKERS[call] = words


def _words(op: str, fault: int, position: int, value: int, bound: int, got: str) -> str:
    """Return the message of a fault, the same as in a call that is not compiled."""
    call, _, rest = op.partition(" ")
    if call in _SPEAKERS:
        return _SPEAKERS[call](rest, value)
    inputs = CATALOG[op].input_names
    error: OpError = make_error(_FAULTS[fault], has=inputs, position=position, value=value, bound=bound)
    return f"{type(error).__name__}: {with_notes(error.in_call(op, None, got))}"


def _check(script: list[int], given: list[list[int]], results: list[list[int]]) -> str:
    """Return what is wrong with a call, or "".

    A compiled program may come from a file, and anybody may name the handler: a call is good if it is one that `lower`
    could have made, for any op of its kernel.
    """
    words, arrays = deque(script), deque(given)
    try:
        kernel = _KERNEL_NAMES[_below(words.popleft(), len(_KERNEL_NAMES))]
        constants = [words.popleft() for _ in range(_below(words.popleft(), len(script)))]
        inputs: list[tuple[Aval, Any]] = []  # with the value of a host input
        for _ in range(_below(words.popleft(), len(script))):
            dtype, rank = CODE_NAME[_below(words.popleft(), len(CODE_NAME))], words.popleft()
            if rank == -1:
                inputs.append((Aval(dtype, tuple(arrays.popleft())), None))
                continue
            shape = tuple(_below(words.popleft(), len(script)) for _ in range(_below(rank, len(script))))
            values = [words.popleft() for _ in range(_below(prod(shape), len(script)))]
            if dtype not in ("int32", "int64") or any(not _LEAST[dtype] <= v <= -1 - _LEAST[dtype] for v in values):
                return "rowgrad: a size of a call does not fit its dtype"
            inputs.append((Aval(dtype, shape), tuple(values) if shape else values[0]))
        outputs = [Aval(CODE_NAME[_below(words.popleft(), len(CODE_NAME))], tuple(shape)) for shape in results]
    except IndexError:
        return "rowgrad: the script of a call is malformed"
    if words or arrays:
        return "rowgrad: a call has more than its script says"
    for op in CATALOG.values():
        if op.kernel == kernel and _is_call_of(op, constants, inputs, outputs):
            return ""
    return f"rowgrad: a call does not fit {kernel}: its buffers, sizes or constants are not those of any op"


def _below(word: int, bound: int) -> int:
    if not 0 <= word < bound:
        raise IndexError(word)
    return word


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
set_xla_words(_words)
jax.ffi.register_ffi_target(_TARGET, xla_handler(), platform="cpu")
