"""Lookups compared with results recorded from TensorFlow, forward and gradient, in every gradient format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from golden_cases import Case, cases, same_bits

FUNCTIONS = {
    "embedding_lookup_sparse": rg.embedding_lookup_sparse,
    "safe_embedding_lookup_sparse": rg.safe_embedding_lookup_sparse,
}


def arguments(case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x, a = case.inputs, case.attrs
    ids = rg.SparseTensor(x["sp_indices"], x["sp_ids"], x["sp_shape"])
    weights = None
    if "weights" in x:  # cases with too few weights truncate their indices too
        weights = rg.SparseTensor(x["sp_indices"][: len(x["weights"])], x["weights"], x["sp_shape"])
    options = {k: a[k] for k in ("combiner", "max_norm", "allow_fast_lookup", "default_id") if k in a}
    options["lookup"] = "unique" if a["params_kind"] == "variable" else "auto"
    return (x["params"], ids, weights), options


def run(case: Case) -> dict[str, np.ndarray]:
    inputs, options = arguments(case)
    function = FUNCTIONS[case.op]
    found = {"y": function(*inputs, **options)}
    if "dy" in case.inputs:
        gradients = rg.vjp(function, inputs, case.inputs["dy"], **options)
        assert gradients[1] is None
        for name, gradient in (("dparams", gradients[0]), ("dweights", gradients[2])):
            if isinstance(gradient, rg.IndexedRows):
                found |= {f"{name}_values": gradient.values, f"{name}_indices": gradient.indices}
            elif gradient is not None:
                found[name] = gradient
    return found


def is_fixed(case: Case, name: str) -> bool:
    """Return whether TensorFlow's rule determines the bits of this output."""
    if name.endswith("indices"):
        return True
    weighted_root = "weights" in case.inputs and case.attrs["combiner"] == "sqrtn"
    return case.attrs["max_norm"] is None and not name.startswith("dweights") and not weighted_root


def close(got: np.ndarray, expected: np.ndarray, case: Case) -> bool:
    wide = [case.inputs[k].astype(np.float64) for k in ("params", "dy") if k in case.inputs]
    wide.append(expected.astype(np.float64))
    scale = max([1.0, *(float(np.nanmax(np.abs(w))) for w in wide if w.size and not np.isnan(w).all())])
    tolerance = 2e-2 if expected.dtype.itemsize == 2 else 2e-4 if expected.dtype.itemsize == 4 else 1e-9
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    numbers = got.astype(np.float64), expected.astype(np.float64)
    return np.allclose(*numbers, rtol=tolerance, atol=tolerance * scale * 0.1, equal_nan=True)


@pytest.mark.parametrize("case", list(cases("valid", composites=True)), ids=str)
def test_lookup(case: Case) -> None:
    found = run(case)
    assert set(found) == set(case.outputs)
    for name, expected in case.outputs.items():
        agree = same_bits(found[name], expected) if is_fixed(case, name) else close(found[name], expected, case)
        assert agree, f"{name}\n{found[name]}\n{expected}"


@pytest.mark.parametrize("case", list(cases("error", composites=True)), ids=str)
def test_lookup_errors(case: Case) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  the class name is compared below
        run(case)
    assert type(caught.value).__name__ == case.error["class"]
    if "dtype" not in case.tag:
        assert getattr(caught.value, "message", str(caught.value)) == case.error["message"]
