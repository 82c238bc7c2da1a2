"""Tables sharded over the processes of torch.distributed."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from .bag import RowShardedEmbeddingBag as RowShardedEmbeddingBag
from .embeddings import RowShardedEmbeddings as RowShardedEmbeddings
from .exchange import Traffic as Traffic
from .liveness import RankError as RankError
from .liveness import RankLostError as RankLostError
from .liveness import RankRefusedError as RankRefusedError


def __getattr__(name: str) -> _Any:
    if name == "checkpoint":  # DTensor and torch.distributed.checkpoint are slow to load
        return _import_module(".checkpoint", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
