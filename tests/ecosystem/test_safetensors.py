"""safetensors: models with tables, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click_model import ClickModel, assert_same
from safetensors.torch import load_model, save_model

import rowgrad.torch as rgt

STACKED = "tables of one width are views of one stacked parameter, which safetensors takes for shared tensors"


def round_trip(model: torch.nn.Module, file: Path) -> None:
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    save_model(model, str(file))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert load_model(model, str(file)) == (set(), [])
    assert_same(model.state_dict(), saved)


def test_embedding_bag(tmp_path: Path) -> None:
    round_trip(ClickModel(), tmp_path / "model.safetensors")


def test_fused_embedding_bag(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"bag": rgt.nn.EmbeddingBag(5, 2, fused=True), "head": torch.nn.Linear(2, 1)})
    round_trip(model, tmp_path / "model.safetensors")


@pytest.mark.xfail(raises=RuntimeError, strict=True, reason=STACKED)
def test_embeddings(tmp_path: Path) -> None:
    tables = [rgt.nn.Table("user", 7, 4), rgt.nn.Table("item", 5, 4), rgt.nn.Table("word", 3, 2, "sum")]
    model = torch.nn.ModuleDict({"tables": rgt.nn.Embeddings(tables), "head": torch.nn.Linear(4, 1)})
    round_trip(model, tmp_path / "model.safetensors")
