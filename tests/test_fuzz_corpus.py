"""The committed fuzz corpus: readers return a result or raise the library's own error for each input."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools" / "fuzzing"))
readers = importlib.import_module("readers")
targets = importlib.import_module("targets")
json_mutations = importlib.import_module("json_mutations")
run_target = importlib.import_module("run_target")
CORPUS = ROOT / "tests" / "corpus"


@pytest.mark.parametrize("name", targets.READERS)
def test_readers_handle_the_corpus(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    for path in inputs:
        readers.one_input(name, path.read_bytes())


def test_every_target_has_a_corpus() -> None:
    kernels = {name for name, _ in targets.KERNELS}
    assert {path.stem for path in (ROOT / "cpp/fuzz").glob("fuzz_*.cpp")} == {f"fuzz_{name}" for name in kernels}
    assert {path.name for path in CORPUS.iterdir()} == kernels | set(targets.READERS)
    assert set(readers.READERS) == set(targets.READERS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 1 << 20


def test_any_other_exception_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str, dtype: str | None) -> None:
        raise KeyError(text)

    monkeypatch.setattr(readers, "parse_literal", broken)
    with pytest.raises(KeyError):
        readers.one_input("literal", b"5")


def test_json_mutations_are_valid_json() -> None:
    page = readers.PAGE.encode()
    mutated = {json_mutations.changed(page, 1 << 16, seed) for seed in range(200)}
    assert len(mutated) > 90  # None among them: those are left to libFuzzer
    for data in mutated - {None}:
        readers.json.loads(data)


def test_a_finding_names_its_command() -> None:
    reader = next(t for t in targets.reader_targets() if t.name == "literal")
    assert reader.again(targets.FINDINGS / "x").endswith(
        "tools/fuzzing/reader_process.py literal --replay build/fuzz/findings/x"
    )
    kernel = targets.kernel_targets(targets.WORK / "cpp", ["baseline"])[0]
    assert kernel.again(targets.FINDINGS / "x") == (
        "ROWGRAD_LEVEL=baseline build/fuzz/cpp/cpp/fuzz/fuzz_segment_forward build/fuzz/findings/x"
    )


def test_a_target_that_fails_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner executes a reader that its input breaks: output and artifacts are in the outcome."""
    monkeypatch.setattr(run_target, "WORK", targets.WORK / "tested")
    broken = tmp_path / "broken"
    broken.write_bytes(b"5")
    code = "import sys; sys.path.append(sys.argv[1]); import readers; readers.parse_literal = None; "
    code += "readers.one_input('literal', b'5')"
    target = targets.Target("literal", [sys.executable, "-c", code, str(ROOT / "tools" / "fuzzing")])
    outcome = run_target.watch(target, [], 60.0, 1)
    assert outcome.finding.startswith("exit code 1")
    assert "TypeError" in (ROOT / outcome.log).read_text()
    good = targets.Target("literal", [sys.executable, str(targets.READING), "literal"], kind="reader")
    outcome = run_target.watch(good, ["--replay", str(broken)], 60.0, 1)
    assert (outcome.executions, outcome.finding) == (1, "")
