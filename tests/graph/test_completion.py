"""Completion scripts: bash really completes with one, the others are looked at, and tried where their shell is."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from rowgrad._catalog.spec import CATALOG
from rowgrad.cli import main
from rowgrad.cli.completion import known_commands
from rowgrad.cli.parser import MODULES, SHELLS
from rowgrad.graph import engine_names

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import contextlib
    import io

    made = {}
    for shell in SHELLS:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(["completion", shell]) == 0
        made[shell] = tmp_path_factory.mktemp("scripts") / f"rowgrad.{shell}"
        made[shell].write_text(out.getvalue(), encoding="utf-8")
    return made


def complete(script: Path, words: list[str], folder: Path) -> list[str]:
    """What bash offers for the last of these words."""
    ask = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _rowgrad; printf "%s\\n" "${COMPREPLY[@]}"'
    command = [str(BASH), "--norc", "-c", ask, "bash", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


@needs_bash
def test_the_syntax_of_bash(scripts: dict[str, Path]) -> None:
    assert subprocess.run([str(BASH), "-n", str(scripts["bash"])], capture_output=True, check=True).stderr == b""
    script = 'source "$1"; complete -p rowgrad'
    done = subprocess.run([str(BASH), "-c", script, "bash", str(scripts["bash"])], capture_output=True, text=True)
    assert done.stdout == "complete -F _rowgrad rowgrad\n"


@needs_bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["rowgrad", ""], [*MODULES, "bench"]),
        (["rowgrad", "--json", "ex"], ["export"]),
        (["rowgrad", "--j"], ["--json"]),
        (["rowgrad", "run", "--st"], ["--steps", "--state"]),
        (["rowgrad", "run", "page.json", "--engine", ""], engine_names()),
        (["rowgrad", "run", "--engine", "=", "nu"], ["numpy"]),
        (["rowgrad", "run", "--engine", "="], engine_names()),
        (["rowgrad", "run", "--steps", ""], []),
        (["rowgrad", "run", "two"], ["two words.json"]),
        (["rowgrad", "run", "page.json", "--feed", "x", "=", "ba"], ["batch.npy"]),
        (["rowgrad", "run", "page.json", "--feed", "x", "="], ["batch.npy", "two words.json"]),
        (["rowgrad", "run", "page.json", "-o", "ba"], ["batch.npy"]),
        (
            ["rowgrad", "export", "--"],
            ["--help", "--json", "--debug", "--python", "--svg", "--dot", "--out", "--page", "--follow-links"],
        ),
        (["rowgrad", "reshard", "ba"], ["batch.npy"]),
        (["rowgrad", "reshard", "s", "t", "--strategy", ""], ["div", "mod"]),
        (["rowgrad", "reshard", "--fo"], ["--format"]),
        (["rowgrad", "ops", "SparseSegmentMeanGr"], [n for n in CATALOG if n.startswith("SparseSegmentMeanGr")]),
        (["rowgrad", "completion", ""], list(SHELLS)),
        (["rowgrad", "bench", "--pe"], ["--peers", "--peers-python"]),
        (["rowgrad", "tour", ""], []),
        (["rowgrad", "strange", ""], []),
    ],
    ids=lambda value: " ".join(value[1:4]) if value and value[0] == "rowgrad" else "",
)
def test_bash_completes(words: list[str], offered: list[str], scripts: dict[str, Path], tmp_path: Path) -> None:
    for name in ("batch.npy", "two words.json"):
        (tmp_path / name).touch()
    assert sorted(complete(scripts["bash"], words, tmp_path)) == sorted(offered)


def test_every_script_knows_everything(scripts: dict[str, Path]) -> None:
    for shell, script in scripts.items():
        text = script.read_text(encoding="utf-8")
        for command in known_commands():
            assert command.name in text
            for name in (n for o in command.options for n in o.names):
                assert (f"-l {name[2:]} " if shell == "fish" and name.startswith("--") else name[1:]) in text
        assert all(name in text for name in (*CATALOG, *engine_names()))


def test_every_command_is_known() -> None:
    assert {c.name for c in known_commands()} == {"", *MODULES, "bench"}
    run = next(c for c in known_commands() if c.name == "run")
    assert {o.names[-1] for o in run.options if o.is_file} == {"--feed", "--feed-batches", "--state", "--out"}
    assert {o.names[-1] for o in run.options if o.repeats} == {"--session", "--fetch", "--feed", "--feed-batches"}


def test_zsh(scripts: dict[str, Path]) -> None:
    text = scripts["zsh"].read_text(encoding="utf-8")
    assert text.startswith("#compdef rowgrad\n")
    assert "'(-o --out)--out[write the last results, under the names that are printed]:OUT.npz:_files'" in text
    assert "block.pin\\[i\\]" in text
    shell = shutil.which("zsh")
    if shell is not None:
        subprocess.run([shell, "-n", str(scripts["zsh"])], check=True)


def test_fish(scripts: dict[str, Path]) -> None:
    text = scripts["fish"].read_text(encoding="utf-8")
    assert "complete -c rowgrad -n '__fish_use_subcommand' -a run -d 'run the sessions" in text
    assert "complete -c rowgrad -n '__fish_seen_subcommand_from run' -l state -r -F -d 'Variables" in text
    shell = shutil.which("fish")
    if shell is not None:
        subprocess.run([shell, "--no-execute", str(scripts["fish"])], check=True)


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash", "--json"]) == 0
    assert "complete -F _rowgrad rowgrad" in json.loads(capsys.readouterr().out)["text"]
