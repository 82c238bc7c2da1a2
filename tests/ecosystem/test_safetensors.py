"""safetensors: whole modules, in the files that torch's own modules read and write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file, save_model

import rowgrad.torch as rgt


def embeddings() -> torch.nn.Module:
    tables = [
        rgt.nn.Table("user", 6, 4),
        rgt.nn.Table("item", 5, 4, features=("seen", "bought")),
        rgt.nn.Table("shop", 7, 3, combiner="sum"),
    ]
    return rgt.nn.Embeddings(tables, include_last_offset=False)


class Model(torch.nn.Module):
    """Tables inside of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = rgt.nn.EmbeddingBag(6, 4, grad="rows")
        self.head = torch.nn.Linear(4, 1)


# Embeddings stores tables of one width in one parameter; safetensors rejects keys that share memory.
MODULES = [
    pytest.param(partial(rgt.nn.EmbeddingBag, 6, 4), id="bag-dense"),
    pytest.param(partial(rgt.nn.EmbeddingBag, 6, 4, grad="rows"), id="bag-rows"),
    pytest.param(partial(rgt.nn.EmbeddingBag, 6, 4, fused=True), id="bag-fused"),
    pytest.param(partial(rgt.nn.EmbeddingBag, 6, 4, dtype=torch.bfloat16), id="bag-bfloat16"),
    pytest.param(Model, id="model"),
    pytest.param(embeddings, id="embeddings"),
]


@pytest.mark.parametrize("make", MODULES)
def test_save_and_load_model(make: Callable[[], torch.nn.Module], tmp_path: Path) -> None:
    module, other = make(), make()
    save_model(module, str(tmp_path / "model.safetensors"))
    assert set(load_file(tmp_path / "model.safetensors")) == set(module.state_dict())
    missing, unexpected = load_model(other, str(tmp_path / "model.safetensors"))
    assert not missing
    assert not unexpected
    for key, value in module.state_dict().items():
        assert torch.equal(other.state_dict()[key], value)
        assert other.state_dict()[key].dtype == value.dtype


def test_embeddings_by_their_state_dict(tmp_path: Path) -> None:
    module, other = embeddings(), embeddings()
    save_file({key: value.clone() for key, value in module.state_dict().items()}, tmp_path / "tables.safetensors")
    other.load_state_dict(load_file(tmp_path / "tables.safetensors"))
    for key, value in module.state_dict().items():
        assert torch.equal(other.state_dict()[key], value)


def test_files_of_torch_modules(tmp_path: Path) -> None:
    theirs = torch.nn.EmbeddingBag(6, 4)
    save_model(theirs, str(tmp_path / "bag.safetensors"))
    ours = rgt.nn.EmbeddingBag(6, 4)
    load_model(ours, str(tmp_path / "bag.safetensors"))
    assert torch.equal(ours.weight, theirs.weight)
    save_model(ours, str(tmp_path / "again.safetensors"))
    load_model(theirs, str(tmp_path / "again.safetensors"))
