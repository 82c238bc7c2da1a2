"""Hugging Face's Trainer with a row-sparse table: the same weights as a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click_model import BATCH, ClickModel, assert_same, new_optimizer, samples, train
from safetensors.torch import load_file
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import Trainer, TrainingArguments

import rowgrad.torch as rgt


class ModelWithLoss(ClickModel):
    """Returns the loss with the odds, as the Trainer expects."""

    def forward(self, ids: Any, labels: Any) -> Any:
        odds = super().forward(ids)
        return {"loss": binary_cross_entropy_with_logits(odds, labels), "logits": odds}


class InOrder(Trainer):
    """Reads the samples in order, as the plain loop does."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def new_trainer(model: ModelWithLoss, folder: Path, epochs: int, **options: Any) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="epoch",
        seed=5,
        **options,
    )
    optimizer = new_optimizer(model)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    data = [{"ids": i, "labels": c} for i, c in zip(*samples(), strict=True)]
    return InOrder(model, arguments, train_dataset=data, optimizers=(optimizer, constant))


def with_rowgrads_clipping(trainer: Trainer) -> Trainer:
    """Replace the function with which the Trainer clips, and computes the norm if it does not clip."""
    trainer.accelerator.clip_grad_norm_ = rgt.clip.clip_grad_norm_
    return trainer


def test_weights_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    """Without clipping the Trainer still computes the norm of the gradients, with the same function."""
    model = ModelWithLoss()
    new_trainer(model, tmp_path, 2, max_grad_norm=0.0).train()
    assert_same(model.state_dict(), train(2))


def test_max_grad_norm_clips_as_rowgrad_does(tmp_path: Path) -> None:
    model = ModelWithLoss()
    new_trainer(model, tmp_path, 2, max_grad_norm=0.05).train()
    expected = train(2, lambda parameters: rgt.clip.clip_grad_norm_(parameters, 0.05))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert not torch.equal(expected["bag.weight"], train(2)["bag.weight"])


@pytest.mark.parametrize("fused", [False, True])
def test_clipping_with_rowgrads_function(tmp_path: Path, fused: bool) -> None:
    model = ModelWithLoss(fused)
    with_rowgrads_clipping(new_trainer(model, tmp_path, 2, max_grad_norm=0.05)).train()
    expected = train(2, lambda parameters: rgt.clip.clip_grad_norm_(parameters, 0.05), fused)
    assert_same(model.state_dict(), expected)
    assert not torch.equal(expected["bag.weight"], train(2)["bag.weight"])


@pytest.mark.parametrize("fused", [False, True])
def test_saved_and_resumed(tmp_path: Path, fused: bool) -> None:
    with_rowgrads_clipping(new_trainer(ModelWithLoss(fused), tmp_path, 2, max_grad_norm=0.0)).train()
    (last,) = tmp_path.glob(f"checkpoint-{2 * len(samples()[0]) // BATCH}")
    assert_same(load_file(last / "model.safetensors"), train(2, fused=fused))
    model = ModelWithLoss(fused)
    with torch.no_grad():
        model.bag.weight.zero_()  # so that it has to be loaded
    trainer = with_rowgrads_clipping(new_trainer(model, tmp_path, 4, max_grad_norm=0.0))
    trainer.train(resume_from_checkpoint=str(last))
    assert_same(model.state_dict(), train(4, fused=fused))
