"""The public surface, frozen: a change to it is a change to the files beside this one.

`python tests/surface/test_surface.py` writes them anew.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import rowgrad as rg
import rowgrad.checkpoint
import rowgrad.graph

HERE = Path(__file__).parent
MODULES = ("errors", "raw_ops", "dense_ops", "sparse")
LIMIT = 30


def names() -> str:
    top = [n for n in vars(rg) if not n.startswith("_") and not is_plain_module(n)]
    lines = [f"rowgrad.{n}" for n in sorted(top)]
    for module in MODULES:
        inside = vars(getattr(rg, module))
        public = [n for n, v in inside.items() if not n.startswith("_") and belongs(v, module) and n not in top]
        lines += [f"rowgrad.{module}.{n}" for n in sorted(public)]
    for module_ in (rowgrad.checkpoint, rowgrad.graph):  # imported by their own names only
        lines += [f"{module_.__name__}.{n}" for n in sorted(module_.__all__)]
    return "\n".join(lines) + "\n"


def is_plain_module(name: str) -> bool:
    return inspect.ismodule(getattr(rg, name)) and name not in (*MODULES, "compat")


def belongs(value: object, module: str) -> bool:
    return getattr(value, "__module__", None) == f"rowgrad.{module}"


def ops() -> str:
    keep = ("name", "snake_name", "layer", "tensorflow", "inputs", "outputs", "attrs", "differentiable", "linear")
    return "".join(json.dumps({k: entry[k] for k in keep}) + "\n" for entry in rg.catalog())


def test_names() -> None:
    assert names() == (HERE / "names.txt").read_text()


def test_ops() -> None:
    assert ops() == (HERE / "ops.jsonl").read_text()


def test_the_top_is_small() -> None:
    assert sum(line.count(".") == 1 for line in names().splitlines()) <= LIMIT


if __name__ == "__main__":
    (HERE / "names.txt").write_text(names())
    (HERE / "ops.jsonl").write_text(ops())
