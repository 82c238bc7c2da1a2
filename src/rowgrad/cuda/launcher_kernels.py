"""The kernels that the launcher in C++ (`cpp/cuda`) puts calls together of. Does not need torch."""

from __future__ import annotations

from collections.abc import Iterable

from .._catalog.rules import RULES, RuleSpec
from .compile import cubin_of
from .kernel import COMPLEX, FLOATS, INTEGERS, KERNELS, Kernel

WIDE = ("4", "4", "4", "2")  # adjacent columns per lane, for the dtypes of FLOATS
WIDTH_OF = dict(zip(FLOATS, WIDE, strict=True))
UNITS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t", 16: "Block16"}


def load_kernel(architecture: str, name: str, variant: str) -> tuple[bytes, str, int]:
    """Return a kernel's machine code for an architecture, the name of its entry and its block size."""
    kernel = KERNELS[name]
    return cubin_of(kernel, kernel.variant_named(variant), architecture), kernel.entry, kernel.threads


# -- Ids sorted by row ------------------------------------------------------------------------------------------------

_ITEMS_AND_BLOCKS = [(4, 1), (8, 1), (16, 1), (16, 2)]  # items per thread, blocks per multiprocessor
_PASS_VARIANTS: dict[tuple[str, ...], int] = {
    (str(n), a, str(b)): b for n, b in _ITEMS_AND_BLOCKS for a in ("float", "double")
}
Kernel("sorting.cuh", "scan_ids", 512)
Kernel("sorting.cuh", "sort_pass", 512, _PASS_VARIANTS, _PASS_VARIANTS)
Kernel("sorting.cuh", "find_rows", 256, [("float",), ("double",)], 4)

# -- Sums of gradient rows by table row -------------------------------------------------------------------------------

_SUMS = [
    *((t, w, str(m)) for t, wide in WIDTH_OF.items() for w in ("1", wide)
      for m in ((0, 1, 3, 5, 7, 8, 9) if t in ("half", "bfloat16") else (0, 1, 3, 8, 9))),
    *((t, "1", "0") for t in (*INTEGERS, *COMPLEX)),
]  # fmt: skip


def resident_sums(variants: Iterable[tuple[str, str, str]]) -> dict[tuple[str, ...], int]:
    """Return the resident blocks of kernels like `sum_rows`: products and divisions of doubles need many registers."""

    def blocks(kind: str, width: str, mode: int) -> int:
        if kind == "double" and mode & 3:
            return 3 if width == "2" or mode & 2 else 4
        return 4 if kind in ("double", "complex<double>") or mode & 6 else 5

    return {(t, w, m): blocks(t, w, int(m)) for t, w, m in variants}


Kernel("segment_grad.cuh", "sum_rows", 128, _SUMS, resident_sums(_SUMS))
Kernel(
    "segment_grad.cuh", "join_runs", 128,
    [(t, w, r) for t, wide in WIDTH_OF.items() for w in ("1", wide)
     for r in (("false", "true") if t in ("half", "bfloat16") else ("false",))]
    + [(t, "1", "false") for t in (*INTEGERS, *COMPLEX)],
)  # fmt: skip
Kernel("row_ops.cuh", "pad_rows", 256, [(UNITS[n],) for n in (2, 4, 8)])
Kernel("row_ops.cuh", "pad_row_gradient", 256, [(UNITS[n],) for n in (2, 4, 8, 16)])

# -- Sums of bags -----------------------------------------------------------------------------------------------------

_FORWARD = [
    *((t, w) for t, wide in WIDTH_OF.items() for w in ("1", wide)),
    *((t, "1") for t in INTEGERS),
]
_RESIDENT = 7  # blocks per multiprocessor
Kernel("segment_forward.cuh", "sum_bags", 128, _FORWARD, _RESIDENT)
Kernel("segment_forward.cuh", "sum_offset_bags", 128, _FORWARD, _RESIDENT)

# -- Bags by offsets, rows, rejected calls ----------------------------------------------------------------------------

Kernel("bag_ids.cuh", "check_offsets", 256)
Kernel("bag_ids.cuh", "segment_ids_of_offsets", 256)
Kernel("gather_rows.cuh", "check_gather", 256)
Kernel("gather_rows.cuh", "gather_rows", 256, [(unit,) for unit in UNITS.values()])
Kernel("poison.cuh", "poison_results", 256, [(UNITS[n],) for n in (1, 2, 4, 8)])
Kernel("row_ops.cuh", "check_pairs", 256)
Kernel("row_ops.cuh", "row_dots", 256, [(t,) for t in FLOATS])
Kernel("row_ops.cuh", "row_positions", 256)
Kernel("elementwise.cuh", "roots", 256, [(t,) for t in FLOATS])

# -- Weighted bags ----------------------------------------------------------------------------------------------------

# Columns per thread and iteration if rows and addresses are aligned: sixteen bytes, fewer for small integers.
WIDTH = {
    "half": 8, "bfloat16": 8, "float": 4, "double": 2, "complex<float>": 2, "complex<double>": 1,
    "uint8_t": 4, "uint16_t": 4, "uint32_t": 4, "uint64_t": 2,
}  # fmt: skip


def column_variants(types: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the kernel variants of these types: one column at a time, and several."""
    return [(t, str(v)) for t in types for v in sorted({1, WIDTH[t]})]


_CONVERSIONS = [(w, a) for w in FLOATS for a in ("float", "double")]
CHECK_WEIGHTED = Kernel("weighted_segment.cuh", "check_weighted", 256)
Kernel("weighted_segment.cuh", "convert_weights", 256, _CONVERSIONS)
Kernel("weighted_segment.cuh", "total_weights", 256, _CONVERSIONS)
_WEIGHTED = [(t, w, of_weights) for t, wide in WIDTH_OF.items() for w in ("1", wide) for of_weights in FLOATS]
Kernel("weighted_bags.cuh", "weighted_bags", 128, _WEIGHTED, 6)
Kernel("weighted_bags.cuh", "rest_of_weighted_bags", 512, _WEIGHTED)
Kernel("weighted_segment.cuh", "weighted_rows", 256, column_variants(FLOATS))
Kernel("weighted_grad.cuh", "weigh_entries", 256, _CONVERSIONS)

# -- Optimizer steps --------------------------------------------------------------------------------------------------

_WIDEST = {"half": 8, "bfloat16": 8, "float": 4, "double": 2}  # columns in sixteen bytes


def rule_variants(rules: Iterable[RuleSpec]) -> list[tuple[str, ...]]:
    """Return the kernel variants of these rules: each dtype, with one column or sixteen bytes of columns at a time."""
    return [(t, rule.class_name, str(width)) for rule in rules for t in FLOATS for width in (1, _WIDEST[t])]


Kernel("updates.cuh", "check_row_ids", 256)
Kernel("updates.cuh", "update_rows", 256, rule_variants(r for r in RULES.values() if r.per_row))
Kernel(
    "row_steps.cuh", "step_rows", 128,
    [(t, r.class_name, w) for t, wide in WIDTH_OF.items() for r in RULES.values() for w in ("1", wide)],
    4,  # each block loops over rows and prefetches
)  # fmt: skip
Kernel("updates.cuh", "mark_rows", 256)
Kernel("step_numbers.cuh", "read_numbers", 128)
Kernel("updates.cuh", "fade_rows", 256, rule_variants(r for r in RULES.values() if r.fades))
