"""One page as the command line asks for it: its session, what is run in a step, and what came out."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..arrays import Array
from ..errors import OpError
from ..graph.engine import Engine, open_engine
from ..graph.loop import Loop, Tick
from ..graph.nodes import Output
from ..graph.page import Page, PageError
from ..graph.session import ClientSession
from .exits import UsageError
from .feeds import Feeds, batches, placeholder, split_feeds, steady_value, step_count
from .fetches import Fetches
from .holding import scope_of


@dataclass(slots=True)
class PageRun:
    """A page about to be run, and what came of it."""

    page: Page
    session: ClientSession
    blocks: list[str] = field(default_factory=list)  # ClientSession blocks, in the page's order
    fetches: Fetches = field(default_factory=Fetches)
    feeds: Feeds = field(default_factory=Feeds)
    steps: int = 1
    done: int = 0
    seconds: float = 0.0
    results: dict[str, Array] = field(default_factory=dict)
    shared: set[str] | None = None  # names that several sessions, or a session and --fetch, give results under

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to run."""
        return not (self.blocks or self.fetches.values or self.fetches.operations)

    def result_names(self) -> list[str]:
        """What the results will be called."""
        fetched = [self._name(block, name) for block in self.blocks for name in self.session.block(block).names or ()]
        return [*fetched, *self.fetches.values]

    def _name(self, block: str, name: str) -> str:
        """A result of a session; where another has it too, perhaps of later Variables, with the session before it."""
        if self.shared is None:
            given = [set(self.session.block(b).names or ()) for b in self.blocks]
            counts = Counter(n for names in (*given, self.fetches.values) for n in names)
            self.shared = {n for n, count in counts.items() if count > 1}
        return f"{block}/{name}" if name in self.shared else name

    def step(self, feeds: Mapping[Any, Any]) -> None:
        """Every session once, then what is fetched; after an error the state is that of before."""
        state = self.session.state
        before = dict(state.values), dict(state.counters)
        found: dict[str, Array] = {}
        try:
            for block in self.blocks:
                values = self.session.run_block(block, feeds)
                found |= {self._name(block, name): value for name, value in values.items()}
            if self.fetches.values or self.fetches.operations:
                found |= self.session.run(self.fetches.values, feeds, self.fetches.operations)
        except BaseException:
            state.values, state.counters = before
            raise
        self.results = found

    def loop(self, rate: float | None, progress: Callable[[Tick], None]) -> Loop:
        """The steps, ready to go."""
        return Loop(self.step, self.steps, rate, self.feeds.by_step(self.steps), progress)

    def run(self, loop: Loop) -> None:
        """Do the steps and take the time."""
        began = time.perf_counter()
        try:
            loop.run()
        finally:
            self.done, self.seconds = loop.done, time.perf_counter() - began


def open_runs(chosen: argparse.Namespace, pages: list[Page], tell: Callable[[str], None]) -> list[PageRun]:
    """Pages with their sessions, and to each what it knows of the names that were given."""
    engine = _engine(chosen.engine)
    names = [*chosen.session, *chosen.fetch]
    memory = None if chosen.memory is None else chosen.memory << 20
    runs = [PageRun(page, ClientSession(scope_of(page, names, tell), engine, memory=memory)) for page in pages]
    for name in chosen.session:
        _offer(name, runs, lambda run, name: run.blocks.append(run.session.block(name).name))
    for name in chosen.fetch:
        _offer(name, runs, lambda run, name: run.fetches.add(run.session, name))
    if not chosen.session and not chosen.fetch:
        for run in runs:
            run.blocks = [b.id for b in run.page.blocks if b.id in run.session.graph.sessions]
    else:
        for run in runs:
            wanted = set(run.blocks)
            run.blocks = [b.id for b in run.page.blocks if b.id in wanted]
    _feed(chosen, runs)
    return runs


def _engine(name: str) -> Engine:
    try:
        return open_engine(name)
    except ImportError as error:  # it is known, but the library it stands on is not installed
        raise PageError(f"engine {name}", str(error)) from None


def _feed(chosen: argparse.Namespace, runs: list[PageRun]) -> None:
    steady, by_step = split_feeds("--feed", chosen.feed), split_feeds("--feed-batches", chosen.feed_batches)
    split_feeds("--feed and --feed-batches", [*chosen.feed, *chosen.feed_batches])
    lengths: dict[str, int] = {}

    def free(run: PageRun, name: str) -> Output:
        target = placeholder(run.session, name)
        if target in run.feeds.steady or target in run.feeds.batches:  # by another name: x, x.output
            raise UsageError(f"--feed and --feed-batches: {target.node.name} is fed twice")
        return target

    def one(run: PageRun, name: str) -> None:
        target = free(run, name)
        run.feeds.steady[target] = steady_value(target, steady[name])

    def many(run: PageRun, name: str) -> None:
        target = free(run, name)
        run.feeds.batches[target] = batches(target, by_step[name])
        lengths[name] = len(run.feeds.batches[target])

    for name in steady:
        _offer(name, runs, one)
    for name in by_step:
        _offer(name, runs, many)
    steps = step_count(chosen.steps, lengths)
    for run in runs:
        run.steps = steps


def _offer(name: str, runs: Iterable[PageRun], take: Callable[[PageRun, str], None]) -> None:
    """Give a name to every page that has it; where none does, the error is that of the first."""
    refused: list[OpError] = []
    taken = 0
    for run in runs:
        try:
            run.session.find(name)
        except OpError as error:
            refused.append(error)
        else:
            take(run, name)
            taken += 1
    if not taken:
        raise refused[0]
