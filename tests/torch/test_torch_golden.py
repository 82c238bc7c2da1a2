"""Every golden case whose dtypes torch supports: bits, error classes, messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rowgrad as rg
from conformance.test_golden import RANK_ONE, assert_raises, by_op, run
from golden_cases import Case, same_bits
from torch_arrays import to_numpy, to_torch


def tensors(case: Case) -> dict[str, Any] | None:
    """Return the case's inputs as tensors, host inputs included; None if torch lacks a dtype."""
    found = {name: to_torch(array) for name, array in case.inputs.items()}
    return None if any(v is None for v in found.values()) else found


def as_numbers(inputs: dict[str, Any], op: str) -> dict[str, Any]:
    """Return the inputs with host inputs as Python numbers where these mean the same."""
    host = {a.name for a in rg._catalog.spec.CATALOG[op].inputs if a.host}
    integer = {k for k in host if inputs[k].dtype in (torch.int32, torch.int64) and inputs[k].ndim < 2}
    return {k: v.tolist() if k in integer else v for k, v in inputs.items()}


def through_torch_ops(case: Case, inputs: dict[str, Any]) -> tuple[Any, ...]:
    result = getattr(torch.ops.rowgrad, case.op)(**as_numbers(inputs, case.op), **case.attrs)
    return result if isinstance(result, tuple) else (result,)


WAYS = [run, through_torch_ops]
Way = Callable[[Case, dict[str, Any]], tuple[Any, ...]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("found", by_op("valid"))
def test_bits(found: list[Case], way: Way) -> None:
    tried = 0
    for case in found:
        inputs = tensors(case)
        if inputs is None:
            continue
        tried += 1
        for (name, expected), got in zip(case.outputs.items(), way(case, inputs), strict=True):
            if case.op == RANK_ONE and expected.shape == (0, 1):
                expected = expected.reshape(0)
            assert isinstance(got, torch.Tensor)
            assert same_bits(to_numpy(got), expected), f"{case}: {name}\n{got}\n{expected}"
    assert tried > 0.6 * len(found), "most cases hold dtypes that torch has"


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("found", by_op("error"))
def test_errors(found: list[Case], numbers: bool) -> None:
    for case in found:
        inputs = tensors(case)
        if inputs is None:
            continue
        arguments = as_numbers(inputs, case.op) if numbers else inputs
        assert_raises(case, arguments)


@pytest.mark.parametrize("found", by_op("quirk"))
def test_undefined_inputs_raise(found: list[Case]) -> None:
    for case in found:
        inputs = tensors(case)
        if inputs is not None:
            with pytest.raises(rg.errors.InvalidArgumentError):
                run(case, inputs)


@pytest.mark.parametrize("found", by_op("undefined"))
def test_undefined_is_zero(found: list[Case]) -> None:
    for case in found:
        for expected, got in zip(case.outputs.values(), run(case, tensors(case)), strict=True):
            assert got.shape == expected.shape
            assert not np.any(to_numpy(got).astype(np.float64))
