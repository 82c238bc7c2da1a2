"""Platforms other than one CPU: programs lowered for GPUs and TPUs, and arrays on several devices."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rowgrad as rg
from golden_cases import same_bits
from jax_arrays import split
from rowgrad._catalog.spec import CATALOG
from rowgrad.jax import cuda_call
from rowgrad.raw_ops import OPS

SIZED = [op for op in CATALOG.values() if op.kernel is not None and not op.is_data_sized]


# How JAX raises an XLA error: the second when a compiled function is called again through its C++ fast path.
REFUSED = (jax.errors.JaxRuntimeError, ValueError)


def program() -> tuple[Callable[..., Any], list[dict[str, Any]]]:
    """Return all ops of static size as one function, and their arguments."""
    samples = [split(op, np.float32) for op in SIZED]
    fixed = [
        {a.name: x[a.name] for a in op.inputs if a.host} | attrs for op, (x, attrs) in zip(SIZED, samples, strict=True)
    ]
    moving = [{a.name: x[a.name] for a in op.inputs if not a.host} for op, (x, _) in zip(SIZED, samples, strict=True)]

    def everything(arguments: list[dict[str, Any]]) -> Any:
        return [OPS[op.name](**x, **constants) for op, x, constants in zip(SIZED, arguments, fixed, strict=True)]

    return everything, moving


def test_programs_for_other_platforms_do_not_call_cpu_kernels() -> None:
    function, args = program()
    traced = jax.jit(function).trace(args)
    here = traced.lower().as_text()
    assert here.count("@rowgrad_kernel") == len(SIZED) > 40
    for platform in ("cuda", "tpu"):
        assert "@rowgrad_kernel" not in traced.lower(lowering_platforms=(platform,)).as_text()
    on_cuda = [op for op in SIZED if cuda_call.has_kernel(op)]
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count(f"@{cuda_call.TARGET}") == len(on_cuda) > 25


def test_concurrent_calls_from_many_threads() -> None:
    """Each thread gets its own result, or its own error."""
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    run = jax.jit(lambda t, ids: rg.raw_ops.SparseSegmentSumWithNumSegments(t, ids, jnp.zeros(3, jnp.int32), 1))
    found: list[str] = []

    def work(number: int) -> None:
        for turn in range(20):
            ids = np.array([number, 1, turn % 11], np.int32)
            try:
                got = np.asarray(run(table, ids))
            except REFUSED as error:
                good = turn % 11 == 10 and "indices[2] == 10 out of range [0, 10)" in str(error)
            else:
                good = turn % 11 != 10 and same_bits(got, table[ids].sum(0, keepdims=True))
            found.append("" if good else f"{number} {turn}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [""] * 160


SHARDED = Path(__file__).parent / "mesh_lookup_program.py"


def test_arrays_on_several_devices() -> None:
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-W", "ignore", str(SHARDED)], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "done", done.stderr


def test_missing_jax_raises_a_clear_error() -> None:
    code = "import sys; sys.modules['jax'] = None\ntry:\n    import rowgrad.jax\nexcept ImportError as e:\n    print(e)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "rowgrad.jax needs JAX: pip install 'rowgrad[jax]'"


@pytest.mark.parametrize("module", ["rowgrad", "rowgrad.raw_ops", "rowgrad.lookup"])
def test_importing_rowgrad_does_not_import_jax(module: str) -> None:
    code = f"import sys, {module}; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
