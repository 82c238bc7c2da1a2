"""Golden cases on the emulated device: bits, error classes, messages."""

from __future__ import annotations

import pytest
import torch
from emulated_call import emulate

from conformance.test_golden import RANK_ONE, by_op
from golden_cases import Case, same_bits
from rowgrad._catalog.spec import CATALOG
from rowgrad.cuda.call import RUNNERS
from rowgrad.errors import OpError
from torch_arrays import to_numpy, to_torch


def cases(kind: str) -> list[list[Case]]:
    """Return the cases of ops with CUDA kernels, by op."""
    return [p for p in by_op(kind) if CATALOG[p.values[0][0].op].kernel in RUNNERS]


@pytest.mark.parametrize("found", cases("valid"))
def test_bits(found: list[Case]) -> None:
    tried = 0
    for seed, case in enumerate(found):
        inputs = {name: to_torch(array) for name, array in case.inputs.items()}
        if any(v is None for v in inputs.values()):
            continue
        tried += 1
        for (name, expected), got in zip(
            case.outputs.items(), emulate(case.op, inputs, seed=seed, **case.attrs), strict=True
        ):
            if case.op == RANK_ONE and expected.shape == (0, 1):
                expected = expected.reshape(0)
            assert isinstance(got, torch.Tensor)
            assert same_bits(to_numpy(got), expected), f"{case}: {name}\n{got}\n{expected}"
    assert tried > 0.6 * len(found), "most cases hold dtypes that torch has"


@pytest.mark.parametrize("found", cases("error"))
def test_errors(found: list[Case]) -> None:
    for case in found:
        inputs = {name: to_torch(array) for name, array in case.inputs.items()}
        if any(v is None for v in inputs.values()) or "dtype" in case.tag:
            continue
        with pytest.raises(OpError) as raised:
            emulate(case.op, inputs, **case.attrs)
        assert type(raised.value).__name__ == case.error["class"], f"{case}: {raised.value!r}"
        assert raised.value.message == case.error["message"], f"{case}: {raised.value}"
