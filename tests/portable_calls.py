"""Call the portable kernels: prepare arguments as a runner does, compile, and compare with the NumPy runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np

import rowgrad as rg
from rowgrad._catalog.spec import Aval, Op
from rowgrad._runtime.arrays import admit, avals_of, host_value
from rowgrad._runtime.validation import infer
from rowgrad.jax import portable
from samples import sample


class Prepared(NamedTuple):
    op: Op
    inputs: dict[str, np.ndarray]  # all arguments, as NumPy arrays
    host: dict[str, Any]
    attrs: dict[str, Any]
    outputs: tuple[Aval, ...]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {name: a for name, a in self.inputs.items() if name not in self.host}


def prepare(op: Op, inputs: Mapping[str, Any], **attrs: Any) -> Prepared:
    admitted = admit(op, {a.name: inputs[a.name] for a in op.inputs})
    host = {a.name: host_value(admitted[a.name]) for a in op.inputs if a.host}
    every = {**op.attrs, **attrs}
    return Prepared(op, admitted, host, every, infer(op, avals_of(op, admitted), host, every))


def prepare_sample(name: str, dtype: Any = np.float32, **attrs: Any) -> Prepared:
    sampled = sample(name, np.random.default_rng(5), dtype)
    op = rg._catalog.spec.CATALOG[name]
    return prepare(op, sampled, **{k: v for k, v in sampled.items() if k in op.attrs}, **attrs)


def sized_ops() -> list[str]:
    """Return the kernel ops that can be compiled."""
    return [op.name for op in rg._catalog.spec.CATALOG.values() if op.kernel and not op.is_data_sized]


def reference(call: Prepared) -> tuple[np.ndarray, ...]:
    """Return the results of the NumPy runner."""
    result = rg.raw_ops.OPS[call.op.name](**call.inputs, **call.attrs)
    return result if isinstance(result, tuple) else (result,)


def compiled(call: Prepared) -> Any:
    """Return the call as a compiled function of its arrays."""
    return jax.jit(lambda arrays: portable.run(call.op, arrays, call.host, call.attrs, call.outputs))


def run_together(calls: Sequence[Prepared]) -> list[tuple[np.ndarray, ...]]:
    """Run all calls in one program, because compiling costs far more than running."""
    together = jax.jit(lambda each: [portable.run(c.op, a, *c[2:]) for c, a in zip(calls, each, strict=True)])
    return [tuple(map(np.asarray, outputs)) for outputs in together([c.arrays for c in calls])]


def assert_close(got: Sequence[Any], expected: Sequence[Any], label: object) -> None:
    """Check equal dtypes, shapes and integers; floats may differ by the effect of another order of additions.

    16-bit floats are rounded once, from sums in float32: they may differ in the last bit.
    """
    arrays = [np.asarray(e) for e in expected]
    # Cancellation in one output: compare with the largest value of all outputs.
    sizes = (np.abs(b[np.isfinite(b)]).max(initial=0) for b in arrays if jnp.issubdtype(b.dtype, jnp.inexact))
    largest = max(map(float, sizes), default=0.0)
    for a, b in zip(map(np.asarray, got), arrays, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), label
        if not jnp.issubdtype(b.dtype, jnp.inexact):
            np.testing.assert_array_equal(a, b, err_msg=str(label))
            continue
        limits = jnp.finfo(b.dtype)
        some = (2 if limits.bits == 16 else 64) * float(limits.eps)
        wide = np.complex128 if b.dtype.kind == "c" else np.float64
        a, b = a.astype(wide), b.astype(wide)
        least = float(limits.tiny)  # subnormals may be flushed
        np.testing.assert_allclose(a, b, rtol=some, atol=some * largest + least, err_msg=str(label))


def is_poisoned(array: Any) -> bool:
    """Return whether a whole output has the value that marks invalid input."""
    array = np.asarray(array)
    if jnp.issubdtype(array.dtype, jnp.inexact):
        return bool(np.isnan(array).all())
    limits = np.iinfo(array.dtype)
    return bool((array == (limits.max if array.dtype.kind == "u" else limits.min)).all())
