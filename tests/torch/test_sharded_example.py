"""The sharded example, killed and restarted, ends with the bits of an uninterrupted run."""

from __future__ import annotations

import importlib
import os
import re
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

FOLDER = Path(__file__).resolve().parents[2] / "examples"
OPTIONS = ["--steps=25", "--batch=64", "--rows=300", "--columns=4", "--checkpoint-every=10"]

# Replaces the example under torchrun: rank 1 of the first attempt dies in its seventeenth step.
DYING = """
import os, signal, sys
import sharded_torch as example

real = example.train_step

def train_step(model, optimizer, step, options):
    if step == 16 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return real(model, optimizer, step, options)

example.train_step = train_step
example.main(sys.argv[1:])
"""


def torchrun(script: Path, out: Path, processes: int, *more: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return run([*command, "--max-restarts=2", str(script), f"--out={out}", *OPTIONS, *more])


def run(command: list[str]) -> str:
    path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as started:
        try:
            output, errors = started.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)  # its child processes too
            raise
    assert started.returncode == 0, errors
    return str(output)


def digest(output: str) -> str:
    found = re.findall(r"^digest (\w{64})$", output, re.MULTILINE)
    assert len(found) == 1, output
    return found[0]


def test_the_process_group_has_the_timeout_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    example = importlib.import_module("sharded_torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port), ("RANK", 0), ("WORLD_SIZE", 1)):
        monkeypatch.setenv(name, str(value))
    options = example.parser_of(None).parse_args(["--out=run", "--timeout=77"])
    example.start_processes(options.timeout)
    try:
        assert dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=77)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_killed_and_restarted(tmp_path: Path) -> None:
    example = FOLDER / "sharded_torch.py"
    uninterrupted = torchrun(example, tmp_path / "whole", 2)
    dying = tmp_path / "dying.py"
    dying.write_text(DYING)
    killed = torchrun(dying, tmp_path / "killed", 2)
    assert "from step 0" in killed
    assert "from step 10" in killed  # the last checkpoint before the kill
    assert digest(killed) == digest(uninterrupted)
    losses = re.findall(r"step 20: loss ([\d.]+)", uninterrupted)
    assert losses
    assert float(losses[0]) < 0.75
    more = torchrun(example, tmp_path / "whole", 3, "--steps=27")  # a different number of processes continues
    assert "3 processes, from step 25" in more


@pytest.mark.slow
def test_ray_returns_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("ray.train.torch")
    under_ray = run([sys.executable, str(FOLDER / "sharded_ray.py"), f"--out={tmp_path / 'ray'}", *OPTIONS])
    assert digest(under_ray) == digest(torchrun(FOLDER / "sharded_torch.py", tmp_path / "whole", 2))
