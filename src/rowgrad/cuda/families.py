"""Every family of kernels, entered into the table by being imported."""

from __future__ import annotations

from . import gather_rows as gather_rows
from . import segment_forward as segment_forward
from . import sparse_segment as sparse_segment
