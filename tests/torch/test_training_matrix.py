"""Every cell of the table in docs/how-to/train_pytorch.md is tried, and has the outcome that the table shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import training_matrix
from training_matrix import CUDA_RECORD, FEATURES, MODES, RECORD, Failure, Feature, Trial, outcome

import rowgrad.torch as rgt

ROOT = Path(__file__).resolve().parents[2]
RECORDED = {row["feature"]: row for row in json.loads(RECORD.read_text(encoding="utf-8"))}
STALE = "run `python tests/torch/training_matrix.py` and `make generate`"
HERE = [feature for feature in FEATURES if feature.device == "cpu"]
ALONE = [feature for feature in HERE if not feature.several]


def feature_of(name: str) -> Feature:
    return next(feature for feature in FEATURES if feature.name == name)


def test_the_record_has_every_feature() -> None:
    assert [(f.name, f.note) for f in HERE] == [(r["feature"], r["note"]) for r in RECORDED.values()], STALE


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("feature", ALONE, ids=[f.name for f in ALONE])
def test_cell(feature: Feature, mode: str) -> None:
    assert outcome(feature, Trial(mode)) == RECORDED[feature.name][mode], STALE


def test_cells_of_two_processes() -> None:
    for rank, found in enumerate(training_matrix.outcomes_of_several()):
        failures = [f"rank {rank}, {n}, {m}: {o}" for n, row in found.items() for m, o in row.items() if "failed" in o]
        assert not failures, "\n".join(failures)
        assert found == {f.name: {m: RECORDED[f.name][m] for m in MODES} for f in HERE if f.several}, STALE


def test_a_process_that_ends_loses_one_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU an error may end the process: the features after it are tried by another one."""
    calls: list[list[str]] = []

    def ranks(names: list[str]) -> list[dict[str, dict[str, str]]]:
        calls.append(list(names))
        works = dict.fromkeys(MODES, "works")
        return [{"a": works, "b": {"dense": "works"}} if "a" in names else dict.fromkeys(names, works)]

    monkeypatch.setattr(training_matrix, "outcomes_of_ranks", ranks)
    found = training_matrix.outcomes_of_one_process("abcd")
    assert calls == [["a", "b", "c", "d"], ["c", "d"]]
    assert found["b"] == {"dense": "works", "rows": "failed: the process ended", "fused": "failed: the process ended"}
    assert [name for name, row in found.items() if set(row.values()) == {"works"}] == ["a", "c", "d"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # raised inside torch
def test_torch_compile_with_inductor(mode: str) -> None:
    assert outcome(feature_of("`torch.compile`"), Trial(mode, backend="inductor")) == "works"


def test_the_page_has_this_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import docs_training_matrix

    page = (ROOT / "docs/how-to/train_pytorch.md").read_text(encoding="utf-8")
    written = page.partition("<!-- generated: training matrix -->\n")[2].partition("<!-- end of training matrix -->")[0]
    assert written == docs_training_matrix.parts()["training matrix"], STALE
    features = FEATURES if CUDA_RECORD.exists() else HERE
    assert written.count("\n| ") == len(features) + 1  # the header
    cuda = json.loads(CUDA_RECORD.read_text(encoding="utf-8")) if CUDA_RECORD.exists() else None
    changed = [{**row, "fused": "works"} for row in RECORDED.values()]
    assert docs_training_matrix.table(changed, cuda) != written


def test_outcomes_on_cuda_that_differ_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import docs_training_matrix

    here = [{"feature": "a", "note": "", "dense": "works", "rows": "works", "fused": "rejected: x"}]
    there = {**here[0], "fused": "works", "rows": "rejected: y"}
    alone = {**here[0], "feature": "b"}
    cuda = {"device": "GPU", "torch": "2.11", "processes": 1, "rows": [there, alone]}
    written = docs_training_matrix.table(here, cuda)
    assert "| a | works | works | rejected (1) | `rows`: rejected (2), `fused`: works | |" in written
    assert "| b | | | | `dense`: works, `rows`: works, `fused`: rejected (1) | |" in written
    assert "| a | works | works | rejected (1) | the same | |" in docs_training_matrix.table(
        here, {**cuda, "rows": here}
    )
    failed = {**there, "dense": "failed: Traceback …"}
    assert "`dense`: **failed**" in docs_training_matrix.table(here, {**cuda, "rows": [failed]})
    with pytest.raises(KeyError):  # a feature that was not tried
        docs_training_matrix.table(here, {**cuda, "rows": [alone]})


# -- A cell fails if the feature does something else ------------------------------------------------------------------


@pytest.fixture
def fresh() -> Iterator[None]:
    """Train the plain loops again, and do not save those of a changed library."""
    training_matrix.plain.cache_clear()
    yield
    training_matrix.plain.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("`rgt.clip.clip_grad_norm_`, `clip_grad_value_`", "rowgrad.torch.clip.clip_grad_norm_"),
        ("`torch.optim.lr_scheduler`", "torch.optim.lr_scheduler.ExponentialLR.step"),
        ("`torch.optim.swa_utils.AveragedModel`", "torch.optim.swa_utils.AveragedModel.update_parameters"),
        ("`state_dict`, `torch.save`", "rowgrad.torch.optim.Adagrad.load_state_dict"),
        ("`torch.amp.GradScaler`", "torch.amp.GradScaler.unscale_"),
    ],
)
def test_a_feature_without_effect_fails(name: str, place: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, lambda *_, **__: None)
    with pytest.raises(AssertionError):
        outcome(feature_of(name), Trial(mode))


@pytest.mark.usefixtures("fresh")
def test_a_table_that_loses_a_gradient_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    step = rgt.optim.Adagrad.step

    def lose(optimizer: Any, closure: Any = None) -> Any:
        optimizer.param_groups[0]["params"][1].grad = None
        return step(optimizer, closure)

    monkeypatch.setattr(rgt.optim.Adagrad, "step", lose)
    for feature in (feature_of("a plain loop"), feature_of("gradient accumulation")):
        with pytest.raises(AssertionError):
            feature.cell(Trial("fused"))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("changed", ["table", "state"])
def test_a_step_that_changes_something_and_then_raises_fails(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = rgt.optim.Adagrad.step

    def raise_late(optimizer: Any, closure: Any = None) -> None:
        table = optimizer.param_groups[0]["params"][0]
        if changed == "table":
            with torch.no_grad():
                table[0, 0] += 1
        else:
            step(optimizer, closure)
            with torch.no_grad():
                table.copy_(training_matrix.values_of(model)["tables.user.weight"])
        raise ValueError("too late")

    model = training_matrix.Recommender("rows")
    monkeypatch.setattr(rgt.optim.Adagrad, "step", raise_late)
    with pytest.raises(Failure, match=r"tables\.user\.weight" if changed == "table" else "optimizer state"):
        outcome(Feature("late", lambda trial: trial.train(*trial.new()) and None), Trial("rows"))
