"""Completion scripts: bash runs its script; others are parsed if their shell is installed."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rowgrad._catalog.spec import CATALOG
from rowgrad.cli import main
from rowgrad.cli.completion import _actions
from rowgrad.cli.parser import MODULES, SHELLS, make_parser
from rowgrad.graph import engine_names

pytest.importorskip("shtab", reason="the extra `cli` is not installed")
BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="bash is not installed")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for shell in SHELLS:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(["completion", shell]) == 0
        made[shell] = tmp_path_factory.mktemp("scripts") / f"rowgrad.{shell}"
        made[shell].write_text(out.getvalue(), encoding="utf-8")
    return made


def complete(script: Path, args: list[str], folder: Path) -> list[str]:
    """Return the completions that bash offers for the last argument."""
    source = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_rowgrad'
    source += '; printf "%s\\n" "${COMPREPLY[@]}"'
    command = [str(BASH), "--norc", "-c", source, "bash", str(script), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


@needs_bash
def test_the_bash_script_has_valid_syntax(scripts: dict[str, Path]) -> None:
    assert subprocess.run([str(BASH), "-n", str(scripts["bash"])], capture_output=True, check=True).stderr == b""
    source = 'source "$1"; complete -p rowgrad'
    done = subprocess.run([str(BASH), "-c", source, "bash", str(scripts["bash"])], capture_output=True, text=True)
    # -o default: files where the script offers nothing, as after --feed x=
    assert done.stdout == "complete -o bashdefault -o default -F _shtab_rowgrad rowgrad\n"


@needs_bash
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["rowgrad", ""], list(MODULES)),
        (["rowgrad", "--json", "ex"], ["export"]),
        (["rowgrad", "--j"], ["--json"]),
        (["rowgrad", "run", "--st"], ["--steps", "--state"]),
        (["rowgrad", "run", "page.json", "--engine", ""], engine_names()),
        (["rowgrad", "run", "--engine", "nu"], ["numpy"]),
        (["rowgrad", "run", "--steps", ""], []),
        (["rowgrad", "run", "two"], ["two words.json"]),
        (["rowgrad", "run", ""], ["batch.npy", "two words.json"]),
        (["rowgrad", "check", "two"], ["two words.json"]),
        (["rowgrad", "run", "page.json", "--feed", "ba"], ["batch.npy"]),
        (["rowgrad", "run", "page.json", "--feed", "x", "=", "ba"], []),  # bash falls back to files
        (["rowgrad", "run", "page.json", "-o", "ba"], ["batch.npy"]),
        (
            ["rowgrad", "export", "--"],
            [
                "--help",
                "--json",
                "--debug",
                "--python",
                "--plain",
                "--svg",
                "--dot",
                "--out",
                "--page",
                "--follow-links",
            ],
        ),
        (["rowgrad", "reshard", "ba"], ["batch.npy"]),
        (["rowgrad", "reshard", "s", "t", "--strategy", ""], ["div", "mod"]),
        (["rowgrad", "reshard", "--fo"], ["--format"]),
        (["rowgrad", "ops", "SparseSegmentMeanGr"], [n for n in CATALOG if n.startswith("SparseSegmentMeanGr")]),
        (["rowgrad", "completion", ""], list(SHELLS)),
        (["rowgrad", "bench", "--q"], ["--quick"]),
        (["rowgrad", "tour", ""], []),
        (["rowgrad", "strange", ""], list(MODULES)),  # shtab skips unknown words
    ],
    ids=lambda value: " ".join(value[1:4]) if value and value[0] == "rowgrad" else "",
)
def test_bash_completes(args: list[str], expected: list[str], scripts: dict[str, Path], tmp_path: Path) -> None:
    for name in ("batch.npy", "two words.json"):
        (tmp_path / name).touch()
    assert sorted(complete(scripts["bash"], args, tmp_path)) == sorted(expected)


def test_every_script_contains_all_commands_and_options(scripts: dict[str, Path]) -> None:
    options = {name for action in _actions(make_parser()) for name in action.option_strings if name.startswith("--")}
    assert len(options) > 40
    for shell, script in scripts.items():
        text = script.read_text(encoding="utf-8")
        assert [name for name in MODULES if name not in text] == []
        assert [name for name in options if name[2:] not in text] == []
        if shell == "tcsh":  # tcsh completes only options, files and commands
            continue
        assert [name for name in (*CATALOG, *engine_names()) if name not in text] == []


def test_options_that_take_files_complete_files(scripts: dict[str, Path]) -> None:
    marked = re.findall(r"^_shtab_rowgrad_run_(\w+)_COMPGEN=_shtab_compgen_files$", scripts["bash"].read_text(), re.M)
    assert set(marked) == {"pos_0", "__feed", "__feed_batches", "__state", "_o", "__out"}
    text = scripts["zsh"].read_text(encoding="utf-8")
    assert text.count(":NAME=FILE.npy:{compset -P '*='; _files}\"") == 2
    repeated = {name for name in ("session", "fetch", "feed", "feed-batches") if f'"*--{name}[' in text}
    assert repeated == {"session", "fetch", "feed", "feed-batches"}


def test_the_zsh_script_completes_files_and_has_valid_syntax(scripts: dict[str, Path]) -> None:
    text = scripts["zsh"].read_text(encoding="utf-8")
    assert text.startswith("#compdef rowgrad\n")
    assert '{-o,--out}"[write the results of the last step, under the printed names]:OUT.npz:_files"' in text
    assert "block.pin\\[i\\]" in text
    shell = shutil.which("zsh")
    if shell is not None:
        subprocess.run([shell, "-n", str(scripts["zsh"])], check=True)


def test_the_fish_script_completes_files_and_has_valid_syntax(scripts: dict[str, Path]) -> None:
    text = scripts["fish"].read_text(encoding="utf-8")
    assert "-a run -d 'Run the sessions of a page" in text
    files = '"(__fish_complete_path (commandline -ct))"'
    assert f"complete -c rowgrad -n '_shtab_rowgrad_using run' -l state -xka {files} -d 'Variables" in text
    shell = shutil.which("fish")
    if shell is not None:
        subprocess.run([shell, "--no-execute", str(scripts["fish"])], check=True)


def test_completion_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash", "--json"]) == 0
    assert "-F _shtab_rowgrad rowgrad" in json.loads(capsys.readouterr().out)["text"]


def test_completion_without_shtab_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert capsys.readouterr().err == (
        "rowgrad completion: completion scripts need shtab: pip install 'rowgrad[cli]'\n"
    )
