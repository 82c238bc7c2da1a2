"""Pages on the command line: read files, choose what to fetch, and run them."""

from __future__ import annotations

import argparse
import errno
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._catalog.spec import find_op
from .._hints import nearest
from .._runtime.arrays import Array
from .._runtime.plain_file import open_plain
from ..errors import OpError, make_error
from ..graph.engine import Engine, open_engine
from ..graph.enuspace import read_enuspace
from ..graph.io import load
from ..graph.io.files import check_replaceable
from ..graph.io.store import folder_of
from ..graph.leaves import leaves_of
from ..graph.nodes import Operation, Output, Placed, Scope, Sparse
from ..graph.page import Page, PageError, Project
from ..graph.page_builder import Checked, check
from ..graph.page_order import upstream
from ..graph.run_loop import Loop, PageStep, Tick
from ..graph.session import ClientSession
from .errors import UsageError, no_such_file
from .feeds import Feeds, batches, constant_value, placeholder, split_feeds, step_count
from .terminal import sentence

# -- files of pages ----------------------------------------------------------------------------------------------------

_HEAD = 400  # a page that rowgrad wrote names its format within this many bytes


def read_pages(file: str, name: str | None, say: Callable[[str], None], follow_links: bool = False) -> list[Page]:
    """Return the pages of a file, or the one of this name; `say` gets remarks on a file of enuSpace-TensorFlow."""
    if is_enuspace(read_bytes(file)):
        imported = read_enuspace(file, follow_links=follow_links)
        for remark in imported.report:
            say(f"{file}: {remark}")
        found: Page | Project = imported.page
    else:
        found = load(file, follow_links=follow_links)
    pages = found.pages if isinstance(found, Project) else [found]
    if name is not None:
        pages = [p for p in pages if p.name == name] or _no_such_page(file, name, pages)
    if not pages:
        raise PageError(file, "this project has no pages")
    return pages


def read_page(file: str, name: str | None, say: Callable[[str], None], follow_links: bool = False) -> Page:
    """Return the only page of a file, or the one of this name."""
    pages = read_pages(file, name, say, follow_links)
    if len(pages) > 1:
        raise UsageError(f"{file} has several pages; choose one with --page: {', '.join(p.name for p in pages)}")
    return pages[0]


def _no_such_page(file: str, name: str, pages: list[Page]) -> list[Page]:
    names = [p.name for p in pages]
    near = nearest(name, names)
    hint = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(names) or 'none'}"
    raise PageError(file, f"no page named {name!r}; {hint}")


def read_bytes(file: str) -> bytes:
    """Read a regular file; raise OSError if that is not possible."""
    try:
        with open_plain(file) as opened:
            return opened.read()
    except FileNotFoundError as error:
        raise no_such_file(file, str(error.strerror)) from None


def is_enuspace(raw: bytes) -> bool:
    """Return whether a file is of enuSpace-TensorFlow: SVG, UTF-16, or JSON with `object` and without `format`."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:2]:
        return True
    text = raw.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith(b"{") or b'"format"' in text[:_HEAD]:
        return text.startswith(b"<")
    try:
        top = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return "object" in top and "format" not in top


def files_of(file: str) -> list[str]:
    """Return a page's file and those read with it: its arrays, or the `.dat` of a page of enuSpace-TensorFlow."""
    if is_enuspace(read_bytes(file)):
        return [file, str(Path(file).with_suffix(".dat"))]
    folder = folder_of(Path(os.path.realpath(file)))
    return [file, *(str(path) for path in folder.iterdir())] if folder.is_dir() else [file]


def check_writable(path: str, sources: Iterable[str | None] = ()) -> None:
    """Raise OSError, before any work, if a file cannot be written there or would overwrite one of the sources."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder", path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}", path)
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"no permission to write in {target.parent}", path)
    check_replaceable(target)
    for source in filter(None, sources):
        if os.path.realpath(source) == str(target) or (target.exists() and _is_same(target, source)):
            raise FileExistsError(errno.EEXIST, f"the output would overwrite {source}, which this command uses", path)


def _is_same(target: Path, source: str) -> bool:
    try:
        return os.path.samefile(target, source)
    except OSError:
        return False


# -- errors of a page --------------------------------------------------------------------------------------------------


def scope_of(page: Page, names: Iterable[str], say: Callable[[str], None]) -> Scope:
    """Return the page's scope; raise if a block that must run has an error, and only report errors of other blocks.

    The blocks or pins `names` must run, or every session if `names` is empty.
    """
    checked = check(page)
    requested = list(names)
    wanted = [b.id for b in page.blocks if any(n == b.id or n.startswith(f"{b.id}.") for n in requested)]
    if not requested:
        wanted = [b.id for b in page.blocks if b.wires and (op := find_op(b.op)) and op.name == "ClientSession"]
        if not wanted and checked.errors:
            wanted = list(checked.errors)
        wanted = [name for name in wanted if name not in checked.foreign] or wanted
    fault = checked.first_fault(wanted)
    if fault is not None:
        raise fault.error
    without = upstream(page, {end.block for ends in checked.partial.values() for end in ends})
    for name in checked.errors:
        why = "left out" if name in without else "skipped, because nothing that runs needs it"
        say(f"{why}: {sentence(checked.fault_of(name).error)}")
    for name, ends in checked.partial.items():
        say(f"{name} runs without {', '.join(map(str, ends))}")
    return checked.scope


# -- fetches -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Fetches:
    """Values, under their printed names, and operations to fetch in every step."""

    values: dict[str, Output] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    def add(self, session: ClientSession, name: str) -> None:
        """Fetch every value of a block, a pin, or an entry of a pin."""
        found = session.find(name)
        if isinstance(found, Placed):
            if name in session.graph.sessions:
                raise PageError(name, f"this is a ClientSession block; run it with --session {name}")
            for pin, value in found.pins.items():
                # The components of a sparse tensor are pins too.
                if not isinstance(value, Sparse) or len(found.pins) == 1:
                    self._add_value(f"{name}.{pin}", value)
        else:
            self._add_value(name, found)

    def _add_value(self, name: str, value: Any) -> None:
        if isinstance(value, Output):
            self.values[name] = value
        elif isinstance(value, Operation):
            self.operations.append(value)
        elif isinstance(value, Sparse):
            for part in ("indices", "values", "dense_shape"):
                self._add_value(f"{name}.{part}", getattr(value, part))
        elif isinstance(value, list):
            for k, item in enumerate(value):
                self._add_value(f"{name}[{k}]", item)
        else:
            raise make_error(
                "pin_kind", argument=name, bound="a value or an operation", value=type(value).__name__.lower()
            )


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PageRun:
    """A page with its session, what runs in a step, and the results."""

    page: Page
    session: ClientSession
    blocks: list[str] = field(default_factory=list)  # ClientSession blocks, in the page's order
    fetches: Fetches = field(default_factory=Fetches)
    feeds: Feeds = field(default_factory=Feeds)
    own_feeds: dict[Output, Array] = field(default_factory=dict)  # of feed blocks, on a page without a session
    steps: int = 1
    done: int = 0
    seconds: float = 0.0
    results: dict[str, Array] = field(default_factory=dict)
    shared: set[str] | None = None  # result names of several sessions, or of a session and --fetch

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to run."""
        return not (self.blocks or self.fetches.values or self.fetches.operations)

    def result_names(self) -> list[str]:
        """Return the names of the results."""
        fetched = [self._name(block, name) for block in self.blocks for name in self.session.block(block).names or ()]
        return [*fetched, *self.fetches.values]

    def _name(self, block: str, name: str) -> str:
        """Return the name of a session's result, prefixed with the session if another result has the same name."""
        if self.shared is None:
            by_block = [set(self.session.block(b).names or ()) for b in self.blocks]
            counts = Counter(n for names in (*by_block, self.fetches.values) for n in names)
            self.shared = {n for n, count in counts.items() if count > 1}
        return f"{block}/{name}" if name in self.shared else name

    def step(self, feeds: Mapping[Any, Any]) -> None:
        """Run every session once, then the fetches; after an error the state is that before the step."""
        step = PageStep(self.session, self.blocks, self.fetches.values, self.fetches.operations, self.own_feeds)
        result = step.run(feeds)
        found = {
            self._name(block, n): value for block, values in result.sessions.items() for n, value in values.items()
        }
        self.results = found | result.fetched

    def loop(self, rate: float | None, progress: Callable[[Tick], None]) -> Loop:
        """Return a loop over the steps."""
        return Loop(self.step, self.steps, rate, self.feeds.by_step(self.steps), progress)

    def run(self, loop: Loop) -> None:
        """Run the steps and measure the time."""
        began = time.perf_counter()
        try:
            loop.run()
        finally:
            self.done, self.seconds = loop.done, time.perf_counter() - began


def open_runs(options: argparse.Namespace, pages: list[Page], say: Callable[[str], None]) -> list[PageRun]:
    """Return a run for each page, with the requested sessions, fetches and feeds that the page has."""
    engine = _engine(options.engine)
    names = [*options.session, *options.fetch]
    memory = None if options.memory is None else options.memory << 20
    runs = [PageRun(page, ClientSession(scope_of(page, names, say), engine, memory=memory)) for page in pages]
    for name in options.session:
        _apply_to_pages(name, runs, lambda run, name: run.blocks.append(run.session.block(name).name))
    for name in options.fetch:
        _apply_to_pages(name, runs, lambda run, name: run.fetches.add(run.session, name))
    if not options.session and not options.fetch:
        for run in runs:
            run.blocks = [b.id for b in run.page.blocks if b.id in run.session.graph.sessions]
            if not run.blocks:
                _fetch_leaves(run, options.change_variables)
    else:
        for run in runs:
            wanted = set(run.blocks)
            run.blocks = [b.id for b in run.page.blocks if b.id in wanted]
    _feed(options, runs)
    return runs


def _fetch_leaves(run: PageRun, change: bool) -> None:
    """Fetch what nothing on a page without a ClientSession consumes; raise if that changes Variables unasked."""
    graph = run.session.graph
    leaves = leaves_of(Checked(run.page, Scope(graph)))
    if not change and (variables := leaves.changed_variables(graph)):
        names = ", ".join(variables)
        raise PageError(
            run.page.name,
            f"it has no ClientSession, and running all its blocks changes {names}; allow that with --change-variables, "
            "or name values to compute with --fetch",
        )
    run.fetches = Fetches(leaves.values, leaves.operations)
    run.own_feeds = leaves.feeds


def _engine(name: str) -> Engine:
    try:
        return open_engine(name)
    except ImportError as error:  # the engine is known, but its library is not installed
        raise PageError(f"engine {name}", str(error)) from None


def _feed(options: argparse.Namespace, runs: list[PageRun]) -> None:
    constant, by_step = split_feeds("--feed", options.feed), split_feeds("--feed-batches", options.feed_batches)
    split_feeds("--feed and --feed-batches", [*options.feed, *options.feed_batches])
    lengths: dict[str, int] = {}

    def unfed(run: PageRun, name: str) -> Output:
        target = placeholder(run.session, name)
        if target in run.feeds.constant or target in run.feeds.batches:  # under another name: x, x.output
            raise UsageError(f"--feed and --feed-batches: {target.node.name} is fed twice")
        return target

    def one(run: PageRun, name: str) -> None:
        target = unfed(run, name)
        run.feeds.constant[target] = constant_value(target, constant[name])

    def many(run: PageRun, name: str) -> None:
        target = unfed(run, name)
        run.feeds.batches[target] = batches(target, by_step[name])
        lengths[name] = len(run.feeds.batches[target])

    for name in constant:
        _apply_to_pages(name, runs, one)
    for name in by_step:
        _apply_to_pages(name, runs, many)
    steps = step_count(options.steps, lengths)
    for run in runs:
        run.steps = steps


def _apply_to_pages(name: str, runs: Iterable[PageRun], action: Callable[[PageRun, str], None]) -> None:
    """Call `action` for every page that has the name; if no page has it, raise the first page's error."""
    errors: list[OpError] = []
    found = False
    for run in runs:
        try:
            run.session.find(name)
        except OpError as error:
            errors.append(error)
        else:
            action(run, name)
            found = True
    if not found:
        raise errors[0]
