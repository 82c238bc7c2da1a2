"""RowDot, SparseSegmentDot, RowPositions, GatherRows, ScatterRows, Sqrt, and other ops that are one call in C++."""

from __future__ import annotations

from torch import Tensor

from .call import Call, runs


@runs("row_dot")
@runs("sparse_segment_dot")
@runs("row_positions")
@runs("gather_rows")
@runs("scatter_rows")
@runs("sqrt")
@runs("segment_ids_from_offsets")
@runs("sparse_segment_grad_padded")
@runs("sparse_segment_grad_grad")
@runs("weighted_segment_grad")
@runs("weighted_segment_grad_rows")
def queue(call: Call) -> tuple[Tensor, ...]:
    """Queue an op that the launcher puts together."""
    return call.queue()
