"""Optimizer updates, plans and other state with every argument corrupted: errors name it, nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
from corruptions import VARIANTS, corruptions_of

import rowgrad as rg
import rowgrad._runtime.results
import rowgrad.jax
import rowgrad.torch
from checkpoint_files import write_tensors
from rowgrad import optim
from rowgrad._catalog.spec import PLAN, Arg
from rowgrad.checkpoint import Checkpoint
from rowgrad.errors import OpError

F = np.float32
_ANY = Arg("any", "T")
_STEP = optim.Step(lr=0.5)
_PLAN = rg.Plan([3, 0, 3], [0, 0, 1], 4)


# What TensorFlow's messages call the arguments of lookups.
OUTSIDE = re.compile("params|embedding_weights|sp_ids|sparse_ids|sp_weights|sparse_weights|combiner|Dimensions|Shapes")


class Subject(NamedTuple):
    """A function and valid arguments for it; it writes those in `updated`."""

    name: str
    function: Callable[..., Any]
    good: Callable[[], dict[str, Any]]
    updated: tuple[str, ...] = ()


def _table() -> np.ndarray:
    return np.arange(1, 9, dtype=F).reshape(4, 2)


def _planned(**arguments: Any) -> None:
    plan = rg.Plan.of(*(arguments.pop(name) for name in PLAN))
    optim.apply_planned("sgd", plan=plan, **arguments)


def _own_parts(plan: rg.Plan) -> dict[str, Any]:
    parts = zip(PLAN, plan.parts(), strict=True)
    return {name: part.copy() if isinstance(part, np.ndarray) else part for name, part in parts}


def _lookup(safe: bool, library: str) -> Callable[..., Any]:
    def look(table: Any, indices: Any, ids: Any, shape: Any, weights: Any, **options: Any) -> Any:
        plain = type(table) is np.ndarray and table.dtype.kind == "f" and table.dtype.isnative
        if plain and table.itemsize <= 8:
            table = {"torch": torch.from_numpy, "jax": jax.device_put}.get(library, np.asarray)(table.copy())
        function = rg.safe_embedding_lookup_sparse if safe else rg.embedding_lookup_sparse
        entries = rg.SparseTensor(indices, weights, shape) if weights is not None else None
        return function(table, rg.SparseTensor(indices, ids, shape), entries, **options)

    return look


def _looked_up(**more: Any) -> dict[str, Any]:
    ids = {"indices": np.array([[0, 0], [1, 0]]), "ids": np.array([0, 3]), "shape": np.array([2, 2])}
    return {"table": _table(), **ids, "weights": np.ones(2, F), "combiner": "mean", "max_norm": 1.0, **more}


def _sparse() -> dict[str, Any]:
    return {"indices": np.array([[0, 0], [1, 1]]), "values": np.ones(2, F), "dense_shape": np.array([2, 2])}


SUBJECTS = [
    Subject("apply_rows", optim.apply_rows, lambda: {
        "rule": "adagrad", "table": _table(), "slots": (np.ones((4, 2), F),), "grad": np.ones((2, 2), F),
        "row_ids": np.array([0, 3]), "step": _STEP}, ("table",)),
    Subject("apply_all", optim.apply_all, lambda: {
        "rule": "row_wise_adagrad", "table": _table(), "slots": (np.ones(4, F),), "grad": np.ones((4, 2), F),
        "step": _STEP}, ("table",)),
    Subject("apply_bags", optim.apply_bags, lambda: {
        "rule": "adam", "table": _table(), "slots": (np.ones((4, 2), F), np.ones((4, 2), F)),
        "grad": np.ones((2, 2), F), "indices": np.array([3, 0, 3]), "segment_ids": np.array([0, 0, 1]), "step": _STEP,
        "combiner": "mean", "weights": np.ones(3, F), "accumulate": "float32", "order": "sequential"}, ("table",)),
    Subject("apply_planned", _planned, lambda: {
        "table": _table(), "slots": (), "grad": np.ones((2, 2), F), "step": _STEP, "weights": np.ones(3, F),
        **_own_parts(_PLAN)}, ("table",)),
    Subject("Step", optim.Step, lambda: {
        "lr": 0.1, "eps": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.99), "rate": 0.1, "lazy": True,
        "stochastic_rounding": False, "seed": 0, "step": 1}),
    Subject("Plan", rg.Plan, lambda: {
        "indices": np.array([3, 0, 3]), "segment_ids": np.array([0, 0, 1]), "num_rows": 4, "num_segments": 2}),
    Subject("Plan that counts", rg.Plan, lambda: {
        "indices": np.array([3, 0, 3]), "segment_ids": np.array([0, 0, 1]), "num_rows": 4}),
    Subject("SparseTensor", rg.SparseTensor, _sparse),
    Subject("to_dense", lambda **arguments: rg.SparseTensor(**arguments).to_dense(), _sparse),
    *(Subject(f"lookup {library}", _lookup(False, library), _looked_up) for library in ("numpy", "torch", "jax")),
    *(Subject(f"safe lookup {library}", _lookup(True, library), lambda: _looked_up(default_id=1))
      for library in ("numpy", "torch", "jax")),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _small_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowgrad._runtime.results, "memory_limit", lambda: 1 << 26)


def _memory(arguments: dict[str, Any]) -> dict[str, bytes]:
    found = {k: v.tobytes() for k, v in arguments.items() if isinstance(v, np.ndarray) and v.dtype.kind not in "OT"}
    slots = arguments.get("slots", ())
    if isinstance(slots, tuple):
        found |= {f"slot {k}": s.tobytes() for k, s in enumerate(slots) if isinstance(s, np.ndarray)}
    return found


def _check_named(error: OpError, name: str, corruption: str) -> None:
    shared = error.message.startswith(("OOM", "Encountered overflow", "Shape ["))  # no single argument
    assert error.argument or shared, f"{name} {corruption}: {error!r}"


def _check_plain(error: Exception, name: str, corruption: str) -> None:
    assert type(error) in (TypeError, ValueError), f"{name} {corruption}: {error!r}"
    assert name in str(error) or OUTSIDE.search(str(error)), f"{name} {corruption}: {error!r}"


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name.replace(" ", "_"))
def test_every_argument_corrupted(subject: Subject) -> None:
    subject.function(**subject.good())
    rejected = 0
    for name, value in subject.good().items():
        plain = np.asarray(value) if isinstance(value, np.ndarray | list | int | float) else np.zeros(2)
        corruptions = {
            **{k: (lambda x, arg, variant=variant: variant(x)) for k, variant in VARIANTS.items()},
            **corruptions_of(_ANY, plain),
        }
        for corruption, corrupt in corruptions.items():
            arguments = {**subject.good(), name: corrupt(plain, _ANY)}
            before = _memory(arguments)
            try:
                subject.function(**arguments)
            except OpError as error:
                rejected += 1
                _check_named(error, name, corruption)
            except (TypeError, ValueError) as error:
                rejected += 1
                _check_plain(error, name, corruption)
            except Exception as error:
                error.add_note(f"{subject.name}: {name} {corruption}")
                raise
            else:
                before = {k: v for k, v in before.items() if k not in subject.updated and not k.startswith("slot")}
            after = _memory(arguments)
            assert {k: after[k] for k in before} == before, f"{name} {corruption}: written"
    assert rejected > 50


# -- tables of checkpoints ---------------------------------------------------------------------------------------------


def test_every_byte_of_a_checkpoint_corrupted(tmp_path: Path) -> None:
    """A table is read as it was written, or raises: checksums cover every byte."""
    table = _table()
    write_tensors(tmp_path / "model", {"table": table})
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    rejected = unnamed = 0
    for path in files:
        good = path.read_bytes()
        corrupted = [good[:k] + bytes([good[k] ^ flip]) + good[k + 1 :] for k in range(len(good)) for flip in (1, 0xFF)]
        for bad in (*corrupted, b"", good[:-1], good + b"\0"):
            path.write_bytes(bad)
            try:
                found = Checkpoint(tmp_path / "model")["table"]
            except OpError as error:
                rejected += str(tmp_path) in str(error)
                unnamed += str(tmp_path) not in str(error)
            else:
                assert np.array_equal(found, table)
        path.write_bytes(good)
    assert rejected > 200
    assert unnamed == 0
