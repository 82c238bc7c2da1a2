"""The kinds of calls that are timed, and what each peer runs against them."""

from __future__ import annotations

from dataclasses import dataclass

PEERS = ("rowgrad", "tensorflow", "torch", "fbgemm", "jax", "scipy")


@dataclass(frozen=True)
class Kind:
    """One call on one group of workloads; `nearest` is the kind peers run where they lack this one."""

    name: str
    group: str
    title: str
    nearest: str | None = None

    def asked_of(self, peer: str) -> str:
        """The kind this peer is asked for."""
        return self.name if peer == "rowgrad" or self.nearest is None else self.nearest


_EVERY = (
    Kind("forward", "bags", "mean of each bag's rows"),
    Kind("weighted", "bags", "weighted mean of each bag's rows"),
    Kind("dense", "bags", "gradient of the mean, a fresh table"),
    Kind("dense_kept", "bags", "gradient of the mean into a GradBuffer; peers as in dense", "dense"),
    Kind("rows", "bags", "gradient of the mean, unique rows only"),
    Kind("rows_planned", "bags", "the same with the ids sorted beforehand by a Plan; peers as in rows", "rows"),
    Kind("weighted_dense", "bags", "gradient of the weighted mean, a fresh table"),
    Kind("page_touch", "bags", "probe: a fresh zeroed table, one write to every page the gradient's rows lie on"),
    Kind("slice", "sparse", "SparseSlice"),
    Kind("slice_grad", "sparse", "SparseSliceGrad"),
    Kind("fill", "sparse", "SparseFillEmptyRows"),
    Kind("fill_grad", "sparse", "SparseFillEmptyRowsGrad"),
    Kind("add", "sparse", "SparseAdd"),
    Kind("add_grad", "sparse", "SparseAddGrad"),
    Kind("tiny", "tiny", "a thousand calls of SparseSegmentMeanGrad from NumPy"),
)
KINDS = {kind.name: kind for kind in _EVERY}
