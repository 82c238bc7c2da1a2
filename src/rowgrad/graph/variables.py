"""Variables: expansions of the blocks that update them, and the random numbers that may initialize them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._catalog.spec import CATALOG, Aval
from .._runtime.arrays import NUMPY_DTYPE, Array, aval_of
from .._runtime.validation import infer
from ..errors import make_error
from .inputs import admit_inputs, infer_outputs, kind_of, one_value
from .node_builder import BlockExpansion, expands
from .nodes import Check, Node, Output, is_open

# -- blocks that update Variables: dense ops compute the new value, one `Assign` node stores it ------------------------

Pins = dict[str, Any]


def variable_of(value: Any) -> Node | None:
    """Return the Variable of a wire that is its output or the output of an update of it, or None."""
    while isinstance(value, Output):
        if value.node.op.name == "Variable":
            return value.node
        value = value.node.inputs[0] if value.node.op.name == "Assign" else None
    return None


def _assign(p: BlockExpansion, target: Any, value: Any, inputs: Mapping[str, Any] | None = None) -> Output:
    """Add the node that stores a value in a Variable when the run ends. With `inputs`, it is the block's own node."""
    name = p.name if inputs is not None else p.graph.inner(p.name, "Assign")
    dtype, shape = target.dtype, target.shape
    node = Node(name, p.name, CATALOG["Assign"], (target, value), {})
    node.steady = False
    if inputs is not None and any(isinstance(v, Output) and is_open(v) for v in inputs.values()):
        # Dense ops would broadcast an input whose shape differs from the Variable's.
        node.check = Check(p.op, inputs, lambda shapes: infer(p.op, _avals(inputs, shapes), {}, p.attrs))
    return p.graph.add(node, [(dtype, shape)]).outputs[0]


def _avals(inputs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Aval]:
    return {
        name: Aval(v.dtype if isinstance(v, Output) else aval_of(v).dtype, shapes[name]) for name, v in inputs.items()
    }


def _arguments(p: BlockExpansion) -> dict[str, Any]:
    """Return validated inputs; raise if an input to be updated is not a Variable."""
    for arg in p.op.inputs:
        if arg.ref and variable_of(value := one_value(p.inputs[arg.name], arg.name)) is None:
            raise make_error("not_a_variable", argument=arg.name, value=kind_of(value))
    known = admit_inputs(p.op, p.inputs)
    infer_outputs(p.op, known, p.attrs)
    return known.inputs


def _simple(rule: Callable[[Any, Any, Any], Any]) -> Callable[[BlockExpansion], Pins]:
    def expansion(p: BlockExpansion) -> Pins:
        x = _arguments(p)
        return {"output_ref": _assign(p, x["ref"], rule(p.ops, x["ref"], x["value"]), x)}

    return expansion


expands("Assign")(_simple(lambda ops, old, value: value))
expands("AssignAdd")(_simple(lambda ops, old, value: ops["Add"](old, value)))
expands("AssignSub")(_simple(lambda ops, old, value: ops["Sub"](old, value)))


@expands("ApplyGradientDescent")
def _descend(p: BlockExpansion) -> Pins:
    x, ops = _arguments(p), p.ops
    return {"out": _assign(p, x["var"], ops["Sub"](x["var"], ops["Mul"](x["alpha"], x["delta"])), x)}


@expands("ApplyMomentum")
def _momentum(p: BlockExpansion) -> Pins:
    x, ops = _arguments(p), p.ops
    accum = ops["Add"](ops["Mul"](x["accum"], x["momentum"]), x["grad"])
    step = ops["Mul"](accum, x["lr"])
    if p.attrs["use_nesterov"]:
        ahead = ops["Mul"](ops["Mul"](accum, x["momentum"]), x["lr"])
        step = ops["Add"](ops["Mul"](x["grad"], x["lr"]), ahead)
    _assign(p, x["accum"], accum)
    return {"out": _assign(p, x["var"], ops["Sub"](x["var"], step), x)}


@expands("ApplyAdagrad")
def _adagrad(p: BlockExpansion) -> Pins:
    x, ops = _arguments(p), p.ops
    accum = x["accum"]
    if p.attrs["update_slots"]:
        accum = ops["Add"](accum, ops["Mul"](x["grad"], x["grad"]))
        _assign(p, x["accum"], accum)
    step = ops["Div"](ops["Mul"](x["grad"], x["lr"]), ops["Sqrt"](accum))
    return {"out": _assign(p, x["var"], ops["Sub"](x["var"], step), x)}


@expands("ApplyAdam")
def _adam(p: BlockExpansion) -> Pins:
    x, ops = _arguments(p), p.ops

    def rest(value: Any) -> Any:
        """1 − value."""
        return ops["Sub"](ops["FullLike"](value, value=1.0), value)

    grad, m, v = x["grad"], x["m"], x["v"]
    m = ops["Add"](m, ops["Mul"](ops["Sub"](grad, m), rest(x["beta1"])))
    v = ops["Add"](v, ops["Mul"](ops["Sub"](ops["Mul"](grad, grad), v), rest(x["beta2"])))
    rate = ops["Div"](ops["Mul"](x["lr"], ops["Sqrt"](rest(x["beta2_power"]))), rest(x["beta1_power"]))
    ahead = ops["Add"](ops["Mul"](m, x["beta1"]), ops["Mul"](grad, rest(x["beta1"]))) if p.attrs["use_nesterov"] else m
    step = ops["Div"](ops["Mul"](rate, ahead), ops["Add"](ops["Sqrt"](v), x["epsilon"]))
    _assign(p, x["m"], m)
    _assign(p, x["v"], v)
    return {"out": _assign(p, x["var"], ops["Sub"](x["var"], step), x)}


# -- random numbers: Philox 4x32 with ten rounds, in the layout of TensorFlow's random ops -----------------------------

# Block k of the stream is a function of (seed, seed2, k) alone, so any part of it can be computed independently.
# Uniform numbers have TensorFlow's bits. Normal numbers use the Box-Muller transform with a logarithm, sine and cosine
# that are written here as additions, products and quotients, which every machine rounds alike; they match TensorFlow's
# up to the last bits.

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
COUNTERS_END = 1 << 128  # block numbers have 128 bits
PER_ELEMENT = 256  # blocks that TensorFlow reserves per element, so that runs never overlap


def random_array(kind: str, dtype: str, shape: tuple[int, ...], seed: int, seed2: int, counter: int) -> Array:
    """Return the random numbers of one run. The next run starts `advance(shape)` blocks later."""
    n = math.prod(shape)
    per_block = 2 if dtype == "float64" else 4
    words = philox(seed, seed2, counter, -(-n // per_block))
    numbers = (_uniform if kind == "RandomUniform" else _normal)(words, dtype)
    return numbers.reshape(-1)[:n].reshape(shape)


def advance(shape: tuple[int, ...]) -> int:
    """Return by how much a run with this shape advances the counter."""
    return math.prod(shape) * PER_ELEMENT


def philox(seed: int, seed2: int, start: int, blocks: int) -> Array:
    """Return blocks start, start + 1, … of four 32-bit words each, as uint64[blocks, 4]."""
    low = np.arange(blocks, dtype=np.uint64) + np.uint64(start % (1 << 64))
    carry = start >> 64  # block numbers from 2**64 on carry into seed2's half
    high = np.full(blocks, (seed2 + carry) % (1 << 64), np.uint64)
    if blocks:
        high += (low < np.uint64(start % (1 << 64))).astype(np.uint64)
    x0, x1, x2, x3 = low & _LOW, low >> _32, high & _LOW, high >> _32
    key0, key1 = seed % (1 << 64) & 0xFFFFFFFF, seed % (1 << 64) >> 32
    for _ in range(10):
        a, b = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1, x2, x3 = (
            (b >> _32) ^ x1 ^ np.uint64(key0),
            b & _LOW,
            (a >> _32) ^ x3 ^ np.uint64(key1),
            a & _LOW,
        )
        key0, key1 = (key0 + _KEY_STEPS[0]) & 0xFFFFFFFF, (key1 + _KEY_STEPS[1]) & 0xFFFFFFFF
    return np.stack([x0, x1, x2, x3], axis=1)


def _uniform(words: Array, dtype: str) -> Array:
    """Return the low bits of each word as a fraction in [0, 1): a number in [1, 2), minus 1."""
    if dtype == "float64":
        return _wide_fraction(words[:, 0::2], words[:, 1::2])
    bits, plain = {"float32": (23, np.uint32), "float16": (10, np.uint16), "bfloat16": (7, np.uint16)}[dtype]
    one = {"float32": 127 << 23, "float16": 15 << 10, "bfloat16": 127 << 7}[dtype]
    number = NUMPY_DTYPE[dtype]
    fraction = ((words & np.uint64((1 << bits) - 1)) | np.uint64(one)).astype(plain).view(number)
    return np.asarray(fraction - number.type(1))


def _wide_fraction(first: Array, second: Array) -> Array:
    mantissa = ((first & np.uint64(0xFFFFF)) << _32) | second
    return (mantissa | np.uint64(1023 << 52)).view(np.float64) - 1.0


def _normal(words: Array, dtype: str) -> Array:
    if dtype == "float64":
        u, angle = _wide_fraction(words[:, 0:1], words[:, 1:2]), _wide_fraction(words[:, 2:3], words[:, 3:4])
    else:
        fractions = _uniform(words, "float32").astype(np.float64)
        u, angle = fractions[:, 0::2], fractions[:, 1::2]
    radius = np.sqrt(-2.0 * logarithm(np.maximum(u, 1.0e-7)))
    sine, cosine = sine_and_cosine(angle)
    return np.stack([sine * radius, cosine * radius], axis=-1).reshape(-1).astype(NUMPY_DTYPE[dtype])


def logarithm(x: Array) -> Array:
    """Return ln x for x in (0, 1], by the series of the inverse hyperbolic tangent."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(low, mantissa * 2.0, mantissa), np.where(low, exponent - 1, exponent)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    return np.asarray(2.0 * s * _polynomial(z, [1.0 / (2 * k + 1) for k in range(13)]) + exponent * 0.6931471805599453)


def sine_and_cosine(turns: Array) -> tuple[Array, Array]:
    """Return sine and cosine of an angle in turns, by their Taylor series within an eighth of a turn."""
    quarter = np.rint(turns * 4.0)
    t = (turns - quarter / 4.0) * (2.0 * math.pi)
    z = t * t
    sine = t * _polynomial(z, [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(9)])
    cosine = _polynomial(z, [(-1.0) ** k / math.factorial(2 * k) for k in range(10)])
    quarter = quarter.astype(np.int64) & 3
    odd = (quarter & 1) == 1
    sign_sine, sign_cosine = np.where(quarter >= 2, -1.0, 1.0), np.where((quarter == 1) | (quarter == 2), -1.0, 1.0)
    return sign_sine * np.where(odd, cosine, sine), sign_cosine * np.where(odd, sine, cosine)


def _polynomial(z: Array, coefficients: list[float]) -> Any:
    total: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = total * z + c
    return total
