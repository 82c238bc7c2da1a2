"""The reference agrees with TensorFlow's recorded answers, and the fuzzer that stands on it can fail."""

from __future__ import annotations

import pytest

from golden_cases import Case, cases, same_bits
from reference import OPS, Refusal, reference
from rowgrad.spec import CATALOG

NOT_MODELLED = ("dtype", "out-of-memory", "thresh-complex")  # refused before a kernel is asked


def modelled(case: Case) -> bool:
    rank_2_of_no_rows = (
        case.op == "RaggedFillEmptyRows" and case.outputs and len(case.outputs["empty_row_indicator"]) == 0
    )
    return not rank_2_of_no_rows and not any(word in case.tag for word in NOT_MODELLED)


def test_every_kernel_op_has_a_reference() -> None:
    assert set(OPS) == {op.name for op in CATALOG.values() if op.layer == "kernel"}


@pytest.mark.parametrize("case", [c for c in cases("valid", "error") if modelled(c)], ids=str)
def test_agrees_with_tensorflow(case: Case) -> None:
    attrs = {**CATALOG[case.op].attrs, **case.attrs}
    if case.error:
        with pytest.raises(Refusal) as refusal:
            reference(case.op, case.inputs, attrs)
        assert (refusal.value.kind, refusal.value.message) == (case.error["class"], case.error["message"])
    else:
        for got, wanted in zip(reference(case.op, case.inputs, attrs), case.outputs.values(), strict=True):
            assert same_bits(got, wanted)
