"""The number of threads never changes results; forked children can compute too."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from rowgrad import _core
from rowgrad._catalog.spec import CATALOG
from rowgrad.raw_ops import OPS
from samples import sample

COUNTS = (1, 2, 3, 8)
DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
KINDS = ("Sum", "Mean", "SqrtN")


def batch(dtype: Any, seed: int = 0) -> dict[str, Any]:
    """Return a batch large enough for parallel work: a hot row, empty bags, bags of hundreds."""
    rng = np.random.default_rng(seed)
    n, rows, bags, columns = 120_000, 5_000, 3_000, 19
    ids = rng.zipf(1.3, n) % rows
    segments = np.sort(rng.integers(0, bags, n))
    segments[:500] = 0
    return {
        "table": rng.normal(size=(rows, columns)).astype(dtype),
        "grad": rng.normal(size=(bags, columns)).astype(dtype),
        "ids": ids.astype(np.int32),
        "segments": segments.astype(np.int64),
        "weights": rng.uniform(0, 2, n).astype(dtype),
    }


def results(x: dict[str, Any]) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    rows, bags = len(x["table"]), len(x["grad"])
    ids, segments = x["ids"], x["segments"]
    for kind in KINDS:
        found.append(OPS[f"SparseSegment{kind}WithNumSegments"](x["table"], ids, segments, bags))
        found.append(OPS[f"SparseSegment{kind}Grad"](x["grad"], ids, segments, rows))
        found += OPS[f"SparseSegment{kind}GradV2"](x["grad"], ids, segments, rows)
        found.append(OPS[f"SparseSegment{kind}GradGrad"](x["table"], ids, segments[::-1], bags))
        weighted = f"WeightedSparseSegment{kind}"
        found.append(OPS[weighted](x["table"], ids, segments, x["weights"]))
        for accumulate in ("T", "float32"):
            grad = OPS[f"{weighted}Grad"](x["grad"], ids, segments, x["weights"], rows, accumulate=accumulate)
            found.append(grad)
        found.append(OPS[f"{weighted}GradRows"](x["grad"], segments, x["weights"]))
        found += narrow_gradients(kind, x)
    found.append(OPS["SparseSegmentDot"](x["grad"], x["table"], ids, segments))
    found.append(OPS["SegmentSum"](x["table"][ids], segments))
    found.append(OPS["ScatterRows"](x["grad"][segments], ids, rows))
    found += OPS["RaggedFillEmptyRows"](segments[::-1] // 2, x["weights"], bags, x["weights"][0])
    found += OPS["RaggedFillEmptyRowsGrad"](np.arange(0, len(ids), 2), x["weights"])
    places = np.stack([segments, ids.astype(np.int64)], axis=1)
    sliced = OPS["SparseSlice"](places, x["weights"], [bags, rows], [10, 0], [bags // 2, rows // 2])
    found += [*sliced, OPS["SparseSliceGrad"](sliced.output_values, places, [10, 0], sliced.output_indices)]
    shape, zero = [bags, rows], np.zeros((), x["weights"].dtype)
    total = OPS["SparseAdd"](places, x["weights"], shape, places[::3], x["weights"][::3], shape, zero)
    found += [*total, *OPS["SparseAddGrad"](total.sum_values, places, places[::3], total.sum_indices)]
    return found


def narrow_gradients(kind: str, x: dict[str, Any]) -> Iterator[np.ndarray]:
    """Yield gradients of tables of up to four columns, which have a specialized algorithm per pair of id dtypes."""
    rows = len(x["table"])
    for columns in range(1, 5):
        assert _core.gradient_algorithm(len(x["ids"]), rows, columns, 8) == "narrow"
        grad = np.ascontiguousarray(x["grad"][:, :columns])
        for ids_dtype, segments_dtype in ((np.int32, np.int64), (np.int64, np.int32)):
            ids, segments = x["ids"].astype(ids_dtype), x["segments"].astype(segments_dtype)
            yield OPS[f"SparseSegment{kind}Grad"](grad, ids, segments, rows)
            yield from OPS[f"SparseSegment{kind}GradV2"](grad, ids, segments, rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_same_bits_at_any_number_of_threads(dtype: Any) -> None:
    x = batch(dtype)
    rg.set_num_threads(1)
    expected = results(x)
    for count in COUNTS[1:]:
        rg.set_num_threads(count)
        assert rg.num_threads() == count
        for _ in range(2):
            assert all(map(same_bits, results(x), expected)), count


def test_same_bits_on_small_calls_of_every_op() -> None:
    for op in CATALOG.values():
        if op.layer == "graph":
            continue
        x = sample(op.name, np.random.default_rng(5))
        outcomes = []
        for count in COUNTS:
            rg.set_num_threads(count)
            result = OPS[op.name](**x)
            outcomes.append(result if isinstance(result, tuple) else (result,))
        assert all(all(map(same_bits, outcomes[0], o)) for o in outcomes[1:]), op.name


def _child(queue: Any) -> None:
    x = batch(np.float32)
    queue.put([(r.dtype.str, r.shape, r.tobytes()) for r in results(x)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("count", COUNTS)
def test_forked_child(count: int) -> None:
    """The parent's pool runs when the child is forked; the child has none of its threads."""
    rg.set_num_threads(count)
    expected = [(r.dtype.str, r.shape, r.tobytes()) for r in results(batch(np.float32))]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    got = queue.get(timeout=120)
    child.join(timeout=60)
    assert child.exitcode == 0
    assert got == expected


def test_concurrent_callers() -> None:
    rg.set_num_threads(3)
    x = batch(np.float32)
    expected = results(x)
    outcomes: dict[int, bool] = {}

    def work(k: int) -> None:
        outcomes[k] = all(map(same_bits, results(x), expected))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    rg.set_num_threads(2)  # while they run
    for w in workers:
        w.join()
    assert outcomes == dict.fromkeys(range(4), True)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "two", True, 10**9])
def test_invalid_number_of_threads_raises(bad: Any) -> None:
    with pytest.raises(ValueError, match="from 1 to 1024"):
        rg.set_num_threads(bad)


@pytest.mark.parametrize(("text", "expected"), [("3", "3"), ("none", "must be an int from 1 to 1024; got 'none'")])
def test_environment_variable(text: str, expected: str) -> None:
    code = "import rowgrad; print(rowgrad.num_threads())"
    env = {**os.environ, "ROWGRAD_NUM_THREADS": text}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert expected in done.stdout + done.stderr


def test_float_mode_of_the_caller_is_unchanged() -> None:
    tiny = np.float32(2.0**-140)
    two = np.array([[tiny], [tiny]], np.float32)
    assert rg.raw_ops.SparseSegmentSum(two, [0, 1], [0, 0])[0, 0] == 0  # flushed to zero, as in TensorFlow
    assert tiny + tiny == np.float32(2.0**-139)  # NumPy still keeps subnormals
