"""XLA's code for a call of a compiled kernel on CPU: a custom call of the one handler in the extension."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .._core import faults, set_xla_words, xla_handler
from ..errors import OpError, refuse
from ..native import CODE, KERNEL, constants_of
from ..spec import CATALOG, Aval, Op
from .arrays import Host

_TARGET = "rowgrad_kernel"
_FAULTS = faults()
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
    """The custom call, in the terms `cpp/bind/xla.cpp` reads."""
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
    """Calls named `call REST` say what they found by `words(REST, the value found)`."""
    _SPEAKERS[call] = words


def _words(op: str, fault: int, position: int, value: int, bound: int, got: str) -> str:
    """What a kernel found, in the words of a call that is not compiled."""
    call, _, rest = op.partition(" ")
    if call in _SPEAKERS:
        return _SPEAKERS[call](rest, value)
    inputs = CATALOG[op].input_names
    error: OpError = refuse(_FAULTS[fault], has=inputs, position=position, value=value, bound=bound)
    return f"{type(error).__name__}: {error.in_call(op, None, got)}"


set_xla_words(_words)
jax.ffi.register_ffi_target(_TARGET, xla_handler(), platform="cpu")
