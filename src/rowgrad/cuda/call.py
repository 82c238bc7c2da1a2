"""One call of a kernel op on a CUDA device, and the table of functions that run kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from .._catalog.enums import Fault
from .._catalog.shapes import check_elements
from .._catalog.spec import Aval, Op
from .._runtime.results import too_large
from ..errors import UnimplementedError, make_error
from .device import CODE, Device

# The names of dtypes in CUDA sources.
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
    """Validated arguments, and the shapes and dtypes of the outputs.

    `inputs` are in the order of the signature: contiguous tensors on this device, and ints or tuples of ints for host
    inputs. `attrs` are the record's constants, then the call's attributes. Data-dependent sizes are None in `outputs`.
    """

    op: Op
    inputs: Sequence[Any]
    attrs: Sequence[int]
    outputs: Sequence[tuple[tuple[int | None, ...], torch.dtype]]
    device: Device
    fault: int  # the address of this call's slot in the ledger
    captured: bool = False  # in a CUDA graph: the call must not synchronize
    keep_alive: list[Tensor] = field(default_factory=list)  # tensors that launches refer to by address only

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Allocate a workspace or a result."""
        return self.device.empty(shape, dtype)

    def output(self, at: int, rows: int | None = None) -> Tensor:
        """Allocate an output; `rows` replaces a data-dependent size."""
        dims, dtype = self.outputs[at]
        shape = tuple(rows if d is None else d for d in dims)
        check_elements(shape)
        try:
            return self.device.empty(shape, dtype)  # type: ignore[arg-type]
        except RuntimeError as error:  # torch is out of memory, or the size is not valid
            if str(error).startswith("CUDA error"):  # reported for any earlier kernel
                raise
            raise too_large(Aval(str(dtype).removeprefix("torch."), shape)) from None

    def queue(
        self, *, inputs: Sequence[Any] | None = None, attrs: Sequence[int] | None = None, rows: int | None = None,
        report: tuple[int, int, int] | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Allocate the outputs and queue the op, which the launcher puts together (`cpp/cuda/ops.cpp`).

        By default with the inputs, attributes and fault slot of this call; `rows` replaces a data-dependent size.
        """
        device, outputs = self.device, tuple(self.output(i, rows) for i in range(len(self.outputs)))
        memory = Workspaces(device)
        fault = device.launcher.run_op(
            str(self.op.kernel), device.stream(), report or self.report(), list(self.attrs if attrs is None else attrs),
            [_argument(value) for value in (self.inputs if inputs is None else inputs)], list(map(_argument, outputs)),
            memory.allocate,
        )  # fmt: skip
        if fault is not None:
            code, position, value, bound = fault
            raise make_error(
                Fault(code).name, has=self.op.input_names, position=position, value=value, bound=bound
            )  # fmt: skip
        return outputs

    def checks(self) -> Tensor:
        """Allocate the state of this call's checks, zeroed."""
        tensor = self.device.empty((2,), torch.int32)
        self.device.zero(tensor)
        return tensor

    def report_fields(self) -> dict[str, int]:
        """Return the struct fields with the addresses to which a checking kernel reports faults."""
        return {"fault": self.fault, "alarm": self.device.ledger.alarm}

    def report(self) -> tuple[int, int, int]:
        """Return the addresses to which the launcher's kernels report: slot, alarm, check state of the slot."""
        ledger = self.device.ledger
        return self.fault, ledger.alarm, ledger.checks_of(self.fault)

    def number(self, tensor: Tensor) -> int:
        """Copy one number to the host: synchronize, and raise a reported fault."""
        if self.captured:
            raise UnimplementedError("a CUDA graph cannot capture this call: the size of its output depends on data")
        value = int(tensor.item())
        self.device.ledger.raise_reported(self.fault)
        return value


class Workspaces:
    """Memory that the launcher requests piece by piece."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.tensors: list[Tensor] = []

    def allocate(self, size: int) -> int:
        """Return the address of new memory."""
        self.tensors.append(self.device.workspace(size))
        return int(self.tensors[-1].data_ptr())


def _argument(value: Any) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Describe a tensor or host number for the launcher."""
    if isinstance(value, Tensor):
        return value.data_ptr(), CODE[value.dtype], tuple(value.shape), ()
    return 0, 0, (), (value,)


def runs(kernel: str) -> Callable[[Runner], Runner]:
    """Register a function as the one that runs a kernel."""

    def enter(runner: Runner) -> Runner:
        assert kernel not in RUNNERS, kernel
        RUNNERS[kernel] = runner
        return runner

    return enter


def row_size(tensor: Tensor) -> int:
    """Return the number of elements of one row."""
    return prod(tensor.shape[1:])


def is_wide(tensor: Tensor) -> int:
    """Return 1 for int64 ids, else 0."""
    return int(tensor.dtype == torch.int64)


def blocks_for(items: int, per_block: int) -> int:
    """Return the number of blocks of `per_block` items that cover `items`."""
    return -(-items // per_block)
