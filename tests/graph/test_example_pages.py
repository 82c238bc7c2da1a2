"""`rowgrad run` on the pages in examples/ computes the recorded results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_cases import FOLDER
from rowgrad.cli import main
from rowgrad.graph import ClientSession, Page, build, check, dumps, load, loads
from rowgrad.graph.export import save_python

PAGES = Path(__file__).parents[2] / "examples" / "pages"
EXAMPLES = json.loads((FOLDER / "blocks_examples.json").read_text())
NUMBERED = [
    pytest.param(example, next(PAGES.glob(f"{k:02}_*.json")), id=f"{k}-{example['op']}")
    for k, example in enumerate(EXAMPLES, 1)
]
# The op of each record, by the first word of its name where it differs.
BLOCK_OF_RECORD = {
    "Gradient": "Mean",
    "Multi-variable": "ApplyGradientDescent",
    "Assign(Variable)": "Assign",
    "Assign(Variable,": "Assign",
}


def array(entry: dict[str, Any]) -> np.ndarray:
    dtype = object if entry["dtype"] == "string" else entry["dtype"]
    return np.array(entry["values"], dtype=dtype).reshape(entry["shape"])


def run(tmp_path: Path, *args: str) -> dict[str, np.ndarray]:
    """Run `rowgrad run`, and return the arrays it writes."""
    out = tmp_path / "out.npz"
    assert main(["run", *args, "-o", str(out), "--quiet"]) == 0
    with np.load(out) as members:
        return dict(members)


@pytest.mark.parametrize(("example", "path"), NUMBERED)
def test_recorded_results(
    example: dict[str, Any], path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = load(path)
    assert isinstance(page, Page)
    first = example["op"].split(" ")[0]
    assert BLOCK_OF_RECORD.get(first, first) in {b.op for b in page.blocks}
    if "int_thresh" in path.name:
        assert main(["run", str(path)]) == 1
        assert "thresh must be float32" in capsys.readouterr().err
        return
    results = run(tmp_path, str(path), "--steps", str(example.get("runs", 1)))
    expected = {k: (k, v) for k, v in example["outputs"].items()}
    for k, (name, value) in enumerate(example.get("derived_gradients", {}).items()):
        expected[name] = (f"grads.grad_outputs[{k}]", value)
    tolerance = example.get("tolerance_used", 0.0)
    for name, (pin, entry) in expected.items():
        found = next(n for n in results if n in (pin, f"op.{pin}") or n.rpartition(".")[0] == pin)
        got, wanted = results[found], array(entry)
        assert got.shape == wanted.shape
        if wanted.dtype.kind == "f":
            assert got.dtype == wanted.dtype, name
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=tolerance)
        else:
            assert got.tolist() == wanted.tolist(), name


def test_the_page_of_the_guide(tmp_path: Path) -> None:
    assert run(tmp_path, str(PAGES / "guide_matmul.json"))["v.product"].tolist() == [[19.0], [-3.0]]


def test_training_by_command_script_and_api_has_the_same_bits(tmp_path: Path) -> None:
    """`rowgrad run`, the exported script in a separate process, and the Python API."""
    path, steps = PAGES / "train_embedding.json", 40
    page = load(path)
    assert isinstance(page, Page)
    needed = {
        "SparseFillEmptyRows",
        "SparseSegmentSqrtN",
        "MatMul",
        "SigmoidCrossEntropyWithLogits",
        "AddSymbolicGradients",
    }
    assert needed <= {b.op for b in page.blocks}
    by_command = run(tmp_path, str(path), "--steps", str(steps))
    save_python(page, tmp_path / "script.py")
    script = [sys.executable, str(tmp_path / "script.py"), "--steps", str(steps), "--out", str(tmp_path / "script.npz")]
    subprocess.run(script, check=True, capture_output=True, timeout=120)
    with np.load(tmp_path / "script.npz") as members:
        by_script = dict(members)
    session = ClientSession(build(page))
    first = session.run_block()
    for _ in range(steps - 1):
        by_hand = session.run_block()
    assert by_hand["loss.output"] < 0.3 * first["loss.output"]
    assert by_command.keys() == by_script.keys() == by_hand.keys()
    for name, value in by_hand.items():
        assert by_command[name].tobytes() == by_script[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.json")), ids=lambda p: p.stem)
def test_saving_an_example_reproduces_its_file(path: Path, tmp_path: Path) -> None:
    from rowgrad.graph import save

    page = load(path)
    save(page, tmp_path / path.name)
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    again = loads(dumps(page))
    assert dumps(again) == dumps(page)
    assert check(page).ok == ("refused" not in path.name)


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.json")), ids=lambda p: p.stem)
def test_examples_agree_on_torch(path: Path) -> None:
    page = load(path)
    assert isinstance(page, Page)
    if "refused" in path.name:
        return
    ours, torchs = (ClientSession(build(page), engine=engine) for engine in ("numpy", "torch"))
    for _ in range(3):
        expected, got = ours.run_block(), torchs.run_block()
    for name, value in expected.items():
        assert got[name].dtype == value.dtype
        if value.dtype.kind == "f":
            np.testing.assert_allclose(got[name], value, rtol=1e-5 if value.dtype == np.float32 else 1e-12, atol=1e-6)
        else:
            assert got[name].tolist() == value.tolist()
