"""Lightning's Trainer with a row-sparse table: the same weights as a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from click_model import BATCH, ClickModel, assert_same, new_optimizer, samples, train
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import rowgrad.torch as rgt


class ClickModule(lightning.LightningModule):
    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.model = ClickModel(fused)

    def training_step(self, batch: Any, _: int) -> Any:
        ids, clicks = batch
        return binary_cross_entropy_with_logits(self.model(ids), clicks)

    def configure_optimizers(self) -> Any:
        return new_optimizer(self)


class ClippedModule(ClickModule):
    """Clips with rowgrad's function, in the hook that Lightning has for it."""

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        rgt.clip.clip_grad_norm_(self.parameters(), gradient_clip_val)


def new_trainer(folder: Path, epochs: int, **options: Any) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*samples()), batch_size=BATCH)


@pytest.mark.parametrize("fused", [False, True])
def test_weights_are_those_of_a_plain_loop(tmp_path: Path, fused: bool) -> None:
    module = ClickModule(fused)
    new_trainer(tmp_path, 2).fit(module, loader())
    assert_same(module.model.state_dict(), train(2, fused=fused))


def test_gradient_clip_val_clips_as_rowgrad_does(tmp_path: Path) -> None:
    module = ClickModule()
    new_trainer(tmp_path, 2, gradient_clip_val=0.05).fit(module, loader())
    expected = train(2, lambda parameters: rgt.clip.clip_grad_norm_(parameters, 0.05))
    for name, value in module.model.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert not torch.equal(expected["bag.weight"], train(2)["bag.weight"])


def test_gradient_clipping_by_value(tmp_path: Path) -> None:
    module = ClickModule()
    new_trainer(tmp_path, 2, gradient_clip_val=0.01, gradient_clip_algorithm="value").fit(module, loader())
    expected = train(2, lambda parameters: rgt.clip.clip_grad_value_(parameters, 0.01))
    assert_same(module.model.state_dict(), expected)
    assert not torch.equal(expected["bag.weight"], train(2)["bag.weight"])


@pytest.mark.parametrize("fused", [False, True])
def test_clipping_in_lightnings_hook(tmp_path: Path, fused: bool) -> None:
    module = ClippedModule(fused)
    new_trainer(tmp_path, 2, gradient_clip_val=0.05).fit(module, loader())
    expected = train(2, lambda parameters: rgt.clip.clip_grad_norm_(parameters, 0.05), fused)
    assert_same(module.model.state_dict(), expected)
    assert not torch.equal(expected["bag.weight"], train(2)["bag.weight"])


@pytest.mark.parametrize("fused", [False, True])
def test_resumed_from_a_checkpoint(tmp_path: Path, fused: bool) -> None:
    first = new_trainer(tmp_path, 2)
    first.fit(ClickModule(fused), loader())
    first.save_checkpoint(tmp_path / "two.ckpt")
    module = ClickModule(fused)
    with torch.no_grad():
        module.model.bag.weight.zero_()  # so that it has to be loaded
    new_trainer(tmp_path, 4).fit(module, loader(), ckpt_path=tmp_path / "two.ckpt")
    assert_same(module.model.state_dict(), train(4, fused=fused))
