"""JAX on a CUDA device: the bits of the CPU's "blocked" order and of torch on the device, transforms, errors."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import SkipTest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs memory too
try:
    import jax
except ImportError:
    raise SkipTest("needs JAX") from None

import jax.numpy as jnp
import numpy as np
from gpu_calls import FLOATS, call, device_call, fail_if_any
from test_gpu_blocked_gradients import batch

import rowgrad as rg
import rowgrad.jax as rgj
from golden_cases import Case, cases, same_bits
from jax_arrays import split, to_jax, x64
from rowgrad._catalog.spec import CATALOG
from rowgrad._runtime import numpy_runner
from rowgrad.errors import InvalidArgumentError
from rowgrad.jax import cuda_call
from rowgrad.raw_ops import OPS
from torch_arrays import to_numpy

if not any(map(cuda_call._is_cuda, jax.devices())):
    raise SkipTest("needs JAX with a CUDA device")

CASES = int(os.environ.get("ROWGRAD_GPU_TEST_CASES", "1000"))
STRIDE = int(os.environ.get("ROWGRAD_GPU_TEST_STRIDE", "1"))
TOGETHER, REPEATS = 20, 50  # calls in one program; compiling costs more than running
OPS_WITH_KERNEL = [op for op in CATALOG.values() if cuda_call.has_kernel(op)]
RANDOM_OPS = tuple(
    f"{weighted}SparseSegment{kind}{suffix}"
    for weighted, suffixes in (("", ("Grad", "GradV2")), ("Weighted", ("Grad",)))
    for kind in ("Sum", "Mean", "SqrtN")
    for suffix in suffixes
    if cuda_call.has_kernel(CATALOG[f"{weighted}SparseSegment{kind}{suffix}"])
)
RAISED = (jax.errors.JaxRuntimeError, ValueError)


def arrays_of(values: Any) -> list[np.ndarray]:
    return [np.asarray(v) for v in (values if isinstance(values, tuple | list) else (values,))]


@contextmanager
def without_the_host() -> Iterator[None]:
    """Fail if a kernel runs on the host."""
    original = numpy_runner.call
    numpy_runner.call = None  # type: ignore[assignment]
    try:
        yield
    finally:
        numpy_runner.call = original


# -- Bits -------------------------------------------------------------------------------------------------------------


def test_golden_bits() -> None:
    """All cases of an op as one program; outside of jit if data decides sizes."""
    failures, tried = [], 0
    by_op: dict[str, list[Case]] = {}
    for case in list(cases("valid"))[::STRIDE]:
        if cuda_call.has_kernel(CATALOG[case.op]):
            by_op.setdefault(case.op, []).append(case)
    with x64():
        for name, found in by_op.items():
            op = CATALOG[name]
            order = {"order": "sequential"} if "order" in op.attrs else {}  # TensorFlow's
            host = {a.name for a in op.inputs if a.host}
            inputs = [{k: to_jax(v) for k, v in case.inputs.items()} for case in found]
            kept = [(c, x) for c, x in zip(found, inputs, strict=True) if all(v is not None for v in x.values())]

            def program(each: list[Any], kept: Any = kept, host: Any = host, order: Any = order, op: Any = op) -> Any:
                return [
                    getattr(rg.raw_ops, op.name)(**x, **{k: case.inputs[k] for k in host}, **case.attrs, **order)
                    for (case, _), x in zip(kept, each, strict=True)
                ]

            arguments = [{k: v for k, v in x.items() if k not in host} for _, x in kept]
            with without_the_host():
                outputs = (program if op.is_data_sized else jax.jit(program))(arguments)
            tried += len(kept)
            for (case, _), got in zip(kept, outputs, strict=True):
                for (part, expected), array in zip(case.outputs.items(), arrays_of(got), strict=True):
                    if not same_bits(array, expected):
                        failures.append(f"{case}: {part}\n{array}\n{expected}")
        rgj.synchronize()
    assert tried > 300 // STRIDE, f"only {tried} cases were run"
    fail_if_any(failures, tried)


def random_calls(count: int, seed: int) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield an op, its arguments as torch tensors and numbers, and attributes; padded gradients too."""
    draw = random.Random(seed)
    for number in range(count):
        op, dtype = RANDOM_OPS[number % len(RANDOM_OPS)], FLOATS[number // len(RANDOM_OPS) % len(FLOATS)]
        inputs, attrs = batch(draw, op, dtype)
        if op.endswith("V2"):
            attrs["size"] = inputs["indices"].unique().numel() + draw.choice((0, 1, 50))
        if not op.startswith("Weighted"):
            attrs.pop("order")  # the default
        yield op, inputs, attrs


def test_random_batches_have_the_bits_of_the_cpu_and_of_torch() -> None:
    failures, group = [], []

    def run_group() -> None:
        hosts = [{k: v for k, v in x.items() if isinstance(v, int)} for _, x, _ in group]
        arguments = [{k: jnp.asarray(to_numpy(v)) for k, v in x.items() if not isinstance(v, int)} for _, x, _ in group]

        @jax.jit
        def program(each: list[Any]) -> Any:
            return [OPS[op](**x, **h, **attrs) for (op, _, attrs), x, h in zip(group, each, hosts, strict=True)]

        with without_the_host():
            outputs = program(arguments)
        for (op, inputs, attrs), got in zip(group, outputs, strict=True):
            shapes = {k: v if isinstance(v, int) else (tuple(v.shape), v.dtype) for k, v in inputs.items()}
            expected = [to_numpy(x) for x in call(op, inputs, **{"order": "blocked", **attrs})]
            there = [to_numpy(x) for x in device_call(op, inputs, **{"order": "blocked", **attrs})]
            if not all(map(same_bits, arrays_of(got), expected)):
                failures.append(f"{op} {shapes} {attrs}: not the CPU's bits")
            if not all(map(same_bits, arrays_of(got), there)):
                failures.append(f"{op} {shapes} {attrs}: not torch's bits")
        group.clear()

    with x64():
        for each in random_calls(CASES, 31):
            group.append(each)
            if len(group) == TOGETHER:
                run_group()
        if group:
            run_group()
        rgj.synchronize()
    fail_if_any(failures, CASES)


def test_lookups_have_the_bits_of_the_cpu_and_of_torch() -> None:
    draw, failures, count = random.Random(32), [], max(CASES // 10, 20)
    calls = []
    for number in range(count):
        inputs, _ = batch(draw, "SparseSegmentSumGrad", FLOATS[number % 4])
        kind = ("Sum", "Mean", "SqrtN")[number % 3]
        segments = inputs["segment_ids"].sort().values
        bags = inputs["grad"].shape[0]
        table = inputs["grad"]  # some rows
        ids = inputs["indices"] % bags
        calls.append((f"SparseSegment{kind}WithNumSegments", table, ids, segments, bags))
    with x64():
        for first in range(0, count, TOGETHER):
            group = calls[first : first + TOGETHER]
            arguments = [tuple(jnp.asarray(to_numpy(v)) for v in x[1:4]) for x in group]
            outputs = jax.jit(
                lambda each, group=group: [OPS[g[0]](*x, g[4]) for g, x in zip(group, each, strict=True)]
            )(arguments)
            for (op, *x, bags), got in zip(group, outputs, strict=True):
                inputs = dict(zip(("data", "indices", "segment_ids"), x, strict=True)) | {"num_segments": bags}
                for where, run in (("the CPU", call), ("torch", device_call)):
                    if not same_bits(np.asarray(got), to_numpy(run(op, inputs)[0])):
                        failures.append(f"{op} {[tuple(v.shape) for v in x]} {x[0].dtype}: not the bits of {where}")
        rgj.synchronize()
    fail_if_any(failures, count)


def test_one_batch_has_the_same_bits_in_every_run() -> None:
    ids, rows = 50_000, 1000
    draw = np.random.default_rng(5)
    indices = (draw.random(ids) ** 4 * rows).astype(np.int32)
    segments = np.sort(draw.integers(0, 2000, ids)).astype(np.int32)
    table = jnp.asarray(draw.standard_normal((rows, 48)).astype(np.float32))

    @jax.jit
    def step(table: Any, indices: Any, segments: Any) -> Any:
        def loss(table: Any) -> Any:
            return (rg.raw_ops.SparseSegmentMeanWithNumSegments(table, indices, segments, 2000) ** 2).sum()

        y = jnp.ones((2000, 48), jnp.float32) * 0.1
        return jax.grad(loss)(table), *rg.raw_ops.SparseSegmentMeanGradV2(y, indices, segments, rows, size=rows)

    arguments = table, jnp.asarray(indices), jnp.asarray(segments)
    first = arrays_of(step(*arguments))
    for number in range(REPEATS):
        assert all(map(same_bits, arrays_of(step(*arguments)), first)), f"run {number} differs"
    y = np.full((2000, 48), 0.1, np.float32)
    expected = rg.raw_ops.SparseSegmentMeanGradV2(y, indices, segments, rows, order="blocked")
    assert same_bits(first[1][: len(expected[1])], expected[0])


# -- Transforms -------------------------------------------------------------------------------------------------------


def test_transforms() -> None:
    draw = np.random.default_rng(3)
    table = draw.standard_normal((6, 4)).astype(np.float32)
    ids = draw.integers(0, 3, 4000).astype(np.int32)
    segments = np.sort(draw.integers(0, 5, 4000)).astype(np.int32)

    def loss(t: Any) -> Any:
        return rg.raw_ops.SparseSegmentSumWithNumSegments(t, jnp.asarray(ids), jnp.asarray(segments), 5).sum()

    def over_one_device(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        from jax.sharding import Mesh, PartitionSpec

        mesh, spec = Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec()
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))

    expected = rg.raw_ops.SparseSegmentSumGrad(np.ones((5, 4), np.float32), ids, segments, 6, order="blocked")
    placed = jnp.asarray(table)
    with without_the_host():
        for gradient in (
            jax.grad(loss),
            jax.jit(jax.grad(loss)),
            lambda t: jax.jit(jax.vmap(jax.grad(loss)))(jnp.stack([t, t]))[1],
            lambda t: jax.lax.scan(lambda c, _: (c, jax.grad(loss)(c)), t, None, length=3)[1][2],
            jax.jit(jax.grad(jax.checkpoint(loss))),
            over_one_device(jax.grad(loss)),
        ):
            assert same_bits(np.asarray(gradient(placed)), expected)
        value, tangent = jax.jit(lambda t: jax.jvp(loss, (t,), (t,)))(placed)
    assert np.allclose(value, tangent, rtol=1e-4)
    rgj.synchronize()


def test_row_gradients_of_a_model() -> None:
    draw = np.random.default_rng(3)
    ids = draw.integers(0, 30, 4000).astype(np.int32)
    segments = np.sort(draw.integers(0, 5, 4000)).astype(np.int32)

    def loss(params: Any) -> Any:
        return params["items"].bags(jnp.asarray(ids), jnp.asarray(segments), num_bags=5, combiner="mean").sum()

    step = jax.jit(rgj.value_and_rows(loss))
    rows = step({"items": rgj.Table(jnp.ones((40, 4)))})[1]["items"].rows
    ones = np.ones((5, 4), np.float32)
    expected = rg.raw_ops.SparseSegmentMeanGradV2(ones, ids, segments, 40, order="blocked")
    count = len(expected[1])
    assert same_bits(np.asarray(rows.values)[:count], expected[0])
    assert np.asarray(rows.indices)[: count + 1].tolist() == [*expected[1].tolist(), 40]


# -- Weighted bags and steps of many tables ----------------------------------------------------------------------------

WEIGHTED_IDS = (5_000, 300_000, 2_000_000)


def test_weighted_bags_in_any_order_of_segments() -> None:
    """Segments that ascend, and that are sorted within one launch, whose blocks wait for one another; long bags."""
    draw, failures, tried = np.random.default_rng(6), [], 0
    table = draw.standard_normal((1000, 20)).astype(np.float32)
    for size in WEIGHTED_IDS:
        for bags in (1, 700, 16_384, 1_100_000):
            segments = draw.integers(0, bags, size).astype(np.int32)
            segments[draw.random(size) < 0.1] = bags - 1
            ids, weights = draw.integers(0, 1000, size).astype(np.int32), draw.random(size).astype(np.float32)
            for order in (segments, np.sort(segments)):
                call = jax.jit(
                    lambda *x, bags=bags: rg.raw_ops.WeightedSparseSegmentMeanWithNumSegments(*x, num_segments=bags)
                )
                expected = rg.raw_ops.WeightedSparseSegmentMeanWithNumSegments(table, ids, order, weights, bags)
                arguments = [jnp.asarray(x) for x in (table, ids, order, weights)]
                for number in range(5):
                    tried += 1
                    if not same_bits(np.asarray(call(*arguments)), expected):
                        failures.append(f"{size} ids, {bags} bags, sorted={order is not segments}, run {number}")
                bad = order.copy()
                bad[size // 2] = bags
                assert np.isnan(np.asarray(call(*arguments[:2], jnp.asarray(bad), arguments[3]))).all()
                assert isinstance(raised_by(rgj.synchronize), InvalidArgumentError)
    fail_if_any(failures, tried)


def test_steps_of_many_tables() -> None:
    """One call for all tables, with gradients of bags and of rows: the bits of rowgrad.optim."""
    from rowgrad import optim as updates
    from rowgrad.jax import Table, optim

    draw, failures, steps = np.random.default_rng(7), [], 3
    rows = [int(x) for x in draw.integers(1, 50_000, 26)]
    for columns, size in ((64, None), (64, 9000), (20, None), (300, None)):
        tables = [draw.standard_normal((r, columns)).astype(np.float32) for r in rows]
        bags = [int(x) for x in draw.integers(1, 1000, len(rows))]
        upstreams = [draw.standard_normal((b, columns)).astype(np.float32) for b in bags]
        segments = [np.sort(draw.integers(0, b, 8 * b)).astype(np.int32) for b in bags]
        ids = [(draw.random(8 * b) ** 3 * r).astype(np.int32) for b, r in zip(bags, rows, strict=True)]
        for rule in ("sgd", "row_wise_adagrad", "adam"):
            optimizer = getattr(optim, rule)(lr=0.1)

            def step(params: Any, state: Any, each: Any, optimizer: Any = optimizer, size: Any = size) -> Any:
                def loss(params: Any) -> Any:
                    found = (
                        (table.bags(i, s, num_bags=u.shape[0]) * u).sum()
                        for table, i, s, u in zip(params, *each, strict=True)
                    )
                    return sum(found, jnp.float32(0))

                return optimizer.step(params, state, rgj.value_and_rows(loss, size=size)(params)[1])

            params = [Table(t) for t in tables]
            state, call = optimizer.init(params), jax.jit(step, donate_argnums=(0, 1))
            expected = [(t.copy(), updates.new_slots(rule, t)) for t in tables]
            for number in range(steps):
                params, state = call(params, state, (ids, segments, upstreams))
                known = updates.Step(lr=0.1, step=number + 1)
                for k, (table, slots) in enumerate(expected):
                    updates.apply_bags(
                        rule, table, slots, upstreams[k], ids[k], segments[k], known, combiner="mean", order="blocked"
                    )
            for k, (table, slots) in enumerate(expected):
                found = [params[k].array, *(state.slots[name][k].held for name in state.slots)]
                if not all(map(same_bits, map(np.asarray, found), (table, *slots))):
                    failures.append(f"{rule}, {columns} columns, size={size}, table {k}")
    rgj.synchronize()
    fail_if_any(failures, 12 * len(rows))


# -- Calls outside of jit, and errors ---------------------------------------------------------------------------------


def test_known_arrays_stay_on_the_device() -> None:
    with x64():
        for op in OPS_WITH_KERNEL:
            inputs, attrs = split(op)
            with without_the_host():
                got = OPS[op.name](**inputs, **attrs)
            for x in got if isinstance(got, tuple) else (got,):
                assert all(map(cuda_call._is_cuda, x.devices())), f"{op.name}: {x.devices()}"
        rgj.synchronize()


def test_a_bad_id_marks_results_and_is_raised_later() -> None:
    table, segments = jnp.ones((4, 2)), jnp.zeros(2, jnp.int32)
    look_up = jax.jit(lambda ids: rg.raw_ops.SparseSegmentSumWithNumSegments(table, ids, segments, 1))
    good, bad = jnp.array([0, 1]), jnp.array([0, 9])
    expected = np.asarray(look_up(good))
    for _ in range(20):
        assert np.isnan(np.asarray(look_up(bad))).all()
        error = raised_by(rgj.synchronize)
        assert isinstance(error, InvalidArgumentError), repr(error)
        assert "indices[1] == 9 out of range [0, 4)" in str(error)
        assert np.isnan(np.asarray(look_up(bad))).all()
        error = raised_by(lambda: jax.block_until_ready(look_up(good)))
        assert isinstance(error, RAISED), repr(error)
        assert "indices[1] == 9 out of range [0, 4)" in str(error)
        assert same_bits(np.asarray(look_up(good)), expected)
    rows = jax.jit(lambda ids: rg.raw_ops.SparseSegmentSumGradV2(jnp.ones((1, 2)), ids, segments, 4, size=2))
    values, ids = map(np.asarray, rows(bad))
    assert np.isnan(values).all()
    assert (ids == np.iinfo(np.int32).min).all()
    assert isinstance(raised_by(rgj.synchronize), InvalidArgumentError)
    rgj.synchronize()


def raised_by(function: Callable[[], Any]) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None
