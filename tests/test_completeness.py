"""Every record has every piece, and every switch every member; failures name the file to edit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import completeness as complete
from rowgrad import _core
from rowgrad._catalog.enums import Reduction
from rowgrad._catalog.kernels import KERNELS, PARAMETERS, UPDATE_KERNELS, KernelSpec
from rowgrad._catalog.rules import NUMBERS, RULES, RuleSpec, Slot, Step
from rowgrad._catalog.spec import CATALOG, Op
from rowgrad.cuda.kernel import text_of

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_is_complete(name: str) -> None:
    assert complete.missing_for_kernel(KERNELS[name]) == []


@pytest.mark.parametrize("name", CATALOG)
def test_op_is_complete(name: str) -> None:
    assert complete.missing_for_op(CATALOG[name]) == []


@pytest.mark.parametrize("name", RULES)
def test_rule_is_complete(name: str) -> None:
    assert complete.missing_for_rule(RULES[name]) == []


def test_compiled_kernels_have_records() -> None:
    assert {name for name, _ in _core.kernels()} == set(KERNELS)
    assert [name for name, _ in _core.update_kernels()] == list(UPDATE_KERNELS)


def test_faults_have_messages() -> None:
    assert complete.missing_messages() == []


@pytest.mark.parametrize("file", complete.sources(), ids=lambda file: file.name)
def test_switches_are_exhaustive(file: Path) -> None:
    assert complete.incomplete_switches(complete.text_of(file), str(file.relative_to(ROOT))) == []


def test_kernels_reject_unknown_numbers() -> None:
    """With a number outside of the enum, or too few numbers, no kernel runs."""
    numbers = {name: i for i, (name, _) in enumerate(_core.kernels())}
    for name, spec in KERNELS.items():
        good = [0] * len(spec.parameters)
        for at, parameter in enumerate(spec.parameters):
            members = PARAMETERS[parameter]
            bad = list(good)
            bad[at] = 2 if members is None else len(members)
            with pytest.raises(RuntimeError, match=f"{name}: {parameter} must be in"):
                _core.Job(numbers[name], bad, (), b"", ())
        with pytest.raises(RuntimeError, match=f"{name} reads {len(good)} numbers, got {len(good) + 1}"):
            _core.Job(numbers[name], [*good, 0], (), b"", ())


def test_cuda_has_the_same_enums() -> None:
    enums = text_of("enums.cuh")
    for member in Reduction:
        assert f"{member.name} = {int(member)}" in enums
    for name in NUMBERS:
        assert f"X({name})" in enums
        assert f"  double {name};" in text_of("updates.cuh")


# -- incomplete records: CONTRIBUTING.md's recipes name every missing file ---------------------------------------------


def recipe(title: str) -> set[str]:
    """Return the files that a recipe of CONTRIBUTING.md names, one in each numbered line."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\d+\. `([^`]+)`", section, re.MULTILINE))


def files(missing: list[str]) -> set[str]:
    return {line.partition(":")[0] for line in missing}


def test_recipe_for_a_rule_is_complete() -> None:
    fake = RuleSpec("fake", "Fake", len(RULES), (Slot("sum"),), {"lr": 1e-3}, "w ← w", "A rule that is not there.")
    missing = files(complete.missing_for_rule(fake))
    generated = {"cpp/include/rowgrad/enums.h", "docs/reference/optimizers.md"}
    assert generated < missing
    assert missing - generated == recipe("Adding an optimizer rule") - {"src/rowgrad/_catalog/rules.py"}


def test_recipe_for_an_op_is_complete() -> None:
    fake = replace(CATALOG["GatherRows"], name="FakeRows", kernel="fake_rows", sized="FakeRowsWithNumSegments")
    spec = KernelSpec("fake_rows", vmap="fake", fuzz="fake")
    found = files(complete.missing_for_op(fake) + complete.missing_for_kernel(spec))
    found |= files(complete.missing_for_kernel(replace(spec, fuzz="rows")))
    written = recipe("Adding an op with a kernel of its own")
    assert found <= written
    assert written - found == {"cpp/include/rowgrad/<family>.h"}


def test_recipe_for_a_dense_op_is_complete() -> None:
    fake: Op = replace(CATALOG["Neg"], name="Fake")
    assert files(complete.missing_for_op(fake)) == {"src/rowgrad/_runtime/dense/", "tools/docs_formulas.py"}


def test_incomplete_switches_are_reported() -> None:
    text = "int f(Reduction r) {\n  switch (r) {\n    case Reduction::sum:\n    case Reduction::mean:\n"
    text += "      return 1;\n  }\n}"
    (line,) = complete.incomplete_switches(text, "cpp/x.h")
    assert line == "cpp/x.h:2: this switch over Reduction leaves out sqrtn"
    with_default = text.replace("      return 1;\n", "      return 1;\n    default:\n      return 2;\n")
    assert "has a default" in complete.incomplete_switches(with_default, "cpp/x.h")[1]
    assert "compares" in complete.incomplete_switches("return kind == Reduction::mean ? a : b;", "cpp/x.h")[0]


def test_unknown_hyperparameters_of_a_rule_raise() -> None:
    from rowgrad._catalog.rules import rule

    with pytest.raises(ValueError, match="rule fake: Step has no hyperparameter gamma"):
        rule("fake", "Fake", defaults={"gamma": 1.0}, formula="", doc="")
    assert "fake" not in RULES
    assert set(NUMBERS.values()) <= set(Step.__dataclass_fields__)
