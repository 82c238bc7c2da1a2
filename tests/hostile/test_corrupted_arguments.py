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
from corruptions import ATTRIBUTES, DTYPES, FLOATS, FORMS, INTEGERS, LISTS, SHAPES, corruptions_of
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
    Refusal,
    Runner,
    computed_ops,
    outcome,
    studio_runner,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from outcome_checks import SHARED, check_named, good_call, is_right, is_same

import rowgrad._runtime.results
from rowgrad._catalog.spec import CATALOG, QUANTIZED, Op, spread
from rowgrad._runtime.arrays import NUMPY_DTYPE, admit
from rowgrad.errors import InvalidArgumentError, OpError, ResourceExhaustedError
from rowgrad.raw_ops import OPS as RAW

OPS = computed_ops()
KERNEL_OPS = [op for op in OPS if op.kernel is not None]
ACROSS = (TORCH, TORCH_RECORDED, TORCH_META, JAX, JAX_TRACED, JAX_32, PAGE, FED)
TRACED = (TORCH_META, JAX_TRACED)  # these see shapes, and no elements
# Words about dtypes name what a library has, and one that has no strings refuses them sooner.
ABOUT_DTYPES = re.compile(r" must be one of | must contain values of | must be (u?int|float|complex|bool|string)")
OTHER_ARRAY = re.compile(r"got (Tensor|ArrayImpl)$")
FROM_DATA = ("the number of output rows depends on data", "determines a shape, so it must be a number")
UNWRITTEN = ("given_half_a_character", "given_enormous_integer")  # a page refuses to be written with these
LITTLE = 1 << 26  # bytes: results that would only take long are refused as too large ones are


@pytest.fixture(autouse=True, scope="module")
def _little_memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowgrad._runtime.results, "memory_limit", lambda: LITTLE)
        yield


# -- corrupted calls ---------------------------------------------------------------------------------------------------


class Corrupted(NamedTuple):
    """One argument, the first item of a list of arrays, or an attribute, and what was done to it."""

    argument: str
    way: str


def _array(value: Any) -> np.ndarray:
    return np.asarray(value[0] if isinstance(value, list) and isinstance(value[0], np.ndarray) else value)


def ways_of(op: Op) -> tuple[Corrupted, ...]:
    """All that can be done to a call."""
    return _ways_of(op.name)


@cache
def _ways_of(name: str) -> tuple[Corrupted, ...]:
    op = CATALOG[name]
    arguments, _ = good_call(op)
    found = []
    for arg in op.inputs:
        found += [Corrupted(arg.name, way) for way in (*FORMS, *corruptions_of(arg, _array(arguments[arg.name])))]
        found += [Corrupted(arg.name, way) for way in (LISTS if arg.many else ())]
    return (*found, *(Corrupted(name, way) for name in op.attrs for way in ATTRIBUTES))


def corrupted_call(op: Op, what: tuple[Corrupted, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments and attributes, made anew: some of the things in them change when they are looked at."""
    arguments, attrs = map(dict, good_call(op))
    for name, way in what:
        if name in op.attrs:
            attrs[name] = ATTRIBUTES[way]()
            continue
        arg = next(a for a in op.inputs if a.name == name)
        if way in LISTS:
            arguments[name] = LISTS[way](arguments[name])
            continue
        x = _array(arguments[name])
        bad = FORMS[way](x) if way in FORMS else corruptions_of(arg, x)[way](x, arg)
        arguments[name] = [bad, *arguments[name][1:]] if arg.many else bad
    return arguments, attrs


def strategy_of(op: Op) -> st.SearchStrategy[tuple[Corrupted, ...]]:
    """One argument corrupted, or two of them."""
    one = st.sampled_from(ways_of(op))
    two = st.tuples(one, one).filter(lambda pair: pair[0].argument != pair[1].argument)
    return one.map(lambda w: (w,)) | two if len(op.inputs) + len(op.attrs) > 1 else one.map(lambda w: (w,))


# -- judgement ---------------------------------------------------------------------------------------------------------


def snapshot(arguments: Mapping[str, Any]) -> dict[str, bytes]:
    return {k: v.tobytes() for k, v in arguments.items() if isinstance(v, np.ndarray) and v.dtype.kind not in "OT"}


def is_foreign(op: Op, arguments: Mapping[str, Any]) -> bool:
    """Whether a dtype is among the arguments that torch and JAX do not have."""
    try:
        arrays = admit(op, arguments)
    except OpError:
        return False
    flat = spread(op, arrays)[1] if op.has_lists else arrays
    theirs = {d for n, d in NUMPY_DTYPE.items() if n not in (*QUANTIZED, "string")}
    return any(a.dtype not in theirs for a in flat.values())


def check_same(op: Op, arguments: Mapping[str, Any], runner: Runner, got: Outcome, want: Outcome) -> None:
    """Two runners agree on a call."""
    if isinstance(got, Refusal):
        if got.kind == "ResourceExhaustedError" or any(words in got.message for words in FROM_DATA):
            assert got.op == op.name
            return  # another library needs more on the way; a compiler knows less
        check_named(op, got)
        if isinstance(want, Refusal):
            if (got.kind, OTHER_ARRAY.sub("got ndarray", got.message)) != (want.kind, want.message):
                about_dtypes = ABOUT_DTYPES.search(got.message) and ABOUT_DTYPES.search(want.message)
                # A compiler sees sizes and no ids, so an impossible size comes first; a kernel looks at the ids first.
                about_sizes = runner in (*TRACED, JAX_JIT) and got.message.startswith(SHARED)
                assert about_dtypes or about_sizes or is_foreign(op, arguments), f"{got}\nNumPy: {want}"
        else:
            assert is_foreign(op, arguments), f"refused by {runner.name} alone: {got}"
        return
    if isinstance(want, Refusal):
        # Data come later; and XLA leaves out what has no elements, so that nobody looks at its ids.
        nothing = runner is JAX_JIT and not any(a.size for a in got)
        assert runner in TRACED or nothing, f"answered by {runner.name} alone; NumPy: {want}"
        return
    assert [(a.shape, a.dtype) for a in got] == [(b.shape, b.dtype) for b in want]
    if runner not in TRACED:
        for a, b in zip(got, want, strict=True):
            assert is_right(op, a, b), f"{a}\nNumPy: {b}"


def judge(op: Op, what: tuple[Corrupted, ...], runners: tuple[Runner, ...]) -> Outcome:
    """A corrupted call in NumPy's runner, whose outcome is given back, and in others."""
    arguments, attrs = corrupted_call(op, what)
    before = snapshot(arguments)
    want = outcome(NUMPY, op, arguments, attrs)
    assert want is not None
    assert snapshot(arguments) == before
    if isinstance(want, Refusal):
        check_named(op, want)
    for runner in runners:
        again, attrs = corrupted_call(op, what)
        if runner is JAX_JIT and _is_large(want):
            continue
        before = snapshot(again)
        got = outcome(runner, op, again, attrs)
        assert snapshot(again) == before, f"{runner.name} wrote into its arguments"
        if got is None:
            continue
        if runner is JAX_32:  # other dtypes, so other answers
            if isinstance(got, Refusal):
                check_named(op, got)
            continue
        check_same(op, corrupted_call(op, what)[0], runner, got, want)
    return want


def _is_large(want: Outcome) -> bool:
    """XLA finds memory for results before a kernel can refuse anything."""
    return isinstance(want, Refusal) and want.message.startswith(SHARED)


COMMON = {"deadline": None, "derandomize": True, "database": None, "phases": (Phase.explicit, Phase.generate)}
HEALTH = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def drawn(op: Op, examples: int, runners: tuple[Runner, ...]) -> None:
    """So many corrupted calls of an op."""

    @settings(max_examples=examples, suppress_health_check=HEALTH, **COMMON)  # type: ignore[arg-type]
    @given(what=strategy_of(op))
    def run(what: tuple[Corrupted, ...]) -> None:
        judge(op, what, runners)

    run()


def by_name(op: Op) -> str:
    return op.name


@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_every_way_for_numpy(op: Op) -> None:
    """All of them, one by one; a disguise changes no bit, buffers for results are as they were after a refusal."""
    plain = outcome(NUMPY, op, *good_call(op)) or ()
    for what in ways_of(op):
        try:
            want = judge(op, (what,), ())
            if what.way in FORMS and isinstance(good_call(op)[0][what.argument], np.ndarray | list):
                assert not isinstance(want, Refusal)
                assert all(map(is_same, want, plain))
            buffers = tuple(np.full(o.shape, 1, o.dtype) for o in plain)
            kept = [b.tobytes() for b in buffers]
            arguments, attrs = corrupted_call(op, (what,))
            found = outcome(NUMPY, op, arguments, {**attrs, "out": buffers})
        except Exception as error:
            error.add_note(f"{op.name}: {what}")
            raise
        assert not isinstance(found, Refusal) or [b.tobytes() for b in buffers] == kept, what


# Calls that some runner once answered wrongly, or refused by an error of somebody else's.
ONCE_WRONG = [
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


@pytest.mark.parametrize("once", ONCE_WRONG, ids="-".join)
def test_regressions(once: tuple[str, str, str]) -> None:
    name, argument, way = once
    judge(CATALOG[name], (Corrupted(argument, way),), ACROSS)


def test_attributes_are_validated_before_arguments() -> None:
    """Where both are wrong, every runner speaks of the same one."""
    both = (Corrupted("indices", "thing_set"), Corrupted("sparse_gradient", "thing_none"))
    found = judge(CATALOG["SparseSegmentSum"], both, ACROSS)
    assert isinstance(found, Refusal)
    assert found.argument == "sparse_gradient"


def test_equal_attributes_of_other_types_are_validated_again() -> None:
    """Calls like an earlier one skip its judgement; equal attributes and other orders in memory are not alike."""
    x = np.zeros((2, 3), np.float32)
    for value in (0.0, -0.0, 0, -0.0):
        sign = np.signbit(np.float32(value))
        assert (np.signbit(RAW["FullLike"](x, value=value)) == sign).all(), value
    RAW["Column"](x, index=0)
    for index in (0.0, False, np.False_):
        with pytest.raises(InvalidArgumentError, match="attribute index must be a whole number"):
            RAW["Column"](x, index=index)
    many = np.random.default_rng(0).standard_normal((64, 64, 3)).astype(np.float32)
    sums = [RAW["Sum"](form, [0, 1]) for form in (np.asfortranarray(many), many, np.asfortranarray(many))]
    assert all(is_same(sums[0], other) for other in sums)


def test_views_larger_than_memory_are_rejected() -> None:
    """The same element over and over, which kernels cannot read in place."""
    for make, form in ((np.broadcast_to, np.float32(1)), (torch.broadcast_to, torch.ones(()))):
        with pytest.raises(ResourceExhaustedError, match="making data contiguous needs 13194139533312 bytes") as caught:
            RAW["SparseSegmentSum"](make(form, (2**40, 3)), [0], [0])
        assert caught.value.argument == "data"


@pytest.mark.parametrize("op", OPS, ids=by_name)
def test_runners_agree(op: Op) -> None:
    drawn(op, 9, ACROSS)


@pytest.mark.parametrize("op", KERNEL_OPS, ids=by_name)
def test_compiled_calls_agree(op: Op) -> None:
    drawn(op, 2, (JAX_JIT,))


@pytest.mark.parametrize("op", OPS, ids=by_name)
@pytest.mark.slow
def test_every_way_in_every_runner(op: Op) -> None:
    """All that fail are shown, not only the first."""
    failed = []
    for what in ways_of(op):
        try:
            judge(op, (what,), ACROSS)
        except Exception as error:
            error.add_note(f"{op.name}: {what}")
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{len(failed)} ways of {op.name}", failed)


@pytest.mark.parametrize("op", OPS, ids=by_name)
@pytest.mark.slow
def test_runners_agree_on_many(op: Op) -> None:
    drawn(op, 400, ACROSS)
    if op.kernel is not None:
        drawn(op, 40, (JAX_JIT,))


# What a page can hold: arrays of a known dtype, and attributes that JSON can tell.
TYPED = {
    *SHAPES, *INTEGERS, *FLOATS, *(d for d in DTYPES if d in NUMPY_DTYPE),
    *(way for way, make in ATTRIBUTES.items() if type(make()) in (bool, int, float, str) and way not in UNWRITTEN),
}  # fmt: skip


def ways_typed(op: Op) -> list[Corrupted]:
    """What can be done to a call on a page that is saved."""
    return [w for w in ways_of(op) if w.way in TYPED]


def test_studio_agrees() -> None:
    """A page of every op, saved and run by Studio's verbs."""
    with studio_runner() as studio:
        for k, op in enumerate(OPS):
            ways = ways_typed(op)
            judge(op, (ways[k * 7919 % len(ways)],), (studio,))


@pytest.mark.parametrize("op", OPS, ids=by_name)
@pytest.mark.slow
def test_studio_agrees_on_many(op: Op) -> None:
    """Some of every argument's ways and of every attribute's, thirty and more in all."""
    groups = [[w for w in ways_typed(op) if w.argument == name] for name in (*op.input_names, *op.attrs)]
    each = -(-30 // len(groups))
    with studio_runner() as studio:
        for k, ways in enumerate(groups):
            for i in range(each):
                judge(op, (ways[(k + i * len(ways) // each) % len(ways)],), (studio,))


def test_every_op_has_a_call_to_corrupt() -> None:
    assert len(OPS) >= 175
    assert all(len({w.argument for w in ways_of(op)}) == len(op.inputs) + len(op.attrs) for op in OPS)
    assert all(len(ways_of(op)) > 80 for op in OPS)
