"""The declarations: importing this package fills the catalogue."""

from . import sparse_coo, sparse_rows, sparse_segment, weighted_segment  # noqa: F401
from . import dense  # noqa: F401  isort: skip  (last: what the others' gradients are written in)
