"""The runner: `dispatch` hands a call with torch tensors in it to `call`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..check import infer
from ..errors import refuse
from ..spec import Op
from . import autograd, dense
from .tensors import Host, admit_tensors, aval_of


def call(op: Op, arguments: dict[str, Any], attrs: Mapping[str, Any], out: Any) -> tuple[Any, ...]:
    """Run an op on torch tensors."""
    if out is not None:
        raise refuse("out_unfit", argument=op.outputs[0].name, bound="absent for torch tensors", value="an array")
    if op.kernel is not None:
        return autograd.call(op, arguments, attrs)
    if not torch.compiler.is_compiling():
        arguments = admit_tensors(op, arguments)
        infer(op, {k: aval_of(v) for k, v in arguments.items()}, {}, attrs)
        arguments = {k: v.value if isinstance(v, Host) else v for k, v in arguments.items()}
    return dense.call(op, arguments, attrs)
