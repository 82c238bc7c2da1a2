"""The modules that `import rowgrad` loads in a new process."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

OPTIONAL = ("torch", "jax", "jaxlib", "triton", "starlette", "uvicorn", "scipy", "tensorflow", "rich", "shtab")
REPORT = "import sys; print(' '.join(sorted({m.partition('.')[0] for m in sys.modules})))"


def loaded_after(statement: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", f"{statement}; {REPORT}"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import rowgrad",
        "import rowgrad.cli",
        "import rowgrad.checkpoint",
        "import rowgrad.optim",
        "import rowgrad as rg; rg.catalog()",
    ],
)
def test_import_loads_no_optional_module(statement: str) -> None:
    assert not loaded_after(statement) & set(OPTIONAL)


MAIN = "import contextlib as c, io, rowgrad.cli\nwith c.redirect_stdout(io.StringIO()), c.suppress(SystemExit):"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["bench", "--help"], ["ops"], ["--version"]])
def test_help_and_plain_text_load_no_optional_module(arguments: list[str]) -> None:
    assert not loaded_after(f"{MAIN} rowgrad.cli.main({arguments})\n0") & set(OPTIONAL)


def test_modules_that_graph_imports_do_not_wait_for_it() -> None:
    """`from . import` waits for the package, which another thread may import and which waits for this module.

    Python then continues with a partially initialized module.
    """
    report = "import sys, rowgrad.graph; print(*(m.__file__ for n, m in sys.modules.items() if 'rowgrad.graph.' in n))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    paths = [Path(file) for file in done.stdout.split() if not file.endswith("__init__.py")]
    assert len(paths) > 20
    waiting = [
        f"{path.name}:{node.lineno}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level and node.module is None
        if path.parents[node.level - 1].name == "graph"
    ]
    assert waiting == []


def test_imported_modules_are_reported() -> None:
    """The tests above can fail: a module that is imported is reported."""
    assert "scipy" in loaded_after("import rowgrad, scipy.sparse")


def test_import_loads_only_declared_dependencies() -> None:
    before = loaded_after("import sys")
    third_party = loaded_after("import rowgrad") - before - set(sys.stdlib_module_names)
    assert {m for m in third_party if not m.startswith("_")} <= {"rowgrad", "numpy", "ml_dtypes", "nanobind_backend"}


def test_missing_torch_raises_an_error_that_says_what_to_install() -> None:
    statement = "import sys; sys.modules['torch'] = None; import rowgrad.torch"
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: rowgrad.torch needs PyTorch: pip install 'rowgrad[torch]'" in done.stderr


def test_tensors_load_torch_support_and_gpu_tensors_load_cuda() -> None:
    """NumPy calls do not load rowgrad.torch; a tensor does. CPU tensors, and settings for GPUs, load no CUDA kernels.
    One process for all, because importing torch is slow."""
    call = "import rowgrad as rg, numpy as np; rg.raw_ops.SparseSegmentSum(np.ones((2, 2)), [0], [0])"
    assert "torch" not in loaded_after(call)
    used = "import sys, torch, rowgrad as rg; assert 'rowgrad.torch' not in sys.modules; "
    used += "rg.raw_ops.SparseSegmentSum(torch.ones(2, 2), [0], [0]); assert 'rowgrad.torch' in sys.modules; "
    used += "import rowgrad.torch as rgt; bag = rgt.nn.EmbeddingBag(4, 2, grad='rows'); "
    used += "optimizer = rgt.optim.SGD(bag.parameters()); bag(torch.tensor([[1, 2]])).sum().backward(); "
    used += "optimizer.step(); assert rgt.validate('sync') == 'async' and rgt.validate('off') == 'sync'; "
    used += "rgt.synchronize(); assert not [m for m in sys.modules if m.startswith('rowgrad.cuda')]; "
    used += "import rowgrad.cuda.faults; "  # settings made before it was loaded still apply
    used += "assert rgt.validate('sync') == 'off' and rowgrad.cuda.faults.mode() == 'sync'"
    assert "torch" in loaded_after(used)
