"""Norms, clipping and sums of gradients inside shard_map are those of all devices; an error where that is unknown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_four_devices_clip_as_one_does() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "mesh_norms_program.py")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert found.returncode == 0, found.stderr[-4000:]
    assert found.stdout.splitlines() == [
        "norms and clipping of sharded tables, with and without layers, tracked and not",
        "optax's transformations of elements, and an error for those of norms",
        "other arrays, two axes",
        "sums over the mesh",
        "checkpoints",
        "done",
    ]
