"""Valid calls to corrupt, and the allowed outcomes; shared by the tests that corrupt arguments."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hostile_runners import Rejection

from golden_cases import same_bits
from rowgrad._catalog.spec import CATALOG, Op
from samples import sample

# Messages that do not blame a single argument.
SHARED = ("OOM when allocating", "Encountered overflow when multiplying", "Shape [")


def good_call(op: Op) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments and attributes of a valid call."""
    return _good_call(op.name)


@cache
def _good_call(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    op = CATALOG[name]
    sampled = sample(op.name, np.random.default_rng(4), np.float32)
    return {k: sampled[k] for k in op.input_names}, {k: v for k, v in sampled.items() if k in op.attrs}


def check_named(op: Op, found: Rejection) -> None:
    """Check that an error names op and argument."""
    assert found.op == op.name, found
    names = {*op.input_names, *op.attrs, *(o.name for o in op.outputs)}  # a result, if JAX has no 64-bit type for it
    where = (found.argument or "").partition("[")[0]
    assert where in names or found.message.startswith(SHARED), found


def is_right(op: Op, a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether results have the same bits; those of dense ops only need to be close."""
    return is_same(a, b) or (op.kernel is None and _is_close(a, b))


def is_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether arrays have the same bits, or the same text in NumPy's string dtype."""
    return a.dtype == b.dtype and a.tolist() == b.tolist() if a.dtype.kind == "T" else same_bits(a, b)


def _is_close(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    wide = [x.astype(complex) for x in (a, b)]
    return a.dtype.kind in "fcV" and np.allclose(*wide, rtol=1e-2, atol=1e-6, equal_nan=True)
