"""rowgrad's calls inside compiled programs of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._catalog.rows import IndexedRows
from ..raw_ops import OPS

Arrays = dict[str, Any]


def ready(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """A compiled call on arrays that are on the device already."""
    run = jax.jit(function)
    held = [jax.device_put(a) for a in arguments]
    return lambda: jax.block_until_ready(run(*held))


def parts(x: Arrays, name: str) -> tuple[Any, Any, Any]:
    """Table or gradient, ids, segment ids."""
    jax.config.update("jax_enable_x64", x["ids"].dtype == np.int64)
    return jnp.asarray(x[name]).astype(x["dtype"]), x["ids"], x["segments"]


def forward(x: Arrays) -> Callable[[], Any]:
    """The mean of every bag."""
    mean = OPS["SparseSegmentMeanWithNumSegments"]
    return ready(lambda table, ids, segments: mean(table, ids, segments, x["bags"]), *parts(x, "table"))


def dense(x: Arrays) -> Callable[[], Any]:
    """The gradient of the mean as a table."""
    gradient = OPS["SparseSegmentMeanGrad"]
    return ready(lambda grad, ids, segments: gradient(grad, ids, segments, x["rows"]), *parts(x, "grad"))


def rows(x: Arrays) -> Callable[[], Any]:
    """The same by unique rows, in a quarter more rows than are named."""
    gradient, size = OPS["SparseSegmentMeanGradV2"], len(np.unique(x["ids"])) * 5 // 4
    call = ready(lambda *given: tuple(gradient(*given, x["rows"], size=size)), *parts(x, "grad"))

    def run() -> IndexedRows:
        values, ids = call()
        return IndexedRows(values, ids, x["rows"], is_unique=True)

    return run


def zeros(x: Arrays) -> Callable[[], Any]:
    """The table of a gradient, filled with a number that only the call knows."""
    shape = (x["rows"], x["grad"].shape[1])
    return ready(lambda value: jnp.full(shape, value, x["dtype"]), np.float32(0))


def tiny(x: Arrays) -> Callable[[], Any]:
    """A thousand calls in a loop, each on what the one before gave."""
    mean, ids = OPS["SparseSegmentMeanWithNumSegments"], jnp.arange(16)
    return ready(
        lambda table: jax.lax.fori_loop(0, 1000, lambda _, t: mean(t, ids, ids, 16), table),
        np.ones((16, 16), np.float32),
    )
