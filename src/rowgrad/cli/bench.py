"""`rowgrad bench`: time SparseSegmentMean and its gradient beside torch and TensorFlow, if they are installed here.

All libraries run in this process and take turns in each round, so a slow phase of the machine affects all of them.
The benchmark suite, which has more ops, peers and sizes, is `bench/` in the repository.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import __version__
from .._runtime.arrays import Array
from .._runtime.numpy_runner import num_threads
from ..raw_ops import OPS
from .errors import OK, UsageError
from .terminal import Progress, emit, say, show_columns

KINDS = ("forward", "gradient")
TOLERANCE = 1e-3  # relative and absolute, of float32 answers
SHORTEST, FEWEST = 0.05, 5  # each library is timed in each round for at least this many seconds and calls
_SAMPLED = 20_000_000  # elements from which answers are compared by every 97th one

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A batch: a table of rows × cols float32, and bags of 0 to 2·length int32 ids each."""

    name: str
    rows: int
    cols: int
    bags: int
    length: int
    zipf: float = 1.05  # exponent of the ids' power law; 0 is uniform

    def smaller(self) -> Case:
        """Return the case with a fiftieth of its rows and an eighth of its bags."""
        return replace(self, rows=max(self.rows // 50, 100), bags=self.bags // 8)

    @property
    def title(self) -> str:
        """Return its sizes as text."""
        law = f"zipf {self.zipf}" if self.zipf else "uniform"
        return f"{self.rows:,} rows × {self.cols}, {self.bags:,} bags × {self.length}, {law}"


CASES = (
    Case("mid", 100_000, 64, 8_192, 20),
    Case("wide", 1_000_000, 128, 16_384, 20),
    Case("narrow", 1_000_000, 32, 65_536, 10),
    Case("cold", 10_000_000, 64, 8_192, 20, zipf=0),
    Case("few_rows", 1_000, 256, 4_096, 50),
    Case("one_column", 100_000, 1, 65_536, 20),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """The arrays of one call: `values` is the table in the forward, and the bags' gradient in the gradient."""

    values: Array
    ids: Array
    segments: Array
    offsets: Array
    rows: int
    bags: int


def make_batch(case: Case, kind: str) -> Batch:
    """Make random arrays, the same on every call."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 2 * case.length + 1, case.bags)
    ids = draw_ids(rng, int(lengths.sum()), case.rows, case.zipf).astype(np.int32)
    segments = np.repeat(np.arange(case.bags, dtype=np.int32), lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    shape = (case.rows if kind == "forward" else case.bags, case.cols)
    return Batch(rng.standard_normal(shape, np.float32), ids, segments, offsets, case.rows, case.bags)


def draw_ids(rng: np.random.Generator, count: int, rows: int, exponent: float) -> Array:
    """Draw ids by a truncated power law, permuted so that hot rows are not neighbours; uniform if the exponent is 0."""
    if not exponent:
        return rng.integers(0, rows, count)
    weight = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    ranks = np.searchsorted(np.cumsum(weight) / weight.sum(), rng.random(count))
    return rng.permutation(rows)[np.minimum(ranks, rows - 1)]


# -- the libraries -----------------------------------------------------------------------------------------------------


def _rowgrad(kind: str, x: Batch) -> Call:
    if kind == "forward":
        return lambda: OPS["SparseSegmentMeanWithNumSegments"](x.values, x.ids, x.segments, x.bags)
    return lambda: OPS["SparseSegmentMeanGrad"](x.values, x.ids, x.segments, x.rows)


def _torch(kind: str, x: Batch) -> Call:
    import torch

    bag = torch.nn.functional.embedding_bag
    values, ids, offsets = (torch.from_numpy(a) for a in (x.values, x.ids, x.offsets))
    if kind == "forward":
        return lambda: bag(ids, values, offsets, mode="mean", include_last_offset=True)
    table = torch.zeros(x.rows, x.values.shape[1], requires_grad=True)
    out = bag(ids, table, offsets, mode="mean", include_last_offset=True)  # once: only the backward pass is timed
    return lambda: torch.autograd.grad(out, table, values, retain_graph=True)[0]


def _tensorflow(kind: str, x: Batch) -> Call:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    values, ids, segments = (tf.constant(a) for a in (x.values, x.ids, x.segments))
    count = tf.constant(x.bags if kind == "forward" else x.rows, tf.int32)
    if kind == "forward":
        op = tf.raw_ops.SparseSegmentMeanWithNumSegments
        return lambda: op(data=values, indices=ids, segment_ids=segments, num_segments=count)
    op = tf.raw_ops.SparseSegmentMeanGrad
    return lambda: op(grad=values, indices=ids, segment_ids=segments, output_dim0=count)


PEERS: dict[str, Callable[[str, Batch], Call]] = {"torch": _torch, "tensorflow": _tensorflow}


def installed_peers() -> dict[str, str]:
    """Return the version of every peer that this interpreter can import."""
    found = {}
    for name in PEERS:
        if importlib.util.find_spec(name) is not None:
            try:
                found[name] = str(importlib.import_module(name).__version__)
            except ImportError as error:  # installed, but broken
                say("bench", f"{name} cannot be imported: {error}")
    return found


# -- measurement -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measurement:
    """Least seconds of each library in one case and kind, and which of them computed rowgrad's answer."""

    case: str
    kind: str
    seconds: dict[str, float]
    agrees: dict[str, bool]

    def ratio(self, peer: str) -> float | None:
        """Return how many times longer the peer took, or None if its answer is different."""
        return self.seconds[peer] / self.seconds["rowgrad"] if self.agrees[peer] else None


def measure(case: Case, kind: str, peers: list[str], rounds: int) -> Measurement:
    """Run every library once to compare answers, then time them in turns."""
    batch = make_batch(case, kind)
    calls = {"rowgrad": _rowgrad(kind, batch)} | {name: PEERS[name](kind, batch) for name in peers}
    answer = _sample(calls["rowgrad"]())
    agrees = {name: _is_close(answer, _sample(calls[name]())) for name in peers}
    seconds = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name] = min(seconds[name], _fastest(call))
    return Measurement(case.name, kind, seconds, agrees)


def _sample(answer: Any) -> Array:
    array = np.asarray(answer.detach() if hasattr(answer, "detach") else answer)
    return array if array.size < _SAMPLED else array.reshape(-1)[::97].copy()


def _is_close(ours: Array, theirs: Array) -> bool:
    return ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def _fastest(call: Call) -> float:
    call()  # untimed: wakes the threads and warms the caches
    best, count, end = math.inf, 0, time.perf_counter() + SHORTEST
    while count < FEWEST or time.perf_counter() < end:
        started = time.perf_counter()
        result = call()
        best, count = min(best, time.perf_counter() - started), count + 1
        del result  # freed outside of the timed part
    return best


# -- the command -------------------------------------------------------------------------------------------------------


def command(options: argparse.Namespace) -> int:
    """Measure the cases, then print a table or a JSON document."""
    cases = [case.smaller() if options.quick else case for case in _cases(options.cases)]
    versions = installed_peers()
    peers = list(versions)
    if not peers:
        say("bench", "neither torch nor TensorFlow is installed in this environment; these are rowgrad's own times")
    if hasattr(os, "getloadavg") and (load := os.getloadavg()[0]) > (os.cpu_count() or 1):
        say("bench", f"other programs are running (load average {load:.1f}), so times are unreliable")
    found = []
    progress = Progress(len(cases) * len(KINDS), not options.json, unit="calls")
    try:
        for case in cases:
            for kind in KINDS:
                found.append(measure(case, kind, peers, options.rounds))
                progress.step()
    finally:
        progress.clear()
    if options.json:
        emit(_document(cases, found, {"rowgrad": __version__} | versions))
        return OK
    title = ", ".join(f"{name} {version}" for name, version in ({"rowgrad": __version__} | versions).items())
    print(f"{title}; {num_threads()} threads, minima of {options.rounds} rounds")
    header = ["case", "call", "rowgrad ms", *(cell for name in peers for cell in (f"{name} ms", "ratio"))]
    show_columns([header, *_rows(found, peers), *_means(found, peers)], numbers_from=2)
    if peers:
        print("ratio: how many times longer than rowgrad; * marks a different answer, whose time does not count")
    return OK


def _cases(text: str | None) -> list[Case]:
    if text is None:
        return list(CASES)
    known = {case.name: case for case in CASES}
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UsageError(f"--cases: no case {', '.join(map(repr, unknown)) or repr('')}; there are {', '.join(known)}")
    return [known[name] for name in names]


def _rows(found: list[Measurement], peers: list[str]) -> Iterator[list[str]]:
    for m in found:
        cells = [m.case, m.kind, f"{m.seconds['rowgrad'] * 1e3:.3f}"]
        for peer in peers:
            ratio = m.ratio(peer)
            cells += [f"{m.seconds[peer] * 1e3:.3f}", "*" if ratio is None else f"{ratio:.2f}"]
        yield cells


def _means(found: list[Measurement], peers: list[str]) -> Iterator[list[str]]:
    """Yield the geometric mean of the ratios of each kind."""
    for kind in KINDS if peers and len(found) > len(KINDS) else ():
        cells = ["mean", kind, ""]
        for peer in peers:
            ratios = [r for m in found if m.kind == kind and (r := m.ratio(peer)) is not None]
            cells += ["", f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else "*"]
        yield cells


def _document(cases: list[Case], found: list[Measurement], versions: dict[str, str]) -> dict[str, Any]:
    results = [
        {"case": m.case, "kind": m.kind, "seconds": m.seconds, "ratios": {peer: m.ratio(peer) for peer in m.agrees}}
        for m in found
    ]
    titles = {case.name: case.title for case in cases}
    return {"versions": versions, "threads": num_threads(), "cases": titles, "results": results}
