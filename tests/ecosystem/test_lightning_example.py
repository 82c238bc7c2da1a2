"""examples/lightning_recommender.py: the weights of a plain loop, on one process and on two."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import rowgrad.torch as rgt

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from lightning_recommender import Recommender

ROWS = {"user": 30, "item": 20, "word": 10}
BAGS, STEPS, CLIP = 6, 4, 0.05


def batches() -> list[Any]:
    """Return weighted bags and labels; some bags are empty."""
    g = torch.Generator().manual_seed(3)
    found = []
    for _ in range(STEPS):
        bags = {}
        for name, rows in ROWS.items():
            lengths = torch.randint(0, 4, (BAGS,), generator=g)
            count = int(lengths.sum())
            ids = torch.randint(0, rows, (count,), generator=g)
            bags[name] = ids, lengths.cumsum(0) - lengths, torch.rand(count, generator=g) + 0.5
        found.append((bags, torch.randint(0, 2, (BAGS,), generator=g).float()))
    return found


def unchanged(batch: Any) -> Any:
    """Collate nothing: by default torch makes lists of tuples."""
    return batch


def loader() -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(EachItem(batches()), batch_size=None, collate_fn=unchanged)


class EachItem(torch.utils.data.Dataset[Any]):
    """Batches that are already put together."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def new_module() -> Recommender:
    torch.manual_seed(5)
    return Recommender(ROWS, columns=4, lr=0.2)


def fitted(folder: Path, **options: Any) -> dict[str, Tensor]:
    module = new_module()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=CLIP,
        **options,
    )
    trainer.fit(module, loader())
    return module.state_dict()


def plain_loop(together: int) -> dict[str, Tensor]:
    """Train on one process; each step takes the mean of several batches, as that many processes do."""
    module = new_module()
    optimizer = module.configure_optimizers()
    items = batches()
    for start in range(0, STEPS, together):
        optimizer.zero_grad()
        for bags, labels in items[start : start + together]:
            (binary_cross_entropy_with_logits(module(bags), labels) / together).backward()
        norm = rgt.clip.clip_grad_norm_(module.parameters(), CLIP)
        assert norm > CLIP
        optimizer.step()
    return module.state_dict()


@pytest.mark.parametrize("processes", [1, 2])
def test_weights_are_those_of_a_plain_loop(processes: int, tmp_path: Path) -> None:
    start = new_module().state_dict()
    options = {"devices": 2, "strategy": "ddp_fork"} if processes == 2 else {"devices": 1}
    found = fitted(tmp_path, **options)
    for name, value in plain_loop(processes).items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
        assert not torch.equal(found[name], start[name])


def test_hyperparameters_are_saved(tmp_path: Path) -> None:
    module = new_module()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, logger=False, enable_progress_bar=False
    )
    trainer.fit(module, loader())
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    other = Recommender.load_from_checkpoint(tmp_path / "one.ckpt")
    for name, value in module.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
