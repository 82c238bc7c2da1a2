"""Worked examples of single blocks, with the values shown on screen (six decimals)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from golden_cases import FOLDER
from rowgrad.raw_ops import OPS


def array(entry: dict[str, Any]) -> np.ndarray:
    dtype = object if entry["dtype"] == "string" else entry["dtype"]
    return np.array(entry["values"], dtype=dtype).reshape(entry["shape"])


def examples() -> list:
    found = json.loads((FOLDER / "blocks_examples.json").read_text())
    return [pytest.param(e, id=f"{i}-{e['op']}") for i, e in enumerate(found) if e["op"] in OPS]


@pytest.mark.parametrize("example", examples())
def test_single_block(example: dict[str, Any]) -> None:
    inputs = {k: array(v) for k, v in example["inputs"].items()}
    if example["op"] == "SparseAdd" and inputs["thresh"].dtype == np.int32:
        with pytest.raises(rg.errors.InvalidArgumentError, match="thresh must be float32"):
            OPS["SparseAdd"](**inputs)
        inputs["thresh"] = inputs["thresh"].astype(np.float32)
    result = OPS[example["op"]](**inputs)
    names = [o.name for o in rg._catalog.spec.CATALOG[example["op"]].outputs]
    results = dict(zip(names, result if isinstance(result, tuple) else (result,), strict=True))
    for label, entry in example["outputs"].items():
        name = label if label in results else names[0]
        expected, got = array(entry), results[name]
        assert got.shape == expected.shape
        if expected.dtype.kind in "fc":
            np.testing.assert_allclose(got, expected, atol=example.get("tolerance_used", 0))
        else:
            np.testing.assert_array_equal(got, expected)


def test_every_kind_has_examples() -> None:
    ops = {p.values[0]["op"] for p in examples()}
    assert len(ops) >= 11
