"""The vmap rules on JAX arrays, with the NumPy runner's kernels: the bits of a loop over the items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jax_arrays import placed, x64
from rowgrad._catalog.spec import CATALOG, PLAN, Op
from rowgrad._runtime import numpy_runner
from rowgrad._runtime.validation import infer
from rowgrad.errors import InternalError, InvalidArgumentError, OpError, UnimplementedError, make_error
from rowgrad.jax.vmap import Namespace, batched
from samples import sample

ITEMS = 3
KERNEL_OPS = [op for op in CATALOG.values() if op.kernel is not None]
WITHOUT_RULE = ("SparseAdd", "RowPlan", "PlannedIds", "StackBags")
RULED = [op for op in KERNEL_OPS if op.name not in WITHOUT_RULE]
FIXED = {*PLAN, "sorted_ids", "input_start"}


class Runner:
    """Run kernels on the values of JAX arrays and count the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, op: Op, arguments: dict[str, Any], attrs: Any) -> tuple[Any, ...]:
        self.calls += 1
        inputs = {n: np.asarray(v) if isinstance(v, jax.Array) else v for n, v in arguments.items()}
        return tuple(map(placed, numpy_runner.call(op, inputs, attrs, None)))


def items_of(op: Op, dtype: Any) -> list[dict[str, Any]]:
    """Return the arguments of calls with equal shapes and sizes."""
    found: list[dict[str, Any]] = []
    for seed in range(400):
        sampled = sample(op.name, np.random.default_rng(seed), dtype)
        inputs = {a.name: sampled[a.name] if a.host else np.asarray(sampled[a.name]) for a in op.inputs}
        if not found or all(np.shape(inputs[n]) == np.shape(found[0][n]) for n in op.input_names):
            found.append(inputs)
        if len(found) == ITEMS:
            return found
    raise AssertionError(f"{op.name}: no samples of one shape")


def sized_by_data(op: Op) -> bool:
    return op.name.endswith(("V2", "FillEmptyRows", "SegmentSum", "SegmentMean", "SegmentSqrtN", "SparseSlice"))


def unbatchable(op: Op) -> set[str]:
    """Return the arguments that must be the same for all items."""
    return FIXED | ({"indices", "segment_ids", "value_rowids"} if sized_by_data(op) else set())


def choices(op: Op) -> Iterator[tuple[str, ...]]:
    """Yield all arguments that may be batched together, then each of them alone."""
    names = tuple(a.name for a in op.inputs if not a.host and a.name not in unbatchable(op))
    yield names
    if len(names) > 1:
        yield from ((name,) for name in names)


def together(op: Op, items: list[dict[str, Any]], differing: tuple[str, ...], run: Any) -> Any:
    """Run all items as one call, with the batch dimension first. Shared arguments stay NumPy arrays."""
    values = [np.stack([i[n] for i in items]) if n in differing else items[0][n] for n in op.input_names]
    arguments = [placed(v) if n in differing else v for n, v in zip(op.input_names, values, strict=True)]
    dims = [0 if n in differing else None for n in op.input_names]
    return batched(op, op.attrs, len(items), arguments, dims, run)


def one_by_one(op: Op, items: list[dict[str, Any]], differing: tuple[str, ...]) -> list[tuple[Any, ...]]:
    calls = [{n: (i if n in differing else items[0])[n] for n in op.input_names} for i in items]
    return [numpy_runner.call(op, arguments, op.attrs, None) for arguments in calls]


def same(outputs: Any, dims: Any, expected: list[tuple[Any, ...]]) -> None:
    """Check every item's outputs bit for bit, in JAX's dtypes."""
    for k, (output, dim) in enumerate(zip(outputs, dims, strict=True)):
        got = np.asarray(output)
        for number, item in enumerate(expected):
            one = got if dim is None else np.take(got, number, axis=dim)
            other = np.asarray(placed(item[k]))
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("op", RULED, ids=lambda op: op.name)
def test_batched_calls_equal_a_loop(op: Op) -> None:
    items = items_of(op, np.float64)
    with x64(True):
        for differing in choices(op):
            run = Runner()
            try:
                expected = one_by_one(op, items, differing)
            except InternalError as error:  # the slice of one item applied to the entries of another
                with pytest.raises(InternalError, match=error.message):
                    together(op, items, differing, run)
                continue
            outputs, dims = together(op, items, differing, run)
            assert run.calls == 1
            same(outputs, dims, expected)


@pytest.mark.parametrize(
    "name",
    [
        "SparseFillEmptyRows",
        "SparseFillEmptyRowsGrad",
        "RaggedFillEmptyRowsGradGrad",
        "SparseSliceGradGrad",
        "SparseSegmentMeanWithNumSegments",
        "PlannedWeightedSparseSegmentSumGrad",
        "RowPositions",
        "SegmentIdsFromOffsets",
    ],
)
def test_without_64_bits(name: str) -> None:
    """Fixed int64 arguments become int32; one op per rule, and every id format."""
    op = CATALOG[name]
    items = items_of(op, ml_dtypes.bfloat16)
    everything = next(choices(op))
    with x64(False):
        outputs, dims = together(op, items, everything, Runner())
        same(outputs, dims, one_by_one(op, items, everything))


def zeros(op: Op, arguments: dict[str, Any], attrs: Any) -> tuple[Any, ...]:
    """Return zeros with the inferred shapes and dtypes, as a traced call does."""
    avals = {n: aval for n, (_, aval) in Namespace().admit(op, arguments).items()}
    host = {a.name: arguments[a.name] for a in op.inputs if a.host}
    return tuple(jnp.zeros(o.shape, o.dtype) for o in infer(op, avals, host, attrs))


@pytest.mark.parametrize("op", [op for op in RULED if not sized_by_data(op)], ids=lambda op: op.name)
def test_tracing_reads_no_data(op: Op) -> None:
    items = items_of(op, np.float64)
    differing = next(choices(op))
    names = [a.name for a in op.inputs if not a.host]
    dims: list[int | None] = []

    def call(*arrays: Any) -> Any:
        values = {**items[0], **dict(zip(names, arrays, strict=True))}
        in_dims = [0 if n in differing else None for n in op.input_names]
        outputs, dims[:] = batched(op, op.attrs, ITEMS, list(values.values()), in_dims, zeros)
        return outputs

    args = [np.stack([i[n] for i in items]) if n in differing else items[0][n] for n in names]
    with x64(True):
        outputs = jax.eval_shape(call, *args)
    for output, dim, one in zip(outputs, dims, numpy_runner.call(op, items[0], op.attrs, None), strict=True):
        assert output.dtype == one.dtype
        assert output.shape == (one.shape if dim is None else (*one.shape[:dim], ITEMS, *one.shape[dim:]))


TABLES = np.arange(30.0, dtype=np.float32).reshape(ITEMS, 5, 2)
IDS = np.array([[0, 1, 4], [2, 2, 2], [1, 0, 3]], np.int32)
GATHER, SCATTER = CATALOG["GatherRows"], CATALOG["ScatterRows"]


def test_batch_dimension_may_be_anywhere() -> None:
    expected = [(t[i],) for t, i in zip(TABLES, IDS, strict=True)]
    shared = [(t[IDS[0]],) for t in TABLES]
    for dim in range(3):
        tables = jnp.moveaxis(jnp.asarray(TABLES), 0, dim)
        same(*batched(GATHER, GATHER.attrs, ITEMS, [tables, jnp.asarray(IDS.T)], [dim, 1], Runner()), expected)
        same(*batched(GATHER, GATHER.attrs, ITEMS, [tables, jnp.asarray(IDS[0])], [dim, None], Runner()), shared)


def test_empty_batches() -> None:
    for op in (GATHER, SCATTER, CATALOG["SparseSegmentMean"], CATALOG["SparseFillEmptyRowsGrad"]):
        items, differing = items_of(op, np.float32), next(choices(op))
        values = [np.stack([i[n] for i in items])[:0] if n in differing else items[0][n] for n in op.input_names]
        args = [v if a.host else placed(v) for a, v in zip(op.inputs, values, strict=True)]
        outputs, dims = batched(
            op, op.attrs, 0, args, [0 if n in differing else None for n in op.input_names], Runner()
        )
        for output, dim, one in zip(outputs, dims, numpy_runner.call(op, items[0], op.attrs, None), strict=True):
            assert output.shape == (*one.shape[:dim], 0, *one.shape[dim:])


def test_segment_ids_from_offsets() -> None:
    op = CATALOG["SegmentIdsFromOffsets"]
    offsets = np.array([[0, 2, 2, 5], [0, 0, 4, 5], [0, 5, 5, 5]], np.int32)
    for include in (False, True):
        attrs = {**op.attrs, "include_last_offset": include}
        run = Runner()
        outputs, dims = batched(op, attrs, ITEMS, [jnp.asarray(offsets), 5], [0, None], run)
        same(outputs, dims, [numpy_runner.call(op, {"offsets": o, "num_ids": 5}, attrs, None) for o in offsets])
        assert run.calls == 1


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [5, -1])
def test_ids_out_of_range_in_one_item_name_the_item(bad: int) -> None:
    """Such an id would address a row of a neighbouring item."""
    ids = IDS.copy()
    ids[1, 2] = bad
    with pytest.raises(InvalidArgumentError) as alone:
        numpy_runner.call(GATHER, {"params": TABLES[1], "indices": ids[1]}, GATHER.attrs, None)
    with pytest.raises(InvalidArgumentError) as found:
        batched(GATHER, GATHER.attrs, ITEMS, [jnp.asarray(TABLES), jnp.asarray(ids)], [0, 0], Runner())
    for fact in ("message", "argument", "position", "value", "bound"):
        assert getattr(found.value, fact) == getattr(alone.value, fact)
    assert found.value.__notes__ == ["in item 1 of the batch"]


def test_batching_unbatchable_arguments_raises() -> None:
    for op in KERNEL_OPS:
        items = items_of(op, np.float32)
        names = op.input_names if op.name in WITHOUT_RULE else unbatchable(op).intersection(op.input_names)
        for name in names:
            if name not in {a.name for a in op.inputs if a.host}:
                with pytest.raises(InvalidArgumentError, match=f"vmap: {name} must be the same"):
                    together(op, items, (name,), Runner())


def test_ids_of_all_items_beyond_32_bits() -> None:
    rows = 1 << 30  # three such tables have more rows than an int32 can count
    tables, ids = jax.ShapeDtypeStruct((ITEMS, rows, 2), "float32"), jax.ShapeDtypeStruct((ITEMS, 1), "int32")
    bags = CATALOG["SegmentIdsFromOffsets"]
    recorded_ids: list[Any] = []

    def run(op: Op, arguments: dict[str, Any], attrs: Any) -> tuple[Any, ...]:
        recorded_ids.append(arguments["indices"].dtype)
        return zeros(op, arguments, attrs)

    def gather(tables: Any, ids: Any) -> Any:
        return batched(GATHER, GATHER.attrs, ITEMS, [tables, ids], [0, 0], run)[0]

    with x64(False):
        with pytest.raises(UnimplementedError, match=r"indices of all items .* jax_enable_x64") as raised:
            jax.eval_shape(gather, tables, ids)
        assert (raised.value.value, raised.value.bound) == (ITEMS * rows, (1 << 31) - 1)
        with pytest.raises(UnimplementedError, match="offsets of all items"):
            batched(bags, bags.attrs, ITEMS, [jnp.zeros((ITEMS, 2), int), rows], [0, None], run)
    with x64(True):
        assert jax.eval_shape(gather, tables, ids)[0].shape == (ITEMS, 1, 2)
    assert recorded_ids == [jnp.int64]


def test_items_run_one_by_one_beyond_int32_rows() -> None:
    """TensorFlow's output_dim0 is an int32; beyond that, each item is a call."""
    op, sizes = CATALOG["SparseSegmentSumGrad"], []
    shapes = [jax.ShapeDtypeStruct((ITEMS, 1, 2), "float32"), jax.ShapeDtypeStruct((ITEMS, 1), "int32")]

    def run(op: Op, arguments: dict[str, Any], attrs: Any) -> tuple[Any, ...]:
        sizes.append(size := arguments["output_dim0"])
        if size >= 1 << 31:
            raise make_error("integer_does_not_fit", argument="output_dim0", value=size, bound="int32")
        return zeros(op, arguments, attrs)

    def call(grads: Any, ids: Any) -> Any:
        values = [grads, ids, jnp.zeros(1, int), 1 << 30]
        return batched(op, op.attrs, ITEMS, values, [0, 0, None, None], run)[0]

    with x64(True):
        assert jax.eval_shape(call, *shapes)[0].shape == (ITEMS, 1 << 30, 2)
    assert sizes == [ITEMS << 30, *[1 << 30] * ITEMS]


def test_a_padded_gradient_shares_its_ids() -> None:
    gradient = CATALOG["SparseSegmentSumGrad"]
    padded = replace(gradient, kernel="sparse_segment_grad_padded")
    items, run = items_of(gradient, np.float32), Runner()

    def unpadded(_op: Op, arguments: dict[str, Any], attrs: Any) -> tuple[Any, ...]:
        return run(gradient, arguments, attrs)

    same(*together(padded, items, ("grad",), unpadded), one_by_one(gradient, items, ("grad",)))
    assert run.calls == 1
    for name in ("indices", "segment_ids"):
        with pytest.raises(
            InvalidArgumentError,
            match=f"{name} must be the same for all items of the batch: .*lax.map, or the dense gradient",
        ):
            together(padded, items, ("grad", name), unpadded)


def test_errors_about_shapes_describe_one_item() -> None:
    args = [jnp.asarray(TABLES[:, 0, 0]), jnp.asarray(IDS)]
    with pytest.raises(OpError, match="at least rank 1"):
        batched(GATHER, GATHER.attrs, ITEMS, args, [0, 0], Runner())
