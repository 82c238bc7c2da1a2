"""The catalogue: importing this package declares every op, in the order of these lines."""

from . import sparse_segment, fill_rows, sparse_coo, weighted_segment, row_plan, segment_rows, bag_ids  # noqa: F401, I001
from . import elementwise, reductions, matrix, arrangement, indexing, images, session_blocks  # noqa: F401
