"""Workloads: those the laws are fitted to, those that check them, and the tables of MLPerf."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rowgrad.sharding.div_mod import STRATEGIES

from .model import Feature, Setting

WORLDS = (1, 2, 4)
PREDICTING = 2  # the world whose numbers predictions use
WAYS = (("exact", 4), ("pooled", 4), ("exact", 2), ("pooled", 2))  # mode, bytes of a transferred value
ROUTED = ((8_192, 1), (2_048, 20))  # bags and ids per bag that are sorted by owner
EXCHANGED = (0, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22)  # bytes to the other rank
BETWEEN = 1 << 16  # bytes of exchanges after work, as in a step
GATHERED = (100_000, 64, 4_096)  # that work: rows and columns of a table, and how many rows are read


@dataclass(frozen=True)
class Workload:
    """One table and the bags of one rank; it runs in each of WAYS."""

    name: str
    rows: int
    columns: int
    bags: int
    hotness: int
    alpha: float = 0.0
    strategy: str = "mod"

    def setting(self, ranks: int, mode: str, wire_bytes: int) -> Setting:
        """Return the setting of this workload on this many ranks."""
        feature = Feature(self.rows, self.hotness, self.alpha)
        return Setting((feature,), self.columns, self.bags, ranks, self.strategy, mode, wire_bytes)


CHECKS = (
    Workload("uniform, 1 id", 200_000, 64, 8_192, 1),
    Workload("uniform, 20 ids", 200_000, 64, 2_048, 20),
    Workload("zipf 1.05, 1 id", 200_000, 64, 8_192, 1, 1.05),
    Workload("zipf 1.05, 20 ids", 200_000, 64, 2_048, 20, 1.05),
    Workload("uniform, 20 ids, div", 200_000, 64, 2_048, 20, 0.0, "div"),
)
# Steps of single ranks, none of them a check. Sizes around those of the checks avoid extrapolation, and most tables
# exceed a core's share of the L3 cache, as large tables do.
CALIBRATION = (
    Workload("few", 100_000, 64, 256, 1),
    Workload("one id", 150_000, 32, 12_000, 1),
    Workload("one id, mid", 150_000, 72, 9_000, 1),
    Workload("one id, wide", 100_000, 96, 6_000, 1),
    Workload("one id, hot", 150_000, 48, 7_000, 1, 1.0),
    Workload("one id, hot, wide", 100_000, 96, 10_000, 1, 1.1),
    Workload("some ids", 150_000, 48, 4_000, 5),
    Workload("some ids, hot", 150_000, 96, 3_000, 8, 1.0),
    Workload("many ids", 250_000, 32, 2_500, 24),
    Workload("many ids, mid", 150_000, 72, 2_000, 16),
    Workload("many ids, wide", 150_000, 96, 1_500, 18),
    Workload("many ids, hot", 150_000, 48, 2_500, 24, 1.1),
    Workload("many ids, hot, wide", 150_000, 96, 1_500, 24, 1.0),
)

# DLRM-dcnv2 of MLPerf training: rows of the multi-hot Criteo 1TB tables, capped at 40 million, and ids per bag.
MLPERF_ROWS = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938,
    155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
)  # fmt: skip
MLPERF_HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
MLPERF_BATCH, MLPERF_COLUMNS = 65_536, 128
MLPERF_RANKS = tuple(2**k for k in range(11))


def routed(ranks: int) -> list[tuple[int, str]]:
    """Return the numbers of owners and strategies for which a world of this size times sorting by owner."""
    found = [(owners, strategy) for owners in sorted({1, ranks}) for strategy in STRATEGIES]
    return found + [(n, "mod") for n in MLPERF_RANKS if n not in (1, ranks)] if ranks == PREDICTING else found


def mlperf(ranks: int, mode: str, wire_bytes: int = 4, alpha: float = 0.0) -> Setting:
    """Return one step of all 26 tables; the global batch is constant."""
    features = tuple(Feature(*f, alpha) for f in zip(MLPERF_ROWS, MLPERF_HOTNESS, strict=True))
    setting = Setting(features, MLPERF_COLUMNS, MLPERF_BATCH, ranks, "mod", mode, wire_bytes, combiner="sum")
    return replace(setting, bags=MLPERF_BATCH // ranks)
