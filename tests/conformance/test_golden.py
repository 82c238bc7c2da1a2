"""The raw ops compared with results recorded from TensorFlow: bits, error classes, messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from golden_cases import Case, cases, same_bits

# Deliberate differences where TensorFlow's own result is a bug (docs/reference/differences.md).
RANK_ONE = "RaggedFillEmptyRows"


def run(case: Case, inputs: dict[str, Any] | None = None) -> tuple[Any, ...]:
    """Make the case's call, on arrays of another library if `inputs` is passed."""
    result = getattr(rg.raw_ops, case.op)(**(case.inputs if inputs is None else inputs), **case.attrs)
    return result if isinstance(result, tuple) else (result,)


def by_op(*groups: str) -> list:
    grouped: dict[str, list[Case]] = {}
    for case in cases(*groups):
        grouped.setdefault(case.op, []).append(case)
    return [pytest.param(found, id=op) for op, found in grouped.items()]


@pytest.mark.parametrize("found", by_op("valid"))
def test_bits(found: list[Case]) -> None:
    for case in found:
        results = run(case)
        for (name, expected), got in zip(case.outputs.items(), results, strict=True):
            if case.op == RANK_ONE and expected.shape == (0, 1):
                expected = expected.reshape(0)
            assert same_bits(got, expected), f"{case}: {name}\n{got}\n{expected}"


@pytest.mark.parametrize("found", by_op("error"))
def test_errors(found: list[Case]) -> None:
    for case in found:
        assert_raises(case)


def assert_raises(case: Case, inputs: dict[str, Any] | None = None) -> None:
    """Check TensorFlow's error class and message, except that rowgrad supports more dtypes and words their errors."""
    about_dtype = "dtype" in case.tag
    error = error_of(case, inputs)
    if error is None:
        assert about_dtype, f"{case} should have raised: {case.error}"
        assert_beyond_tensorflow(case)
        return
    assert type(error).__name__ == case.error["class"], f"{case}: {error!r}"
    assert about_dtype or error.message == case.error["message"], f"{case}: {error}"
    assert error.op == case.op
    assert error.call


def error_of(case: Case, inputs: dict[str, Any] | None) -> rg.errors.OpError | None:
    try:
        run(case, inputs)
    except rg.errors.OpError as error:
        return error
    return None


def assert_beyond_tensorflow(case: Case) -> None:
    """Check that a dtype TensorFlow rejects but rowgrad accepts is in the record."""
    op = rg._catalog.spec.CATALOG[case.op]
    kinds = {a.name: a.type for a in op.inputs}
    fixed = [n for n, array in case.inputs.items() if kinds[n] not in op.types and array.dtype != kinds[n]]
    added = case.op in ("SparseAdd", "SparseAddGrad", "SparseSlice", "SparseSliceGrad")
    assert added or (fixed and all(case.inputs[n].dtype.kind in "iu" for n in fixed)), case


@pytest.mark.parametrize("found", by_op("quirk"))
def test_undefined_inputs_raise(found: list[Case]) -> None:
    for case in found:
        with pytest.raises(rg.errors.InvalidArgumentError):
            run(case)


@pytest.mark.parametrize("found", by_op("undefined"))
def test_undefined_is_zero(found: list[Case]) -> None:
    for case in found:
        for expected, got in zip(case.outputs.values(), run(case), strict=True):
            assert got.shape == expected.shape
            assert got.dtype == expected.dtype
            assert not np.any(got.astype(np.float64))


def test_every_group_is_present() -> None:
    tensorflow_ops = {op.name for op in rg._catalog.spec.CATALOG.values() if op.tensorflow and op.layer == "kernel"}
    assert {case.op for case in cases("valid")} == tensorflow_ops - {"SegmentSum"}
