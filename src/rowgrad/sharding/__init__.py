"""Tables in parts, as files: from one number of parts and one rule to another, a few rows at a time."""

from __future__ import annotations

from .manifest import Layout as Layout
from .manifest import TensorLayout as TensorLayout
from .reshard import reshard as reshard
