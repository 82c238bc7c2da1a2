"""Enums that Python, C++ and CUDA share, declared once: `tools/gen_headers.py` writes the C++ header from here.

CUDA sources get the same text when they are compiled (`rowgrad.cuda.kernel`). Members have the numbers that kernels
read; every switch over them is exhaustive (`tests/test_completeness.py`), and kernels reject any other number.
"""

from __future__ import annotations

from enum import IntEnum


class Reduction(IntEnum):
    """How the rows of a bag are combined. The names are those of lookups' `combiner`."""

    sum = 0
    mean = 1
    sqrtn = 2

    @property
    def op_suffix(self) -> str:
        """The reduction in the names of ops: SparseSegmentSqrtN."""
        return _OP_SUFFIX[self]


_OP_SUFFIX = {Reduction.sum: "Sum", Reduction.mean: "Mean", Reduction.sqrtn: "SqrtN"}
COMBINERS = {reduction.name: reduction.op_suffix for reduction in Reduction}


class Order(IntEnum):
    """The order in which a gradient's contributions to one row are added; docs/reference/orders.md defines both."""

    sequential = 0
    blocked = 1


class Rounding(IntEnum):
    """When sums of 16-bit floats are rounded: after every addition, as TensorFlow does, or once at the end."""

    each_add = 0
    at_end = 1


class Fault(IntEnum):
    """A problem that a kernel found in its data. `rowgrad._error_messages` has the messages, under these names."""

    none = 0
    out_of_memory = 1
    last_segment_too_big = 2
    segment_negative = 3
    num_segments_too_small = 4
    num_segments_too_big = 5
    last_segment_overflows = 6
    segments_not_increasing = 7
    segment_not_in_output = 8
    index_not_in_data = 9
    index_not_in_params = 10
    segment_count = 11
    segment_not_in_grad = 12
    index_not_in_output = 13
    row_not_in_shape = 14
    reverse_index_not_in_grad = 15
    slice_left_over = 16
    id_not_listed = 17
    plan_segments_not_in_grad = 18
    plan_rows = 19
    plan_starts = 20
    plan_segments = 21
    plan_positions = 22
    plan_counts = 23
    offsets_begin = 24
    offsets_fall = 25
    offsets_end = 26
    feature_negative = 27
    feature_too_far = 28
    id_not_in_feature = 29
    plan_num_rows = 30
    row_ids = 31
    rows_exceed_size = 32
    number_unfit = 33
