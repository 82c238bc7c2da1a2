"""The declarations: importing this package fills the catalogue, in the order of this line."""

from . import sparse_segment, sparse_rows, sparse_coo, weighted_segment, row_plan, segment_rows, bag_ids, dense, session  # noqa: F401, I001
