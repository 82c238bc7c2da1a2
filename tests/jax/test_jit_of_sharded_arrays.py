"""Arrays sharded over four devices under jit, without shard_map, checked in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

MODES = ["shardy", "gspmd", "explicit", "older"] if hasattr(jax, "set_mesh") else ["gspmd"]


@pytest.mark.parametrize("mode", MODES)
def test_jit_does_not_gather_tables(mode: str) -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(Path(__file__).parent / "mesh_jit_program.py"), mode]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stderr[-4000:]
    assert found.stdout.splitlines() == [
        "lookups of a matrix",
        "flat ids",
        "gradient ops and GatherRows",
        "loops",
        "steps",
        "bad ids",
        "whole arrays",
        "done",
    ]
