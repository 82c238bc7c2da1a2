"""The CUDA kernels by name: source file, struct fields and template variants."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any

from .._catalog.enums import Fault, Order, Reduction, Rounding
from .._catalog.rules import NUMBERS, RULES

if TYPE_CHECKING:
    from .device import Device

SOURCE = Path(__file__).with_name("source")
ENUMS = "enums.cuh"
FLOATS = ("half", "bfloat16", "float", "double")
INTEGERS = ("int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t")
COMPLEX = ("complex<float>", "complex<double>")
ALL_NUMBERS = (*FLOATS, *INTEGERS, *COMPLEX)
# Fields that several kernels have, by what stands for them in a struct.
_GROUPS = {
    # The step of a table; `live`: numbers that are in device memory, or null.
    "UPDATE_FIELDS": (
        "void* table", "void* slot0", "void* slot1", "int64_t cols", *(f"double {name}" for name in NUMBERS),
        "int64_t random", "int64_t seed", "int64_t step", "const LiveNumbers* live", "int64_t lanes",
    ),
    # The sums of sorted entries.
    "SUM_FIELDS": (
        "void* out", "int64_t cols", "int64_t lanes", "const uint32_t* ids", "const uint32_t* segments",
        "const void* scales", "const void* divisors", "const uint32_t* heads", "const uint32_t* firsts",
        "const uint32_t* begins", "int64_t size", "int64_t run_shift", "int64_t unique", "void* partials",
        "Left* lefts", "uint32_t* left_count", "const Checks* checks",
    ),
}  # fmt: skip
KERNELS: dict[str, Kernel] = {}
Blocks = int | Mapping[tuple[str, ...], int]


class Kernel:
    """One function in `source/`: `template <variants> void name(const Name& params)`.

    `threads` is the block size, `variants` are the template arguments it is compiled for, and `blocks` is the minimum
    number of resident blocks per multiprocessor, for all variants or for each.
    """

    def __init__(
        self, file: str, name: str, threads: int, variants: Iterable[tuple[str, ...]] = ((),), blocks: Blocks = 1
    ) -> None:
        self.file = file
        self.name = name
        self.entry = f"rowgrad_{name}"  # shown by profilers
        self.threads = threads
        self.blocks = blocks
        self.variants = tuple(variants)
        self._named = {", ".join(variant): variant for variant in self.variants}
        self.struct = "".join(part.capitalize() for part in name.split("_"))
        fields = _fields(file, self.struct)
        self.fields = tuple(fields)
        self._packing = Struct(
            "".join(f"{size_of(kind)}{'d' if kind == 'double' else 'q'}" for kind in fields.values())
        )
        assert name not in KERNELS, name
        KERNELS[name] = self

    def launch(
        self,
        device: Device,
        grid: int | tuple[int, int],
        variant: tuple[str, ...] = (),
        shared: int = 0,
        /,
        **fields: Any,
    ) -> None:
        """Queue `grid` blocks with `shared` bytes of shared memory each; `fields` are all fields of the struct."""
        blocks = (grid, 1) if isinstance(grid, int) else grid
        if blocks[0] > 0 and blocks[1] > 0:
            assert len(fields) == len(self.fields), fields.keys() ^ set(self.fields)
            device.launch(self, variant, blocks, shared, self._packing.pack(*[fields[name] for name in self.fields]))

    def blocks_of(self, variant: tuple[str, ...]) -> int:
        """Return the minimum number of resident blocks of a variant per multiprocessor."""
        return self.blocks if isinstance(self.blocks, int) else self.blocks[variant]

    def variant_named(self, text: str) -> tuple[str, ...]:
        """Return the variant whose template arguments, separated by commas, are this text."""
        return self._named[text]

    def signature(self, variant: tuple[str, ...]) -> str:
        """Return the function name with its template arguments."""
        return f"{self.name}<{', '.join(variant)}>" if variant else self.name


@cache
def text_of(file: str) -> str:
    """Return a file of `source/` with groups of fields expanded; `enums.cuh` is generated from the records."""
    if file == ENUMS:
        return _enums()
    text = (SOURCE / file).read_text(encoding="utf-8")
    for group, fields in _GROUPS.items():
        text = text.replace(f"  {group};\n", "".join(f"  {field};\n" for field in fields))
    return text


@cache
def headers() -> dict[str, str]:
    """Return all files that a kernel may include, by name."""
    return {name: text_of(name) for name in (*sorted(p.name for p in SOURCE.glob("*.cuh")), ENUMS)}


def _enums() -> str:
    """Return the source of the shared enums, the constants of each rule and the numbers of a step."""

    def enum(cls: type[IntEnum]) -> str:
        return f"enum class {cls.__name__} : int64_t {{ {', '.join(f'{m.name} = {int(m)}' for m in cls)} }};\n"

    facts = "".join(
        f"struct {rule.class_name}Facts {{\n"
        f"  static constexpr int slots = {0 if rule.per_row else len(rule.slots)};  // of columns\n"
        f"  static constexpr bool per_row = {_truth(rule.per_row)}, fades = {_truth(rule.fades)};\n"
        f"  static constexpr bool decays_in_gradient = {_truth(rule.decay == 'coupled')};\n}};\n"
        for rule in RULES.values()
    )
    codes = ", ".join(f"fault_{fault.name} = {int(fault)}" for fault in Fault)
    numbers = " ".join(f"X({name})" for name in NUMBERS)
    return (
        f"#pragma once\n#define EACH_STEP_NUMBER(X) {numbers}\nnamespace rowgrad {{\n"
        f"{enum(Reduction)}{enum(Order)}{enum(Rounding)}enum FaultCode {{ {codes} }};\n{facts}}}\n"
    )


def _truth(value: bool) -> str:
    return str(value).lower()


_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^  ([\w:<>, ]+?[\w>]\*?(?: const)?\*?) ?\b(\w+)(\[\d+\])?;", re.MULTILINE)


@cache
def _structs(file: str) -> dict[str, dict[str, str]]:
    return {
        m[1]: {f[2]: f[1].strip() + (f[3] or "") for f in _FIELD.finditer(m[2])}
        for m in _STRUCT.finditer(text_of(file))
    }


def kernel_structs(file: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the struct of each kernel of a file, and the types of its fields by name."""
    names = {re.sub(r"(?<!^)(?=[A-Z])", "_", struct).lower(): struct for struct in _structs(file)}
    return {
        name: (struct, _fields(file, struct))
        for name, struct in names.items()
        if re.search(rf"^DEVICE void {name}\(const {struct}& p\) {{", text_of(file), re.MULTILINE)
    }


def entry_structs(file: str) -> dict[str, dict[str, str]]:
    """Return the fields of the structs that the launcher writes to device memory: those whose name ends in Entry."""
    return {struct: _fields(file, struct) for struct in _structs(file) if struct.endswith("Entry")}


def size_of(kind: str) -> int:
    """Return the number of 8-byte words of a field of this type."""
    return int(kind.partition("[")[2].rstrip("]") or 1)


def _fields(file: str, struct: str) -> dict[str, str]:
    """Return the fields of a struct and their types, each 8 bytes: a pointer, int64_t, uint64_t or double.

    The last field may be an array of int64_t.
    """
    fields = _structs(file)[struct]
    for name, kind in fields.items():
        is_word = kind.endswith("*") or kind.partition("[")[0] in ("int64_t", "uint64_t", "double")
        assert is_word, (struct, name, kind)
    return fields
