"""Every family of kernels, entered into the table by being imported."""

from __future__ import annotations

from . import fill_rows as fill_rows
from . import gather_rows as gather_rows
from . import segment_forward as segment_forward
from . import sparse_add as sparse_add
from . import sparse_segment as sparse_segment
from . import sparse_slice as sparse_slice
