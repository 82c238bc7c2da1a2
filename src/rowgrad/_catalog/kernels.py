"""Records of the kernels, declared beside the ops that use them. Every runner reads these records.

`tests/test_completeness.py` walks them and names the file where a piece is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from .enums import Order, Reduction, Rounding

# The numbers a kernel reads besides its arrays, by name: members of an enum, or flags (None).
PARAMETERS: dict[str, type[IntEnum] | None] = {
    "reduction": Reduction,
    "order": Order,
    "accumulate": Rounding,
    "sized": None,  # the number of output rows is an argument
    "unique": None,  # the output has only the rows that ids name
    "ragged": None,
    "include_last_offset": None,
    "positions": None,
}


class Stacking(NamedTuple):
    """How vmap stacks an argument or output of a batch of calls. Letters are kinds of rows: V for rows of a table."""

    rows: str  # the kind of its rows; for a size, the kind of rows that it counts
    into: str  # the kind of rows that its values refer to; "#": coordinates, to which the item's number is prepended
    shared: bool  # only looked up, so that one shared by all items need not be repeated


class Layout(NamedTuple):
    """The stacking of every argument and output of a kernel, for all ops that use it."""

    arguments: Mapping[str, Stacking]
    outputs: tuple[Stacking, ...]


class MeshDims(NamedTuple):
    """The first dimensions of a kernel's large arrays, by which JAX splits a call over a mesh."""

    arguments: Mapping[str, str]
    result: str
    splits_ids: bool = False  # ids and their results may stay split
    gathers_ids: bool = False  # split ids are gathered, with a warning


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel of the compiled core.

    Args:
        name: Its name in C++ (`cpp/kernels/kernels.cpp`) and in every runner's table.
        parameters: The numbers it reads, in its order: names of `PARAMETERS`.
        vmap: Its rule in `rowgrad._runtime.vmap`; empty if a batch of calls cannot be one call.
        no_vmap: What to do instead, if it has no rule.
        shared_ids: Why all items of a batch must share their ids; empty if they need not.
        layout: How rows of arguments and outputs are stacked; see `parse_layout`.
        columnwise: Whether columns do not depend on each other, not even in the order of their sums.
        data_sized: Whether the number of output rows depends on data: always, or if parameters have these values.
        writes_named_rows: Whether it writes only the rows that ids name, so that the output can be a GradBuffer.
        mesh: How JAX splits it over a mesh; None for kernels whose operands are small.
        devices: Where it runs.
        fuzz: Its target in `cpp/fuzz`.
    """

    name: str
    parameters: tuple[str, ...] = ()
    vmap: str = ""
    no_vmap: str = "call it before vmap"
    shared_ids: str = ""
    layout: Layout | None = None
    columnwise: bool = False
    data_sized: bool | Mapping[str, int] = False
    writes_named_rows: bool = False
    mesh: MeshDims | None = None
    devices: tuple[str, ...] = ("cpu", "cuda")
    fuzz: str = ""

    def is_data_sized(self, constants: tuple[int, ...]) -> bool:
        """Return whether the output sizes of an op with these constants depend on data."""
        if isinstance(self.data_sized, bool):
            return self.data_sized
        values = dict(zip(self.parameters, constants, strict=False))
        return all(values[name] == value for name, value in self.data_sized.items())


KERNELS: dict[str, KernelSpec] = {}

# Kernels that update tables in place (`rowgrad.optim`), and the numbers they read besides those of a step.
_STEP = ("rule", "rows", "lazy", "stochastic_rounding", "seed", "step")
_BAGS = ("reduction", "weighted", "accumulate", "order")
UPDATE_KERNELS = {
    "apply_rows": _STEP,
    "apply_all": _STEP,
    "apply_bags": (*_STEP, *_BAGS),
    "apply_planned": (*_STEP, *_BAGS),
}


def kernel(name: str, *, layout: str = "", **fields: object) -> KernelSpec:
    """Declare a kernel.

    Raises:
        ValueError: If it is declared twice, or has a parameter that is not in `PARAMETERS`.
    """
    if name in KERNELS:
        raise ValueError(f"kernel {name} is declared twice")
    spec = KernelSpec(name, layout=parse_layout(layout) if layout else None, **fields)  # type: ignore[arg-type]
    unknown = [p for p in spec.parameters if p not in PARAMETERS]
    if unknown:
        raise ValueError(f"kernel {name}: unknown parameters {unknown}; add them to PARAMETERS")
    KERNELS[name] = spec
    return spec


_STACKING = re.compile(r"([\w.]+)(\??)(?:>([\w#]+))?")


def parse_layout(text: str) -> Layout:
    """Parse a layout such as `data: V?, indices: n>V -> S`.

    Here data has rows of kind V (`?`: an array that all items share is not repeated), indices has n values that refer
    to rows of kind V, and the output has rows of kind S. A dot means that an argument is not stacked.
    """

    def stacking(part: str) -> Stacking:
        match = _STACKING.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"invalid stacking: {part!r}")
        return Stacking(match[1], match[3] or "", bool(match[2]))

    arguments, outputs = text.split("->")
    pairs = (part.split(":") for part in arguments.split(","))
    return Layout({name.strip(): stacking(s) for name, s in pairs}, tuple(map(stacking, outputs.split(","))))
