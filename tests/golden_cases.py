"""Read the golden cases, recorded from TensorFlow 2.21 (see tests/golden/README.md).

ROWGRAD_GOLDEN names another folder of the same format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

FOLDER = Path(os.environ.get("ROWGRAD_GOLDEN", Path(__file__).parent / "golden"))
COMPOSITES = ("embedding_lookup_sparse", "safe_embedding_lookup_sparse")


@dataclass
class Case:
    id: int
    op: str
    group: str
    tag: str
    attrs: dict[str, Any]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray] | None
    error: dict[str, str] | None
    names: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.op}-{self.id}-{self.tag}"


@cache
def _blob(folder: Path, op: str) -> bytes:
    with np.load(folder / f"{op}.npz") as archive:
        return archive["blob"].tobytes()


def _tensor(blob: bytes, dtype: str, shape: list[int], where: Any) -> np.ndarray:
    if dtype == "string":
        array = np.empty(len(where), object)
        array[:] = where
        return array.reshape(shape)
    stored = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
    count = int(np.prod(shape, dtype=np.int64))
    array = np.frombuffer(blob, stored, count, where if count else 0).copy()
    return (array.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else array).reshape(shape)


@cache
def _records() -> list[dict[str, Any]]:
    with open(FOLDER / "index.jsonl") as lines:
        return [json.loads(line) for line in lines]


def cases(*groups: str, composites: bool = False) -> Iterator[Case]:
    """Yield the cases of these groups: of the raw ops, or of the composites."""
    for r in _records():
        if r["group"] not in groups or (r["op"] in COMPOSITES) != composites:
            continue
        blob = _blob(FOLDER, r["op"])
        tensors = [
            None if part is None else {t[0]: _tensor(blob, *t[1:]) for t in part}
            for part in (r["inputs"], r["outputs"])
        ]
        yield Case(r["id"], r["op"], r["group"], r["tag"], r["attrs"], tensors[0], tensors[1], r["error"])


def same_bits(a: Any, b: Any) -> bool:
    """Return whether both are equal to the last bit; any NaN equals any NaN."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype == object:
        return bool((a == b).all())
    if a.dtype.kind == "c":
        return same_bits(a.real.copy(), b.real.copy()) and same_bits(a.imag.copy(), b.imag.copy())
    bits = [np.ascontiguousarray(x).reshape(-1).view(f"u{x.dtype.itemsize}") for x in (a, b)]
    equal = bits[0] == bits[1]
    if a.dtype.kind == "f" or a.dtype == ml_dtypes.bfloat16:
        equal |= np.isnan(a.reshape(-1)) & np.isnan(b.reshape(-1))
    return bool(equal.all())
