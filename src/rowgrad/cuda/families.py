"""Every family of kernels, entered into the table by being imported."""

from __future__ import annotations

from . import bag_ids as bag_ids
from . import bag_updates as bag_updates
from . import elementwise as elementwise
from . import fill_rows as fill_rows
from . import gather_rows as gather_rows
from . import planned as planned
from . import planned_ids as planned_ids
from . import row_ops as row_ops
from . import row_plan as row_plan
from . import scatter_rows as scatter_rows
from . import segment_forward as segment_forward
from . import segment_sum as segment_sum
from . import sparse_add as sparse_add
from . import sparse_segment as sparse_segment
from . import sparse_slice as sparse_slice
from . import weighted_grad as weighted_grad
from . import weighted_segment as weighted_segment
