"""Optimizer rules in NumPy: one row at a time, every operation rounded to the accumulator's type."""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import Any

import numpy as np

from rowgrad.optim import RULES, Step

Array = np.ndarray[Any, Any]
_MASK = (1 << 64) - 1


def sum_of_squares(g: Array) -> Any:
    """Return Σg² in the order of inner products: eight interleaved sums, then their tree."""
    lane = [g.dtype.type(0)] * 8
    for c, x in enumerate(g):
        lane[c % 8] = lane[c % 8] + x * x
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]))


def update_row(rule: str, w: Array, slots: tuple[Array, ...], g: Array | None, step: Step) -> Array:
    """Return the new weights of a row in the accumulator's type; update the row's `slots` in place."""
    A = w.dtype.type
    lr, eps, wd, rate = A(step.lr), A(step.eps), A(step.weight_decay), A(step.corrected())
    b1, b2 = map(A, step.betas)
    if rule == "ftrl":
        return _ftrl(w, *slots, g, step)
    if g is not None and wd != 0 and rule not in ("adamw", "lion"):
        g = g + w * wd
    if rule == "sgd":
        return w - g * lr
    if rule == "adagrad":
        slots[0][...] += g * g
        return w - g * lr / (np.sqrt(slots[0]) + eps)
    if rule == "row_wise_adagrad":
        slots[0][...] += sum_of_squares(g) / A(len(g))
        return w - g * (lr / (np.sqrt(slots[0]) + eps))
    if rule == "momentum":
        momentum = A(step.momentum)
        slots[0][...] = slots[0] * momentum + g
        return w - (g * lr + slots[0] * (momentum * lr) if step.nesterov else slots[0] * lr)
    if rule == "lion":
        towards = np.sign(slots[0] * b1 + g * (A(1) - b1))
        slots[0][...] = slots[0] * b2 + g * (A(1) - b2)
        return (w - w * (lr * wd) if wd != 0 else w) - towards * lr
    assert rule in ("adam", "adamw"), f"tests/reference/updates.py has no rule {rule}"
    m, v = slots
    m[...] = m * b1 if g is None else m * b1 + g * (A(1) - b1)
    v[...] = v * b2 if g is None else v * b2 + g * g * (A(1) - b2)
    if rule == "adamw" and wd != 0:
        w = w - w * (lr * wd)
    return w - m * rate / (np.sqrt(v) + eps)


def _ftrl(w: Array, a: Array, linear: Array, g: Array | None, step: Step) -> Array:
    """Use TensorFlow's order of operations, which differs for one column, where the root is pow(x, 0.5)."""
    A, one_column = w.dtype.type, w.size == 1
    lr, power, l1, l2 = A(step.lr), A(-step.lr_power), A(step.l1), A(step.l2)

    def powered(x: Array) -> Array:
        return np.sqrt(x) if power == A(0.5) else _power(x, power)

    after = a + g * g
    grown = _power(after, power) - _power(a, power) if one_column else powered(after) - powered(a)
    shrunk = g + w * (A(2) * A(step.l2_shrinkage)) if step.l2_shrinkage else g
    moved = grown / lr * w
    linear[...] = (linear + shrunk) - moved if one_column else linear + (shrunk - moved)
    a[...] = after
    return (np.clip(linear, -l1, l1) - linear) / (powered(after) / lr + A(2) * l2)


_LIBM = ctypes.CDLL(ctypes.util.find_library("m"))


def _power(x: Array, exponent: Any) -> Array:
    """Return C's powf or pow: NumPy's may differ in the last bit."""
    function, kind = (_LIBM.powf, ctypes.c_float) if x.dtype == np.float32 else (_LIBM.pow, ctypes.c_double)
    function.restype, function.argtypes = kind, (kind, kind)
    return np.array([function(float(v), float(exponent)) for v in x], x.dtype)


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def random_bits(seed: int, step: int, row: int, cols: int) -> Array:
    """Return 32 random bits for every column of a row."""
    bits = mix(mix(mix(seed) ^ step) ^ row)
    low, high = np.uint32(bits & 0xFFFFFFFF), np.uint32(bits >> 32)
    with np.errstate(over="ignore"):
        h = np.arange(cols, dtype=np.uint32) * np.uint32(0x9E3779B9) + low
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)
        h = h ^ high
        h = (h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B)
        return h ^ (h >> np.uint32(16))


def rounded_stochastically(w: Array, dtype: np.dtype[Any], chance: Array) -> Array:
    """Round each weight to a neighbour in `dtype`: the one farther from 0 if random bits plus remainder carry over."""
    bits = 16 if dtype != np.float16 else 13
    out = np.empty(w.shape, dtype)
    for i, (x, h) in enumerate(zip(w.ravel(), chance.ravel(), strict=True)):
        if not np.isfinite(x):
            out.ravel()[i] = x
            continue
        smallest = -14 if dtype == np.float16 else -126
        _, exponent = np.frexp(abs(np.float64(x)))
        unit = 2.0 ** (max(int(exponent) - 1, smallest) - (10 if dtype == np.float16 else 7))
        steps = int(np.floor(abs(float(x)) / unit * 2**bits)) + (int(h) >> (32 - bits))
        magnitude = (steps >> bits) * unit
        with np.errstate(over="ignore"):
            out.ravel()[i] = dtype.type(np.copysign(magnitude, x))
    return out


def apply_rows(rule: str, table: Array, slots: tuple[Array, ...], grad: Array, ids: Any, step: Step) -> None:
    """Do `updates.apply_rows` row by row."""
    A = np.float64 if table.dtype == np.float64 else np.float32
    at = {int(r): k for k, r in enumerate(ids)}
    flat = table.reshape(len(table), -1)
    grads = grad.reshape(len(grad), flat.shape[1])
    for row in range(len(table)):
        if row not in at and (step.lazy or not RULES[rule].fades):
            continue
        g = grads[at[row]].astype(A) if row in at else None
        own = tuple(s[row : row + 1] if RULES[rule].per_row else s.reshape(flat.shape)[row] for s in slots)
        w = update_row(rule, flat[row].astype(A), own, g, step)
        if step.stochastic_rounding and table.dtype.itemsize == 2:
            flat[row] = rounded_stochastically(w, table.dtype, random_bits(step.seed, step.step, row, len(w)))
        else:
            with np.errstate(over="ignore"):
                flat[row] = w.astype(table.dtype)
