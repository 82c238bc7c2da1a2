"""Errors: classes, facts as attributes, and what messages, notes and copies contain."""

from __future__ import annotations

import concurrent.futures
import copy
import multiprocessing
import pickle
import re
import string
import traceback
from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from rowgrad._error_messages import MESSAGES, OWN_MESSAGES, TENSORFLOW_MESSAGES
from rowgrad.errors import OpError, make_error, with_notes
from rowgrad.graph import PageError

GRAD = np.ones((2, 3), np.float32)
FACTS: dict[str, Any] = {
    "position": 3, "value": 987, "bound": 654, "result": 7, "shape": "[2,1]", "shapes": "[1] and [2]", "part": "values",
    "rows": "indices", "why": " because", "attr": "T", "column": 1, "file": "a.index", "what": "rank", "begin": 2,
    "function": "scale", "dtype": "float", "other": "weight",
    "feature": "seen", "table": "'item'", "text": "offsets must not decrease",
}  # fmt: skip
RETIRED = re.compile(
    r"\b(told|anew|refused?|refuses|lies?|judged?|asked|asks|words|(?<!there )is no|are none|of none|had|gives?"
    r"|whoever|of late|turned round|parcels|beside|the other way round)\b"
)


def bad_index() -> OpError:
    ids = np.array([0, 9], np.int32)
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.raw_ops.SparseSegmentMeanGrad(GRAD, ids, np.array([0, 1]), output_dim0=5, name="tower/a")
    return caught.value


def test_facts_are_available_as_attributes() -> None:
    error = bad_index()
    assert error.message == "Index 9 out of range [0, 5)."
    assert (error.op, error.name, error.argument) == ("SparseSegmentMeanGrad", "tower/a", "indices")
    assert (error.position, error.value, error.bound) == (1, 9, 5)
    assert error.call == "grad=float32[2,3], indices=int32[2], segment_ids=int64[2], output_dim0=5"


def test_text_and_note() -> None:
    error = bad_index()
    assert str(error) == "SparseSegmentMeanGrad (name: tower/a): Index 9 out of range [0, 5). Got indices[1] = 9."
    note = f"in SparseSegmentMeanGrad({error.call})"
    assert error.__notes__ == [note]
    assert with_notes(error) == f"{error}\n{note}"
    assert traceback.format_exception_only(error)[-1].strip() == note


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: rg.raw_ops.SparseSegmentMean(GRAD, [0, 1], [0, -1]),
         "SparseSegmentMean: segment ids must be >= 0, got segment_ids[1] = -1. A segment id is the number of a row of"
         " the result."),
        (lambda: rg.raw_ops.SparseSegmentMean(GRAD, [0, 1, 1], [0, 2, 1]),
         "SparseSegmentMean: segment ids are not increasing, got segment_ids[2] = 1 after 2. Sort ids and segment ids"
         " together by segment, with np.argsort(segment_ids, kind='stable')."),
        (lambda: rg.raw_ops.SparseSegmentMeanWithNumSegments(GRAD, [0, 1], [0, 7], 5),
         "SparseSegmentMeanWithNumSegments: segment ids must be < num_segments, got segment_ids[1] = 7,"
         " num_segments = 5. num_segments is the number of rows of the result: pass more than the largest segment"
         " id, and at most 2147483647."),
        (lambda: rg.raw_ops.SparseSegmentMean(GRAD, [[0]], [0]),
         "SparseSegmentMean: indices should be a vector. Got shape [1,1]. For a matrix of ids, one bag in each row,"
         " pass ids.reshape(-1) and segment_ids=np.repeat(np.arange(rows), columns)."),
        (lambda: rg.raw_ops.SparseSegmentMean(np.float32(1), [0], [0]),
         "SparseSegmentMean: Shape must be at least rank 1 (data)"),
        (lambda: rg.raw_ops.SparseSegmentMeanGrad(GRAD, [0, 1], [0, 1], -1),
         "SparseSegmentMeanGrad: Expected a non-negative size, got -1 (output_dim0)"),
        (lambda: rg.raw_ops.SparseSegmentMean(GRAD, [0, 9], [0, 1]),
         "SparseSegmentMean: Bad: indices[1] == 9 out of range [0, 2)"),
        (lambda: rg.embedding_lookup_sparse(GRAD, rg.SparseTensor([[0, 0]], np.array([7]), [1, 1]), name="films"),
         "embedding_lookup_sparse (name: films): Bad: indices[0] == 7 out of range [0, 2) (sp_ids[0])"),
    ],
)  # fmt: skip
def test_text_adds_the_facts_that_the_message_leaves_out(call: Any, text: str) -> None:
    with pytest.raises(OpError) as caught:
        call()
    assert str(caught.value) == text
    assert caught.value.message in text
    (note,) = caught.value.__notes__
    assert note == f"in {caught.value.op}({caught.value.call})"


def test_text_reflects_facts_corrected_later() -> None:
    error = make_error("index_not_in_params", position=1, value=9, bound=4)
    assert str(error) == "indices[1] = 9 is not in [0, 4)"
    error.argument, error.position = "ids", 6
    assert str(error) == "indices[1] = 9 is not in [0, 4) (ids[6])"


def test_errors_without_a_key_have_facts() -> None:
    error = rg.errors.InvalidArgumentError("cells: 12 of 15 texts", argument="cells", value=12, bound=15)
    assert str(error) == "cells: 12 of 15 texts"
    assert str(rg.errors.InvalidArgumentError("too long", argument="cells", value=12, bound=9)) == (
        "too long, got cells = 12, limit 9"
    )


def test_notes_are_added_once_per_call() -> None:
    error = make_error("size_negative", argument="size", value=-1, bound=0)
    assert error.in_call("GatherRows", None, "") is error
    assert not hasattr(error, "__notes__")
    error.in_call("GatherRows", "a", "size=-1").in_call("GatherRows", "b", "size=-2").in_call("vjp", None, "x=1")
    assert (error.op, error.name, error.call, error.__notes__) == (
        "GatherRows",
        "a",
        "size=-1",
        ["in GatherRows(size=-1)"],
    )
    error.add_note("in item 3 of the batch")
    error.replace_call("lookup", None, "ids=int32[2]")
    assert sorted(error.__notes__) == ["in item 3 of the batch", "in lookup(ids=int32[2])"]


def test_context_is_part_of_the_text() -> None:
    error = make_error("segment_negative", position=0, value=-1, bound=0).in_call(
        "SegmentSum", None, "", context="later"
    )
    text = "SegmentSum: segment ids must be >= 0, got segment_ids[0] = -1 (later). A segment id is the number of a row"
    assert str(error) == f"{text} of the result."


def every_error() -> list[OpError]:
    errors = [make_error(key, **FACTS, argument="ids") for key in MESSAGES]
    for error in errors:
        error.in_call("Op", "here", "x=1").add_note("in item 3 of the batch")
    return [*errors, PageError("blocks[3]", "is missing"), rg.errors.InvalidArgumentError("wrong", value=3)]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_copies_keep_everything(duplicate: Any) -> None:
    for error in every_error():
        other = duplicate(error)
        assert (type(other), str(other), repr(other), other.args) == (type(error), str(error), repr(error), error.args)
        assert with_notes(other) == with_notes(error)
        assert vars(other) == vars(error)
        other.add_note("another note")
        assert "another note" not in with_notes(error)


def fail() -> None:
    rg.raw_ops.SparseSegmentMean(GRAD, [0, 1], [0, -1])


def test_errors_from_other_processes_keep_everything() -> None:
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool,
        pytest.raises(rg.errors.InvalidArgumentError) as caught,
    ):
        pool.submit(fail).result()
    error = caught.value
    text = "SparseSegmentMean: segment ids must be >= 0, got segment_ids[1] = -1"
    assert str(error) == f"{text}. A segment id is the number of a row of the result."
    assert (error.position, error.value, error.call) == (
        1,
        -1,
        "data=float32[2,3], indices=list of 2, segment_ids=list of 2",
    )
    assert f"in SparseSegmentMean({error.call})" in error.__notes__


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        ("InvalidArgumentError", ValueError),
        ("RowArithmeticError", TypeError),
        ("NotFoundError", rg.errors.InvalidArgumentError),
        ("InternalError", RuntimeError),
        ("UnimplementedError", NotImplementedError),
        ("ResourceExhaustedError", MemoryError),
        ("CheckpointError", rg.errors.InvalidArgumentError),
        ("CheckpointNotFoundError", FileNotFoundError),
        ("TensorNotFoundError", KeyError),
        ("ShardError", rg.errors.InvalidArgumentError),
    ],
)
def test_classes_are_python_errors_too(kind: str, builtin: type) -> None:
    assert issubclass(getattr(rg.errors, kind), (rg.errors.OpError, builtin))
    assert issubclass(getattr(rg.errors, kind), builtin)


def fields_of(key: str) -> set[str]:
    return {field for _, field, _, _ in string.Formatter().parse(MESSAGES[key].text) if field}


@pytest.mark.parametrize("key", MESSAGES)
def test_every_message_states_its_facts(key: str) -> None:
    """The text begins with the message, contains every fact, has no list of attributes, and ends with the advice."""
    error = make_error(key, **FACTS, **({"argument": "ids"} if "argument" in fields_of(key) else {}))
    text = str(error)
    assert text.startswith(error.message.removesuffix("."))
    assert text.endswith(MESSAGES[key].advice)
    assert not re.search(r"[{}]|\[(argument|position|value|bound) ", text)
    states = MESSAGES[key].states
    for fact in ("value", "bound"):
        assert fact in states or str(FACTS[fact]) in text
    if error.argument is not None and not {"argument", "position"} & set(states):
        assert error.argument in text


@pytest.mark.parametrize("key", MESSAGES)
def test_a_message_that_states_all_its_facts_is_the_text(key: str) -> None:
    names = fields_of(key)
    error = make_error(
        key, **{k: v for k, v in FACTS.items() if k in names}, **dict.fromkeys(names & {"argument"}, "ids")
    )
    if (
        error.argument is None
        or re.search(rf"\b{error.argument}\b", error.message)
        or "argument" in MESSAGES[key].states
    ):
        assert error.explanation == error.message


@pytest.mark.parametrize("key", OWN_MESSAGES)
def test_own_messages_are_one_or_two_plain_sentences(key: str) -> None:
    text = OWN_MESSAGES[key].text
    sentences = re.split(r"(?<=[^.])\. (?=[A-Z])", text)
    assert len(sentences) <= 2
    assert text.endswith(".") == (len(sentences) == 2), "one sentence has no full stop, two sentences have both"
    assert text == text.strip()
    assert "  " not in text
    assert not RETIRED.search(text)
    assert not sentences[0][0].isupper() or sentences[0].startswith("OOM")


@pytest.mark.parametrize("key", [key for key, message in MESSAGES.items() if message.advice])
def test_advice_is_one_plain_sentence(key: str) -> None:
    advice = MESSAGES[key].advice
    assert re.fullmatch(r"[^ ].*[^.]\.", advice)
    assert not re.search(r"[^.]\. [A-Z]|  |[{}]", advice)
    assert not RETIRED.search(advice)


def test_message_tables_are_disjoint() -> None:
    assert not TENSORFLOW_MESSAGES.keys() & OWN_MESSAGES.keys()
    assert MESSAGES == TENSORFLOW_MESSAGES | OWN_MESSAGES


def test_dtype_error_names_argument_dtype_and_allowed_dtypes() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 1), np.int32), [0], [0], 1)
    assert caught.value.message == "grad must be one of float16, bfloat16, float32, float64; got int32"


def test_dtype_without_kernel_is_not_found() -> None:
    with pytest.raises(rg.errors.NotFoundError, match="grad_values must be one of"):
        rg.raw_ops.SparseFillEmptyRowsGrad(np.array([0]), np.array([True]))


def test_arguments_of_different_types_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="default_value must be float64, the T of the arguments"):
        rg.raw_ops.SparseFillEmptyRows([[0, 0]], np.ones(1), [2, 2], np.float32(0))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((GRAD,), {}, "SparseSegmentMeanGrad needs indices, segment_ids, output_dim0"),
        ((GRAD, [0], [0], 1), {"indices": [0]}, "got argument 'indices' twice"),
        ((GRAD, [0], [0], 1), {"axis": 0}, "has no argument 'axis'. It takes grad, indices, segment_ids, output_dim0"),
        ((GRAD, [0], [0], 1, "blocked", 2), {}, "takes 5 arguments, got 6"),
    ],
)
def test_wrong_arguments_are_type_errors(args: tuple, kwargs: dict, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        rg.raw_ops.SparseSegmentMeanGrad(*args, **kwargs)


def test_invalid_attributes_raise() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="attribute sparse_gradient must be one of False, True"):
        rg.raw_ops.SparseSegmentSum(GRAD, [0], [0], sparse_gradient="yes")


def test_arrays_of_other_frameworks_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensor:
        __module__ = "jax"

    monkeypatch.setattr(
        "rowgrad._runtime.dispatch.entry_points", lambda group: ()
    )  # an installation that predates this function
    with pytest.raises(
        rg.errors.UnimplementedError,
        match="which has no runner named 'jax'",
    ):
        rg.raw_ops.SparseSegmentSum(Tensor(), [0], [0])


def test_lookup_errors_name_the_lookup() -> None:
    ids = rg.SparseTensor([[0, 0]], np.array([7]), [1, 1])
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.embedding_lookup_sparse(GRAD, ids, name="films")
    assert str(caught.value).startswith(
        "embedding_lookup_sparse (name: films): Bad: indices[0] == 7 out of range [0, 2)"
    )
