"""A recommender for Lightning's Trainer: weighted bags of many tables, on one process or on several.

    trainer = lightning.Trainer(max_epochs=2, gradient_clip_val=1.0)
    trainer.fit(Recommender({"user": 1_000_000, "item": 200_000}), loader)

A batch is a tuple: `{feature: (ids, offsets, weights)}`, and labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning
import torch

import rowgrad.torch as rgt

Bags = Mapping[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


class Recommender(lightning.LightningModule):
    """Weighted sums of the rows of all tables, then dense layers: the log odds of a click."""

    def __init__(self, rows: Mapping[str, int], columns: int = 16, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        tables = [rgt.nn.Table(name, count, columns, combiner="sum") for name, count in rows.items()]
        self.tables = rgt.nn.Embeddings(tables, fused=True, output="stacked", include_last_offset=False)
        width = len(tables) * columns
        self.layers = torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def configure_model(self) -> None:
        """Replicate the tables before Lightning wraps the module in DistributedDataParallel."""
        if torch.distributed.is_initialized():
            rgt.replicate_rows(self)

    def forward(self, batch: Bags) -> Any:
        """Return the log odds of each bag."""
        return self.layers(self.tables(batch).flatten(1)).squeeze(1)

    def training_step(self, batch: tuple[Bags, torch.Tensor], index: int) -> Any:
        """Return the loss."""
        bags, labels = batch
        return torch.nn.functional.binary_cross_entropy_with_logits(self(bags), labels)

    def configure_optimizers(self) -> Any:
        """Return one optimizer with a group for the tables and one for the layers."""
        groups = [
            {"params": list(self.tables.parameters())},
            {"params": list(self.layers.parameters()), "lr": self.hparams["lr"] / 4},
        ]
        return rgt.optim.RowWiseAdagrad(groups, lr=self.hparams["lr"])
