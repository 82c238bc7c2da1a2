"""Errors: classes, facts, and the whole call in words."""

from __future__ import annotations

import numpy as np
import pytest

import rowgrad as rg
from rowgrad.errors import MESSAGES, make_error

GRAD = np.ones((2, 3), np.float32)


def bad_index() -> rg.errors.OpError:
    ids = np.array([0, 9], np.int32)
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.raw_ops.SparseSegmentMeanGrad(GRAD, ids, np.array([0, 1]), output_dim0=5, name="tower/a")
    return caught.value


def test_facts_are_attributes() -> None:
    error = bad_index()
    assert error.message == "Index 9 out of range [0, 5)."
    assert (error.op, error.name, error.argument) == ("SparseSegmentMeanGrad", "tower/a", "indices")
    assert (error.position, error.value, error.bound) == (1, 9, 5)


def test_text_tells_the_whole_call() -> None:
    assert str(bad_index()) == (
        "SparseSegmentMeanGrad (name: tower/a): Index 9 out of range [0, 5). "
        "[argument indices, position 1, value 9, bound 5]; "
        "got grad=float32[2,3], indices=int32[2], segment_ids=int64[2], output_dim0=5"
    )


@pytest.mark.parametrize(
    ("kind", "also"),
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
def test_classes_are_python_errors_too(kind: str, also: type) -> None:
    assert issubclass(getattr(rg.errors, kind), (rg.errors.OpError, also))
    assert issubclass(getattr(rg.errors, kind), also)


@pytest.mark.parametrize("key", MESSAGES)
def test_every_message_can_be_worded(key: str) -> None:
    facts = ("argument", "value", "bound", "shape", "shapes", "part", "rows", "result", "why", "attr", "column",
             "file", "what", "begin", "function")  # fmt: skip
    error = make_error(key, position=1, **dict.fromkeys(facts, "x"))
    assert error.message
    assert "{" not in error.message


def test_dtype_error_names_argument_given_and_allowed() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.raw_ops.SparseSegmentSumGrad(np.ones((1, 1), np.int32), [0], [0], 1)
    assert caught.value.message == "grad must be one of float16, bfloat16, float32, float64; got int32"


def test_dtype_without_kernel_is_not_found() -> None:
    with pytest.raises(rg.errors.NotFoundError, match="grad_values must be one of"):
        rg.raw_ops.SparseFillEmptyRowsGrad(np.array([0]), np.array([True]))


def test_two_arguments_of_one_type() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="default_value must be float64, the T of the arguments"):
        rg.raw_ops.SparseFillEmptyRows([[0, 0]], np.ones(1), [2, 2], np.float32(0))


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((GRAD,), {}, "SparseSegmentMeanGrad needs indices, segment_ids, output_dim0"),
        ((GRAD, [0], [0], 1), {"indices": [0]}, "got argument 'indices' twice"),
        ((GRAD, [0], [0], 1), {"axis": 0}, "has no argument 'axis'; it takes grad, indices, segment_ids, output_dim0"),
        ((GRAD, [0], [0], 1, "blocked", 2), {}, "takes 5 arguments, got 6"),
    ],
)
def test_wrong_arguments_are_type_errors(args: tuple, kwargs: dict, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        rg.raw_ops.SparseSegmentMeanGrad(*args, **kwargs)


def test_attributes_are_checked() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="attribute sparse_gradient must be one of False, True"):
        rg.raw_ops.SparseSegmentSum(GRAD, [0], [0], sparse_gradient="yes")


def test_other_frameworks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensor:
        __module__ = "jax"

    monkeypatch.setattr(
        "rowgrad._runtime.dispatch.entry_points", lambda group: ()
    )  # an installation from before there was one
    with pytest.raises(rg.errors.UnimplementedError, match="no runner for jax arrays"):
        rg.raw_ops.SparseSegmentSum(Tensor(), [0], [0])


def test_lookup_errors_name_the_lookup() -> None:
    ids = rg.SparseTensor([[0, 0]], np.array([7]), [1, 1])
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.embedding_lookup_sparse(GRAD, ids, name="films")
    assert str(caught.value).startswith(
        "embedding_lookup_sparse (name: films): Bad: indices[0] == 7 out of range [0, 2)"
    )
