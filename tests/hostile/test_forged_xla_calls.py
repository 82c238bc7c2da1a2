"""The XLA target `rowgrad_kernel` called directly: an invalid call raises before anything is read or written."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import rowgrad.jax  # noqa: E402, F401  registers the target
from rowgrad._runtime.numpy_runner import CODE, KERNEL  # noqa: E402

GRAD = np.ones((2, 3), np.float32)
IDS, SEGMENTS = np.array([0, 4, 4], np.int32), np.array([0, 0, 1], np.int32)
F32, I32, I64 = CODE["float32"], CODE["int32"], CODE["int64"]
# SparseSegmentSumGrad of a table with 5 rows: the kernel, its constants, four inputs (the last is a size), the output.
GOOD = [KERNEL["sparse_segment_grad"], 0, 4, F32, -1, I32, -1, I32, -1, I32, 0, 5, F32]


def good_script() -> list[int]:
    """Return the script that `lower` writes for the call above."""
    from rowgrad._catalog.spec import CATALOG
    from rowgrad._runtime.numpy_runner import constants_of

    op = CATALOG["SparseSegmentSumGrad"]
    constants = constants_of(op, op.attrs)
    return [GOOD[0], len(constants), *constants, *GOOD[2:]]


def call(script: Any, *arrays: Any, rows: tuple[int, ...] = (5, 3), dtype: Any = np.float32, results: int = 1) -> Any:
    out = tuple(jax.ShapeDtypeStruct(rows, dtype) for _ in range(results))
    run = jax.ffi.ffi_call("rowgrad_kernel", out)
    values = np.asarray(script)
    return jax.block_until_ready(jax.jit(lambda *x: run(*x, call=values, got="", op="SparseSegmentSumGrad"))(*arrays))


def test_the_script_of_an_op_runs() -> None:
    (table,) = call(np.array(good_script(), np.int64), GRAD, IDS, SEGMENTS)
    assert np.asarray(table)[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0, 2.0]


def replaced(at: int, word: int) -> list[int]:
    script = good_script()
    script[at] = word
    return script


SIZE = len(good_script()) - 2
FORGED = {
    "an output that is too small": (good_script(), (GRAD, IDS, SEGMENTS), {"rows": (2, 3)}),
    "an output with fewer columns": (good_script(), (GRAD, IDS, SEGMENTS), {"rows": (5, 1)}),
    "an output of another dtype": (good_script(), (GRAD, IDS, SEGMENTS), {"dtype": np.float16}),
    "an output too many": (good_script(), (GRAD, IDS, SEGMENTS), {"results": 2}),
    "more rows than the output has": (replaced(SIZE, 1_000_000), (GRAD, IDS, SEGMENTS), {}),
    "fewer segments than indices": (good_script(), (GRAD, IDS, SEGMENTS[:1]), {}),
    "indices of rank two": (good_script(), (GRAD, IDS.reshape(3, 1), SEGMENTS), {}),
    "a gradient of rank none": (good_script(), (np.float32(1), IDS, SEGMENTS), {}),
    "floats for indices": (good_script(), (GRAD, IDS.astype(np.float32), SEGMENTS), {}),
    "narrow integers for indices": (good_script(), (GRAD, IDS.astype(np.int8), SEGMENTS), {}),
    "a buffer too few": (good_script(), (GRAD, IDS), {}),
    "a buffer too many": (good_script(), (GRAD, IDS, SEGMENTS, SEGMENTS), {}),
    "an unknown kernel": (replaced(0, 10_000), (GRAD, IDS, SEGMENTS), {}),
    "a kernel below zero": (replaced(0, -1), (GRAD, IDS, SEGMENTS), {}),
    "another kernel": (replaced(0, KERNEL["sparse_add"]), (GRAD, IDS, SEGMENTS), {}),
    "unknown constants": (replaced(2, 99), (GRAD, IDS, SEGMENTS), {}),
    "too many constants": (replaced(1, 1 << 40), (GRAD, IDS, SEGMENTS), {}),
    "constants below zero": (replaced(1, -1), (GRAD, IDS, SEGMENTS), {}),
    "words left over": ([*good_script(), 7], (GRAD, IDS, SEGMENTS), {}),
    "words that are missing": (good_script()[:-1], (GRAD, IDS, SEGMENTS), {}),
    "one word": ([0], (GRAD, IDS, SEGMENTS), {}),
    "a size whose rank is huge": (replaced(SIZE - 1, 1 << 60), (GRAD, IDS, SEGMENTS), {}),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_calls_raise(case: str) -> None:
    script, arrays, more = FORGED[case]
    with pytest.raises(Exception, match="rowgrad"):
        call(np.array(script, np.int64), *arrays, **more)


def test_scripts_of_other_dtypes_raise() -> None:
    with pytest.raises(Exception, match="rowgrad"):
        call(np.array(good_script(), np.int32), GRAD, IDS, SEGMENTS)


def test_scripts_with_random_words_never_crash() -> None:
    choice = random.Random(11)
    messages = []
    for _ in range(200):
        script = good_script()
        for _ in range(choice.randrange(1, 4)):
            script[choice.randrange(len(script))] = choice.choice(
                [-1, 0, 1, 2, 3, 5, 7, 13, 1 << 31, 1 << 62, -(1 << 63)]
            )
        try:
            call(np.array(script, np.int64), GRAD, IDS, SEGMENTS)
        except Exception as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all("rowgrad" in m for m in messages)
