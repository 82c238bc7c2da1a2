"""The JAX example trains; killed and resumed, it ends with the bits of an uninterrupted run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SMALL = ["--steps=45", "--batch=512", "--samples=20000", "--held-out=4000", "--rows=200", "--columns=4"]
SMALL += ["--checkpoint-every=15"]

# Dies in the step after its second checkpoint, while that is being written.
DYING = """
import os, signal, sys
import jax_recommender as example

calls, real = iter(range(1, 100)), os.replace

def last(*args):
    if next(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)

os.replace = last
example.main(sys.argv[1:])
"""


def start(command: list[str]) -> tuple[int, str]:
    """Return exit status and output."""
    path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": path})  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    status, text = start([str(FOLDER / "jax_recommender.py"), *SMALL, "--out", str(folder)])
    assert status == 0, text
    return folder, text


def digest_in(text: str) -> str:
    found = re.search(r"^digest ([0-9a-f]{64})$", text, re.MULTILINE)
    assert found, text
    return found[1]


def test_example_learns(uninterrupted: tuple[Path, str]) -> None:
    folder, text = uninterrupted
    found = re.search(r"held-out AUC ([\d.]+); the hidden model itself has ([\d.]+)", text)
    assert found, text
    assert 0.65 < float(found[1]) < float(found[2])
    assert re.search(r"^step 5/45 .*\n.*^step 45/45 .* 0:00 left$", text, re.MULTILINE | re.DOTALL)
    assert "polyline" in (folder / "loss.svg").read_text()


@pytest.mark.slow
def test_killed_and_resumed_has_the_same_bits(uninterrupted: tuple[Path, str], tmp_path: Path) -> None:
    status, text = start(["-c", DYING, *SMALL, "--out", str(tmp_path)])
    assert status == -signal.SIGKILL, text
    assert "digest" not in text
    status, resumed = start([str(FOLDER / "jax_recommender.py"), *SMALL, "--out", str(tmp_path), "--resume"])
    assert status == 0, resumed
    assert "resumed at step 15" in resumed
    assert digest_in(resumed) == digest_in(uninterrupted[1])
    assert (tmp_path / "loss.svg").read_bytes() == (uninterrupted[0] / "loss.svg").read_bytes()


def test_a_checkpoint_of_other_options_raises(uninterrupted: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import jax_recommender

    with pytest.raises(SystemExit, match="is of a run with --samples 20000, --batch 512"):
        jax_recommender.main([*SMALL, "--resume", "--samples=64", "--batch=64", "--out", str(uninterrupted[0])])


def test_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import jax_recommender

    with pytest.raises(SystemExit, match="0"):
        jax_recommender.main(["--help"])
    assert "--resume" in capsys.readouterr().out


def test_batches_contain_the_ids_of_their_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bag by bag, also where all bags are empty and where there are more ids than usual."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import jax_recommender as example

    log, _ = example.make_log(example.HiddenModel(50, 1), 300, [1, 1])
    empty = [k for k in range(300) if not any(len(log[k][f.name]) for f in example.FEATURES)][:1]
    crowded = [max(range(300), key=lambda k: len(log[k]["viewed"]))] * 100
    shapes = set()
    for samples in ([5, 0, 299], crowded, empty or [int(log.starts["places"].argmin())], list(range(100))):
        batch = example.batch_of(log, samples)
        shapes.add(batch.bags["viewed"].ids.shape)
        for name, (ids, segments) in batch.bags.items():
            for bag, sample in enumerate(samples):
                assert ids[segments == bag].tolist() == log[sample][name].tolist()
            padding = ids[segments == len(samples)]
            assert len(padding) == len(ids) - sum(len(log[k][name]) for k in samples)
            assert set(padding) <= {*ids[segments < len(samples)]} | ({0} if len(padding) == len(ids) else set())
    assert len(shapes) == 4
