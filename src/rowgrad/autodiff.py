"""Gradients without a framework: `vjp` records the ops that a function calls and runs their adjoints backwards.

A recorded value is a `Traced`, which names this module as its runner, so `dispatch` sends every op on it here. Adjoints
are composed of ops as well: if an outer `vjp` traces their arguments, it records them too, so derivatives nest.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ._catalog.rows import IndexedRows
from ._catalog.spec import Call, Op, regroup, spread
from ._hints import did_you_mean
from ._runtime.arrays import admit, as_array, is_inexact
from ._runtime.dispatch import describe_value, invoke
from .errors import OpError, make_error, shape_text
from .raw_ops import OPS
from .sparse import SparseTensor

__all__ = ("vjp",)

_levels = itertools.count()


class Tape:
    """The ops that one `vjp` recorded, in order."""

    def __init__(self) -> None:
        self.level = next(_levels)  # inner tapes have higher levels
        self.nodes: list[tuple[Op, dict[str, Any], Call, tuple[Any, ...]]] = []


class Traced:
    """An array that a `vjp` differentiates with respect to, or one computed from such an array."""

    __rowgrad_runner__ = __name__
    __slots__ = ("tape", "value")

    def __init__(self, tape: Tape, value: Any) -> None:
        self.tape = tape
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return np.shape(self.value) if not hasattr(self.value, "shape") else tuple(self.value.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the value; lists of numbers are float32 unless other arguments determine their dtype."""
        if self.is_list:
            return np.dtype(np.float32)
        return getattr(self.value, "dtype", np.dtype(type(self.value)))

    @property
    def numbers(self) -> Any:
        """The value that no tape traces."""
        return self.value.numbers if isinstance(self.value, Traced) else self.value

    @property
    def is_list(self) -> bool:
        """Whether the value is a list of Python numbers."""
        return isinstance(self.numbers, list | tuple)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise _not_recorded("a conversion to an array", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        raise _not_recorded(f"np.{ufunc.__name__}", _op_like(ufunc.__name__))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in (np.shape, np.ndim):
            return len(self.shape) if function is np.ndim else self.shape
        module = function.__module__.replace("numpy", "np", 1)
        raise _not_recorded(f"{module}.{function.__name__}", _op_like(function.__name__))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        op = _op_like(name)
        use = f" Instead of .{name} use rowgrad.dense_ops.{op}." if op else ""
        raise AttributeError(f"a value inside vjp has shape, dtype and ndim, but no {name}.{use}")


# Operations that NumPy names differently than the op.
_OP_OF = {
    "subtract": "Sub", "multiply": "Mul", "divide": "RealDiv", "true_divide": "RealDiv", "power": "Pow",
    "negative": "Neg", "absolute": "Abs", "fabs": "Abs", "dot": "MatMul", "remainder": "FloorMod", "mod": "FloorMod",
    "floor_divide": "FloorDiv", "amax": "Max", "amin": "Min", "concatenate": "Concat", "stack": "Pack",
    "where": "Select", "take": "Gather", "T": "Transpose", "astype": "Cast",
}  # fmt: skip


def _op_like(name: str) -> str | None:
    """Return the op that does what a function of NumPy does, if there is one."""
    if (other := _OP_OF.get(name)) is not None:
        return other
    plain = name.replace("_", "").casefold()
    return next((n for n in OPS if n.casefold() == plain), None)


def _not_recorded(what: str, op: str | None) -> TypeError:
    use = f"Instead of {what} use rowgrad.dense_ops.{op}" if op else f"{what} would lose its gradient"
    return TypeError(f"a value inside vjp supports rowgrad's ops only. {use}.")


def _rejecting(sign: str, op: str) -> Callable[..., Any]:
    def reject(*_: Any) -> Any:
        raise _not_recorded(sign, op)

    return reject


for _name, _sign, _op in (
    ("add", "+", "Add"), ("sub", "-", "Sub"), ("mul", "*", "Mul"), ("truediv", "/", "RealDiv"), ("pow", "**", "Pow"),
    ("matmul", "@", "MatMul"), ("floordiv", "//", "FloorDiv"), ("mod", "%", "FloorMod"),
):  # fmt: skip
    for _side in ("", "r"):
        setattr(Traced, f"__{_side}{_name}__", _rejecting(_sign, _op))
for _name, _sign, _op in (
    ("neg", "-", "Neg"), ("abs", "abs()", "Abs"), ("eq", "==", "Equal"), ("ne", "!=", "NotEqual"), ("lt", "<", "Less"),
    ("le", "<=", "LessEqual"), ("gt", ">", "Greater"), ("ge", ">=", "GreaterEqual"),
    ("getitem", "[]", "Slice or Gather"),
    ("bool", "its truth value", "Greater or Equal, whose results are plain arrays"),
):  # fmt: skip
    setattr(Traced, f"__{_name}__", _rejecting(_sign, _op))


def call(op: Op, arguments: dict[str, Any], attrs: dict[str, Any], out: Any) -> tuple[Any, ...]:
    """Run an op on traced values: run it on the values of the innermost tape, and record it there."""
    if out is not None:
        raise make_error("out_unfit", argument=op.outputs[0].name, bound="absent under vjp", value="an array")
    flat = spread(op, arguments)[1] if op.has_lists else arguments
    tape = max((v.tape for v in flat.values() if isinstance(v, Traced)), key=lambda t: t.level)
    inside = {k: v.value if isinstance(v, Traced) and v.tape is tape else v for k, v in flat.items()}
    if op.has_lists:
        inside = regroup(op, inside)
    if op.layer == "dense" or any(isinstance(v, Traced) and v.is_list for v in flat.values()):
        inside = _convert_numbers(op, inside)
    outputs = invoke(op, (), {**inside, **attrs})
    results = tuple(Traced(tape, o) if is_differentiable(o) else o for o in outputs)
    tape.nodes.append((op, arguments, Call(inside, attrs, outputs), results))
    return results


def _convert_numbers(op: Op, arguments: dict[str, Any]) -> dict[str, Any]:
    """Convert Python numbers and lists to arrays of the other arguments' dtype; adjoints cannot convert them."""
    plain = [a.name for a in op.inputs if not a.host and not a.many and not hasattr(arguments[a.name], "dtype")]
    if not plain:
        return arguments
    stand_ins = {
        k: (v.numbers if v.is_list else np.zeros(0, v.dtype)) if isinstance(v, Traced) else v
        for k, v in arguments.items()
    }
    admitted = admit(op, stand_ins)
    return {**arguments, **{name: admitted[name] for name in plain}}


def is_differentiable(value: Any) -> bool:
    """Return whether a value can have a gradient: floating point or complex."""
    if isinstance(value, bool | int | None):
        return False
    if isinstance(value, float | complex):
        return True
    dtype = getattr(value, "dtype", None)
    return dtype is not None and (dtype.kind in "fc" or dtype == ml_dtypes.bfloat16)


def vjp(f: str | Callable[..., Any], inputs: Any, cotangents: Any, /, **attrs: Any) -> Any:
    """Compute the gradients of an op, or of any function composed of ops, for its inputs.

    Args:
        f: The name of an op, or a function.
        inputs: Its positional arguments as a sequence, or its keyword arguments as a mapping.
        cotangents: The gradient of each output: one array, or one per output, with None for outputs without gradient.
        **attrs: Further keyword arguments of `f`.

    Returns:
        A tuple or dict like `inputs`: arrays or `IndexedRows` where a gradient exists, None elsewhere. The gradient of
        a SparseTensor or of `IndexedRows` is that of its values; that of a list or dict has its structure. Gradients
        share no memory with each other or with arguments.

    Raises:
        ValueError: If there is no op of this name.
        InvalidArgumentError: If a cotangent does not fit its output.

    >>> import numpy as np, rowgrad as rg
    >>> x = {"data": np.ones((3, 1)), "indices": [0, 2], "segment_ids": [0, 0]}
    >>> rg.vjp("SparseSegmentMean", x, np.array([[1.0]]))["data"].tolist()
    [[0.5], [0.0], [0.5]]
    """
    if isinstance(f, str) and f not in OPS:
        raise ValueError(f"vjp: no op named {f!r}. {did_you_mean(f, OPS, '`rowgrad ops` lists them all.')}")
    function = OPS[f] if isinstance(f, str) else f
    if hasattr(inputs, "dtype"):
        raise TypeError("vjp: inputs must be a tuple or a dict of the arguments, got an array. Write (array,).")
    tape = Tape()
    named = isinstance(inputs, Mapping)
    traced: dict[Any, Any] = {k: _trace(tape, v) for k, v in (inputs.items() if named else enumerate(inputs))}
    try:
        outputs = function(**traced, **attrs) if named else function(*traced.values(), **attrs)
        gradients = _backward(tape, outputs, cotangents)
    finally:
        tape.nodes.clear()  # traced values refer to the tape, so its arrays would live until a cycle collection
    unshared = _Unshared(cotangents)
    found = {k: _collect(gradients, v, unshared) for k, v in traced.items()}
    return found if named else tuple(found.values())


def _trace(tape: Tape, value: Any) -> Any:
    if isinstance(value, SparseTensor):
        return SparseTensor(value.indices, _trace(tape, value.values), value.dense_shape)
    if isinstance(value, IndexedRows):
        return IndexedRows(_trace(tape, value.values), value.indices, value.num_rows, value.is_unique)
    if isinstance(value, Mapping):
        return {k: _trace(tape, v) for k, v in value.items()}
    if isinstance(value, list | tuple) and value:
        if _holds_arrays(value) or all(hasattr(v, "dtype") for v in value):
            items = [_trace(tape, v) for v in value]
            return tuple(items) if isinstance(value, tuple) else items
        try:
            is_real = np.asarray(value).dtype.kind == "f"
        except ValueError:  # items of different lengths: the op raises
            return value
        if is_real:
            return Traced(tape, value)  # a list takes the dtype of the other arguments, as without vjp
    if not hasattr(getattr(value, "dtype", np.dtype(float)), "kind"):
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise TypeError(f"vjp: inputs must be NumPy arrays, got {kind}; use torch.autograd for torch tensors")
    return Traced(tape, value) if is_differentiable(value) else value


def _holds_arrays(value: Any) -> bool:
    """Return whether a value is, or contains, an array that is not a scalar."""
    if isinstance(value, list | tuple | Mapping):
        return any(map(_holds_arrays, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, SparseTensor | IndexedRows) or len(getattr(value, "shape", ())) > 0


class _Unshared:
    """Copies gradients that share memory, because callers may write to them."""

    def __init__(self, cotangents: Any) -> None:
        self._in_use = {_memory(y) for y in (cotangents if isinstance(cotangents, tuple | list) else (cotangents,))}

    def array(self, gradient: Any) -> Any:
        """Return an array, copied if its memory is in use; traced arrays, which are immutable, unchanged."""
        if not isinstance(gradient, np.ndarray):
            return gradient
        if _memory(gradient) in self._in_use:
            gradient = gradient.copy()
        self._in_use.add(_memory(gradient))
        return gradient

    def gradient(self, gradient: Any) -> Any:
        """Return an array or rows. Ids that are not unique may be the caller's own array."""
        if not isinstance(gradient, IndexedRows):
            return self.array(gradient)
        ids = gradient.indices if gradient.is_unique else np.array(gradient.indices)
        return IndexedRows(self.array(gradient.values), ids, gradient.num_rows, gradient.is_unique)


def _memory(array: Any) -> int:
    """Return the identity of the array that owns the memory."""
    while isinstance(base := getattr(array, "base", None), np.ndarray):
        array = base
    return id(array)


def _collect(gradients: dict[int, list[Any]], value: Any, unshared: _Unshared) -> Any:
    if isinstance(value, SparseTensor | IndexedRows):
        return _collect(gradients, value.values, unshared)
    if isinstance(value, list | tuple | Mapping):
        if not _holds_traced(value):
            return None
        if isinstance(value, Mapping):
            return {k: _collect(gradients, v, unshared) for k, v in value.items()}
        items = [_collect(gradients, v, unshared) for v in value]
        return tuple(items) if isinstance(value, tuple) else items
    return unshared.gradient(_sum(gradients.get(id(value), []))) if isinstance(value, Traced) else None


def _holds_traced(value: Any) -> bool:
    if isinstance(value, list | tuple | Mapping):
        return any(map(_holds_traced, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value.values if isinstance(value, SparseTensor | IndexedRows) else value, Traced)


def _backward(tape: Tape, outputs: Any, cotangents: Any) -> dict[int, list[Any]]:
    """Run the adjoints from the last op to the first; return the gradients of each input. Processed nodes are freed."""
    results = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
    results = tuple(r.values if isinstance(r, SparseTensor) else r for r in results)
    for result in results:
        if not hasattr(result, "dtype") or isinstance(result, IndexedRows):
            kind = type(result).__name__
            raise TypeError(f"vjp: the function must return arrays, got {kind}. Convert rows with rowgrad.densify.")
    upstream = cotangents if isinstance(cotangents, tuple | list) else (cotangents,)
    if len(upstream) != len(results):
        raise make_error("lengths_match", argument="cotangents", value=len(upstream), bound=len(results)).in_call(
            "vjp", None, f"{len(results)} outputs"
        )
    gradients: dict[int, list[Any]] = {}
    for k, (result, y) in enumerate(zip(results, upstream, strict=True)):
        if y is None:
            continue
        if is_differentiable(result):
            y = _cotangent(k, result, y)
        if isinstance(result, Traced) and result.tape is tape:
            gradients.setdefault(id(result), []).append(y)  # one value may be returned twice
    while tape.nodes:
        op, arguments, recorded, produced = tape.nodes.pop()
        ys = [_sum(gradients.pop(id(r), [])) for r in produced]
        if op.adjoint is None or all(y is None for y in ys):
            continue
        ys = [densify(y) if y is not None else _zero(r) for y, r in zip(ys, produced, strict=True)]
        wanted = [_is_wanted(tape, arguments[n]) for n in op.differentiable]
        if not any(wanted):
            continue
        recorded.wanted = frozenset(n for n, is_wanted in zip(op.differentiable, wanted, strict=True) if is_wanted)
        contributions = op.adjoint(OPS, recorded, *ys)
        for name, is_wanted, gradient in zip(op.differentiable, wanted, contributions, strict=True):
            if not is_wanted or gradient is None:
                continue
            target = arguments[name]
            pairs = zip(target, gradient, strict=True) if isinstance(target, list | tuple) else ((target, gradient),)
            for traced, part in pairs:
                if part is not None and _is_wanted(tape, traced):
                    gradients.setdefault(id(traced), []).append(part)
    return gradients


def _is_wanted(tape: Tape, value: Any) -> bool:
    """Return whether the gradient of a value, or of an item of a list, is requested."""
    items = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(v, Traced) and v.tape is tape for v in items)


def _cotangent(k: int, result: Traced, y: Any) -> Any:
    """Validate a cotangent: it has the output's shape and dtype; Python numbers are converted."""
    facts: dict[str, Any] = {"argument": f"cotangents[{k}]"}
    if not hasattr(y, "dtype"):
        call = f"output {k}: {describe_value(result)}, its cotangent: {describe_value(y)}"
        try:
            y = _number(y, facts["argument"], result.dtype)
        except OpError as error:
            raise error.in_call("vjp", None, call) from None
    call = f"output {k}: {describe_value(result)}, its cotangent: {describe_value(y)}"
    if tuple(y.shape) != result.shape:
        facts |= {"value": shape_text(tuple(y.shape)), "bound": shape_text(result.shape)}
        raise make_error("same_shape", **facts).in_call("vjp", None, call)
    if isinstance(y, np.ndarray) and y.dtype != result.dtype and _native(y.dtype) == _native(result.dtype):
        y = y.astype(_native(y.dtype))  # it has another byte order
    elif y.dtype != result.dtype:
        facts |= {"value": y.dtype, "bound": result.dtype, "why": ", as the output"}
        raise make_error("dtype_expected", **facts).in_call("vjp", None, call)
    return y


def _number(value: Any, argument: str, dtype: Any) -> Any:
    """Convert a Python number to an array of this dtype; raise if it overflows."""
    array = as_array(value, argument, dtype.name)
    if is_inexact(array.dtype) and not np.isfinite(array).all() and np.isfinite(np.asarray(value)).all():
        raise make_error("integer_does_not_fit", argument=argument, value=repr(value), bound=dtype)
    return array


def _native(dtype: Any) -> Any:
    return dtype.newbyteorder("=")


def _zero(result: Any) -> Any:
    """Return the cotangent of an output without one: zeros, or None if it is not differentiable."""
    return np.zeros(result.shape, result.dtype) if is_differentiable(result) else None


def _sum(parts: list[Any]) -> Any:
    """Add the gradients of a value: rows are concatenated as in TensorFlow, others summed. None for an empty list."""
    if len(parts) < 2:
        return parts[0] if parts else None
    if len({part.dtype for part in parts}) > 1:  # Python numbers got the dtypes of other arguments
        widest = functools.reduce(np.promote_types, (part.dtype for part in parts), np.dtype(np.float32))
        parts = [OPS["CastLike"](densify(part), np.zeros((), widest)) for part in parts]
    if not all(isinstance(part, IndexedRows) for part in parts):
        return functools.reduce(OPS["Add"], map(densify, parts))
    values = OPS["Concat"]([part.values for part in parts], 0)
    return IndexedRows(values, np.concatenate([part.indices for part in parts]), parts[0].num_rows)


def densify(gradient: Any) -> Any:
    """Return a gradient as a dense array; rows with the same index are added in order.

    Args:
        gradient: An `IndexedRows`, or an array, which is returned unchanged.

    Returns:
        An array with the shape of the table.

    >>> import numpy as np, rowgrad as rg
    >>> rg.densify(rg.IndexedRows(np.array([[1.0], [2.0]]), np.array([2, 2]), num_rows=3)).ravel().tolist()
    [0.0, 0.0, 3.0]
    """
    if isinstance(gradient, IndexedRows):
        return OPS["ScatterRows"](gradient.values, gradient.indices, gradient.num_rows)
    return gradient
