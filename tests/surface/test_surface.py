"""The public surface compared with the files in this folder: names, signatures, commands, Studio's protocol, ops.

`python tests/surface/test_surface.py` writes a deliberate change; its diff is part of the change.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_line import describe_commands
from python_names import describe_module
from studio_protocol import describe_protocol

import rowgrad as rg

HERE = Path(__file__).parent
LIMIT = 30  # names at the top of the package


def _modules(package: str, *names: str) -> Callable[[], str]:
    modules = [f"{package}.{name}" if name else package for name in names]
    return lambda: "\n".join(f"# {module}\n{describe_module(module)}" for module in modules)


def _ops() -> str:
    keep = ("name", "snake_name", "layer", "tensorflow", "inputs", "outputs", "attrs", "differentiable", "linear")
    return "".join(json.dumps({k: entry[k] for k in keep}) + "\n" for entry in rg.catalog())


CORE = _modules(
    "rowgrad",
    "",
    "autodiff",
    "checkpoint",
    "dense_ops",
    "errors",
    "lookup",
    "optim",
    "plan",
    "raw_ops",
    "sharding",
    "sparse",
)
TORCH = _modules("rowgrad.torch", "", "clip", "data", "functional", "nn", "optim", "sharded", "sharded.checkpoint")
JAX = _modules("rowgrad.jax", "", "optim", "rows", "sharded")
GRAPH = _modules("rowgrad.graph", "", "enuspace", "export", "ops")
# The function that writes each file, and the packages it needs.
FILES: dict[str, tuple[Callable[[], str], Sequence[str]]] = {
    "core.txt": (CORE, ()),
    "torch.txt": (TORCH, ("torch",)),
    "jax.txt": (JAX, ("jax",)),
    "graph.txt": (GRAPH, ()),
    "widget.txt": (_modules("rowgrad.studio", ""), ("anywidget",)),
    "protocol.txt": (describe_protocol, ()),
    "commands.txt": (describe_commands, ()),
    "ops.jsonl": (_ops, ()),
}


@pytest.mark.parametrize("file", FILES)
def test_surface(file: str) -> None:
    describe, packages = FILES[file]
    for package in packages:
        pytest.importorskip(package)
    recorded, found = (HERE / file).read_text(encoding="utf-8"), describe()
    if found != recorded:
        titles = (f"tests/surface/{file}", "this code")
        diff = difflib.unified_diff(recorded.splitlines(), found.splitlines(), *titles, n=1, lineterm="")
        advice = "If this change is intended, run `python tests/surface/test_surface.py` and commit the files."
        pytest.fail("\n".join([*diff, "", advice]), pytrace=False)


def test_top_level_has_few_names() -> None:
    assert sum(not line.startswith(" ") for line in describe_module("rowgrad").splitlines()) <= LIMIT


def main() -> None:
    """Write every file whose packages are installed."""
    for file, (describe, packages) in FILES.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            print(f"{file} is left as it was: {', '.join(missing)} is not installed")
        else:
            (HERE / file).write_text(describe(), encoding="utf-8")


if __name__ == "__main__":
    main()
