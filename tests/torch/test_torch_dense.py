"""The dense layer on tensors: NumPy's values for every dtype, and the catalogue's gradients through autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rowgrad as rg
from dense_op_calls import CALLS, HUGE, MEANS, RESHAPED, inputs_of
from rowgrad._catalog.spec import CATALOG, QUANTIZED, Op
from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.raw_ops import OPS
from samples import sample
from torch_arrays import to_numpy, to_torch

DENSE = [op for op in CATALOG.values() if op.layer == "dense" and op.kernel is None]
SKIPPED = ("string", *QUANTIZED)


def tensors(op: Op, x: dict[str, Any]) -> dict[str, Any]:
    """Return the call with tensors instead of arrays; host inputs and attributes are unchanged."""
    inputs = dict(x)
    for arg in op.inputs:
        value = x[arg.name]
        if arg.many:
            inputs[arg.name] = [to_torch(np.asarray(v)) for v in value]
        elif not arg.host:
            inputs[arg.name] = to_torch(np.asarray(value))
    return inputs


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


@pytest.mark.parametrize(("op", "way"), CALLS)
def test_values_and_gradients(op: Op, way: dict[str, Any]) -> None:
    x = inputs_of(op, way)
    tensor_inputs = tensors(op, x)
    leaves = [v.requires_grad_() for n in op.differentiable for v in as_tuple(tensor_inputs[n])]
    got, expected = as_tuple(OPS[op.name](**tensor_inputs)), as_tuple(OPS[op.name](**x))
    rng = np.random.default_rng(11)
    ys = tuple(rng.normal(size=o.shape) for o in expected)
    for g, e in zip(got, expected, strict=True):
        assert (tuple(g.shape), str(g.dtype)) == (e.shape, f"torch.{e.dtype}")
        np.testing.assert_allclose(to_numpy(g), e, rtol=1e-12, atol=1e-12)
    arrays = {k: v for k, v in x.items() if k not in op.attrs}
    ours = rg.vjp(op.name, arrays, ys if len(ys) > 1 else ys[0], **{k: v for k, v in x.items() if k in op.attrs})
    theirs = torch.autograd.grad(got, leaves, [torch.as_tensor(y) for y in ys])
    for g, e in zip(theirs, [v for n in op.differentiable for v in as_tuple(ours[n])], strict=True):
        np.testing.assert_allclose(to_numpy(g), np.asarray(e), rtol=1e-12, atol=1e-12)


def dtypes() -> list[Any]:
    return [(op, d) for op in DENSE if "T" in op.types for d in op.dtypes_of("T") if d not in SKIPPED]


@pytest.mark.parametrize(("op", "dtype"), [pytest.param(op, d, id=f"{op.name}-{d}") for op, d in dtypes()])
def test_every_dtype(op: Op, dtype: str) -> None:
    """Integers and booleans must be equal; floats only close, because each library approximates differently."""
    kind = NUMPY_DTYPE[dtype]
    floats = {a.name for a in op.inputs if a.type == "T"}
    x = sample(op.name, np.random.default_rng(5))

    def cast(value: Any) -> Any:
        if isinstance(value, list):
            return [cast(v) for v in value]
        return np.asarray(abs(value) + 1 if kind.kind in "iub" else value).astype(kind)

    x = {k: cast(v) if k in floats else v for k, v in x.items()}
    if op.name in ("ScaleRows", "DivRows"):
        return  # their second type depends on T: see tests/torch/test_torch_ops.py
    for got, output in zip(as_tuple(OPS[op.name](**tensors(op, x))), as_tuple(OPS[op.name](**x)), strict=True):
        found = to_numpy(got)
        assert (found.dtype, found.shape) == (output.dtype, output.shape)
        if output.dtype.kind in "iub":
            np.testing.assert_array_equal(found, output)
        else:
            step = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 2.0**-20}.get(dtype, 1e-12)
            step = 1e-6 if dtype == "complex64" else step
            wide = complex if output.dtype.kind == "c" else float
            np.testing.assert_allclose(found.astype(wide), output.astype(wide), rtol=step, atol=step)


def gradient(name: str, *values: Any, **attrs: Any) -> list[list[float]]:
    leaves = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values]
    output = OPS[name](*leaves, *attrs.pop("host", ()), **attrs)
    return [g.tolist() for g in torch.autograd.grad(output.sum(), leaves)]


def test_gradients_at_ties_and_kinks() -> None:
    assert gradient("Abs", [-2.0, 0.0, 2.0]) == [[-1, 0, 1]]
    assert gradient("Relu", [-2.0, 0.0, 2.0]) == [[0, 0, 1]]
    assert gradient("Maximum", [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]) == [[0, 1, 1], [1, 0, 0]]
    assert gradient("Minimum", [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]) == [[1, 1, 0], [0, 0, 1]]
    assert gradient("DivNoNan", [1.0, 1.0], [0.0, 2.0]) == [[0, 0.5], [0, -0.25]]
    assert gradient("Max", [[1.0, 3.0, 3.0]], host=(1,)) == [[[0, 0.5, 0.5]]]
    assert np.isnan(gradient("Max", [[1.0, float("nan")]], host=(1,))).all()
    assert gradient("Pow", [0.0, -2.0], [0.0, 2.0]) == [[0, -4], [0, 0]]
    assert gradient("Softplus", [0.0]) == [[0.5]]
    assert gradient("SigmoidCrossEntropyWithLogits", [0.0], [0.0])[0] == [0.5]
    assert gradient("Mean", [[], []], host=([0, 1],)) == [[[], []]]
    stopped = OPS["StopGradient"](torch.ones(2, requires_grad=True))
    assert not stopped.requires_grad


@pytest.mark.parametrize(("x", "axis", "expected"), MEANS)
def test_means_of_integers_do_not_overflow(x: Any, axis: Any, expected: Any) -> None:
    got = OPS["Mean"](to_torch(x), axis)
    assert (to_numpy(got).dtype, got.tolist()) == (x.dtype, expected)
    if x.ndim == 1:
        spread = OPS["SpreadLike"](to_torch(np.array(120, x.dtype)), 0, to_torch(x), mean=True)
        assert spread.tolist() == [120 // len(x)] * len(x)


@pytest.mark.parametrize(("shape", "new_shape", "expected"), RESHAPED)
def test_empty_shapes(shape: Any, new_shape: Any, expected: Any) -> None:
    assert tuple(OPS["Reshape"](torch.zeros(shape), new_shape).shape) == expected


def test_infinities_and_nan() -> None:
    """NumPy's and TensorFlow's values, where torch's differ."""
    same, nan, inf = np.testing.assert_array_equal, float("nan"), float("inf")
    x = torch.tensor([nan, 3.0, nan, 1.0])
    assert (OPS["ArgMax"](x, 0), OPS["ArgMin"](x, 0), OPS["ArgMax"](x[[0, 2]], 0)) == (1, 3, 0)
    same(OPS["Sign"](torch.tensor([nan, -inf, -0.0])), [nan, -1, 0])
    same(gradient("Abs", [nan, -inf, inf, -2.0, 0.0])[0], [nan, -1, 1, -1, 0])
    same(OPS["ReluGrad"](torch.tensor([inf, 2.0, nan]), torch.tensor([-1.0, 1.0, 0.0])), [nan, 2, nan])
    same(gradient("FloorMod", [1.0, -1.0], [0.0, 0.0])[1], [-inf, inf])
    for name in ("Maximum", "Minimum"):
        same(OPS[name](torch.tensor([nan, 1.0]), torch.tensor([1.0, nan])), [nan, nan])
        same(gradient(name, [nan, 1.0], [1.0, nan]), [[0, 0], [1, 1]])
    same(gradient("Pow", [-2.0, nan, -2.0], [0.5, 2.0, 2.0])[1], [nan, nan, 0])
    same(gradient("SigmoidCrossEntropyWithLogits", [nan, inf], [0.0, 0.0])[0], [nan, 1])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", ["Mod", "FloorMod"])
def test_remainders_of_huge_quotients(name: str, dtype: str) -> None:
    """The quotient overflows, the remainder does not; 64 elements take the vectorized path."""
    kind = NUMPY_DTYPE[dtype]
    for x, y in ((1e38, 1e-30), (-1e38, 1e-38), (1e30, 3.0), *(((1e300, -1e-300),) if dtype == "float64" else ())):
        large, small = np.full(64, x, kind), np.full(64, y, kind)
        got = to_numpy(OPS[name](to_torch(large), to_torch(small)))
        np.testing.assert_array_equal(got.astype(float), OPS[name](large, small).astype(float))


def test_large_ranges() -> None:
    low, high = -(2**63), 2**63 - 1
    ends = [torch.tensor(n) for n in (low, high, 2**62)]
    assert OPS["Range"](*ends).tolist() == [low, low // 2, 0, 2**62]


@pytest.mark.parametrize(("name", "args"), HUGE, ids=[name for name, _ in HUGE])
def test_huge_results_raise_before_allocation(name: str, args: Any) -> None:
    arguments = dict(zip(CATALOG[name].input_names, args, strict=True))
    with pytest.raises(rg.errors.ResourceExhaustedError, match="OOM when allocating tensor with shape"):
        OPS[name](**tensors(CATALOG[name], arguments) | ({"start": torch.tensor(0)} if name == "Range" else {}))


def test_meta_tensors_skip_the_size_check() -> None:
    x = torch.zeros((10**6, 1), device="meta")
    assert OPS["Add"](x, x.T).shape == (10**6, 10**6)
    row = torch.zeros((1, 10**12), device="meta")
    assert OPS["Concat"]([row, row], 0).shape == (2, 10**12)


def test_sizes_alone_and_axes_in_arrays() -> None:
    assert OPS["Fill"](3, torch.tensor(7.0)).tolist() == [7, 7, 7]
    assert OPS["Reshape"](torch.zeros(2, 3), -1).shape == OPS["Reshape"](torch.zeros(2, 3), torch.tensor(6)).shape
    assert OPS["Sum"](torch.ones(2, 3), torch.tensor([[0], [1]])) == OPS["Sum"](torch.ones(2, 3), [[0, 1]]) == 6


def test_results_do_not_alias_inputs() -> None:
    x = torch.ones(2, 3)
    for name, args in (("Identity", ()), ("Reshape", ([3, 2],)), ("Transpose", ([0, 1],)), ("Slice", ([0, 0], [2, 3]))):
        assert OPS[name](x, *args).data_ptr() != x.data_ptr()
        assert OPS[name](x, *args).is_contiguous()
    for output in (OPS["AddN"]([x]), OPS["Sum"](x, ()), OPS["Concat"]([x], 0), OPS["Cast"](x), OPS["Round"](x.int())):
        assert output.data_ptr() != x.data_ptr()


def test_numbers_and_lists_beside_tensors() -> None:
    x = torch.tensor([1.0, 4.0])
    assert OPS["Mul"](x, 2).tolist() == [2, 8]
    assert OPS["Concat"]([x, [5.0], np.ones(1, np.float32)], 0).tolist() == [1, 4, 5, 1]
    assert OPS["Fill"](torch.tensor([2, 1]), torch.tensor(3)).tolist() == [[3], [3]]
    assert OPS["Range"](torch.tensor(0, dtype=torch.int32), 5, 2).tolist() == [0, 2, 4]
    assert OPS["Sum"](torch.ones(2, 3), torch.tensor([0, 1])) == 6


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("Add", (torch.ones(2, 3), torch.ones(2)), r"y of shape \[2\] does not broadcast with \[2,3\]"),
        ("Div", (torch.tensor([4, 5]), torch.tensor([2, 0])), r"Integer division by zero: y\[1\] = 0"),
        ("Pow", (torch.tensor([4, 5]), torch.tensor([2, -1])), r"not allowed: y\[1\]"),
        ("AddN", ([torch.ones(2), torch.ones(2), torch.ones(3)],), r"inputs\[2\] must have shape \[2\], got \[3\]"),
        ("Concat", ([torch.ones(2), torch.ones(2).int()], 0), r"values\[1\] must be float32"),
        ("Gather", (torch.ones(2), torch.tensor([[0, 7]])), r"indices\[0,1\] = 7 is not in \[0, 2\)"),
        ("Sum", (torch.ones(2), 1), r"axis\[0\] = 1 is not in \[-1, 1\)"),
        ("Reshape", (torch.ones(3), [2, 2]), "as many elements as shape"),
        ("FullLike", (torch.ones(3).int(), 1.5), "value must be an integer that fits int32"),
        ("OneHot", (torch.tensor([1]), 3, 1.0, 0.0, -2), "axis to be -1 or between"),
        ("Reciprocal", (torch.tensor([1]),), "got int64, which has no kernel"),
    ],
)
def test_invalid_arguments_raise(name: str, args: Any, message: str) -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match=message):
        OPS[name](*args)


def test_batched() -> None:
    """Under torch.func.vmap nothing reads data, so ids out of range are left to torch."""
    table, ids = torch.randn(5, 2), torch.tensor([[0, 3], [4, 4], [1, 0]])
    rows = torch.func.vmap(lambda i: OPS["Gather"](table, i))(ids)
    assert torch.equal(rows, table[ids])
    halves = torch.func.vmap(lambda i: OPS["Div"](i, torch.tensor(2)))(ids)
    assert torch.equal(halves, ids // 2)
    slopes = torch.func.vmap(torch.func.grad(lambda x: OPS["L2Loss"](OPS["Relu"](x))))(table)
    assert torch.equal(slopes, table.relu())


def test_compiled() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        hidden = OPS["Relu"](OPS["BiasAdd"](OPS["MatMul"](a, b), b[0]))
        return OPS["Sum"](OPS["Mul"](OPS["Softmax"](OPS["Reshape"](hidden, [-1, 2])), hidden[:1, :2]), [0, 1])

    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    compiled = torch.compile(f, backend="eager", fullgraph=True)
    expected = torch.autograd.grad(f(a, b), (a, b))
    for g, e in zip(torch.autograd.grad(compiled(a, b), (a, b)), expected, strict=True):
        torch.testing.assert_close(g, e)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_gradients_pass_shapes_of_unsigned_tensors(dtype: torch.dtype) -> None:
    """Where torch has no unsigned kernels, NumPy computes, which has no autograd."""
    x = torch.arange(4.0, requires_grad=True)
    out = rg.dense_ops.ReshapeLike(x, torch.zeros(2, 2, dtype=dtype))
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    assert torch.equal(grad, 2 * x.detach())


def test_gradient_of_a_remainder_whose_quotient_overflows() -> None:
    for op in (rg.dense_ops.FloorMod, rg.dense_ops.Mod):
        x = torch.tensor([1e300, 7.0], dtype=torch.float64, requires_grad=True)
        y = torch.tensor([1e-300, 2.0], dtype=torch.float64, requires_grad=True)
        to_x, to_y = torch.autograd.grad(op(x, y).sum(), (x, y))
        assert to_x.tolist() == [1.0, 1.0]
        assert to_y.tolist() == [float("-inf"), -3.0]
