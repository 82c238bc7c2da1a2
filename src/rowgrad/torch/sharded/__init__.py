"""Tables sharded over the processes of torch.distributed."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from .bag import RowShardedEmbeddingBag as RowShardedEmbeddingBag
from .embeddings import RowShardedEmbeddings as RowShardedEmbeddings
from .exchange import RankError as RankError
from .exchange import RankLostError as RankLostError
from .exchange import RankRefusedError as RankRefusedError
from .exchange import Traffic as Traffic


def __getattr__(name: str) -> _Any:
    if name == "checkpoint":  # DTensor and torch.distributed.checkpoint are slow to load
        return _import_module(".checkpoint", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
