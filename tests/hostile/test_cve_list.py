"""Every published vulnerability of the list, in every runner: the result or the error is TensorFlow's.

The tests are named after the entries: `pytest --collect-only -q tests/hostile/test_cve_list.py` prints the list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from cve_cases import CASES, NUMBERS, OOM, Case, table
from hostile_runners import (
    IN_PROCESS,
    JAX_JIT,
    NUMPY,
    Rejection,
    Runner,
    outcome,
    studio_runner,
)

import rowgrad as rg
import rowgrad.torch
from rowgrad._catalog.spec import CATALOG
from rowgrad._core import memory_limit

PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "hostile_input.md"
# Error messages that do not blame a single argument.
NO_ONE_ARGUMENT = ("Encountered overflow", "Shape [", "Input indices should", "Input and output", "Expected ")
SIZE_FROM_DATA = "the number of output rows depends on data"


@pytest.fixture(scope="module")
def studio() -> Iterator[Runner]:
    with studio_runner() as runner:
        yield runner


def check_case(case: Case, runner: Runner) -> None:
    """Check that the outcome of a case in a runner is the one in the table."""
    op = CATALOG[case.op]
    before = {k: v.tobytes() for k, v in case.arguments.items() if isinstance(v, np.ndarray)}
    found = outcome(runner, op, dict(case.arguments))
    assert found is not None
    assert before == {k: v.tobytes() for k, v in case.arguments.items() if isinstance(v, np.ndarray)}
    if runner is JAX_JIT and isinstance(found, Rejection) and found.message.startswith(SIZE_FROM_DATA):
        assert any(None in o.shape for o in _inferred_outputs(case)), "raised although its size is static"
        return
    if runner is JAX_JIT and isinstance(found, Rejection) and found.message.startswith("RESOURCE_EXHAUSTED"):
        assert sum(prod(o.shape) for o in _inferred_outputs(case)) > memory_limit()
        return
    if isinstance(case.expected, list):
        assert not isinstance(found, Rejection), found
        assert [x.tolist() for x in found] == case.expected
        return
    assert isinstance(found, Rejection), found
    assert (found.kind, found.message) == case.expected
    assert found.op == case.op
    assert found.argument in op.input_names or found.kind == OOM or found.message.startswith(NO_ONE_ARGUMENT), found


def _inferred_outputs(case: Case) -> Any:
    """Return the outputs inferred from shapes and sizes, before data is read."""
    from rowgrad._runtime.arrays import admit, avals_of, host_value
    from rowgrad._runtime.validation import infer

    op = CATALOG[case.op]
    arrays = admit(op, case.arguments)
    host = {a.name: host_value(arrays[a.name]) for a in op.inputs if a.host}
    return infer(op, avals_of(op, arrays), host, dict(op.attrs))


def _test_of(case: Case) -> Callable[..., None]:
    runners = [r for r in (*IN_PROCESS, JAX_JIT) if r.supports(CATALOG[case.op], case.arguments)]

    @pytest.mark.parametrize("runner", [*runners, "studio"], ids=lambda r: r if isinstance(r, str) else r.name)
    def test(runner: Any, request: pytest.FixtureRequest) -> None:
        check_case(case, request.getfixturevalue("studio") if runner == "studio" else runner)

    test.__doc__ = f"{case.number}: {case.what} ({case.op})"
    return test


for _case in CASES:
    assert _case.name not in globals(), f"two cases are named {_case.name}"
    globals()[_case.name] = _test_of(_case)


def test_every_published_entry_has_a_case() -> None:
    there = {case.number for case in CASES}
    assert set(NUMBERS) - there == set()
    assert there - set(NUMBERS) == set()
    assert len(set(NUMBERS)) == len(NUMBERS) == 63


def test_most_cases_are_tested_in_every_runner() -> None:
    tested = [r.name for case in CASES for r in (*IN_PROCESS, JAX_JIT) if r.supports(CATALOG[case.op], case.arguments)]
    for runner in (*IN_PROCESS, JAX_JIT):
        assert tested.count(runner.name) == len(CASES), runner.name


@pytest.mark.parametrize("case", [c for c in CASES if not isinstance(c.expected, list)], ids=lambda c: c.name[5:])
def test_rejected_calls_do_not_write_output_buffers(case: Case) -> None:
    for shape in ((), (1,), (2, 2), (3, 2)):
        buffers = tuple(np.full(shape, 7, np.float32) for _ in CATALOG[case.op].outputs)
        found = outcome(NUMPY, CATALOG[case.op], {**case.arguments}, {"out": buffers})
        assert isinstance(found, Rejection)
        assert all((b == 7).all() for b in buffers)


# -- public lookups ----------------------------------------------------------------------------------------------------

TABLES = ("numpy", "torch", "jax")


def _table(library: str, rows: int = 2) -> Any:
    table = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    if library == "jax":
        return jax.device_put(table)
    return torch.from_numpy(table).requires_grad_() if library == "torch" else table


MALFORMED: list[tuple[str, tuple[Any, Any, Any], str, str]] = [
    ("CVE-2022-29206", (np.zeros((17, 2), np.int64), np.zeros(0, np.int64), [2, 2]), "values", "length 17, got 0"),
    ("CVE-2021-41224", ([[0, 0]], [0, 1], [2, 2]), "values", "length 1, got 2"),
    ("CVE-2021-29611", ([[0, 0, 0]], [0], [2, 2]), "dense_shape", "length 3, got 2"),
    ("CVE-2020-15196", ([0, 0], [0], [2, 2]), "indices", "a matrix, got [2]"),
    ("CVE-2022-21736", ([[0, 0]], 0, [2, 2]), "values", "a vector, got []"),
    ("CVE-2021-41215", ([[0, 0]], [0], [[2, 2]]), "dense_shape", "a vector, got [1,2]"),
]


@pytest.mark.parametrize(("number", "parts", "argument", "message"), MALFORMED, ids=[m[0] for m in MALFORMED])
def test_malformed_sparse_tensors_raise(number: str, parts: tuple[Any, Any, Any], argument: str, message: str) -> None:
    assert number in NUMBERS
    with pytest.raises(rg.errors.InvalidArgumentError, match=re.escape(message)) as caught:
        rg.SparseTensor(*parts)
    assert caught.value.argument == argument


LOOKED_UP: list[tuple[str, tuple[Any, Any, Any], str]] = [
    ("CVE-2021-29565", (np.zeros((0, 0), np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)),
     "Dense shape cannot be empty."),
    ("CVE-2021-37635", ([[5, 0]], [0], [2, 2]), "indices(0, 0) is invalid: 5 >= 2"),
    ("CVE-2021-41210", ([[-1, 0]], [0], [2, 2]), "indices(0, 0) is invalid: -1 >= 2"),
    ("CVE-2021-29545", ([[0, 0]], [0], [0, 0]),
     "Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = 1"),
    ("CVE-2021-29521", ([[0, 0]], [0], [-1, 2]), "Expected shape dimensions to be non-negative, got -1"),
    ("tf#59364", ([[0, 0]], [125091515651], [1, 1]), "Bad: indices[0] == 125091515651 out of range [0, 2)"),
]  # fmt: skip


@pytest.mark.parametrize("library", TABLES)
@pytest.mark.parametrize(("number", "parts", "message"), LOOKED_UP, ids=[m[0] for m in LOOKED_UP])
def test_lookups_reject_malformed_input(library: str, number: str, parts: tuple[Any, Any, Any], message: str) -> None:
    assert number in NUMBERS
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        rg.safe_embedding_lookup_sparse(_table(library), rg.SparseTensor(*parts), combiner="sum")
    assert caught.value.message == message
    assert caught.value.op == "safe_embedding_lookup_sparse"


@pytest.mark.parametrize("library", TABLES)
def test_cve_2021_29596_lookups_in_a_table_without_rows(library: str) -> None:
    ids = rg.SparseTensor([[0, 0]], [0], [1, 1])
    for lookup in (rg.embedding_lookup_sparse, rg.safe_embedding_lookup_sparse):
        with pytest.raises(rg.errors.InvalidArgumentError) as caught:
            lookup(_table(library, rows=0), ids, combiner="sum")
        assert caught.value.message == "Bad: indices[0] == 0 out of range [0, 0)"


def test_cve_2022_23560_dense_arrays_are_not_written_outside() -> None:
    sparse = rg.SparseTensor([[0, 0], [2, 0]], [1.0, 2.0], [2, 2])
    for dense in (sparse.to_dense, sparse.to_scipy):
        with pytest.raises(rg.errors.InvalidArgumentError, match=r"indices\[1, 0\] = 2 is not in \[0, 2\)"):
            dense()


def test_docs_page_has_the_list() -> None:
    """docs/contributing/hostile_input.md lists every entry with its tests, in the table's order."""
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| (CVE-|tf#)", line)]
    assert rows == table().splitlines(), "update the table: python tests/hostile/cve_cases.py"
