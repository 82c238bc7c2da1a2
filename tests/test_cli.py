from __future__ import annotations

import json
import subprocess
import sys

import pytest

import rowgrad as rg
from rowgrad.cli import main
from rowgrad.spec import CATALOG


def test_tour_shows_every_tensorflow_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tour"]) == 0
    text = capsys.readouterr().out
    shown = [op.name for op in CATALOG.values() if op.tensorflow and op.layer == "kernel"]
    assert [name for name in shown if name not in text] == []
    assert "nan" not in text


def test_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    assert all(name in capsys.readouterr().out for name in ["SparseSegmentMeanGrad"])
    assert main(["ops", "sparse_segment_sqrt_n_grad"]) == 0
    assert "1/√n" in capsys.readouterr().out
    assert main(["ops", "Nothing"]) == 2
    assert "no operator 'Nothing'" in capsys.readouterr().err


def test_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(rg.catalog()))


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n    {name} " in shown for name in ("tour", "ops", "catalog", "bench"))
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "--help"])
    assert "--series" in capsys.readouterr().out


def test_module_and_version() -> None:
    done = subprocess.run([sys.executable, "-m", "rowgrad", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"rowgrad {rg.__version__}"


def test_a_reader_that_leaves_early() -> None:
    command = f"{sys.executable} -m rowgrad catalog | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""
