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
    Refusal,
    Runner,
    outcome,
    studio_runner,
)

import rowgrad as rg
import rowgrad.torch
from rowgrad._catalog.spec import CATALOG
from rowgrad._core import memory_limit

PAGE = Path(__file__).parents[2] / "docs" / "hostile_input.md"
# How a compiler says that it cannot know how many rows come out; then there is nothing to refuse yet.
NO_ONE_ARGUMENT = ("Encountered overflow", "Shape [", "Input indices should", "Input and output", "Expected ")
SIZE_FROM_DATA = "the number of output rows depends on data"


@pytest.fixture(scope="module")
def studio() -> Iterator[Runner]:
    with studio_runner() as made:
        yield made


def held(case: Case, runner: Runner) -> None:
    """What comes of a case in a runner is what the table says."""
    op = CATALOG[case.op]
    before = {k: v.tobytes() for k, v in case.arguments.items() if isinstance(v, np.ndarray)}
    found = outcome(runner, op, dict(case.arguments))
    assert found is not None
    assert before == {k: v.tobytes() for k, v in case.arguments.items() if isinstance(v, np.ndarray)}
    if runner is JAX_JIT and isinstance(found, Refusal) and found.message.startswith(SIZE_FROM_DATA):
        assert any(None in o.shape for o in _known(case)), "its size is known, and still it was refused"
        return
    if runner is JAX_JIT and isinstance(found, Refusal) and found.message.startswith("RESOURCE_EXHAUSTED"):
        assert sum(prod(o.shape) for o in _known(case)) > memory_limit()
        return
    if isinstance(case.expected, list):
        assert not isinstance(found, Refusal), found
        assert [x.tolist() for x in found] == case.expected
        return
    assert isinstance(found, Refusal), found
    assert (found.kind, found.message) == case.expected
    assert found.op == case.op
    assert found.argument in op.input_names or found.kind == OOM or found.message.startswith(NO_ONE_ARGUMENT), found


def _known(case: Case) -> Any:
    """What is known of the outputs before data is seen; a refusal from shapes alone would have been a refusal."""
    from rowgrad._runtime.arrays import admit, avals_of, host_value
    from rowgrad._runtime.validation import infer

    op = CATALOG[case.op]
    arrays = admit(op, case.arguments)
    host = {a.name: host_value(arrays[a.name]) for a in op.inputs if a.host}
    return infer(op, avals_of(op, arrays), host, dict(op.attrs))


def _named(case: Case) -> Callable[..., None]:
    runners = [r for r in (*IN_PROCESS, JAX_JIT) if r.speaks(CATALOG[case.op], case.arguments)]

    @pytest.mark.parametrize("runner", [*runners, "studio"], ids=lambda r: r if isinstance(r, str) else r.name)
    def test(runner: Any, request: pytest.FixtureRequest) -> None:
        held(case, request.getfixturevalue("studio") if runner == "studio" else runner)

    test.__doc__ = f"{case.number}: {case.what} ({case.op})"
    return test


for _case in CASES:
    assert _case.name not in globals(), f"two cases are called {_case.name}"
    globals()[_case.name] = _named(_case)


def test_every_number_of_the_lists_has_a_case() -> None:
    there = {case.number for case in CASES}
    assert set(NUMBERS) - there == set()
    assert there - set(NUMBERS) == set()
    assert len(set(NUMBERS)) == len(NUMBERS) == 63


def test_most_cases_are_tested_in_every_runner() -> None:
    asked = [r.name for case in CASES for r in (*IN_PROCESS, JAX_JIT) if r.speaks(CATALOG[case.op], case.arguments)]
    for runner in (*IN_PROCESS, JAX_JIT):
        assert asked.count(runner.name) == len(CASES), runner.name


@pytest.mark.parametrize("case", [c for c in CASES if not isinstance(c.expected, list)], ids=lambda c: c.name[5:])
def test_buffers_are_as_they_were(case: Case) -> None:
    """Outputs that were given are not written by a call that is refused."""
    for shape in ((), (1,), (2, 2), (3, 2)):
        buffers = tuple(np.full(shape, 7, np.float32) for _ in CATALOG[case.op].outputs)
        found = outcome(NUMPY, CATALOG[case.op], {**case.arguments}, {"out": buffers})
        assert isinstance(found, Refusal)
        assert all((b == 7).all() for b in buffers)


# -- lookups as people call them ---------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(("number", "parts", "argument", "words"), MALFORMED, ids=[m[0] for m in MALFORMED])
def test_it_is_not_a_valid_sparse_tensor(number: str, parts: tuple[Any, Any, Any], argument: str, words: str) -> None:
    assert number in NUMBERS
    with pytest.raises(rg.errors.InvalidArgumentError, match=re.escape(words)) as caught:
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
def test_lookups_reject_it(library: str, number: str, parts: tuple[Any, Any, Any], message: str) -> None:
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


def test_the_page_has_the_list() -> None:
    """docs/hostile_input.md names every number with its tests, in the table's order."""
    text = PAGE.read_text(encoding="utf-8")
    listed = [line for line in text.splitlines() if re.match(r"\| (CVE-|tf#)", line)]
    assert listed == table().splitlines(), "write the table anew: python tests/hostile/cve_cases.py"
