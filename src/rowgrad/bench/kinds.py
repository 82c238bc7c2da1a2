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
    Kind("forward_jit", "bags", "mean of each bag's rows inside jax.jit; peers as in forward", "forward"),
    Kind("dense_jit", "bags", "gradient of the mean inside jax.jit, a table; peers as in dense", "dense"),
    Kind("rows_jit", "bags", "unique rows inside jax.jit, padded to a quarter more; peers as in dense", "dense"),
    Kind("zeros_jit", "bags", "probe: a table of zeros inside jax.jit"),
    Kind("weighted_dense", "bags", "gradient of the weighted mean, a fresh table"),
    Kind("page_touch", "bags", "probe: a fresh zeroed table, one write to every page the gradient's rows lie on"),
    Kind("train", "bags", "a training step: forward, backward, row-wise Adagrad (torch: Adagrad), by torch modules"),
    Kind("train_tables", "tables", "the same on many tables: one Embeddings module, peers with theirs"),
    Kind("slice", "sparse", "SparseSlice"),
    Kind("slice_grad", "sparse", "SparseSliceGrad"),
    Kind("fill", "sparse", "SparseFillEmptyRows"),
    Kind("fill_grad", "sparse", "SparseFillEmptyRowsGrad"),
    Kind("add", "sparse", "SparseAdd"),
    Kind("add_grad", "sparse", "SparseAddGrad"),
    Kind("tiny", "tiny", "a thousand calls of SparseSegmentMeanGrad from NumPy"),
    Kind("tiny_jit", "tiny", "a thousand calls of SparseSegmentMean in one compiled loop of JAX"),
    Kind("tiny_torch", "tiny", "a thousand calls of SparseSegmentMean from torch; torch: F.embedding_bag"),
    Kind("tiny_torch_grad", "tiny", "the same on a table that requires a gradient"),
    Kind("tiny_torch_backward", "tiny", "a thousand backward passes of one such call, to a dense gradient"),
    Kind("tiny_module", "tiny", "a thousand calls of EmbeddingBag modules with offsets, gradient recorded"),
)
KINDS = {kind.name: kind for kind in _EVERY}
