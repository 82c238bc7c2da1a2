"""What `import rowgrad` brings along, seen from a fresh process."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPTIONAL = ("torch", "jax", "jaxlib", "triton", "starlette", "uvicorn", "scipy", "tensorflow")
REPORT = "import sys; print(' '.join(sorted({m.partition('.')[0] for m in sys.modules})))"


def loaded_after(statement: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", f"{statement}; {REPORT}"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    ["import rowgrad", "import rowgrad.cli", "import rowgrad.checkpoint", "import rowgrad as rg; rg.catalog()"],
)
def test_nothing_optional_is_loaded(statement: str) -> None:
    assert not loaded_after(statement) & set(OPTIONAL)


def test_the_report_would_show_it() -> None:
    """The test above can fail: a module that is imported is reported."""
    assert "scipy" in loaded_after("import rowgrad, scipy.sparse")


def test_only_the_declared_dependencies() -> None:
    before = loaded_after("import sys")
    third_party = loaded_after("import rowgrad") - before - set(sys.stdlib_module_names)
    assert {m for m in third_party if not m.startswith("_")} <= {"rowgrad", "numpy", "ml_dtypes"}
