"""Sharded tables: the "div" and "mod" rules, ids split by shard, and tables stored as one file per shard."""

from __future__ import annotations

from .manifest import Layout as Layout
from .manifest import TensorLayout as TensorLayout
from .reshard import reshard as reshard

__all__ = ("Layout", "TensorLayout", "reshard")
