"""The declarations: importing this package fills the catalogue, in the order of these lines."""

from . import sparse_segment, sparse_rows, sparse_coo, weighted_segment, row_plan, segment_rows, bag_ids  # noqa: F401, I001
from . import broadcasting, arithmetic, unary, comparison, conversion, reductions, losses, matrix  # noqa: F401
from . import arrangement, joining, slicing, picking, sizes, dense_rows, session  # noqa: F401
