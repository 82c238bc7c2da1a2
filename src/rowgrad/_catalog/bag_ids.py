"""Segment ids from offsets, and ids of many features as ids of one stacked table; modules call them before a lookup."""

from __future__ import annotations

from ..errors import make_error
from .kernels import kernel
from .shapes import size, vectors
from .spec import INDEX, Known, Shape, declare, no_rows

CATEGORY = "Bags"

kernel("segment_ids_from_offsets", parameters=("include_last_offset",), vmap="offsets", fuzz="rows")
kernel("stack_bags", parameters=("positions",), fuzz="rows")


def _segment_ids(x: Known) -> tuple[Shape, ...]:
    vectors(x, "offsets")
    return ((size(x, "num_ids"),),)


def _stack(x: Known) -> tuple[Shape, ...]:
    vectors(x, "indices", "offsets", "feature_rows", "feature_first")
    (ids,), (offsets,), (features,) = (x.shape(name) for name in ("indices", "offsets", "feature_rows"))
    if features is not None and x.shape("feature_first")[0] != features:
        raise make_error("lengths_match", argument="feature_first", value=x.shape("feature_first")[0], bound=features)
    if features is not None and offsets is not None and (offsets < 1 or features < 1 or (offsets - 1) % features):
        raise make_error("offsets_of_features", value=offsets, bound=features)
    return (ids,), (ids,), (ids if x.attrs["positions"] else 0,)


declare(
    "SegmentIdsFromOffsets",
    "offsets: Tidx, num_ids: host Tnumids -> segment_ids: Tidx",
    types={"Tidx": INDEX, "Tnumids": INDEX},
    kernel="segment_ids_from_offsets",
    attrs={"include_last_offset": False},
    choices={"include_last_offset": (False, True)},
    passed=("include_last_offset",),
    shape=_segment_ids,
    category=CATEGORY,
    rows=no_rows,
    tensorflow=False,
    doc="""The segment of each id, for bags defined by offsets: `offsets[b]` is the position of the first id of bag b.

Offsets begin at 0 and do not decrease; two equal ones mean an empty bag. With `include_last_offset` the last offset is
`num_ids` and not the start of a bag.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.SegmentIdsFromOffsets(offsets=[0, 2, 2], num_ids=5)
""",
)

declare(
    "StackBags",
    "indices: Tidx, offsets: Toffsets, feature_rows: int64, feature_first: int64"
    " -> stacked: Tidx, segment_ids: Toffsets, positions: int64",
    types={"Tidx": INDEX, "Toffsets": INDEX},
    kernel="stack_bags",
    attrs={"positions": False},
    choices={"positions": (False, True)},
    passed=("positions",),
    shape=_stack,
    category=CATEGORY,
    rows=lambda inputs: enumerate(range(len(inputs["indices"]))),
    tensorflow=False,
    doc="""Ids of many features as ids of one stacked table, so that one lookup is enough for all features.

Bags are ordered by feature: bag b of feature f (of F, each with B bags) begins at `offsets[f * B + b]`, and the last
offset is the number of ids. Feature f has the `feature_rows[f]` rows that begin at row `feature_first[f]` of the
stacked table; an id out of this range is an error. The result is ordered by example: bag b of feature f is segment
`b * F + f`. With `positions=True` the third output is the input position of each id, to reorder its weight; otherwise
it is empty.""",
    example="""\
import numpy as np, rowgrad as rg
rg.raw_ops.StackBags(indices=[0, 2, 1, 0, 0], offsets=[0, 1, 2, 4, 5], feature_rows=[3, 2], feature_first=[0, 3],
                     positions=True)
""",
)
