"""The kernels of many tables at once, which `cpp/cuda/features.cpp` launches: lookups, sums and steps."""

from __future__ import annotations

from .._catalog.rules import RULES
from .kernel import FLOATS, Kernel
from .launcher_kernels import UNITS, WIDE, resident_sums

_COLUMNS = [(t, w) for t, wide in zip(FLOATS, WIDE, strict=True) for w in ("1", wide)]
_SUMS = [(t, w, m) for t, w in _COLUMNS for m in ("1", "9")]
Kernel("feature_bags.cuh", "put_words", 128)
Kernel(
    "feature_bags.cuh", "sum_feature_bags", 128,
    [(t, w, block) for block in ("BlockOfBags", "SelectedBags") for t, w in _COLUMNS], 7,
)  # fmt: skip
Kernel("table_steps.cuh", "sum_feature_rows", 128, _SUMS, resident_sums(_SUMS))
Kernel("table_bags.cuh", "stack_table_bags", 256)
Kernel("table_rows.cuh", "find_tables", 128)
for _name in ("sum_table_rows", "sum_stack_rows"):
    _variants = [(t, w, "1") for t, w in _COLUMNS]
    Kernel("table_rows.cuh", _name, 128, _variants, resident_sums(_variants))
Kernel("table_rows.cuh", "pad_table_gradients", 256, [(UNITS[n],) for n in (2, 4, 8, 16)])
Kernel("table_rows.cuh", "check_table_lists", 256)
Kernel(
    "table_rows.cuh", "step_table_lists", 128, [(t, r.class_name, w) for r in RULES.values() for t, w in _COLUMNS], 4
)
Kernel(
    "table_steps.cuh", "step_table_rows", 128, [(t, r.class_name, w) for r in RULES.values() for t, w in _COLUMNS], 4
)
