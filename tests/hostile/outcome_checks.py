"""Valid calls to corrupt, and the outcomes that are allowed; shared by the tests that corrupt arguments."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hostile_runners import Refusal

from golden_cases import same_bits
from rowgrad._catalog.spec import CATALOG, Op
from samples import sample

# What no one argument is to blame for.
SHARED = ("OOM when allocating", "Encountered overflow when multiplying", "Shape [")


def good_call(op: Op) -> tuple[dict[str, Any], dict[str, Any]]:
    """A valid call: arguments and attributes."""
    return _good_call(op.name)


@cache
def _good_call(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    op = CATALOG[name]
    drawn = sample(op.name, np.random.default_rng(4), np.float32)
    return {k: drawn[k] for k in op.input_names}, {k: v for k, v in drawn.items() if k in op.attrs}


def check_named(op: Op, found: Refusal) -> None:
    """An error says op and argument."""
    assert found.op == op.name, found
    names = {*op.input_names, *op.attrs, *(o.name for o in op.outputs)}  # a result, where JAX has no 64 bits for it
    where = (found.argument or "").partition("[")[0]
    assert where in names or found.message.startswith(SHARED), found


def is_right(op: Op, a: np.ndarray, b: np.ndarray) -> bool:
    """The same bits; dense ops are each library's own approximations."""
    return is_same(a, b) or (op.kernel is None and _is_close(a, b))


def is_same(a: np.ndarray, b: np.ndarray) -> bool:
    """The same bits, or the same words: strings of NumPy's own dtype have no bits to look at."""
    return a.dtype == b.dtype and a.tolist() == b.tolist() if a.dtype.kind == "T" else same_bits(a, b)


def _is_close(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    wide = [x.astype(complex) for x in (a, b)]
    return a.dtype.kind in "fcV" and np.allclose(*wide, rtol=1e-2, atol=1e-6, equal_nan=True)
