"""A click model trained from end to end: tables by rowgrad, everything else by torch.

    python examples/torch_recommender.py --out run

The model is a small DLRM: bags of ids become vectors through `rowgrad.torch.nn.Embeddings`, numbers become one more
vector through a bottom MLP, all pairs of vectors are multiplied, and a top MLP gives the odds of a click.

The data looks like a click log and is made here from a seed: some ids are everywhere and most are rare, one bag in ten
or more is empty, and two features read one table. A hidden model, which the trained one never sees, decides by chance
who clicks. So there is something to learn, and a best possible AUC to compare with, which is printed.

With the defaults this takes less than a minute on two cores and reaches an AUC above 0.80 on samples it was not
trained on. The folder `--out` then holds `loss.svg`, a plot of the loss, and `checkpoint.pt`.

Training may be killed at any time, by `kill -9` too. `--resume` goes on from the last checkpoint and ends with the same
bits: the order of samples follows from the seed and the number of the step alone, and a checkpoint is either written
wholly or not there. The last line is a digest of all weights and of the optimizer's state, to compare runs by.
(rowgrad's bits are the same on any number of threads. Those of torch's matrix products may not be; see `--threads`.)
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

import rowgrad as rg
import rowgrad.torch as rgt

Array = np.ndarray[Any, Any]

NUMBERS = 8  # dense features of a sample
HIDDEN = 4  # columns of the hidden model's tables


# -- the data ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Feature:
    """Ids of one kind: which table they are rows of, its share of `--rows`, and how many ids a bag has on average."""

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
    """How many rows a feature's table has."""
    return max(10, int(feature.share * rows))


class ClickLog(Dataset[dict[str, Any]]):
    """Samples in memory; the ids of a feature lie one after the other, and `starts` says where each bag begins."""

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
    """Who clicks: a bias and a short vector for every id, a sign for every number, all pairs of bags multiplied."""

    def __init__(self, rows: int, seed: int) -> None:
        random = np.random.default_rng([seed, 0])
        sizes = {f.table: rows_of(f, rows) for f in FEATURES}
        self.tables = {t: random.standard_normal((n, 1 + HIDDEN)).astype(np.float32) for t, n in sizes.items()}
        self.places = {t: random.permutation(n) for t, n in sizes.items()}  # which ids are the frequent ones
        self.pairs = np.triu(random.choice([-1.0, 1.0], (len(FEATURES), len(FEATURES))), 1)
        self.weights = random.choice([-1.0, 1.0], NUMBERS)

    def logits(self, dense: Array, bags: Sequence[Array]) -> Array:
        """The log of the odds of a click; `bags` has the mean of the hidden rows, feature by feature."""
        together = np.stack(bags, axis=1).astype(np.float64)
        products = np.einsum("nfk,ngk,fg->n", together[..., 1:], together[..., 1:], self.pairs)
        numbers = dense @ self.weights + 0.5 * dense[:, 0] * dense[:, 1]
        return np.asarray(0.5 * numbers + 1.1 * together[..., 0].sum(axis=1) + 0.4 * products - 1.0)


def make_log(model: HiddenModel, samples: int, seed: Sequence[int]) -> tuple[ClickLog, Array]:
    """A log of clicks, and what the hidden model knew of each sample."""
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
    """Numbers below `rows`, the smaller the more frequent."""
    shares = np.cumsum(np.arange(1, rows + 1) ** -exponent)
    found = np.searchsorted(shares, random.random(count) * shares[-1])
    return np.asarray(np.minimum(found, rows - 1))


class StepsOfSamples(Sampler[list[int]]):
    """The samples of every step from `first` on: each epoch is a permutation that follows from the seed."""

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


# -- the model --------------------------------------------------------------------------------------------------------


def perceptron(*sizes: int) -> torch.nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Recommender(torch.nn.Module):
    """Bags of ids and numbers in, the log of the odds of a click out."""

    def __init__(self, rows: int, columns: int, fused: bool) -> None:
        super().__init__()
        readers: dict[str, list[str]] = {}
        for feature in FEATURES:
            readers.setdefault(feature.table, []).append(feature.name)
        sizes = {f.table: rows_of(f, rows) for f in FEATURES}
        tables = [rgt.nn.Table(t, sizes[t], columns, "mean", tuple(names)) for t, names in readers.items()]
        self.embeddings = rgt.nn.Embeddings(tables, grad="rows", fused=fused, output="stacked")
        for table in self.embeddings.parameters():
            torch.nn.init.normal_(table, std=0.05)
        self.bottom = perceptron(NUMBERS, 64, columns)
        vectors = 1 + len(FEATURES)
        above = torch.triu_indices(vectors, vectors, 1)
        self.register_buffer("pairs", above[0] * vectors + above[1], persistent=False)
        self.top = perceptron(columns + vectors * (vectors - 1) // 2, 64, 32, 1)

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """[samples]"""
        bags = self.embeddings({f.name: (batch[f.name].indices, batch[f.name].offsets) for f in FEATURES})
        numbers = self.bottom(batch["dense"])
        vectors = torch.cat([numbers.unsqueeze(1), bags], dim=1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)
        result: Tensor = self.top(torch.cat([numbers, products[:, self.pairs]], dim=1)).squeeze(1)
        return result


def make_optimizer(model: Recommender, lr: float) -> torch.optim.Optimizer:
    """One optimizer for tables and layers: a step costs what the rows of a batch cost, not what the tables cost."""
    layers = [*model.bottom.parameters(), *model.top.parameters()]
    groups = [{"params": list(model.embeddings.parameters())}, {"params": layers, "lr": lr / 4}]
    return rgt.optim.Adagrad(groups, lr=lr, initial_accumulator_value=0.01)


# -- how good it is ---------------------------------------------------------------------------------------------------


def auc(scores: Array, labels: Array) -> float:
    """The chance that a click has a higher score than a sample without; a tie counts half. Exact."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    twice_rank = 2 * np.cumsum(counts) - counts + 1  # the mean rank of equal scores, doubled to stay whole
    clicked = np.asarray(labels) > 0.5
    clicks, others = int(clicked.sum()), int((~clicked).sum())
    if not clicks or not others:
        raise ValueError("an AUC needs clicks and samples without")
    above = int(twice_rank[place.reshape(-1)][clicked].sum()) - clicks * (clicks + 1)
    return above / (2 * clicks * others)


@torch.no_grad()
def scores_of(model: Recommender, loader: DataLoader[dict[str, Any]]) -> Array:
    """What the model thinks of every sample."""
    return np.asarray(torch.cat([model(batch) for batch in loader]))


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 over every weight and everything the optimizer remembers."""
    found = hashlib.sha256()
    for name, value in sorted(leaves("", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})):
        found.update(f"{name} ".encode())
        if isinstance(value, Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)} ".encode())
            found.update(value.detach().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
        else:
            found.update(repr(value).encode())
    return found.hexdigest()


def leaves(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a tree of mappings and lists."""
    if isinstance(tree, Mapping | list):
        for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from leaves(f"{name}/{key}", value)
    else:
        yield name, tree


# -- checkpoints ------------------------------------------------------------------------------------------------------


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a file that is either the old one or the new one, whenever the process or the machine dies."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too
    finally:
        os.close(folder)


def load_checkpoint(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint of a run with the same options."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    other = [
        f"--{k.replace('_', '-')} {state['options'].get(k)}" for k in wanted if state["options"].get(k) != wanted[k]
    ]
    if other:
        raise SystemExit(f"{path} is of a run with {', '.join(other)}")
    return state


# -- what a person sees -----------------------------------------------------------------------------------------------


class Progress:
    """A bar that is redrawn on a terminal; elsewhere, a line for every tenth of the way."""

    def __init__(self, total: int, first: int = 0, out: TextIO | None = None) -> None:
        self.total, self.first, self.out = total, first, out or sys.stderr
        self.live = self.out.isatty()
        self.began = self.drawn = time.monotonic()

    def show(self, done: int, text: str) -> None:
        """Show that `done` steps are done."""
        now, last = time.monotonic(), done == self.total
        if self.live and (last or now - self.drawn > 0.1):
            self.drawn = now
            end = "\n" if last else ""
            self.out.write(f"\r{self.bar(done)} {self.line(done, now, text)}\x1b[K{end}")
        elif not self.live and (last or done * 10 // self.total > (done - 1) * 10 // self.total):
            self.out.write(f"{self.line(done, now, text)}\n")
        self.out.flush()

    def bar(self, done: int, width: int = 30) -> str:
        """The part that is done, as a picture."""
        full = width * done // self.total
        return "━" * full + "─" * (width - full)

    def line(self, done: int, now: float, text: str) -> str:
        """The same in numbers, and how long the rest will take."""
        left = int((now - self.began) / max(done - self.first, 1) * (self.total - done))
        return f"step {done}/{self.total}  {text}  {left // 60}:{left % 60:02} left"


def smooth(values: Sequence[float], share: float = 0.03) -> list[float]:
    """A running mean in which the latest values count most."""
    found: list[float] = []
    for k, value in enumerate(values):
        weight = max(share, 1 / (k + 1))
        found.append(value if not found else found[-1] + weight * (value - found[-1]))
    return found


def loss_plot(losses: Sequence[float], width: int = 720, height: int = 360) -> str:
    """A plot of the loss by step as SVG: every step in grey, a running mean in blue."""
    left, top, right, bottom = 60, 30, width - 20, height - 50
    low, high = min(losses), max(losses)
    span = (high - low) or 1.0

    def line(values: Sequence[float], style: str) -> str:
        across = (right - left) / max(len(values) - 1, 1)
        points = " ".join(
            f"{left + across * k:.1f},{bottom - (v - low) / span * (bottom - top):.1f}" for k, v in enumerate(values)
        )
        return f'<polyline fill="none" {style} points="{points}"/>'

    def label(x: float, y: float, text: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'

    marks = []
    for k in range(6):
        y, x = bottom - k / 5 * (bottom - top), left + k / 5 * (right - left)
        marks.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#ddd"/>')
        marks.append(label(left - 6, y + 4, f"{low + k / 5 * span:.3f}", "end"))
        marks.append(label(x, bottom + 18, f"{k * len(losses) // 5}"))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *marks,
        line(losses, 'stroke="#bbb" stroke-width="0.8"'),
        line(smooth(losses), 'stroke="#1f5fbf" stroke-width="2"'),
        label((left + right) / 2, height - 10, "step"),
        label(left, top - 10, "log loss of the batch", "start"),
        "</svg>",
        "",
    ])  # fmt: skip


# -- the training -----------------------------------------------------------------------------------------------------

NUMBERED = ("seed", "rows", "columns", "samples", "batch", "lr")  # options that decide the numbers


class Run:
    """A model in training: what a checkpoint holds."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.path = options.out / "checkpoint.pt"
        self.options = {name: getattr(options, name) for name in NUMBERED}
        torch.manual_seed(options.seed)
        self.model = Recommender(options.rows, options.columns, options.fused)
        self.optimizer = make_optimizer(self.model, options.lr)
        self.losses: list[float] = []

    @property
    def step(self) -> int:
        """How many steps are done."""
        return len(self.losses)

    def save(self) -> None:
        """Write the checkpoint."""
        losses = torch.tensor(self.losses, dtype=torch.float64)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        save_checkpoint(self.path, {"options": self.options, "losses": losses, **state})

    def load(self) -> None:
        """Go back to the checkpoint."""
        state = load_checkpoint(self.path, self.options)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.losses = state["losses"].tolist()

    def train(self, batch: Mapping[str, Any]) -> float:
        """One step; gives its loss."""
        self.optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self.model(batch), batch["label"])
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        return self.losses[-1]


def loader_of(log: ClickLog, sampler: Iterable[list[int]], options: argparse.Namespace) -> DataLoader[dict[str, Any]]:
    """Batches made by worker processes; an id that its table does not have is refused there, naming the sample."""
    collate = rgt.data.Collate({f.name: rows_of(f, options.rows) for f in FEATURES}, plan=False)
    return DataLoader(
        log, batch_sampler=sampler, collate_fn=collate, num_workers=options.workers, generator=torch.Generator()
    )


def train(run: Run, log: ClickLog, options: argparse.Namespace) -> None:
    """The steps that are left, with a checkpoint every so often and at the end."""
    sampler = StepsOfSamples(len(log), options.batch, run.step, options.steps, options.seed)
    progress = Progress(options.steps, run.step)
    for batch in loader_of(log, sampler, options):
        run.train(batch)
        progress.show(run.step, f"loss {np.mean(run.losses[-50:]):.4f}")
        if run.step % options.checkpoint_every == 0 or run.step == options.steps:
            run.save()


def held_out_auc(run: Run, log: ClickLog, options: argparse.Namespace) -> float:
    """How well the model tells clicks of samples it has not seen."""
    places = range(len(log))
    batches = [list(places[k : k + options.batch]) for k in range(0, len(log), options.batch)]
    return auc(scores_of(run.model, loader_of(log, batches, options)), log.labels)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Trains a small click model on data made from a seed.")
    add = parser.add_argument
    add("--out", type=Path, default=Path("recommender"), help="folder for the checkpoint and the plot (%(default)s)")
    add("--resume", action="store_true", help="go on from the checkpoint in that folder, if there is one")
    add("--seed", type=int, default=1, help="decides data, first weights and the order of samples (%(default)s)")
    add("--steps", type=int, default=2000, help="(%(default)s)")
    add("--batch", type=int, default=256, help="samples per step (%(default)s)")
    add("--samples", type=int, default=256_000, help="samples to train on (%(default)s)")
    add("--held-out", type=int, default=40_000, help="samples to judge by (%(default)s)")
    add("--rows", type=int, default=20_000, help="rows of the largest table (%(default)s)")
    add("--columns", type=int, default=16, help="columns of every table (%(default)s)")
    add("--lr", type=float, default=0.2, help="learning rate of the tables; the layers' is a quarter (%(default)s)")
    add("--fused", action="store_true", help="update tables inside backward: same bits, no gradient is stored")
    add("--checkpoint-every", type=int, default=400, metavar="STEPS", help="(%(default)s)")
    add("--workers", type=int, default=2, help="processes that load data (%(default)s)")
    add("--threads", type=int, default=1, help="threads of torch: its layers are small (%(default)s)")
    options = parser.parse_args(arguments)
    if min(options.steps, options.batch, options.held_out, options.rows, options.columns, options.checkpoint_every) < 1:
        parser.error("sizes are at least 1")
    if options.samples < options.batch:
        parser.error("--samples must be at least --batch")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Make data, train, and say how good the model is."""
    options = read_options(arguments)
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    hidden = HiddenModel(options.rows, options.seed)
    log, _ = make_log(hidden, options.samples, [options.seed, 1])
    unseen, known = make_log(hidden, options.held_out, [options.seed, 2])
    print(f"{len(log)} samples to train on, {len(unseen)} held out; {log.labels.mean():.1%} are clicks", flush=True)
    run = Run(options)
    if options.resume and run.path.exists():
        run.load()
        print(f"resumed at step {run.step}", flush=True)
    train(run, log, options)
    plot = options.out / "loss.svg"
    plot.write_text(loss_plot(run.losses), encoding="utf-8")
    print(f"loss plotted in {plot}")
    found, best = held_out_auc(run, unseen, options), auc(known, unseen.labels)
    print(f"held-out AUC {found:.4f}; the hidden model itself has {best:.4f}")
    print(f"digest {digest(run.model, run.optimizer)}")


if __name__ == "__main__":
    main()
