"""The reference agrees with TensorFlow's recorded results, and the fuzzer that uses it can fail."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_cases import Case, cases, same_bits
from reference import OPS, ExpectedError, reference
from rowgrad import raw_ops
from rowgrad._catalog.spec import CATALOG
from rowgrad.errors import InternalError, InvalidArgumentError

sys.path.append(str(Path(__file__).parents[1] / "tools" / "fuzzing"))
fuzz = importlib.import_module("random_calls")

NOT_MODELLED = ("dtype", "out-of-memory", "thresh-complex")


def is_modelled(case: Case) -> bool:
    no_rows = case.op == "RaggedFillEmptyRows" and case.outputs and not len(case.outputs["empty_row_indicator"])
    return not no_rows and not any(word in case.tag for word in NOT_MODELLED)


def test_every_kernel_op_has_a_reference() -> None:
    assert set(OPS) == {op.name for op in CATALOG.values() if op.layer == "kernel"}


@pytest.mark.parametrize("case", [c for c in cases("valid", "error") if is_modelled(c)], ids=str)
def test_agrees_with_tensorflow(case: Case) -> None:
    attrs = {**CATALOG[case.op].attrs, **case.attrs}
    if case.error:
        with pytest.raises(ExpectedError) as raised:
            reference(case.op, case.inputs, attrs)
        assert (raised.value.kind, raised.value.message) == (case.error["class"], case.error["message"])
    else:
        assert case.outputs is not None
        for got, expected in zip(reference(case.op, case.inputs, attrs), case.outputs.values(), strict=True):
            assert same_bits(got, expected)


def test_tininess_is_detected_after_rounding_with_unbounded_exponent() -> None:
    # 2^-126 − 2^-150 is a tie that rounding among the subnormals takes up to 2^-126, the smallest normal number. With
    # 24 bits and unbounded exponent it is exact and tiny, so the processor flushes it.
    x = {"x": np.array([[2.0**-126 * (1 + 2.0**-12)]], np.float32), "y": np.array([[1 - 2.0**-12]], np.float32)}
    assert (x["x"] * x["y"]).item() == 2.0**-126
    assert reference("RowDot", x, {})[0].item() == 0
    assert raw_ops.RowDot(**x).item() == 0


def test_a_short_fuzz_passes() -> None:
    assert fuzz.first_failure(range(400), seed=1) is None


# -- sabotage: errors that the fuzzer must detect


def flip_a_bit(outputs: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
    if outputs[0].size:
        outputs[0].reshape(-1).view(np.uint8)[0] ^= 1
    return outputs


def widen(outputs: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
    return (outputs[0].astype(np.float64), *outputs[1:])


def add_a_dimension(outputs: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
    return (outputs[0][np.newaxis], *outputs[1:])


def return_an_input(outputs: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
    return (*outputs[:-1], arguments["a_shape"])


def write_to_an_input(outputs: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
    first = next(iter(arguments.values()))
    if first.flags.writeable:
        first[...] = 0
    return outputs


def raise_an_error(outputs: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
    raise InvalidArgumentError("not today")


def raise_a_key_error(outputs: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("op", "sabotage", "report"),
    [
        ("SparseSegmentMean", flip_a_bit, "output differs"),
        ("SparseAddGrad", flip_a_bit, "a_val_grad differs"),
        ("RowDot", widen, "output differs"),
        ("GatherRows", add_a_dimension, "output differs"),
        ("SparseAdd", return_an_input, "sum_shape shares memory with a_shape"),
        ("ScatterRows", write_to_an_input, "the call changed grad"),
        ("SegmentSum", raise_an_error, "raised\n"),
        ("SparseSlice", raise_a_key_error, "an exception that is not an OpError"),
    ],
)
def test_fuzzer_detects_wrong_results(
    monkeypatch: pytest.MonkeyPatch, op: str, sabotage: Callable[..., Any], report: str
) -> None:
    call = fuzz.call
    monkeypatch.setattr(fuzz, "call", lambda case, given, **more: sabotage(call(case, given, **more), given))
    failure = fuzz.first_failure(range(400), 1, op)
    assert failure.startswith(f"{op}: {report}")
    assert f"--op {op}" in failure


@pytest.mark.parametrize(
    ("change", "report"),
    [
        (lambda error: InvalidArgumentError(error.message + "!"), "raised another error"),
        (lambda error: InternalError(error.message), "raised another error"),
        (None, "did not raise"),
    ],
)
def test_fuzzer_detects_wrong_errors(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Exception] | None, report: str
) -> None:
    call = fuzz.call

    def changed(case: Any, arguments: Any, **more: Any) -> Any:
        try:
            return call(case, arguments, **more)
        except InvalidArgumentError as error:
            if change is None:
                return ()
            raise change(error) from None

    monkeypatch.setattr(fuzz, "call", changed)
    assert fuzz.first_failure(range(400), 1, "SparseSegmentSum").startswith(f"SparseSegmentSum: {report}")


def test_fuzzer_recipe_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code printed for a failure makes the same call."""
    printed = 0
    for number in range(60):
        case, wanted = fuzz.make_case(3, number)
        recipe = fuzz.recipe(case)
        if "too large to print" in recipe:
            continue
        printed += 1
        if isinstance(wanted, ExpectedError):
            with pytest.raises(Exception) as error:  # noqa: PT011  its message is compared
                exec(recipe, {})
            assert getattr(error.value, "message", None) == wanted.message
        else:
            exec(recipe, {})
    assert printed > 50


# -- child processes


def die(part: int, parts: int, options: Namespace, notes: Any, channel: Any) -> None:
    notes[3 * part] = 7
    os.kill(os.getpid(), signal.SIGSEGV)


def test_fuzzer_names_the_call_that_killed_a_child(capsys: pytest.CaptureFixture[str]) -> None:
    options = Namespace(calls=10, seed=5, op="RowDot", processes=1)
    assert fuzz.run(options, die) == 1
    said = capsys.readouterr().out
    assert f"exit code {-signal.SIGSEGV}" in said
    assert "tools/fuzzing/random_calls.py --seed 5 --only 7 --op RowDot" in said
    assert "0 passed, 1 failed" in said


def test_fuzzer_in_child_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--calls", "60", "--seed", "2", "--processes", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "60 passed, 0 failed"
