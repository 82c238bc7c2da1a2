"""SciPy: bags as a precomputed CSR matrix times the table; its transpose times the gradient; one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
import scipy.sparse

VERSION = f"SciPy {scipy.__version__}"
Arrays = dict[str, Any]


def to_numpy(result: Any) -> list[np.ndarray[Any, Any]]:
    return [result]


def matrix(x: Arrays, weights: np.ndarray[Any, Any] | None) -> Any:
    """Return bags × rows: each id's share of its bag, 1/n or w/Σw."""
    total = np.bincount(x["segments"], weights, minlength=x["bags"])
    share = (1 if weights is None else weights) / total[x["segments"]]
    offsets = x["offsets"].astype(x["ids"].dtype)  # same width, otherwise SciPy widens both
    return scipy.sparse.csr_array((share.astype(x["dtype"]), x["ids"], offsets), (x["bags"], x["rows"]))


def bags(x: Arrays, weights: np.ndarray[Any, Any] | None) -> Callable[[], Any] | None:
    if x["dtype"] != "float32":  # SciPy has no 16-bit floats
        return None
    m = matrix(x, weights)
    return lambda: m @ x["table"]


def gradient(x: Arrays, weights: np.ndarray[Any, Any] | None) -> Callable[[], Any] | None:
    if x["dtype"] != "float32":
        return None
    m = matrix(x, weights).T
    return lambda: m @ x["grad"]


KINDS = {
    "forward": lambda x: bags(x, None),
    "weighted": lambda x: bags(x, x["weights"]),
    "dense": lambda x: gradient(x, None),
    "weighted_dense": lambda x: gradient(x, x["weights"]),
}
