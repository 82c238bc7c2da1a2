"""Eleven batches of bags, generated on the device, with times published for other libraries on a similar machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

SEED = 20
ELSEWHERE = (
    "The figures of cuEmbed, and those of torch in the column `elsewhere`, were measured on another H200 and on "
    "batches drawn by the same rule; they were not measured in this run."
)


@dataclass(frozen=True)
class Peers:
    """Milliseconds published elsewhere (see ELSEWHERE)."""

    cuembed_dense: float
    cuembed_rows: float
    torch_dense: float
    cuembed_forward: float
    torch_forward: float


@dataclass(frozen=True)
class Case:
    """V rows of D columns; bags with lengths uniform in 0..2L; ids uniform or by a power law."""

    number: int
    V: int
    D: int
    bags: int
    L: int
    exponent: float  # 0: uniform
    peers: Peers

    @property
    def name(self) -> str:
        """Return the name of the case in tables."""
        rows = f"{self.V // 10**6}M" if self.V >= 10**6 else f"{self.V // 1000}k" if self.V >= 10**5 else f"{self.V}"
        kind = f"zipf{self.exponent}" if self.exponent else "uniform"
        return f"{self.number}: {rows} x {self.D}, {self.bags} x {self.L}, {kind}"

    def shrunk(self, by: int) -> Case:
        """Return the same case with fewer rows and bags, to try out the scripts."""
        return replace(self, V=max(self.V // by, 10), bags=max(self.bags // by, 4))


CASES = (
    Case(1, 100_000, 64, 8192, 20, 1.05, Peers(0.093, 0.101, 0.50, 0.020, 0.045)),
    Case(2, 1_000_000, 128, 16384, 20, 1.05, Peers(0.232, 0.140, 1.05, 0.031, 0.121)),
    Case(3, 1_000_000, 32, 65536, 10, 1.05, Peers(0.149, 0.136, 1.24, 0.023, 0.082)),
    Case(4, 10_000_000, 64, 8192, 20, 0.0, Peers(0.668, 0.132, 1.07, 0.021, 0.053)),
    Case(5, 1000, 256, 4096, 50, 1.05, Peers(0.109, 0.135, 0.65, 0.027, 0.126)),
    Case(6, 100_000, 1, 65536, 20, 1.05, Peers(0.174, 0.191, 0.91, 0.024, 0.117)),
    Case(7, 10_000_000, 128, 32768, 16, 0.0, Peers(1.320, 0.258, 2.46, 0.083, 0.229)),
    Case(8, 10_000_000, 128, 32768, 16, 1.05, Peers(1.282, 0.182, 2.39, 0.046, 0.190)),
    Case(9, 10_000_000, 32, 131072, 64, 1.15, Peers(0.997, 0.808, 17.6, 0.140, 0.560)),
    Case(10, 100, 128, 32768, 20, 0.0, Peers(0.135, 0.152, 0.61, 0.029, 0.187)),
    Case(11, 1_000_000, 128, 32768, 1, 0.0, Peers(0.206, 0.122, 0.45, 0.030, 0.067)),
)


@dataclass(frozen=True)
class Batch:
    """The tensors of a case on a device."""

    case: Case
    table: Tensor  # [V, D]
    grad: Tensor  # [bags, D]
    indices: Tensor  # [N]
    segment_ids: Tensor  # [N], ascending
    offsets: Tensor  # [bags], where each bag begins, for torch
    unique: int  # distinct ids

    @property
    def N(self) -> int:
        """Return the number of ids."""
        return int(self.indices.shape[0])


def make(case: Case, device: torch.device, dtype: torch.dtype, ids: torch.dtype) -> Batch:
    """Return the batch of a case; every dtype of values gets the same ids."""
    generator = torch.Generator(device).manual_seed(SEED + case.number)
    lengths = torch.randint(0, 2 * case.L + 1, (case.bags,), generator=generator, device=device)
    N = int(lengths.sum())
    if case.exponent:
        # Ranks by the inverse of the cumulative distribution; a permutation scatters the frequent rows. The
        # distribution is summed on the host, always in one order, so that every run has the same ids.
        weights = torch.arange(1, case.V + 1, dtype=torch.float64).pow_(-case.exponent).cumsum(0).to(device)
        points = torch.rand(N, generator=generator, dtype=torch.float64, device=device) * weights[-1]
        ranks = torch.searchsorted(weights, points).clamp_(max=case.V - 1)
        indices = torch.randperm(case.V, generator=generator, device=device)[ranks]
    else:
        indices = torch.randint(0, case.V, (N,), generator=generator, device=device)
    segment_ids = torch.repeat_interleave(torch.arange(case.bags, device=device), lengths)
    return Batch(
        case,
        torch.randn(case.V, case.D, generator=generator, device=device).to(dtype),
        torch.randn(case.bags, case.D, generator=generator, device=device).to(dtype),
        indices.to(ids),
        segment_ids.to(ids),
        (lengths.cumsum(0) - lengths).to(ids),
        int(torch.unique(indices).numel()),
    )
