"""The two orders of addition: where they differ, and that the tree is the documented one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits


def tree(terms: np.ndarray) -> Any:
    """Sum in docs/reference/orders.md's blocked order: runs of 64 left to right, then their sums likewise."""
    while len(terms) > 1:
        runs = [terms[k : k + 64] for k in range(0, len(terms), 64)]
        terms = np.array([np.cumsum(run, dtype=run.dtype)[-1] for run in runs], terms.dtype)
    return terms[0]


def hot_row(n: int, order: str, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Return n terms, and their sum as the gradient of a table with one row."""
    terms = (np.random.default_rng(n).standard_normal(n) * 1000).astype(dtype)
    ids = np.zeros(n, np.int32)
    return terms, rg.raw_ops.SparseSegmentSumGrad(terms[:, None], ids, np.arange(n, dtype=np.int32), 1, order=order)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 129, 4095, 4096, 4097, 262_144, 262_145])
def test_blocked_order_is_the_documented_tree(n: int) -> None:
    terms, blocked = hot_row(n, "blocked")
    assert blocked[0, 0] == tree(terms)
    _, sequential = hot_row(n, "sequential")
    assert sequential[0, 0] == np.cumsum(terms, dtype=np.float32)[-1]


def test_orders_agree_up_to_64_ids() -> None:
    for n in range(1, 65):
        assert same_bits(hot_row(n, "blocked")[1], hot_row(n, "sequential")[1])
    assert hot_row(4000, "blocked")[1] != hot_row(4000, "sequential")[1]


def test_16_bit_sums_are_rounded_once() -> None:
    _, blocked = hot_row(5000, "blocked", np.float16)
    terms = hot_row(5000, "blocked", np.float16)[0].astype(np.float32)
    assert blocked[0, 0] == np.float16(tree(terms))


@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
def test_orders_do_not_depend_on_threads(kind: str) -> None:
    rng = np.random.default_rng(5)
    ids = np.where(rng.random(50_000) < 0.5, 7, rng.integers(0, 300, 50_000)).astype(np.int32)
    segments = np.sort(rng.integers(0, 2000, 50_000)).astype(np.int32)
    grad = rng.standard_normal((2000, 3)).astype(np.float32)
    results = []
    for threads in (1, 2, 3, 8):
        rg.set_num_threads(threads)
        results.append(rg.raw_ops.OPS[f"SparseSegment{kind}Grad"](grad, ids, segments, 300, order="blocked"))
        rows = rg.raw_ops.OPS[f"SparseSegment{kind}GradV2"](grad, ids, segments, 300, order="blocked")
        assert same_bits(rows.output, results[-1][rows.sorted_unique_indices])
    assert all(same_bits(r, results[0]) for r in results)


def test_unknown_orders_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"order.*'sequential', 'blocked'"):
        hot_row(3, "pairwise")
