"""Generate a synthetic click log from a seed, the training data of the recommenders in this folder.

A few ids are frequent and most are rare, at least one bag in ten is empty, and two features share a table. A hidden
model, unknown to the trained one, draws the clicks at random. So there is something to learn, and a best possible AUC
to compare with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import rowgrad as rg

Array = np.ndarray[Any, Any]

NUMBERS = 8  # dense features per sample
HIDDEN = 4  # columns of the hidden model's tables


@dataclass(frozen=True)
class Feature:
    """Ids of one kind: their table, the table's share of `--rows`, and the mean number of ids in a bag."""

    name: str
    table: str
    share: float
    ids: float


FEATURES = (
    Feature("interests", "interest", 0.2, 3.0),
    Feature("viewed", "item", 1.0, 6.0),
    Feature("bought", "item", 1.0, 1.5),
    Feature("words", "word", 0.5, 5.0),
    Feature("shops", "shop", 0.05, 2.0),
    Feature("places", "place", 0.01, 1.2),
)


def rows_of(feature: Feature, rows: int) -> int:
    """Return the number of rows of a feature's table."""
    return max(10, int(feature.share * rows))


class ClickLog:
    """Samples in memory; the ids of a feature are concatenated, and `starts` has the start of each bag."""

    def __init__(self, dense: Array, labels: Array, ids: Mapping[str, Array], starts: Mapping[str, Array]) -> None:
        self.dense, self.labels, self.ids, self.starts = dense, labels, dict(ids), dict(starts)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, sample: int) -> dict[str, Any]:
        found: dict[str, Any] = {"dense": self.dense[sample], "label": self.labels[sample]}
        for name, ids in self.ids.items():
            begin, end = self.starts[name][sample : sample + 2]
            found[name] = ids[begin:end]
        return found


class HiddenModel:
    """The click probability: a bias and a short vector per id, a sign per number, and all pairs of bags multiplied."""

    def __init__(self, rows: int, seed: int) -> None:
        random = np.random.default_rng([seed, 0])
        sizes = {f.table: rows_of(f, rows) for f in FEATURES}
        self.tables = {t: random.standard_normal((n, 1 + HIDDEN)).astype(np.float32) for t, n in sizes.items()}
        self.places = {t: random.permutation(n) for t, n in sizes.items()}  # which ids are frequent
        self.pairs = np.triu(random.choice([-1.0, 1.0], (len(FEATURES), len(FEATURES))), 1)
        self.weights = random.choice([-1.0, 1.0], NUMBERS)

    def logits(self, dense: Array, bags: Sequence[Array]) -> Array:
        """Return the log odds of a click; `bags` has the mean of the hidden rows of each feature."""
        together = np.stack(bags, axis=1).astype(np.float64)
        products = np.einsum("nfk,ngk,fg->n", together[..., 1:], together[..., 1:], self.pairs)
        numbers = dense @ self.weights + 0.5 * dense[:, 0] * dense[:, 1]
        return np.asarray(0.5 * numbers + 1.1 * together[..., 0].sum(axis=1) + 0.4 * products - 1.0)


def make_log(model: HiddenModel, samples: int, seed: Sequence[int]) -> tuple[ClickLog, Array]:
    """Return a click log, and the hidden model's log odds of each sample."""
    random = np.random.default_rng(seed)
    dense = random.standard_normal((samples, NUMBERS)).astype(np.float32)
    ids: dict[str, Array] = {}
    starts: dict[str, Array] = {}
    bags = []
    for feature in FEATURES:
        table = model.tables[feature.table]
        lengths = random.poisson(feature.ids, samples) * (random.random(samples) > 0.1)
        starts[feature.name] = np.append(0, np.cumsum(lengths))
        chosen = power_law(len(table), int(lengths.sum()), random)
        ids[feature.name] = model.places[feature.table][chosen]
        segments = np.repeat(np.arange(samples), lengths)
        bags.append(rg.raw_ops.SparseSegmentMeanWithNumSegments(table, ids[feature.name], segments, samples))
    logits = model.logits(dense, bags)
    labels = (random.random(samples) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return ClickLog(dense, labels, ids, starts), logits


def power_law(rows: int, count: int, random: np.random.Generator, exponent: float = 1.05) -> Array:
    """Return numbers below `rows`, smaller ones more often."""
    shares = np.cumsum(np.arange(1, rows + 1) ** -exponent)
    found = np.searchsorted(shares, random.random(count) * shares[-1])
    return np.asarray(np.minimum(found, rows - 1))


class StepsOfSamples:
    """The samples of every step from `first` on: each epoch is a permutation derived from the seed."""

    def __init__(self, samples: int, batch: int, first: int, steps: int, seed: int) -> None:
        self.samples, self.batch, self.first, self.steps, self.seed = samples, batch, first, steps, seed

    def __len__(self) -> int:
        return max(self.steps - self.first, 0)

    def __iter__(self) -> Iterator[list[int]]:
        per_epoch = self.samples // self.batch
        known, order = -1, np.zeros(0, np.int64)
        for step in range(self.first, self.steps):
            epoch, place = divmod(step, per_epoch)
            if epoch != known:
                known, order = epoch, np.random.default_rng([self.seed, 3, epoch]).permutation(self.samples)
            yield order[place * self.batch : (place + 1) * self.batch].tolist()


def auc(scores: Array, labels: Array) -> float:
    """Return the exact probability that a click has a higher score than a sample without; ties count half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    twice_rank = 2 * np.cumsum(counts) - counts + 1  # the mean rank of equal scores, doubled to stay an integer
    clicked = np.asarray(labels) > 0.5
    clicks, others = int(clicked.sum()), int((~clicked).sum())
    if not clicks or not others:
        raise ValueError("an AUC needs clicks and samples without")
    above = int(twice_rank[place.reshape(-1)][clicked].sum()) - clicks * (clicks + 1)
    return above / (2 * clicks * others)
