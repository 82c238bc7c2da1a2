"""The lookups on JAX arrays against what TensorFlow answered: eager, differentiated, compiled with ids unseen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rowgrad as rg
from conformance.test_golden_lookups import FUNCTIONS, arguments, close, is_fixed
from golden_cases import Case, cases, same_bits
from jax_arrays import to_jax, x64

CASES = list(cases("valid", composites=True))


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


def test_all_cases_fit_jax() -> None:
    dtypes = {array.dtype for case in CASES for array in case.inputs.values()}
    assert all(to_jax(np.zeros(1, dtype)) is not None for dtype in dtypes)


def given(case: Case) -> tuple[list[Any], dict[str, Any]]:
    """Table, ids and weights in JAX's arrays, and the options."""
    (params, ids, weights), options = arguments(case)
    found = [rg.SparseTensor(s.indices, to_jax(s.values), s.dense_shape) for s in (ids, weights) if s is not None]
    return [to_jax(params), *found], options


WEIGHTED = {(c.op, c.attrs["combiner"], c.tag in ("w", "max_norm")): c.id for c in CASES if "weights" in c.inputs}


def results(case: Case, inputs: list[Any], options: dict[str, Any], dy: Any) -> dict[str, Any]:
    """The lookup, and the gradients of its table and, for some cases of each combiner, of its weights."""
    table, ids, *rest = inputs
    weights = rest[0].values if rest else None
    asked = case.id in WEIGHTED.values() and jnp.issubdtype(weights.dtype, jnp.floating)
    leaves = [table, weights] if asked else [table]

    def forward(table: Any, weights: Any = weights) -> Any:
        bag_weights = None if weights is None else rg.SparseTensor(rest[0].indices, weights, rest[0].dense_shape)
        return FUNCTIONS[case.op](table, ids, bag_weights, **options)

    if dy is None:
        return {"y": forward(table)}
    y, pull = jax.vjp(forward, *leaves)
    return {"y": y, **dict(zip(("dparams", "dweights"), pull(dy), strict=False))}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lookup(case: Case) -> None:
    inputs, options = given(case)
    agree(case, "y", FUNCTIONS[case.op](*inputs, **options))
    if "dy" in case.inputs:
        for name, found in results(case, inputs, options, to_jax(case.inputs["dy"])).items():
            agree(case, name, found)


def one_of_each() -> list[Case]:
    """A safe lookup of every combiner, with weights and without, with a default and without, and of what is special."""
    common = ("w", "no-w", "variable", "long-rows", "row-of-16+")
    found: dict[Any, Case] = {}
    for case in (c for c in CASES if c.op.startswith("safe")):
        kind = (case.attrs["combiner"], case.attrs["default_id"] is None) if case.tag in common else ()
        found.setdefault((*kind, "weights" in case.inputs, case.tag if not kind else ""), case)
    return list(found.values())


SAFE = one_of_each()


def test_compiled_with_traced_ids() -> None:
    """A case of every kind in one program, so that it is compiled once."""
    prepared = [(case, *given(case)) for case in SAFE]

    @jax.jit
    def program(traced: list[Any], dys: list[Any]) -> list[dict[str, Any]]:
        parts = zip(prepared, traced, dys, strict=True)
        return [results(case, inputs, options, dy) for (case, _, options), inputs, dy in parts]

    dys = [to_jax(case.inputs["dy"]) if "dy" in case.inputs else None for case in SAFE]
    for case, found in zip(SAFE, program([inputs for _, inputs, _ in prepared], dys), strict=True):
        for name, array in found.items():
            agree(case, name, array)


def dense(case: Case, name: str, rows: int) -> np.ndarray | None:
    """TensorFlow's gradient as a table: rows with the same index add up as rowgrad adds them."""
    if name in case.outputs:
        return case.outputs[name]
    if f"{name}_values" not in case.outputs:
        return None
    return rg.densify(rg.IndexedRows(case.outputs[f"{name}_values"], case.outputs[f"{name}_indices"], rows))


def agree(case: Case, name: str, got: Any) -> None:
    assert isinstance(got, jax.Array)
    found, expected = np.asarray(got), dense(case, name, got.shape[0])
    if expected is None:
        return
    # A row per id is rounded before rows add up; JAX's gradient of a table adds first.
    ids = case.outputs.get(f"{name}_indices", np.zeros(0)).tolist()
    fixed = is_fixed(case, name) and len(set(ids)) == len(ids)
    good = same_bits(found, expected) if fixed else close(found, expected, case)
    assert good, f"{case} {name}\n{found}\n{expected}"
