"""Blocks of the how-to guides that need a file, another process or minutes. tests/test_docs.py runs all others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from test_docs import BLOCK, ROOT, python_blocks, run_block

GUIDES = ROOT / "docs/how-to"


def shown_blocks(page: Path) -> list[str]:
    """Return the blocks that the site highlights as Python and that test_docs.py does not run."""
    return [m[2] for m in BLOCK.finditer(page.read_text(encoding="utf-8")) if m[1] == "py"]


def names_of(page: Path) -> dict[str, Any]:
    """Run the blocks of a page; return the names that they define."""
    names: dict[str, Any] = {"__name__": "page"}
    for line, source in python_blocks(page):
        complaint = run_block(source, names, page.name, line)
        assert not complaint, complaint
    return names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # raised inside torch
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_the_compiled_package_scores_as_the_model() -> None:
    names = names_of(GUIDES / "serve.md")
    (block,) = shown_blocks(GUIDES / "serve.md")
    exec(block, names)
    torch.testing.assert_close(names["scores"], names["expected"], rtol=1e-5, atol=1e-6)
    more = torch.arange(50), torch.arange(0, 50, 5)
    torch.testing.assert_close(names["served"](*more), names["model"](*more).detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError, match="1000"):
        names["served"](torch.tensor([1, 1000]), torch.tensor([0, 1]))


def test_the_numpy_scorer_does_not_import_torch() -> None:
    names = names_of(GUIDES / "serve.md")
    page = (GUIDES / "serve.md").read_text(encoding="utf-8")
    session = page.partition(">>> table = np.load")[2].partition("\n\n")[0]
    lines = [line[4:] for line in (">>> table = np.load" + session).splitlines()]
    program = "\n".join(
        [
            "import pathlib, sys, numpy as np, rowgrad as rg",
            f"folder = pathlib.Path({str(names['folder'])!r})",
            *lines,
            f"print(score(np.array({names['ids'].tolist()}), np.array({names['offsets'].tolist()})).ravel().tolist())",
            "assert not {'torch', 'jax'} & set(sys.modules)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [float(x) for x in done.stdout.strip("[]\n").split(",")]
    assert found == pytest.approx(names["expected"].ravel().tolist(), rel=1e-5, abs=1e-6)
