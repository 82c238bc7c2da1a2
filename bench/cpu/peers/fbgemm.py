"""FBGEMM's table-batched embeddings on the CPU: the forward, and a step, with which its gradient is fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen

VERSION = "FBGEMM (fbgemm-gpu-cpu)"
Arrays = dict[str, Any]


def to_numpy(result: Any) -> list[np.ndarray[Any, Any]]:
    return [result.detach().float().numpy()]


def forward(x: Arrays) -> Callable[[], Any] | None:
    rows, cols = x["table"].shape
    if cols % 4 or x["dtype"] != "float32":
        return None
    place = (rows, cols, EmbeddingLocation.HOST, ComputeDevice.CPU)
    bags = SplitTableBatchedEmbeddingBagsCodegen([place], pooling_mode=PoolingMode.MEAN)
    bags.split_embedding_weights()[0].data.copy_(torch.from_numpy(x["table"]))
    ids, offsets = torch.from_numpy(x["ids"]).long(), torch.from_numpy(x["offsets"])

    def run() -> Any:
        with torch.no_grad():
            return bags(ids, offsets)

    return run


def train(x: Arrays, tables: int = 1) -> Callable[[], Any] | None:
    rows, cols = x["table"].shape
    if cols % 4 or x["dtype"] != "float32":
        return None
    place = (rows, cols, EmbeddingLocation.HOST, ComputeDevice.CPU)
    bags = SplitTableBatchedEmbeddingBagsCodegen(
        [place] * tables, pooling_mode=PoolingMode.MEAN, optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=1e-4, eps=1e-8,
    )  # fmt: skip
    for weight in bags.split_embedding_weights():
        weight.data.copy_(torch.from_numpy(x["table"]))
    ids, offsets = torch.from_numpy(x["ids"]).long(), torch.from_numpy(x["offsets"])
    grad = torch.from_numpy(x["grad"]).flatten(1)

    def run() -> Any:
        out = bags(ids, offsets)
        out.backward(grad)
        return out

    return run


KINDS = {"forward": forward, "train": train, "train_tables": lambda x: train(x, x["tables"])}
