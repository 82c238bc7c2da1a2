"""A gradient that shards sum separately, with the scale of each bag, has the bits of the whole one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rowgrad.raw_ops import OPS
from rowgrad.sharding import partition

ROWS, BAGS, IDS, COLUMNS, OWNERS = 11, 40, 600, 5, 3


def batch(dtype: Any) -> tuple[Any, ...]:
    rng = np.random.default_rng(5)
    segments = np.sort(rng.integers(0, BAGS, IDS))
    ids = rng.integers(0, ROWS - 1, IDS)  # 60 ids per row: runs of the blocked order
    ids[:200] = 4
    grad = rng.standard_normal((BAGS, COLUMNS))
    grad[3] *= 1e-39  # subnormal in 32 bits
    weights = rng.standard_normal(IDS) * 0.01
    weights[segments == 7] = 0  # a divisor of 0
    bag = np.flatnonzero(segments == 3)
    ids[bag[0]] = ROWS - 1  # only this bag contributes to its gradient
    weights[bag] = np.where(np.arange(len(bag)) % 2, -1, 1)
    weights[bag[-1]] = 1.001 if len(bag) % 2 == 0 else 0.001  # a small divisor: the quotient would not be subnormal
    return grad.astype(dtype), ids, segments, weights


@pytest.mark.parametrize("order", ["sequential", "blocked"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
def test_owners_together_return_the_bits_of_one(kind: str, weighted: bool, dtype: Any, order: str) -> None:
    grad, ids, segments, weights = batch(dtype)
    wide = np.float64 if dtype == np.float64 else np.float32
    w = weights.astype(wide) if weighted else None
    factors = divisors = None
    if weighted:
        whole = OPS[f"WeightedSparseSegment{kind}Grad"](grad, ids, segments, w, ROWS, order=order)
        divisors = partition.weighted_scales(OPS, kind, segments, w, BAGS)
    else:
        whole = OPS[f"SparseSegment{kind}Grad"](grad, ids, segments, ROWS, order=order)
        each = partition.plain_scales(OPS, kind, segments, np.ones((BAGS, 1), wide))
        if each is not None:
            factors = np.zeros(BAGS, wide)
            factors[segments] = each[:, 0]
    for owner in range(OWNERS):
        mine = ids % OWNERS == owner
        bags, compact = np.unique(segments[mine], return_inverse=True)  # an owner only knows its own bags
        rows = len(range(owner, ROWS, OWNERS))
        scales: dict[str, Any] = {"factors": factors, "divisors": divisors}
        scales = {name: None if value is None else value[bags] for name, value in scales.items()}
        call = (OPS, grad[bags], ids[mine] // OWNERS, compact, rows)
        scales |= {"weights": None if w is None else w[mine], "order": order}
        part = partition.dense_gradient(*call, **scales)
        assert part.dtype == dtype
        assert part.tobytes() == whole[owner::OWNERS].tobytes()
        values, found = partition.unique_gradient(*call, **scales)
        assert found.tolist() == sorted(set((ids[mine] // OWNERS).tolist()))
        assert values.tobytes() == part[found].tobytes()
        plan = OPS["RowPlan"](*call[2:], len(bags))
        assert partition.dense_gradient(*call, **scales, plan=plan).tobytes() == part.tobytes()
