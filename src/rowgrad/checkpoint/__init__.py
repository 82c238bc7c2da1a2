"""Read TensorFlow checkpoint files without TensorFlow.

>>> from rowgrad.checkpoint import Checkpoint, read_table
"""

from .reader import Checkpoint as Checkpoint
from .tables import read_table as read_table

__all__ = ["Checkpoint", "read_table"]
