"""Every argument of every op corrupted in every way, in every runner.

A call returns NumPy's bits, or it raises an error of the library that names op and argument, with the same message in
every runner, and nothing is written. The corruptions come from the op records, so that a new op is tested without a
change here. A crash would end pytest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from corruptions import ATTRIBUTES, DTYPES, FLOATS, INTEGERS, LISTS, SHAPES, VARIANTS, corruptions_of
from hostile_runners import (
    FED,
    JAX,
    JAX_32,
    JAX_JIT,
    JAX_TRACED,
    NUMPY,
    PAGE,
    TORCH,
    TORCH_META,
    TORCH_RECORDED,
    Outcome,
    Rejection,
    Runner,
    as_typed,
    computed_ops,
    outcome,
    studio_runner,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from outcome_checks import SHARED, check_named, good_call, is_right, is_same

import rowgrad._runtime.dense.images
import rowgrad._runtime.results
from rowgrad._catalog.spec import CATALOG, QUANTIZED, Op, spread
from rowgrad._runtime.arrays import NUMPY_DTYPE, admit
from rowgrad.errors import InvalidArgumentError, OpError, ResourceExhaustedError
from rowgrad.raw_ops import OPS as RAW

OPS = computed_ops()
KERNEL_OPS = [op for op in OPS if op.kernel is not None]
ACROSS = (TORCH, TORCH_RECORDED, TORCH_META, JAX, JAX_TRACED, JAX_32, PAGE, FED)
ON_PINS = ("page", "page_fed", "studio")  # arguments are typed on pins
TRACED = (TORCH_META, JAX_TRACED)  # these see shapes but no elements
# Messages about dtypes list what a library supports, and one without strings rejects them earlier.
ABOUT_DTYPES = re.compile(r" must be one of | must contain values of | must be (u?int|float|complex|bool|string)")
OTHER_ARRAY = re.compile(r"got (Tensor|ArrayImpl)$")
FROM_DATA = ("the number of output rows depends on data", "determines a shape, so it must be a number")
UNWRITTEN = ("given_half_a_character", "given_enormous_integer")  # these cannot be written to a page
SMALL_MEMORY = 1 << 26  # bytes: results that would only be slow raise as too large ones do


@pytest.fixture(autouse=True, scope="module")
def _small_memory_limit() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (rowgrad._runtime.results, rowgrad._runtime.dense.images):
            patch.setattr(module, "memory_limit", lambda: SMALL_MEMORY)
        yield


# -- corrupted calls ---------------------------------------------------------------------------------------------------


class Corrupted(NamedTuple):
    """One corrupted argument, first item of a list of arrays, or attribute, and the name of the corruption."""

    argument: str
    corruption: str


def _array(value: Any) -> np.ndarray:
    return np.asarray(value[0] if isinstance(value, list) and isinstance(value[0], np.ndarray) else value)


def all_corruptions(op: Op) -> tuple[Corrupted, ...]:
    """Return every corruption of a call of this op."""
    return _all_corruptions(op.name)


@cache
def _all_corruptions(name: str) -> tuple[Corrupted, ...]:
    op = CATALOG[name]
    arguments, _ = good_call(op)
    found = []
    for arg in op.inputs:
        found += [
            Corrupted(arg.name, corruption)
            for corruption in (*VARIANTS, *corruptions_of(arg, _array(arguments[arg.name])))
        ]
        found += [Corrupted(arg.name, corruption) for corruption in (LISTS if arg.many else ())]
    return (*found, *(Corrupted(name, corruption) for name in op.attrs for corruption in ATTRIBUTES))


def corrupted_call(op: Op, corrupted: tuple[Corrupted, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return new arguments and attributes: some objects in them change when they are read."""
    arguments, attrs = map(dict, good_call(op))
    for name, corruption in corrupted:
        if name in op.attrs:
            attrs[name] = ATTRIBUTES[corruption]()
            continue
        arg = next(a for a in op.inputs if a.name == name)
        if corruption in LISTS:
            arguments[name] = LISTS[corruption](arguments[name])
            continue
        x = _array(arguments[name])
        bad = VARIANTS[corruption](x) if corruption in VARIANTS else corruptions_of(arg, x)[corruption](x, arg)
        arguments[name] = [bad, *arguments[name][1:]] if arg.many else bad
    return arguments, attrs


def strategy_of(op: Op) -> st.SearchStrategy[tuple[Corrupted, ...]]:
    """Draw one corrupted argument, or two."""
    one = st.sampled_from(all_corruptions(op))
    two = st.tuples(one, one).filter(lambda pair: pair[0].argument != pair[1].argument)
    return one.map(lambda w: (w,)) | two if len(op.inputs) + len(op.attrs) > 1 else one.map(lambda w: (w,))


# -- comparing runners -------------------------------------------------------------------------------------------------


def snapshot(arguments: Mapping[str, Any]) -> dict[str, bytes]:
    return {k: v.tobytes() for k, v in arguments.items() if isinstance(v, np.ndarray) and v.dtype.kind not in "OT"}


def has_foreign_dtype(op: Op, arguments: Mapping[str, Any]) -> bool:
    """Return whether an argument has a dtype that torch and JAX lack."""
    try:
        arrays = admit(op, arguments)
    except OpError:
        return False
    flat = spread(op, arrays)[1] if op.has_lists else arrays
    theirs = {d for n, d in NUMPY_DTYPE.items() if n not in (*QUANTIZED, "string")}
    return any(a.dtype not in theirs for a in flat.values())


def check_same(op: Op, arguments: Mapping[str, Any], runner: Runner, got: Outcome, want: Outcome) -> None:
    """Check that two runners agree on a call."""
    if isinstance(got, Rejection):
        if got.kind == "ResourceExhaustedError" or any(message in got.message for message in FROM_DATA):
            assert got.op == op.name
            return  # another library may need more memory; a compiler knows less
        check_named(op, got)
        if isinstance(want, Rejection):
            if (got.kind, OTHER_ARRAY.sub("got ndarray", got.message)) != (want.kind, want.message):
                about_dtypes = ABOUT_DTYPES.search(got.message) and ABOUT_DTYPES.search(want.message)
                # A compiler sees sizes but no ids, so it reports an impossible size first; a kernel reads ids first.
                about_sizes = runner in (*TRACED, JAX_JIT) and got.message.startswith(SHARED)
                assert about_dtypes or about_sizes or has_foreign_dtype(op, arguments), f"{got}\nNumPy: {want}"
        else:
            assert has_foreign_dtype(op, arguments), f"rejected only by {runner.name}: {got}"
        return
    if isinstance(want, Rejection):
        # Traced runners see no data; and XLA drops computations without elements, so ids are not read.
        nothing = runner is JAX_JIT and not any(a.size for a in got)
        assert runner in TRACED or nothing, f"accepted only by {runner.name}; NumPy: {want}"
        return
    assert [(a.shape, a.dtype) for a in got] == [(b.shape, b.dtype) for b in want]
    if runner not in TRACED:
        for a, b in zip(got, want, strict=True):
            assert is_right(op, a, b), f"{a}\nNumPy: {b}"


def check_call(op: Op, corrupted: tuple[Corrupted, ...], runners: tuple[Runner, ...]) -> Outcome:
    """Make a corrupted call in the NumPy runner and in others; compare, and return NumPy's outcome."""
    arguments, attrs = corrupted_call(op, corrupted)
    before = snapshot(arguments)
    want = outcome(NUMPY, op, arguments, attrs)
    assert want is not None
    assert snapshot(arguments) == before
    if isinstance(want, Rejection):
        check_named(op, want)
    for runner in runners:
        again, attrs = corrupted_call(op, corrupted)
        if runner is JAX_JIT and _is_large(want):
            continue
        before = snapshot(again)
        got = outcome(runner, op, again, attrs)
        assert snapshot(again) == before, f"{runner.name} wrote into its arguments"
        if got is None:
            continue
        if runner.name in ON_PINS:  # integers typed on a pin for floats are floats
            first, second = (as_typed(op, corrupted_call(op, corrupted)[0]) for _ in range(2))
            direct = outcome(NUMPY, op, first, attrs)
            assert direct is not None
            check_same(op, second, runner, got, direct)
            continue
        if runner is JAX_32:  # other dtypes, so other results
            if isinstance(got, Rejection):
                check_named(op, got)
            continue
        check_same(op, corrupted_call(op, corrupted)[0], runner, got, want)
    return want


def _is_large(want: Outcome) -> bool:
    """Return whether the result is too large; XLA allocates it before a kernel can raise."""
    return isinstance(want, Rejection) and want.message.startswith(SHARED)


COMMON = {"deadline": None, "derandomize": True, "database": None, "phases": (Phase.explicit, Phase.generate)}
HEALTH = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def check_random_calls(op: Op, examples: int, runners: tuple[Runner, ...]) -> None:
    """Check this many randomly corrupted calls of an op."""

    @settings(max_examples=examples, suppress_health_check=HEALTH, **COMMON)  # type: ignore[arg-type]
    @given(corrupted=strategy_of(op))
    def run(corrupted: tuple[Corrupted, ...]) -> None:
        check_call(op, corrupted, runners)

    run()


def by_name(op: Op) -> str:
    return op.name


@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_every_corruption_in_numpy(op: Op) -> None:
    """One by one; variants do not change a bit, and output buffers are unchanged after an error."""
    plain = outcome(NUMPY, op, *good_call(op)) or ()
    for corrupted in all_corruptions(op):
        try:
            want = check_call(op, (corrupted,), ())
            if corrupted.corruption in VARIANTS and isinstance(good_call(op)[0][corrupted.argument], np.ndarray | list):
                assert not isinstance(want, Rejection)
                assert all(map(is_same, want, plain))
            buffers = tuple(np.full(o.shape, 1, o.dtype) for o in plain)
            contents = [b.tobytes() for b in buffers]
            arguments, attrs = corrupted_call(op, (corrupted,))
            found = outcome(NUMPY, op, arguments, {**attrs, "out": buffers})
        except Exception as error:
            error.add_note(f"{op.name}: {corrupted}")
            raise
        assert not isinstance(found, Rejection) or [b.tobytes() for b in buffers] == contents, corrupted


# Calls that a runner once computed wrongly, or rejected with an error of another library.
REGRESSIONS = [
    ("Sub", "x", "thing_integer"),
    ("Concat", "values", "byte_swapped"),
    ("RaggedFillEmptyRows", "default_value", "thing_integer"),
    ("SparseSegmentSumWithNumSegments", "num_segments", "thing_huge_integer"),
    ("SparseSegmentSumWithNumSegments", "num_segments", "thing_memoryview"),
    ("SparseSegmentSumGradGrad", "num_segments", "first_is_4611686018427387904"),
    ("SparseSegmentSumGrad", "output_dim0", "huge_but_no_elements"),
    ("SparseSegmentSum", "indices", "thing_endless_list"),
    ("SparseSegmentSum", "data", "thing_liar"),
    ("CastLike", "like", "reversed_twice"),
    ("Range", "delta", "first_is_9223372036854775807"),
    ("Shape", "input", "huge_but_no_elements"),
    ("Prod", "input", "huge_but_no_elements"),
    ("AddN", "inputs", "thing_empty_tuple"),
    ("GatherRows", "indices", "thing_masked"),
    ("GatherRows", "params", "object_texts"),
    ("Transpose", "perm", "last_is_-2"),
    ("Gather", "params", "nothing"),
    ("Slice", "size", "bool"),
    ("RowDot", "x", "zero_d"),
    ("Fill", "dims", "all_is_2147483647"),
    ("FullLike", "value", "thing_huge_integer"),
    ("FullLike", "value", "given_numpy_true"),
    ("SparseSegmentSum", "sparse_gradient", "given_array"),
    ("SparseSegmentSum", "data", "structure_of_nothing"),
    ("Cast", "DstT", "thing_numpy_void"),
    ("Squeeze", "axis", "thing_integer"),
    ("Pack", "axis", "given_0.0"),
    ("Pack", "axis", "given_numpy_integer"),
    ("SparseSegmentSumWithNumSegments", "num_segments", "first_is_4611686018427387904"),
]


@pytest.mark.parametrize("regression", REGRESSIONS, ids="-".join)
def test_regressions(regression: tuple[str, str, str]) -> None:
    name, argument, corruption = regression
    check_call(CATALOG[name], (Corrupted(argument, corruption),), ACROSS)


def test_attributes_are_validated_before_arguments() -> None:
    """If both are wrong, every runner reports the same one."""
    both = (Corrupted("indices", "thing_set"), Corrupted("sparse_gradient", "thing_none"))
    found = check_call(CATALOG["SparseSegmentSum"], both, ACROSS)
    assert isinstance(found, Rejection)
    assert found.argument == "sparse_gradient"


def test_equal_attributes_of_other_types_are_validated_again() -> None:
    """Repeated calls skip validation; attributes of other types or arrays of another memory order do not count."""
    x = np.zeros((2, 3), np.float32)
    for value in (0.0, -0.0, 0, -0.0):
        sign = np.signbit(np.float32(value))
        assert (np.signbit(RAW["FullLike"](x, value=value)) == sign).all(), value
    RAW["Column"](x, index=0)
    for index in (0.0, False, np.False_):
        with pytest.raises(InvalidArgumentError, match="attribute index must be a whole number"):
            RAW["Column"](x, index=index)
    many = np.random.default_rng(0).standard_normal((64, 64, 3)).astype(np.float32)
    sums = [RAW["Sum"](array, [0, 1]) for array in (np.asfortranarray(many), many, np.asfortranarray(many))]
    assert all(is_same(sums[0], other) for other in sums)


def test_views_larger_than_memory_are_rejected() -> None:
    """One element repeated by strides of zero, which kernels cannot read in place."""
    for make, form in ((np.broadcast_to, np.float32(1)), (torch.broadcast_to, torch.ones(()))):
        with pytest.raises(ResourceExhaustedError, match="making data contiguous needs 13194139533312 bytes") as caught:
            RAW["SparseSegmentSum"](make(form, (2**40, 3)), [0], [0])
        assert caught.value.argument == "data"


@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_runners_agree(op: Op) -> None:
    check_random_calls(op, 9, ACROSS)


@pytest.mark.parametrize("op", KERNEL_OPS, ids=by_name)
def test_compiled_calls_agree(op: Op) -> None:
    check_random_calls(op, 2, (JAX_JIT,))


@pytest.mark.parametrize("op", OPS, ids=by_name)
@pytest.mark.slow
def test_every_corruption_in_every_runner(op: Op) -> None:
    """Report all failures, not only the first."""
    failed = []
    for corrupted in all_corruptions(op):
        try:
            check_call(op, (corrupted,), ACROSS)
        except Exception as error:
            error.add_note(f"{op.name}: {corrupted}")
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{len(failed)} ways of {op.name}", failed)


@pytest.mark.parametrize("op", OPS, ids=by_name)
@pytest.mark.slow
def test_runners_agree_on_many(op: Op) -> None:
    check_random_calls(op, 400, ACROSS)
    if op.kernel is not None:
        check_random_calls(op, 40, (JAX_JIT,))


# What a page can contain: arrays of a known dtype, and attributes that JSON can represent.
TYPED = {
    *SHAPES, *INTEGERS, *FLOATS, *(d for d in DTYPES if d in NUMPY_DTYPE),
    *(k for k, make in ATTRIBUTES.items() if type(make()) in (bool, int, float, str) and k not in UNWRITTEN),
}  # fmt: skip


def corruptions_on_pages(op: Op) -> list[Corrupted]:
    """Return the corruptions that a saved page can represent."""
    return [w for w in all_corruptions(op) if w.corruption in TYPED]


def test_studio_agrees() -> None:
    """A page of every op, saved and run by Studio's verbs."""
    with studio_runner() as studio:
        for k, op in enumerate(OPS):
            corruptions = corruptions_on_pages(op)
            check_call(op, (corruptions[k * 7919 % len(corruptions)],), (studio,))


@pytest.mark.parametrize("op", OPS, ids=by_name)
@pytest.mark.slow
def test_studio_agrees_on_many(op: Op) -> None:
    """Some corruptions of every argument and attribute, at least thirty in all."""
    groups = [[w for w in corruptions_on_pages(op) if w.argument == name] for name in (*op.input_names, *op.attrs)]
    each = -(-30 // len(groups))
    with studio_runner() as studio:
        for k, corruptions in enumerate(groups):
            for i in range(each):
                check_call(op, (corruptions[(k + i * len(corruptions) // each) % len(corruptions)],), (studio,))


def test_every_op_has_a_valid_call() -> None:
    assert len(OPS) >= 175
    assert all(len({w.argument for w in all_corruptions(op)}) == len(op.inputs) + len(op.attrs) for op in OPS)
    assert all(len(all_corruptions(op)) > 80 for op in OPS)
