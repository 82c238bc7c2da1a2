from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from rowgrad import tour
from rowgrad._catalog.spec import CATALOG
from rowgrad.cli import bench, main, terminal
from rowgrad.cli.errors import TABLE, StoppedError, UsageError
from rowgrad.cli.parser import MODULES

Captured = pytest.CaptureFixture[str]


def python(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)


def document(capsys: Captured) -> Any:
    return json.loads(capsys.readouterr().out)


# -- commands without pages --------------------------------------------------------------------------------------------


def test_tour_shows_every_tensorflow_op(capsys: Captured) -> None:
    assert main(["tour", "--all"]) == 0
    text = capsys.readouterr().out
    shown = [op.name for op in CATALOG.values() if op.tensorflow and op.layer == "kernel"]
    assert [name for name in shown if name not in text] == []
    assert "nan" not in text


def test_short_tour_shows_calls_an_error_and_next_steps(capsys: Captured) -> None:
    assert main(["tour"]) == 0
    text = capsys.readouterr().out
    assert "array([[4096]], dtype=bfloat16)" in text
    assert "array([0, 2, 3])" in text
    assert text.count("Error: ") == 1
    assert "Sort ids and segment ids together by segment" in text
    assert text.partition("\nNext\n")[2].startswith("  rowgrad tour --all ")
    assert len(text.splitlines()) <= 45
    assert "\x1b" not in text


def test_colours_of_the_tour(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    for no_colour in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_colour)
        monkeypatch.setattr(sys, "stdout", out := Terminal())
        assert main(["tour"]) == 0
        assert ("\x1b[1m" in out.getvalue()) == (not no_colour)


@pytest.mark.parametrize("installed", [(), ("torch", "jax", "starlette", "uvicorn", "h11")])
def test_next_steps_of_the_tour(installed: tuple[str, ...]) -> None:
    commands = [command for command, _ in tour._next_steps(lambda name: name in installed or None)]
    extras = [f"pip install 'rowgrad[{extra}]'" for extra in ("torch", "jax", "studio")]
    ready = ["import rowgrad.torch in Python", "import rowgrad.jax in Python", "rowgrad studio --gallery"]
    assert commands[2:] == (ready if installed else extras)


def test_ops(capsys: Captured) -> None:
    assert main(["ops"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in CATALOG)
    headings = [line for line in shown.splitlines() if line and line[0] != " "]
    assert headings == list(dict.fromkeys(op.category for op in CATALOG.values()))
    assert main(["ops", "sparse_segment_sqrt_n_grad"]) == 0
    assert "1/√n" in capsys.readouterr().out


@pytest.mark.parametrize("name", CATALOG)
def test_every_op_can_be_described(name: str, capsys: Captured) -> None:
    assert main(["ops", name]) == 0
    shown = capsys.readouterr().out
    op = CATALOG[name]
    assert op.doc in shown
    assert op.example in shown
    assert all(f"\n  {arg.name}" in shown for arg in (*op.inputs, *op.outputs))
    assert all(f"\n  {attr} = " in shown for attr in op.attrs)


def test_describe_prints_marks_of_pins(capsys: Captured) -> None:
    main(["ops", "AddSymbolicGradients"])
    shown = capsys.readouterr().out
    assert "grad_inputs: optional list any" in shown
    assert "a list of wires; may be left out" in shown
    assert "one of 'none', 'zero'" in shown
    main(["ops", "Assign"])
    assert "ref: ref T" in capsys.readouterr().out
    main(["ops", "SparseSegmentMeanGrad"])
    assert "output_dim0: host int32" in capsys.readouterr().out


def test_aliases_of_ops(capsys: Captured) -> None:
    for op in CATALOG.values():
        for name in op.aliases:
            assert main(["ops", name]) == 0
            shown = capsys.readouterr().out
            assert shown.startswith(f"{op.name}(")
            assert name in shown


def test_unknown_op(capsys: Captured) -> None:
    assert main(["ops", "SparsSegmentMeen"]) == 2
    assert capsys.readouterr().err == "rowgrad ops: no operator 'SparsSegmentMeen'; did you mean SparseSegmentMean?\n"
    assert main(["ops", "Zzz"]) == 2
    assert capsys.readouterr().err == "rowgrad ops: no operator 'Zzz'; `rowgrad ops` lists them all\n"


def test_catalog(capsys: Captured) -> None:
    assert main(["catalog"]) == 0
    assert document(capsys) == json.loads(json.dumps(rg.catalog()))


@pytest.mark.parametrize("arguments", [["--json", "ops"], ["ops", "--json"], ["catalog", "--json"]])
def test_json_before_and_after_the_command(arguments: list[str], capsys: Captured) -> None:
    assert main(arguments) == 0
    assert document(capsys) == json.loads(json.dumps(rg.catalog()))


def test_json_of_one_op_and_of_plain_text(capsys: Captured) -> None:
    assert main(["--json", "ops", "Const"]) == 0
    assert document(capsys) == next(r for r in json.loads(json.dumps(rg.catalog())) if r["name"] == "Const")
    for arguments in ([], ["--all"]):
        assert main(["tour", *arguments, "--json"]) == 0
        assert "SparseSegmentSumGrad" in document(capsys)["text"]


# -- help, usage, exit codes -------------------------------------------------------------------------------------------


def test_help_names_every_command_and_exit_code(capsys: Captured) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n    {name}" in shown for name in MODULES)
    assert all(f"\n  {code:<4} {text}" in shown for code, text in TABLE.items())


@pytest.mark.parametrize("name", ["", *MODULES])
def test_every_help_has_an_example(name: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"] if name else ["--help"])
    assert f"example:\n  rowgrad {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--debgu"], "rowgrad: unknown: --debgu; did you mean --debug?"),
        (["rnu"], "rowgrad: no command 'rnu'; did you mean 'run'?"),
        (["run"], "rowgrad run: the following arguments are required: PAGE; see `rowgrad run --help`"),
        (["run", "p", "--stpes", "3"], "rowgrad run: unknown: --stpes 3; did you mean --steps?"),
        (["run", "p", "--steps", "0"], "rowgrad run: argument --steps: '0' is not a positive integer"),
        (["run", "p", "--rate", "nan"], "rowgrad run: argument --rate: 'nan' is not a number of steps per second"),
        (["run", "p", "--rate", "9e-7"], "rowgrad run: argument --rate: '9e-7' is not a number of steps per second"),
        (["run", "p", "--stat", "s"], "rowgrad run: unknown: --stat s"),
        (["export", "p"], "rowgrad export: one of the arguments --python --svg --dot is required"),
        (["export", "p", "--svg", "--dot"], "rowgrad export: argument --dot: not allowed with argument"),
        (["reshard", "s", "t", "--parts", "2"], "rowgrad reshard: the following arguments are required: --strategy"),
        (["completion", "csh"], "rowgrad completion: shell cannot be 'csh'; did you mean 'tcsh'?"),
    ],
)
def test_wrong_usage_exits_with_a_message(arguments: list[str], message: str, capsys: Captured) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(message)
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert main(["--json", *arguments]) == 2
    error = document(capsys)["error"]
    assert error["type"] == "UsageError"
    assert error["message"] in shown.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (rg.errors.InvalidArgumentError("no"), 1),
        (UsageError("no"), 2),
        (FileNotFoundError(2, "gone", "f"), 3),
        (rg.errors.CheckpointNotFoundError("gone"), 3),
        (ZeroDivisionError("no"), 70),
        (MemoryError(), 1),
        (KeyboardInterrupt(), 130),
        (StoppedError(15), 143),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_exit_codes(error: BaseException, code: int) -> None:
    assert terminal.status_of(error) == code
    assert code in TABLE
    assert "\n" not in terminal.sentence(error)


def test_internal_errors(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("a bad\nday")

    monkeypatch.setattr("rowgrad.cli.ops._list", fail)
    assert main(["ops"]) == 70
    shown = capsys.readouterr().err
    assert shown == "rowgrad ops: ZeroDivisionError: a bad day (internal error; --debug shows the traceback)\n"
    assert main(["--debug", "ops"]) == 70
    assert "Traceback" in capsys.readouterr().err
    assert main(["ops", "Zzz", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interrupted(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rowgrad.cli.ops._list", fail)
    assert main(["ops"]) == 130
    assert capsys.readouterr().err == "rowgrad ops: interrupted\n"


def test_docs_page_lists_every_exit_code_and_command() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert all(f"| {code} | {text.replace('--debug', '`--debug`')} |" in page for code, text in TABLE.items())
    assert all(f"| `rowgrad {name}" in page for name in MODULES)


# -- in a separate process ---------------------------------------------------------------------------------------------


def test_module_and_version() -> None:
    done = subprocess.run([sys.executable, "-m", "rowgrad", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"rowgrad {rg.__version__}"


def test_version_as_json(capsys: Captured) -> None:
    for words in (["--version", "--json"], ["--json", "--version"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        assert document(capsys) == {"version": rg.__version__}


# -- bench -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bogus"], "unknown: --bogus; see `rowgrad bench --help`"),
        (["--rounds", "0"], "argument --rounds: '0' is not a positive integer"),
        (
            ["--cases", "mid,nowhere"],
            "--cases: no case 'nowhere'; there are mid, wide, narrow, cold, few_rows",
        ),
        (["--cases", ""], "--cases: no case ''"),
    ],
)
def test_wrong_usage_of_bench_exits_with_a_message(arguments: list[str], message: str, capsys: Captured) -> None:
    for flagged in (["--json", "bench", *arguments], ["bench", *arguments, "--json"]):
        assert main(flagged) == 2
        shown = capsys.readouterr()
        assert message in json.loads(shown.out)["error"]["message"]
        assert shown.err == ""
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every call once per round."""
    monkeypatch.setattr(bench, "SHORTEST", 0.0)
    monkeypatch.setattr(bench, "FEWEST", 1)
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 0.5, 0.5))


def find_only(*names: str) -> Callable[[str], object]:
    return lambda name: object() if name in names else None


@pytest.mark.usefixtures("quick_rounds")
def test_bench_compared_with_torch(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    monkeypatch.setattr("importlib.util.find_spec", find_only("torch"))
    words = ["bench", "--quick", "--cases", "mid,one_column", "--rounds", "1"]
    assert main(words) == 0
    title, header, *rows, last = capsys.readouterr().out.splitlines()
    assert title.startswith(f"rowgrad {rg.__version__}, torch ")
    assert header.split() == ["case", "call", "rowgrad", "ms", "torch", "ms", "ratio"]
    names = [("mid", "forward"), ("mid", "gradient"), ("one_column", "forward"), ("one_column", "gradient")]
    assert [tuple(row.split()[:2]) for row in rows] == [*names, ("mean", "forward"), ("mean", "gradient")]
    assert all(float(row.split()[-1]) > 0 for row in rows), "a result differs"
    assert "* marks a different answer" in last
    assert main([*words, "--json"]) == 0
    found = document(capsys)
    assert list(found["versions"]) == ["rowgrad", "torch"]
    assert list(found["cases"]) == ["mid", "one_column"]
    assert [(r["case"], r["kind"]) for r in found["results"]] == names
    for result in found["results"]:
        assert result["ratios"]["torch"] == result["seconds"]["torch"] / result["seconds"]["rowgrad"]


@pytest.mark.usefixtures("quick_rounds")
def test_bench_without_peers(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", find_only())
    assert main(["bench", "--quick", "--cases", "few_rows", "--rounds", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.err == (
        "rowgrad bench: neither torch nor TensorFlow is installed in this environment; these are rowgrad's own times\n"
    )
    _, header, *rows = shown.out.splitlines()
    assert header.split() == ["case", "call", "rowgrad", "ms"]
    assert [row.split()[:2] for row in rows] == [["few_rows", "forward"], ["few_rows", "gradient"]]


@pytest.mark.usefixtures("quick_rounds")
def test_bench_on_a_busy_machine(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", find_only())
    monkeypatch.setattr("os.getloadavg", lambda: (1e4, 0.0, 0.0))
    assert main(["bench", "--quick", "--cases", "few_rows", "--rounds", "1", "--json"]) == 0
    shown = capsys.readouterr()
    assert "other programs are running (load average 10000.0), so times are unreliable" in shown.err
    assert len(json.loads(shown.out)["results"]) == 2


@pytest.mark.usefixtures("quick_rounds")
@pytest.mark.parametrize("wrong", [False, True])
def test_bench_compared_with_tensorflow(wrong: bool, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake module with TensorFlow's names and keywords that computes with rowgrad, or wrongly."""

    def mean(*, data: Any, indices: Any, segment_ids: Any, num_segments: Any) -> Any:
        return rg.raw_ops.SparseSegmentMeanWithNumSegments(data, indices, segment_ids, num_segments) + wrong

    def mean_grad(*, grad: Any, indices: Any, segment_ids: Any, output_dim0: Any) -> Any:
        return rg.raw_ops.SparseSegmentMeanGrad(grad, indices, segment_ids, output_dim0)

    ops = SimpleNamespace(SparseSegmentMeanWithNumSegments=mean, SparseSegmentMeanGrad=mean_grad)
    module: Any = ModuleType("tensorflow")
    module.__version__, module.int32, module.constant, module.raw_ops = "2.0", np.int32, np.array, ops
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    monkeypatch.setattr("importlib.util.find_spec", find_only("tensorflow"))
    assert main(["bench", "--quick", "--cases", "narrow", "--rounds", "1", "--json"]) == 0
    forward, gradient = document(capsys)["results"]
    assert (forward["ratios"]["tensorflow"] is None) == wrong  # the time of a wrong result does not count
    assert gradient["ratios"]["tensorflow"] > 0


# -- encodings, pipes, disks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_encodings_that_lack_characters(encoding: str) -> None:
    def output_of(*arguments: str) -> str:
        command = [sys.executable, "-m", "rowgrad", *arguments]
        surroundings = os.environ | {"PYTHONIOENCODING": encoding}
        return subprocess.run(command, env=surroundings, capture_output=True, check=True).stdout.decode(encoding)

    assert "1/\\u221an" in output_of("ops", "SparseSegmentSqrtNGrad")
    assert json.loads(output_of("catalog")) == json.loads(json.dumps(rg.catalog()))


def test_a_closed_pipe() -> None:
    command = f"{sys.executable} -m rowgrad catalog | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("flag", ["", "--json"])
def test_full_disk(flag: str) -> None:
    command = f"{sys.executable} -m rowgrad ops {flag} > /dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "rowgrad ops: No space left on device\n"


def test_only_graph_commands_import_graphs() -> None:
    call = "import sys, rowgrad.cli; rowgrad.cli.main(['ops', 'Const']); rowgrad.cli.main(['ops', 'Zzz'])"
    call += "; rowgrad.cli.main(['reshard', 'nowhere', 'x', '--parts', '1', '--strategy', 'div'])"
    done = python(f"{call}; sys.exit(any(m.startswith(('rowgrad.graph', 'rowgrad.tour')) for m in sys.modules))")
    assert done.returncode == 0
