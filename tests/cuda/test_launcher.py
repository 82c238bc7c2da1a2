"""The launcher: the limits of devices."""

from __future__ import annotations

import pytest
import torch
from cpu_comparison import agree
from emulated_call import emulate

import rowgrad as rg


def test_sorts_use_no_more_shared_memory_than_a_block_may_have() -> None:
    """Most GPUs have 99 KiB for a block; tiles are smaller there."""
    draw = torch.Generator().manual_seed(1)
    ids, segments = (torch.randint(0, n, (13_000,), generator=draw) for n in (1000, 20))
    grad = torch.randn((20, 1), generator=draw)
    agree("SparseSegmentSumGrad", grad=grad, indices=ids, segment_ids=segments, output_dim0=1000)


def test_grids_that_cuda_does_not_support() -> None:
    columns = 65_535 * 32 + 1
    with pytest.raises(rg.errors.ResourceExhaustedError, match="65535 blocks, this one needs 1 x 65536"):
        emulate(
            "SparseSegmentSumWithNumSegments",
            {
                "data": torch.zeros((1, columns)),
                "indices": torch.tensor([0]),
                "segment_ids": torch.tensor([0]),
                "num_segments": 1,
            },
        )
