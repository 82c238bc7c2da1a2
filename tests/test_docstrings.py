"""The examples in docstrings run and print the documented output."""

from __future__ import annotations

import doctest
import importlib
import sys

import pytest

MODULES = (
    "rowgrad.autodiff", "rowgrad.lookup", "rowgrad.plan", "rowgrad.sparse", "rowgrad.checkpoint.reader",
    "rowgrad.checkpoint.tables", "rowgrad.sharding.partition", "rowgrad.sharding.reshard", "rowgrad.torch.data",
    "rowgrad.torch.embeddings", "rowgrad.torch.functional", "rowgrad.torch.nn", "rowgrad.jax.functional",
    "rowgrad.jax.sharded.table", "rowgrad.jax.table",
)  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    library = name.split(".")[1]
    if library in ("torch", "jax"):
        pytest.importorskip({"torch": "torch.nn", "jax": "jax.numpy"}[library])
    importlib.import_module(name)
    module = sys.modules[name]  # the package may have a function of the same name
    examples = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert examples, f"{name} has no example in a docstring"
    complaints: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in examples:
        runner.run(example, out=complaints.append)
    assert not complaints, "".join(complaints)
