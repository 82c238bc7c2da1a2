"""One call of a kernel op on a device, and the table of who runs which kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from .._catalog.shapes import check_elements
from .._catalog.spec import Aval, Op
from .._runtime.results import too_large
from ..errors import UnimplementedError
from .device import Device

# The catalogue's dtypes as the kernels' texts name them.
TYPE = {
    torch.float16: "half", torch.bfloat16: "bfloat16", torch.float32: "float", torch.float64: "double",
    torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int32_t", torch.int64: "int64_t",
    torch.uint8: "uint8_t", torch.uint16: "uint16_t", torch.uint32: "uint32_t", torch.uint64: "uint64_t",
    torch.complex64: "complex<float>", torch.complex128: "complex<double>", torch.bool: "uint8_t",
}  # fmt: skip
Runner = Callable[["Call"], tuple[Tensor, ...]]
RUNNERS: dict[str, Runner] = {}


@dataclass(slots=True)
class Call:
    """Arguments that fit the record, and what the outputs will be.

    `inputs` are in the order of the signature: contiguous tensors of this device, and ints or tuples of ints for host
    inputs. `attrs` are the record's constants, then the call's attributes. Sizes that data decide are None in
    `outputs`.
    """

    op: Op
    inputs: Sequence[Any]
    attrs: Sequence[int]
    outputs: Sequence[tuple[tuple[int | None, ...], torch.dtype]]
    device: Device
    fault: int  # the address of this call's slot
    captured: bool = False  # in a CUDA graph, so nothing may wait
    keeps: list[Tensor] = field(default_factory=list)  # memory whose address alone is handed on, until all is queued

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Memory for a workspace or a result."""
        return self.device.empty(shape, dtype)

    def output(self, at: int, rows: int | None = None) -> Tensor:
        """Memory for an output; `rows` stands in for the size that data decide."""
        given, dtype = self.outputs[at]
        shape = tuple(rows if d is None else d for d in given)
        check_elements(shape)
        try:
            return self.device.empty(shape, dtype)  # type: ignore[arg-type]
        except RuntimeError as error:  # torch's memory is full, or the size is none
            if str(error).startswith("CUDA error"):  # of an earlier kernel, whoever's it was
                raise
            raise too_large(Aval(str(dtype).removeprefix("torch."), shape)) from None

    def checks(self) -> Tensor:
        """The state of this call's checks, zeros."""
        tensor = self.device.empty((2,), torch.int32)
        self.device.zero(tensor)
        return tensor

    def report_fields(self) -> dict[str, int]:
        """Return the struct fields with the addresses to which a checking kernel reports faults."""
        return {"fault": self.fault, "alarm": self.device.ledger.alarm}

    def report_and_check_fields(self) -> dict[str, int]:
        """Return `report_fields` and the check state of a kernel that shares it with no other and resets it itself."""
        return {"checks": self.device.ledger.checks_of(self.fault, self.device.empty), **self.report_fields()}

    def number(self, tensor: Tensor) -> int:
        """One number off the device; waits for everything before it, and raises what was found there."""
        if self.captured:
            raise UnimplementedError("what comes out depends on data, so this call cannot be captured in a CUDA graph")
        value = int(tensor.item())
        self.device.ledger.raise_reported(self.fault)
        return value


def runs(kernel: str) -> Callable[[Runner], Runner]:
    """Enter a function into the table as the one that runs a kernel."""

    def enter(runner: Runner) -> Runner:
        assert kernel not in RUNNERS, kernel
        RUNNERS[kernel] = runner
        return runner

    return enter


def row_size(tensor: Tensor) -> int:
    """Elements of one row."""
    return prod(tensor.shape[1:])


def is_wide(tensor: Tensor) -> int:
    """Whether ids are of 64 bits."""
    return int(tensor.dtype == torch.int64)


def blocks_for(items: int, per_block: int) -> int:
    """How many blocks of so many items."""
    return -(-items // per_block)
