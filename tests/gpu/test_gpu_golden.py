"""Every golden case whose dtypes torch supports, on CUDA tensors: bits, error classes, messages."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from gpu_calls import call, device_call, fail_if_any, need_device, result_or_error, validating

from golden_cases import Case, cases, same_bits
from rowgrad._catalog.spec import CATALOG
from torch_arrays import to_numpy, to_torch

need_device()

STRIDE = int(os.environ.get("ROWGRAD_GPU_TEST_STRIDE", "1"))  # run every STRIDE-th case
RANK_ONE = "RaggedFillEmptyRows"  # docs/reference/differences.md


def tensors(case: Case) -> dict[str, Any] | None:
    found = {name: to_torch(array) for name, array in case.inputs.items()}
    return None if any(v is None for v in found.values()) else found


def outcomes(group: str) -> list[tuple[Case, Any, Any]]:
    """Return every case of a group with its outputs or its error."""
    found = []
    with validating("sync"):
        for case in list(cases(group))[::STRIDE]:
            inputs = tensors(case)
            if inputs is not None:
                order = {"order": "sequential"} if "order" in CATALOG[case.op].attrs else {}  # TensorFlow's
                found.append((case, *result_or_error(device_call, case.op, inputs, **order, **case.attrs)))
    return found


def test_bits() -> None:
    failures, by_op, tested = [], Counter(), outcomes("valid")
    for case, outputs, error in tested:
        if error is not None:
            failures.append(f"{case}: {type(error).__name__}: {error}")
            by_op[case.op] += 1
            continue
        for (name, expected), got in zip(case.outputs.items(), outputs, strict=True):
            if case.op == RANK_ONE and expected.shape == (0, 1):
                expected = expected.reshape(0)
            if not same_bits(to_numpy(got), expected):
                failures.append(f"{case}: {name}\n{got}\n{expected}")
                by_op[case.op] += 1
    assert len(tested) > 1000 // STRIDE, f"only {len(tested)} cases were run"
    fail_if_any(failures, len(tested), f"by op: {dict(by_op)}\n")


def test_blocked_order_has_the_bits_of_the_cpu() -> None:
    """Golden cases in the default order of CUDA calls, compared with the CPU."""
    failures, tested = [], 0
    with validating("sync"):
        for case in list(cases("valid"))[::STRIDE]:
            inputs = tensors(case)
            if inputs is None or "order" not in CATALOG[case.op].attrs:
                continue
            tested += 1
            expected, got = (run(case.op, inputs, order="blocked", **case.attrs) for run in (call, device_call))
            if not all(same_bits(to_numpy(a), to_numpy(b)) for a, b in zip(got, expected, strict=True)):
                failures.append(f"{case}\n{got}\n{expected}")
    assert tested > 100 // STRIDE, f"only {tested} cases were run"
    fail_if_any(failures, tested)


def test_errors() -> None:
    failures, tested = [], outcomes("error")
    for case, _, error in tested:
        about_dtype = "dtype" in case.tag
        if error is None:
            if not about_dtype:  # some dtypes are supported that TensorFlow rejects
                failures.append(f"{case} should have raised: {case.error}")
        elif type(error).__name__ != case.error["class"]:
            failures.append(f"{case}: {type(error).__name__}, not {case.error['class']}: {error}")
        elif not about_dtype and error.message != case.error["message"]:
            failures.append(f"{case}: {error.message!r}, not {case.error['message']!r}")
        elif error.op != case.op:
            failures.append(f"{case}: the error names {error.op}")
    assert len(tested) > 100 // STRIDE, f"only {len(tested)} cases were run"
    fail_if_any(failures, len(tested))


def test_undefined_inputs_raise() -> None:
    tested = outcomes("quirk")
    kinds = [(case, error, type(error).__name__) for case, _, error in tested]
    fail_if_any([f"{case}: {error!r}" for case, error, kind in kinds if kind != "InvalidArgumentError"], len(tested))


def test_undefined_is_zero() -> None:
    tested, failures = outcomes("undefined"), []
    for case, outputs, error in tested:
        if error is not None:
            failures.append(f"{case}: {error}")
            continue
        for expected, got in zip(case.outputs.values(), outputs, strict=True):
            array = to_numpy(got)
            if array.shape != expected.shape or array.dtype != expected.dtype or array.astype("float64").any():
                failures.append(f"{case}: {got}")
    fail_if_any(failures, len(tested))
