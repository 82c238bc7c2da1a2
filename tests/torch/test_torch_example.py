"""The example trains; killed and resumed, it ends with the bits of an uninterrupted run."""

from __future__ import annotations

import itertools
import re
import signal
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

from example_process import DYING, FOLDER, Runs, runs_of, script

SMALL = ["--steps=30", "--batch=256", "--samples=6000", "--held-out=2000", "--rows=200", "--columns=4", "--workers=1"]
SMALL += ["--lr=0.5", "--checkpoint-every=10"]  # the second epoch begins with step 24


@pytest.fixture(scope="module")
def example() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        import torch_recommender
    finally:
        sys.path.remove(str(FOLDER))
    return torch_recommender


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with runs_of("torch_recommender", "torch._dynamo") as found:
        yield found


def finished(runs: Runs, folder: Path, *more: str) -> str:
    status, text = runs.start(folder / "log", *SMALL, "--out", str(folder), *more)
    assert status == 0, text
    return text


def digest_in(text: str) -> str:
    found = re.search(r"^digest ([0-9a-f]{64})$", text, re.MULTILINE)
    assert found, text
    return found[1]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, script("torch_recommender", *SMALL, "--out", str(folder))


def test_example_learns(uninterrupted: tuple[Path, str]) -> None:
    _, text = uninterrupted
    found = re.search(r"held-out AUC ([\d.]+); the hidden model itself has ([\d.]+)", text)
    assert found, text
    assert 0.65 < float(found[1]) < float(found[2])
    assert re.search(r"^step 3/30 .*\n.*^step 30/30 .* 0:00 left$", text, re.MULTILINE | re.DOTALL)


def test_plot_is_an_image(uninterrupted: tuple[Path, str]) -> None:
    root = ElementTree.parse(uninterrupted[0] / "loss.svg").getroot()
    lines = [e for e in root if e.tag.endswith("polyline")]
    assert [len(line.attrib["points"].split()) for line in lines] == [30, 30]


def test_killed_and_resumed_has_the_same_bits(uninterrupted: tuple[Path, str], runs: Runs, tmp_path: Path) -> None:
    """Killed before the first checkpoint, between two, and during a write: each resumes from the last one."""
    deaths = [("example.Run", "train", 5, ""), ("example.Run", "train", 15, ""), ("os", "replace", 1, "10")]
    for owner, name, nth, resumed_at in deaths:
        dying = DYING.format(owner=owner, name=name, nth=nth)
        status, text = runs.start(tmp_path / "killed", *SMALL, "--resume", "--out", str(tmp_path), before=dying)
        assert status == -signal.SIGKILL, text
        assert "digest" not in text
        assert re.findall(r"^resumed at step (\d+)$", text, re.MULTILINE) == resumed_at.split()
    resumed = finished(runs, tmp_path, "--resume")
    assert "resumed at step 10\n" in resumed
    assert digest_in(resumed) == digest_in(uninterrupted[1])
    assert (tmp_path / "loss.svg").read_bytes() == (uninterrupted[0] / "loss.svg").read_bytes()


def test_fused_has_the_same_bits(uninterrupted: tuple[Path, str], runs: Runs, tmp_path: Path) -> None:
    finished(runs, tmp_path, "--fused", "--steps=20")
    assert digest_in(finished(runs, tmp_path, "--fused", "--resume")) == digest_in(uninterrupted[1])


@pytest.mark.slow
def test_another_seed_has_other_bits(uninterrupted: tuple[Path, str], runs: Runs, tmp_path: Path) -> None:
    assert digest_in(finished(runs, tmp_path, "--seed=2")) != digest_in(uninterrupted[1])


def test_a_checkpoint_of_other_options_raises(uninterrupted: tuple[Path, str], runs: Runs, tmp_path: Path) -> None:
    status, text = runs.start(tmp_path / "log", *SMALL, "--resume", "--batch=64", "--out", str(uninterrupted[0]))
    assert status == 1
    assert "is of a run with --batch 256" in text


def test_help(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        example.main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert "--resume" in text
    assert "--checkpoint-every" in text


@pytest.mark.parametrize("levels", [2, 7, 1000])
def test_auc_counts_pairs(example: ModuleType, levels: int) -> None:
    random = np.random.default_rng(levels)
    scores, labels = random.integers(0, levels, 90) / levels, random.integers(0, 2, 90)
    pairs = list(itertools.product(scores[labels == 1], scores[labels == 0]))
    won = sum(Fraction(1) if a > b else Fraction(1, 2) if a == b else Fraction(0) for a, b in pairs)
    assert example.auc(scores, labels) == float(won / len(pairs))


def test_auc_needs_positive_and_negative_labels(example: ModuleType) -> None:
    with pytest.raises(ValueError, match="clicks and samples without"):
        example.auc(np.zeros(3), np.ones(3))


def test_data_is_skewed_like_a_click_log(example: ModuleType) -> None:
    hidden = example.HiddenModel(1000, 1)
    log, _ = example.make_log(hidden, 2000, [1, 1])
    again, _ = example.make_log(hidden, 2000, [1, 1])
    assert all(np.array_equal(log.ids[f], again.ids[f]) for f in log.ids)
    for feature in example.FEATURES:
        counts = np.bincount(log.ids[feature.name], minlength=example.rows_of(feature, 1000))
        assert counts.max() > 5 * counts.mean() or len(counts) < 100, "some ids are everywhere"
        assert 0.1 < (np.diff(log.starts[feature.name]) == 0).mean() < 0.5, "some bags are empty"


def test_batches_depend_only_on_seed_and_step(example: ModuleType) -> None:
    steps = list(example.StepsOfSamples(100, 16, 0, 20, 7))
    assert list(example.StepsOfSamples(100, 16, 13, 20, 7)) == steps[13:]
    epoch = list(itertools.chain(*steps[:6]))
    assert len(set(epoch)) == len(epoch) == 96
    assert steps[0] != steps[6]
