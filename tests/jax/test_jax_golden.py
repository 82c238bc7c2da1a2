"""Every golden case whose dtypes JAX supports: bits, error classes, messages; eager and compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import rowgrad as rg
from conformance.test_golden import RANK_ONE, assert_raises, by_op, run
from golden_cases import Case, same_bits
from jax_arrays import to_jax, x64
from rowgrad._catalog.spec import CATALOG
from rowgrad._runtime.arrays import aval_of
from rowgrad._runtime.validation import infer


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


def arrays(case: Case) -> dict[str, Any] | None:
    """Return the case's inputs as arrays, host inputs included; None if JAX lacks a dtype."""
    found = {name: to_jax(array) for name, array in case.inputs.items()}
    return None if any(v is None for v in found.values()) else found


def assert_same(case: Case, outputs: tuple[Any, ...]) -> None:
    for (name, expected), got in zip(case.outputs.items(), outputs, strict=True):
        if case.op == RANK_ONE and expected.shape == (0, 1):
            expected = expected.reshape(0)
        assert same_bits(np.asarray(got), expected), f"{case}: {name}\n{got}\n{expected}"


@pytest.mark.parametrize("found", by_op("valid"))
def test_bits(found: list[Case]) -> None:
    tried = 0
    for case in found:
        inputs = arrays(case)
        if inputs is not None:
            tried += 1
            outputs = run(case, inputs)
            assert all(isinstance(o, jax.Array) for o in outputs)
            assert_same(case, outputs)
    assert tried > 0.6 * len(found), "most cases hold dtypes that JAX has"


def sizes(case: Case) -> dict[str, int] | None:
    """Return the extra size arguments of a compiled call; None if an op has no variant with static sizes."""
    op = CATALOG[case.op]
    avals = {k: aval_of(v) for k, v in case.inputs.items()}
    host = {a.name: case.inputs[a.name].tolist() for a in op.inputs if a.host}
    outputs = infer(op, avals, host, {**op.attrs, **case.attrs})
    if all(None not in o.shape for o in outputs):
        return {}
    return {"size": len(case.outputs["output"]) + 2} if op.padded else None


def unpadded(case: Case, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the looked-up rows after checking that the rows behind them are empty."""
    rows, (values, ids) = len(case.outputs["output"]), map(np.asarray, outputs)
    assert not values[rows:].astype(np.float64).any()
    assert ids[rows:].tolist() == 2 * [int(case.inputs["dense_output_dim0"])]
    return values[:rows], ids[:rows]


SIZED = [p for p in by_op("valid") if sizes(p.values[0][0]) is not None]


def test_most_ops_have_a_variant_with_static_sizes() -> None:
    assert {p.id for p in by_op("valid")} - {p.id for p in SIZED} == {
        "RaggedFillEmptyRows", "SparseAdd", "SparseFillEmptyRows", "SparseSegmentMean", "SparseSegmentSqrtN",
        "SparseSegmentSum", "SparseSlice",
    }  # fmt: skip


@pytest.mark.parametrize("found", SIZED)
def test_compiled_bits(found: list[Case]) -> None:
    """Compile all cases of an op as one program."""
    supported = [(case, inputs) for case in found if (inputs := arrays(case)) is not None]
    op = CATALOG[found[0].op]
    host = {a.name for a in op.inputs if a.host}

    @jax.jit
    def program(traced: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        fixed = ({**{k: case.inputs[k] for k in host}, **sizes(case)} for case, _ in supported)
        return [run(case, {**t, **f}) for (case, _), t, f in zip(supported, traced, fixed, strict=True)]

    outputs = program([{k: v for k, v in inputs.items() if k not in host} for _, inputs in supported])
    for (case, _), got in zip(supported, outputs, strict=True):
        assert_same(case, unpadded(case, got) if op.padded else got)


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("found", by_op("error"))
def test_errors(found: list[Case], numbers: bool) -> None:
    for case in found:
        inputs = arrays(case)
        if inputs is None:
            continue
        if numbers:
            hosts = [a.name for a in CATALOG[case.op].inputs if a.host]
            integers = [k for k in hosts if inputs[k].dtype in ("int32", "int64") and inputs[k].ndim < 2]
            inputs |= {k: case.inputs[k].tolist() for k in integers}
        assert_raises(case, inputs)


@pytest.mark.parametrize("found", by_op("quirk"))
def test_undefined_inputs_raise(found: list[Case]) -> None:
    for case in found:
        inputs = arrays(case)
        if inputs is not None:
            with pytest.raises(rg.errors.InvalidArgumentError):
                run(case, inputs)


@pytest.mark.parametrize("found", by_op("undefined"))
def test_undefined_is_zero(found: list[Case]) -> None:
    for case in found:
        for expected, got in zip(case.outputs.values(), run(case, arrays(case)), strict=True):
            assert got.shape == expected.shape
            assert not np.any(np.asarray(got).astype(np.float64))
