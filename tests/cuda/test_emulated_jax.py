"""JAX programs on a CUDA device, emulated on the host: bits, transforms, calls outside of jit, errors."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax.numpy", reason="the extra `jax` is not installed")

import jax
import jax.numpy as jnp
import ml_dtypes
from emulated_xla import on_cuda

import rowgrad as rg
import rowgrad.jax as rgj
from conformance.test_golden import by_op
from golden_cases import Case, same_bits
from jax_arrays import split, to_jax, x64
from rowgrad import _core
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad._runtime import numpy_runner
from rowgrad.errors import InvalidArgumentError, OpError
from rowgrad.jax import cuda_call
from rowgrad.raw_ops import OPS

RAISED = (jax.errors.JaxRuntimeError, ValueError)  # how JAX raises an error of XLA
DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
COMPILED = [op for op in CATALOG.values() if cuda_call.has_kernel(op) and not op.is_data_sized]


@pytest.fixture(autouse=True)
def _wide() -> Iterator[None]:
    with x64():
        yield


def in_order(op: Op) -> dict[str, str]:
    """Return TensorFlow's order for ops that have orders."""
    return {"order": "sequential"} if "order" in op.attrs else {}


# -- Bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [p for p in by_op("valid") if cuda_call.has_kernel(CATALOG[p.values[0][0].op])])
def test_golden_bits(found: list[Case]) -> None:
    """All cases of an op: compiled as one program, or outside of jit if data decides sizes."""
    op = CATALOG[found[0].op]
    cases = [(case, {k: to_jax(v) for k, v in case.inputs.items()}) for case in found]
    cases = [(case, inputs) for case, inputs in cases if all(v is not None for v in inputs.values())]
    host = {a.name for a in op.inputs if a.host}

    def program(traced: list[dict[str, Any]]) -> list[Any]:
        ordered = {**in_order(op)}
        return [
            getattr(rg.raw_ops, op.name)(**t, **{k: case.inputs[k] for k in host}, **case.attrs, **ordered)
            for (case, _), t in zip(cases, traced, strict=True)
        ]

    arrays = [{k: v for k, v in inputs.items() if k not in host} for _, inputs in cases]
    with on_cuda() as device:
        outputs = (program if op.is_data_sized else jax.jit(program))(arrays)
        outputs = [[np.asarray(x) for x in (o if isinstance(o, tuple) else (o,))] for o in outputs]
        assert device.launched
    for (case, _), got in zip(cases, outputs, strict=True):
        for (name, expected), array in zip(case.outputs.items(), got, strict=True):
            assert same_bits(array, expected), f"{case}: {name}\n{array}\n{expected}"
    assert len(cases) > 0.6 * len(found)


def batch(draw: np.random.Generator, dtype: Any, weighted: bool) -> dict[str, Any]:
    """Return arguments of a gradient: some rows have many ids."""
    rows, bags, ids = draw.integers(1, 60), draw.integers(1, 40), draw.integers(1, 700)
    found = {
        "grad": draw.standard_normal((bags, draw.choice([1, 3, 8, 33]))).astype(dtype),
        "indices": (rows * draw.random(ids) ** draw.choice([1, 6])).astype(draw.choice([np.int32, np.int64])),
        "segment_ids": draw.integers(0, bags, ids).astype(draw.choice([np.int32, np.int64])),
    }
    if weighted:
        found["weights"] = draw.standard_normal(ids).astype(dtype)
    return {**found, "rows": int(rows)}


def results(values: Any) -> list[np.ndarray]:
    return [np.asarray(v) for v in (values if isinstance(values, tuple) else (values,))]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
def test_gradients_have_the_bits_of_blocked_on_a_cpu(dtype: Any) -> None:
    draw = np.random.default_rng(4)
    with on_cuda() as device:
        for number in range(9):
            kind = ("Sum", "Mean", "SqrtN")[number % 3]
            x = batch(draw, dtype, weighted=False)
            rows = x.pop("rows")
            arrays = {k: jnp.asarray(v) for k, v in x.items()}
            size = len(set(x["indices"].tolist())) + int(draw.integers(0, 9))
            for name, sizes in (
                (f"SparseSegment{kind}Grad", {"output_dim0": rows}),
                (f"SparseSegment{kind}GradV2", {"dense_output_dim0": rows}),
                (f"SparseSegment{kind}GradV2", {"dense_output_dim0": rows, "size": size}),
            ):
                expected = results(OPS[name](**x, **sizes, order="blocked"))
                got = results(OPS[name](**arrays, **sizes))
                assert all(map(same_bits, got, expected)), (name, number)
                expected = results(OPS[name](**x, **sizes, order="sequential"))
                got = results(jax.jit(lambda a, n=name, s=sizes: OPS[n](**a, **s, order="sequential"))(arrays)) if (
                    "size" in sizes or "output_dim0" in sizes
                ) else results(OPS[name](**arrays, **sizes, order="sequential"))  # fmt: skip
                assert all(map(same_bits, got, expected)), (name, number)
        assert any("join_runs" in name for name in device.launched)


def test_without_64_bits() -> None:
    """int32 arrays stand in for int64 ones, also in outputs."""
    with x64(False), on_cuda():
        offsets = jnp.array([0, 2, 2, 5])
        segments = jax.jit(lambda o: rg.raw_ops.SegmentIdsFromOffsets(o, 7))(offsets)
        assert segments.dtype == jnp.int32
        assert segments.tolist() == [0, 0, 2, 2, 2, 3, 3]
        positions = jax.jit(rg.raw_ops.RowPositions)(jnp.array([2, 5, 9]), jnp.array([9, 2]))
        assert positions.dtype == jnp.int32
        assert positions.tolist() == [2, 0]


# -- Transforms -------------------------------------------------------------------------------------------------------


def losses(table: np.ndarray, ids: np.ndarray, segments: np.ndarray) -> Callable[[Any], Any]:
    """Return a function of a table whose gradient has rows of more than 64 ids."""

    def loss(table: Any) -> Any:
        bags = rg.raw_ops.SparseSegmentMeanWithNumSegments(table, jnp.asarray(ids), jnp.asarray(segments), 5)
        return (bags * jnp.arange(5.0)[:, None] ** 0.5).sum()

    return loss


def many_ids() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    table = draw.standard_normal((6, 4)).astype(np.float32)
    return table, draw.integers(0, 3, 400), np.sort(draw.integers(0, 5, 400))


def blocked_gradient(table: np.ndarray, ids: np.ndarray, segments: np.ndarray) -> np.ndarray:
    upstream = np.broadcast_to(np.arange(5.0, dtype=np.float32)[:, None] ** np.float32(0.5), (5, 4)).copy()
    upstream = np.asarray((jnp.ones((5, 4), jnp.float32) * jnp.arange(5.0)[:, None] ** 0.5).astype(jnp.float32))
    return rg.raw_ops.SparseSegmentMeanGrad(upstream, ids, segments, len(table), order="blocked")


def test_derivatives_and_transforms() -> None:
    with x64(False):
        table, ids, segments = many_ids()
        loss = losses(table, ids, segments)
        sequential = np.asarray(jax.jit(jax.grad(loss))(table))
        with on_cuda() as device:
            expected = blocked_gradient(table, ids, segments)
            assert not same_bits(expected, sequential)  # the orders differ on this batch
            placed = jnp.asarray(table)
            for gradient in (
                jax.grad(loss),
                jax.jit(jax.grad(loss)),
                lambda t: jax.vmap(jax.grad(loss))(t[None])[0],
                lambda t: jax.jit(jax.vmap(jax.grad(loss)))(jnp.stack([t, t]))[1],
                lambda t: jax.lax.scan(lambda c, _: (c, jax.grad(loss)(c)), t, None, length=3)[1][2],
                jax.grad(jax.checkpoint(loss)),
                lambda t: sharded_over_one(jax.grad(loss))(t),
            ):
                assert same_bits(np.asarray(gradient(placed)), expected)
            value, tangent = jax.jit(lambda t: jax.jvp(loss, (t,), (t,)))(placed)
            assert np.allclose(value, tangent, rtol=1e-5)  # the loss is linear
            assert any("join_runs" in name for name in device.launched)


def test_weighted_gradients_have_the_order_of_the_platform() -> None:
    """The adjoint passes another attribute, and no order."""
    table, ids, segments = many_ids()
    weights = np.linspace(0.5, 1.5, len(ids), dtype=np.float32)

    def loss(table: Any) -> Any:
        return rg.raw_ops.WeightedSparseSegmentSumWithNumSegments(table, ids, segments, weights, 5).sum()

    ones = np.ones((5, 4), np.float32)
    expected = [
        rg.raw_ops.WeightedSparseSegmentSumGrad(ones, ids, segments, weights, 6, order=order)
        for order in ("blocked", "sequential")
    ]
    assert not same_bits(*expected)
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        with on_cuda():
            assert same_bits(np.asarray(gradient(jnp.asarray(table))), expected[0])
        assert same_bits(np.asarray(gradient(jnp.asarray(table))), expected[1])


def test_launches_of_weighted_bags() -> None:
    """Two kernels validate and sum bags, whatever the dtype of weights, without a memset.

    Only the device knows whether segments ascend, so the second kernel, and for gradients those of a sort, are queued;
    they do nothing.
    """
    table, ids, segments = many_ids()
    weights = np.linspace(0.5, 1.5, len(ids), dtype=np.float32)
    both = ["weighted_bags", "rest_of_weighted_bags"]
    group = ["check_weighted", "scan_ids", "sort_pass"]
    sort_and_sum = ["scan_ids", "sort_pass", "find_rows", "weigh_entries", "sum_rows", "join_runs", "poison_results"]
    with x64(False), on_cuda() as device:

        def queued(function: Any, *operands: Any) -> tuple[list[str], int]:
            device.launched.clear()
            device.driver.log.clear()
            jax.block_until_ready(jax.jit(function)(*operands))
            return [name.split("<")[0] for name in device.launched], device.driver.log.count("memset")

        def bags(weights: Any) -> Any:
            return rg.raw_ops.WeightedSparseSegmentMeanWithNumSegments(table, ids, segments, weights, 5)

        def gradient(weights: Any) -> Any:
            return rg.raw_ops.WeightedSparseSegmentMeanGrad(jnp.ones((5, 4)), ids, segments, weights, 6)

        queued(bags, weights)  # the device has memory of its own, cleared once
        assert queued(bags, jnp.asarray(weights)) == (both, 0)
        assert queued(bags, jnp.asarray(weights, jnp.bfloat16)) == (both, 0)
        assert queued(gradient, jnp.asarray(weights)) == ([*group, "total_weights", *sort_and_sum], 3)
        assert "wait for event" in device.driver.log  # the divisors are found beside the sort


def sharded_over_one(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    spec = PartitionSpec()
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def test_row_gradients_of_a_model() -> None:
    table, ids, segments = many_ids()

    def loss(params: Any) -> Any:
        return params["items"].bags(jnp.asarray(ids), jnp.asarray(segments), num_bags=5, combiner="mean").sum()

    with x64(False), on_cuda() as device:
        step = jax.jit(rgj.value_and_rows(loss))
        rows = step({"items": rgj.Table(jnp.asarray(table))})[1]["items"].rows
        expected = rg.raw_ops.SparseSegmentMeanGradV2(
            np.ones((5, 4), np.float32), ids.astype(np.int32), segments.astype(np.int32), 6, order="blocked"
        )  # fmt: skip
        assert same_bits(np.asarray(rows.values)[:3], expected[0])
        assert np.asarray(rows.indices).tolist() == [*expected[1].tolist(), 6, 6, 6]
        assert any("pad_rows" in name for name in device.launched)


# -- Calls outside of jit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [op for op in CATALOG.values() if cuda_call.has_kernel(op)], ids=lambda op: op.name)
def test_known_arrays_stay_on_the_device(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, attrs = split(op)
    expected = results(OPS[op.name](**{k: np.asarray(v) if hasattr(v, "dtype") else v for k, v in inputs.items()},
                                    **attrs, **({"order": "blocked"} if "order" in op.attrs else {})))  # fmt: skip
    with on_cuda() as device:
        monkeypatch.setattr(numpy_runner, "call", None)
        got = OPS[op.name](**inputs, **attrs)
        assert all(isinstance(x, jax.Array) for x in (got if isinstance(got, tuple) else (got,)))
        assert all(map(same_bits, results(got), expected))
        assert device.launched


def test_sizes_that_data_decide() -> None:
    table = jnp.ones((4, 2), jnp.float32)
    none = jnp.zeros(0, jnp.int64)
    with on_cuda():
        assert rg.raw_ops.SparseSegmentSum(table, none, none).shape == (0, 2)
        empty = rg.raw_ops.SparseSegmentSumGradV2(jnp.zeros((0, 2)), none, none, 4)
        assert [x.shape for x in empty] == [(0, 2), (0,)]
        empty = rg.raw_ops.SparseSegmentSumGradV2(jnp.zeros((1, 2)), jnp.array([7]), jnp.array([0]), 0)
        assert [x.shape for x in empty] == [(0, 2), (0,)]
        for last in (np.array([-1]), np.array([2**31 - 1], np.int32), np.array([2**63 - 1])):  # raised by the host
            ids = np.zeros(1, last.dtype)
            with pytest.raises(OpError) as raised:
                rg.raw_ops.SparseSegmentSum(table, jnp.asarray(ids), jnp.asarray(last))
            with pytest.raises(OpError) as expected:
                rg.raw_ops.SparseSegmentSum(np.asarray(table), ids, last)
            assert raised.value.message == expected.value.message
        for name in ("SparseSegmentSum", "WeightedSparseSegmentSum"):
            weights = (np.ones(2, np.float32),) if name.startswith("W") else ()
            with pytest.raises(OpError) as raised:
                OPS[name](table, jnp.array([1, 2]), jnp.array([1, 0]), *weights)
            with pytest.raises(OpError) as expected:
                OPS[name](np.asarray(table), [1, 2], np.array([1, 0]), *weights)
            assert raised.value.message == expected.value.message
        with pytest.raises(InvalidArgumentError, match="9 out of range"):  # it waits, so it raises its own fault
            rg.raw_ops.SparseSegmentSumGradV2(jnp.ones((1, 2)), jnp.array([9]), jnp.array([0]), 4)


# -- Errors -----------------------------------------------------------------------------------------------------------


def spoiled(op: Op) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield calls with one bad id, by the name of the argument."""
    inputs, attrs = split(op)
    for name, value in inputs.items():
        if isinstance(value, jax.Array) and value.dtype in (jnp.int32, jnp.int64) and value.size:
            for bad in (-1, 2**20):
                for at in {0, value.size // 2, value.size - 1}:
                    yield name, {**inputs, name: value.at[at].set(bad)}, attrs


def is_marked(array: np.ndarray) -> bool:
    if array.dtype.kind in "iu":
        return bool((array == (np.iinfo(array.dtype).min or np.iinfo(array.dtype).max)).all())
    return bool(np.isnan(array.astype(np.complex128)).all())


@pytest.mark.parametrize("op", COMPILED, ids=lambda op: op.name)
def test_a_bad_id_marks_results_and_is_raised_later(op: Op) -> None:
    host = {a.name for a in op.inputs if a.host}
    inputs, attrs = split(op)
    fixed = {k: v for k, v in inputs.items() if k in host} | attrs
    call = jax.jit(lambda arrays: OPS[op.name](**arrays, **fixed))
    good = {k: v for k, v in inputs.items() if k not in host}
    tried = 0
    with on_cuda():
        expected_good = results(call(good))
        for name, changed, _ in spoiled(op):
            known = {k: np.asarray(v) if isinstance(v, jax.Array) else v for k, v in changed.items()}
            try:
                OPS[op.name](**known, **attrs)
            except OpError as error:
                expected = error
            else:
                continue  # a valid call, such as a segment without ids
            tried += 1
            arrays = {k: v for k, v in changed.items() if k not in host}
            got = results(call(arrays))
            assert all(is_marked(x) for x in got if x.size), (op.name, name)
            if tried % 2:
                with pytest.raises(type(expected)) as raised:
                    rgj.synchronize()
                assert raised.value.message == expected.message
                facts = [(e.position, e.value, e.bound, e.argument) for e in (raised.value, expected)]
                assert facts[0] == facts[1]
                assert "earlier call on a CUDA device" in str(raised.value)
            else:
                with pytest.raises(RAISED) as failed:
                    jax.block_until_ready(call(good))
                assert expected.message in str(failed.value)
                assert "earlier call on a CUDA device" in str(failed.value)
            assert all(map(same_bits, results(call(good)), expected_good))
    assert tried > 2 or not any(a.type in op.types and op.types[a.type] == ("int32", "int64") for a in op.inputs)


def test_the_oldest_fault_is_raised() -> None:
    table, segments = jnp.ones((4, 2)), jnp.zeros(2, jnp.int32)
    look_up = jax.jit(lambda ids: rg.raw_ops.SparseSegmentSumWithNumSegments(table, ids, segments, 1))

    def both(ids: Any) -> Any:
        return look_up(ids), rg.raw_ops.SparseSegmentSumGrad(jnp.ones((1, 2)), ids, segments, 4)

    with on_cuda():
        look_up(jnp.array([0, 5]))
        with pytest.raises(InvalidArgumentError, match="5 out of range"):  # a call outside of jit has our class
            rg.raw_ops.SparseSegmentSum(table, jnp.array([0, 1]), segments)
        look_up(jnp.array([0, 6]))
        with pytest.raises(InvalidArgumentError, match="6 out of range"):
            rgj.synchronize()
        rgj.synchronize()


def test_more_rows_than_size() -> None:
    ids, segments = jnp.array([3, 1, 2]), jnp.zeros(3, jnp.int64)
    call = jax.jit(lambda ids: rg.raw_ops.SparseSegmentSumGradV2(jnp.ones((1, 2)), ids, segments, 5, size=2))
    with on_cuda():
        assert all(map(is_marked, results(call(ids))))
        with pytest.raises(InvalidArgumentError) as raised:
            rgj.synchronize()
        with pytest.raises(InvalidArgumentError) as expected:
            rg.raw_ops.SparseSegmentSumGradV2(np.ones((1, 2)), [3, 1, 2], [0, 0, 0], 5, size=2)
        assert raised.value.message == expected.value.message
        assert results(call(jnp.array([3, 3, 0])))[1].tolist() == [0, 3]


def test_faults_that_the_host_finds_are_errors_of_the_program() -> None:
    with on_cuda():
        with pytest.raises(RAISED, match="offsets"):
            jax.block_until_ready(jax.jit(lambda o: rg.raw_ops.SegmentIdsFromOffsets(o, 3))(jnp.zeros(0, jnp.int64)))
        rgj.synchronize()


def test_a_driver_that_fails_is_an_error_of_the_program() -> None:
    table = jnp.ones((4, 2))
    look_up = jax.jit(lambda ids: rg.raw_ops.SparseSegmentSumWithNumSegments(table, ids, jnp.zeros(2, jnp.int32), 1))
    with on_cuda() as device:
        ids = jnp.array([0, 1])
        first = look_up(ids)
        device.driver.failing["cuLaunchKernel"] = 700
        with pytest.raises(RAISED, match=r"CUDA: a message of the driver \(700\)"):
            jax.block_until_ready(look_up(ids))
        device.driver.failing.clear()
        assert same_bits(np.asarray(look_up(ids)), np.asarray(first))


def test_calls_from_many_threads() -> None:
    """Each thread gets its own result."""
    table, segments = jnp.arange(40.0).reshape(10, 4), jnp.zeros(2, jnp.int32)
    look_up = jax.jit(lambda ids: rg.raw_ops.SparseSegmentSumWithNumSegments(table, ids, segments, 1))
    rows = jax.jit(lambda ids: rg.raw_ops.SparseSegmentSumGradV2(jnp.ones((1, 4)), ids, segments, 10, size=2)[1])
    wrong: list[Any] = []

    def work(number: int) -> None:
        for turn in range(6):
            ids = np.array([number, turn + 4], np.int32)
            found = np.asarray(look_up(ids)), np.asarray(rows(ids))
            if found[0][0, 0] != 4 * ids.sum() or found[1].tolist() != sorted(ids.tolist()):
                wrong.append((number, turn, found))

    with on_cuda():
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_synchronize_without_a_device() -> None:
    rgj.synchronize()


def test_synchronize_leaves_the_current_device() -> None:
    """It waits for all devices; torch, in the same process, reads which one is current."""
    table, ids, segments = many_ids()
    with on_cuda() as device:
        jax.block_until_ready(rg.raw_ops.SparseSegmentSumWithNumSegments(table, ids, segments, 5))
        device.driver.context = 7
        rgj.synchronize()
        assert device.driver.context == 7


# -- What CUDA devices need ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["xla_handler", "xla_step_handler", "xla_cuda_handler", "xla_cuda_step_handler"])
def test_handlers_are_not_for_command_buffers(name: str) -> None:
    """A replay would not call the handler, which raises the faults of earlier calls: see src/rowgrad/jax/README.md."""
    import ctypes
    from ctypes import CFUNCTYPE, c_void_p, pythonapi

    pythonapi.PyCapsule_GetPointer.restype = c_void_p
    pythonapi.PyCapsule_GetPointer.argtypes = (ctypes.py_object, c_void_p)
    handler = CFUNCTYPE(c_void_p, c_void_p)(pythonapi.PyCapsule_GetPointer(getattr(_core, name)(), None))
    # XLA's structs, in 64-bit words (cpp/third_party/xla/ffi/api/c_api.h). Bits that the handler does not set are ones.
    metadata = (ctypes.c_uint64 * 5)(40, 32, 0, 2**64 - 1, 2**64 - 1)
    extension = (ctypes.c_uint64 * 4)(24, 1, 0, ctypes.addressof(metadata))
    frame = (ctypes.c_uint64 * 16)(128, ctypes.addressof(extension))
    assert handler(ctypes.addressof(frame)) is None
    command_buffer_compatible = 1
    assert metadata[4] & command_buffer_compatible == 0
    assert metadata[3] & 0xFFFFFFFF == 0  # the major version of XLA's interface


def test_programs_for_cuda_call_the_kernels() -> None:
    function = jax.jit(lambda y, ids: rg.raw_ops.SparseSegmentMeanGrad(y, ids, ids, 4))
    traced = function.trace(jnp.ones((4, 2)), jnp.array([0, 1]))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert cuda_call.TARGET in text
    assert "call = dense<[1, 3, 1, 0, 1," in text  # kernel; constants: mean, all rows, blocked
    here = traced.lower(lowering_platforms=("cpu",)).as_text()
    assert cuda_call.TARGET not in here
    assert "call = dense<[1, 3, 1, 0, 0," in here


def test_one_export_for_both_platforms() -> None:
    """The order of additions is chosen for each."""
    from jax import export

    checks = [export.DisabledSafetyCheck.custom_call(name) for name in ("rowgrad_kernel", cuda_call.TARGET)]
    function = jax.jit(lambda y, ids: rg.raw_ops.SparseSegmentMeanGrad(y, ids, ids, 4))
    exported = export.export(function, platforms=("cpu", "cuda"), disabled_checks=checks)
    text = exported(jnp.ones((4, 2)), jnp.array([0, 1])).mlir_module()
    calls = [line for line in text.splitlines() if "custom_call @rowgrad" in line]
    assert ["cuda" in line for line in calls].count(True) == 1
    assert len({line[line.index("call = dense") :][:30] for line in calls}) == 2


def test_kernels_are_compiled_without_torch() -> None:
    pytest.importorskip("nvidia.cu13", reason="NVRTC is not installed as a package")
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from rowgrad.jax.cuda_call import _load\n"
        "code, entry, threads = _load('sm_90', 'sum_bags', 'float, 4')\n"
        "print(code[1:4].decode(), entry, threads)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["ELF", "rowgrad_sum_bags", "128"], done.stderr


def test_every_kernel_of_the_handler_is_declared_without_torch() -> None:
    """Run each op's sample in a process that cannot import torch."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from rowgrad.cuda import launcher_kernels\n"
        "from rowgrad.cuda.kernel import KERNELS\n"
        "print(*KERNELS)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    declared = set(done.stdout.split())
    used = set()
    with on_cuda() as device:
        for op in COMPILED:
            inputs, attrs = split(op)
            OPS[op.name](**inputs, **attrs)
        used = {name.split("<")[0] for name in device.launched}
    assert used <= declared, done.stderr
    assert len(used) > 8
