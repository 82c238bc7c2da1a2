"""Pages on the command line: read files, feeds and fetches, and run them."""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from .._catalog.spec import find_op
from .._runtime.arrays import NUMPY_DTYPE, Array
from .._runtime.plain_file import open_plain
from ..errors import OpError, make_error
from ..graph.engine import Engine, open_engine
from ..graph.enuspace import read_enuspace
from ..graph.io import load
from ..graph.io.arrays import npy_header
from ..graph.io.files import check_replaceable
from ..graph.io.store import folder_of
from ..graph.literal import parse_literal
from ..graph.loop import Loop, Tick
from ..graph.nodes import Operation, Output, Placed, Scope, Sparse
from ..graph.ordering import ends_of
from ..graph.page import Page, PageError, Project
from ..graph.page_builder import Checked, check
from ..graph.session import ClientSession
from .errors import UsageError
from .terminal import sentence

# -- Files that hold pages --------------------------------------------------------------------------------------------

# Files that hold pages: rowgrad's own, and those of the old tool, told apart by what is in them.

_HEAD = 400  # bytes in which a page that rowgrad wrote says what it is


def read_pages(file: str, name: str | None, say: Callable[[str], None], follow_links: bool = False) -> list[Page]:
    """The pages of a file, or the one of this name. Remarks on a file of the old tool are said."""
    if is_old(plain_bytes(file)):
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
        raise PageError(file, "there is no page in this project")
    return pages


def read_page(file: str, name: str | None, say: Callable[[str], None], follow_links: bool = False) -> Page:
    """The only page of a file, or the one of this name."""
    pages = read_pages(file, name, say, follow_links)
    if len(pages) > 1:
        raise UsageError(f"{file} has several pages; choose one with --page: {', '.join(p.name for p in pages)}")
    return pages[0]


def _no_such_page(file: str, name: str, pages: list[Page]) -> list[Page]:
    names = [p.name for p in pages]
    near = get_close_matches(name, names, 1)
    meant = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names) or 'none'}"
    raise PageError(file, f"there is no page {name!r}; {meant}")


def plain_bytes(file: str) -> bytes:
    """The bytes of a file; OSError where it is none that can be read."""
    with open_plain(file) as opened:
        return opened.read()


def is_old(raw: bytes) -> bool:
    """Whether this is a file of the old tool: SVG, UTF-16, or JSON about `object` without our `format`."""
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
    """A page's file and the files that are read with it: its arrays, or the `.dat` of a page of the old tool."""
    if is_old(plain_bytes(file)):
        return [file, str(Path(file).with_suffix(".dat"))]
    folder = folder_of(Path(os.path.realpath(file)))
    return [file, *(str(path) for path in folder.iterdir())] if folder.is_dir() else [file]


def check_writable(path: str, sources: Iterable[str | None] = ()) -> None:
    """Raise OSError, before the work, if a file cannot be written there or would overwrite one of the sources."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder", path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}", path)
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"nothing can be written in {target.parent}", path)
    check_replaceable(target)
    for source in filter(None, sources):
        if os.path.realpath(source) == str(target) or (target.exists() and _is_same(target, source)):
            raise FileExistsError(errno.EEXIST, f"the output would overwrite {source}, which this command uses", path)


def _is_same(target: Path, source: str) -> bool:
    try:
        return os.path.samefile(target, source)
    except OSError:
        return False


# -- What holds of a page ---------------------------------------------------------------------------------------------

# What holds of a page: a fault ends a run only where the run needs the block; others are told and left out.


def scope_of(page: Page, names: Iterable[str], tell: Callable[[str], None]) -> Scope:
    """The page's scope, or the fault in what is to run: the blocks or pins `names`, without any every session."""
    checked = check(page)
    asked = list(names)
    wanted = [b.id for b in page.blocks if any(n == b.id or n.startswith(f"{b.id}.") for n in asked)]
    if not asked:
        wanted = [b.id for b in page.blocks if b.wires and (op := find_op(b.op)) and op.name == "ClientSession"]
        if not wanted and checked.errors:
            wanted = list(checked.errors)
    for name in wanted:
        error = _fault(checked, name)
        if error is not None:
            raise error
    for name in checked.errors:
        tell(f"left out, as nothing that runs needs it: {sentence(_named(checked, name))}")
    return checked.scope


def _fault(checked: Checked, name: str) -> OpError | None:
    """What is wrong with a block, or with the first it needs that something is wrong with."""
    blocks = {b.id: b for b in checked.page.blocks}
    seen, waiting = set(), [name]
    while waiting:
        found = waiting.pop(0)
        if found in checked.errors:
            return _named(checked, found)
        if found in blocks and found not in seen:
            seen.add(found)
            waiting += [e.block for e in ends_of(blocks[found])]
    return None


def _named(checked: Checked, name: str) -> OpError:
    error = checked.errors[name]
    error.name = error.name or name
    return error


# -- Values for placeholders from the command line --------------------------------------------------------------------

# Values for placeholders from the command line: files, typed values, a batch per step.

_TYPED = tuple("0123456789+-{\"'")  # how a value begins that is typed, not in a file


@dataclass(slots=True)
class Feeds:
    """What one page is fed: the same in every step, and by step."""

    steady: dict[Output, Array] = field(default_factory=dict)
    batches: dict[Output, Batches] = field(default_factory=dict)

    def by_step(self, steps: int) -> Iterator[dict[Output, Array]]:
        """All values of each step."""
        for k in range(steps):
            yield self.steady | {target: values[k] for target, values in self.batches.items()}


def split_feeds(option: str, given: Sequence[str]) -> dict[str, str]:
    """`name=what` by name, each once."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, what = text.partition("=")
        if not (name and equals and what):
            raise UsageError(f"{option} {text}: write name=FILE.npy")
        if name in found:
            raise UsageError(f"{option}: {name} is fed twice")
        found[name] = what
    return found


def placeholder(session: ClientSession, name: str) -> Output:
    """The placeholder of a name."""
    found = session.find(name)
    found = found.only if isinstance(found, Placed) and len(found.pins) == 1 else found
    if not isinstance(found, Output) or found.node.op.name != "Placeholder":
        raise make_error("fed_not_a_placeholder", argument="feeds", value=name)
    return found


def steady_value(target: Output, text: str) -> Array:
    """The value in a file, or the one that is typed."""
    if not Path(text).exists() and text.startswith(_TYPED):
        try:
            return parse_literal(text, target.dtype)
        except PageError as error:
            raise PageError(target.node.name, str(error)) from None
    return Batches(target, text).all()


def batches(target: Output, text: str) -> Batches:
    """The value of every step, along the first axis."""
    found = Batches(target, text)
    if not found.shape or not len(found):
        raise PageError(text, f"there is no batch for {target.node.name} in shape {list(found.shape)}")
    return found


class Batches:
    """An array in a .npy file, read a batch at a time: it may be larger than memory.

    It is read and not mapped: a file that shrinks under a map ends the process.
    """

    def __init__(self, target: Output, file: str) -> None:
        self._file = open_plain(file)
        self._name = file
        try:
            self.shape, self._fortran, self._dtype = npy_header(self._file)
        except ValueError as error:
            raise self._not_read(str(error)) from None
        if self._dtype.hasobject:
            raise self._not_read("it holds Python objects")
        self._begin, self._stamp = self._file.tell(), self._look()
        size, there = math.prod(self.shape) * self._dtype.itemsize, self._stamp[0] - self._begin
        if size > there:
            raise self._not_read(f"its header promises {size} bytes, but the file has {there}")
        if self._dtype.kind == "V" and target.dtype == "bfloat16" and self._dtype.itemsize == 2:
            self._dtype = NUMPY_DTYPE["bfloat16"]  # .npy files have no name for it
        self._whole: Array | None = self.all() if self._fortran and len(self.shape) > 1 else None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, step: int) -> Array:
        if self._whole is not None:
            return np.asarray(self._whole[step])
        return self._read(step * math.prod(self.shape[1:]), self.shape[1:])

    def all(self) -> Array:
        """The whole array."""
        found = self._read(0, self.shape[::-1] if self._fortran else self.shape)
        return found.T if self._fortran else found

    def _look(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def _read(self, first: int, shape: tuple[int, ...]) -> Array:
        try:
            found = np.empty(shape, self._dtype)
        except (ValueError, OverflowError) as error:
            raise self._not_read(f"no array has its shape: {error}") from None
        octets = found.reshape(-1).view(np.uint8)
        self._file.seek(self._begin + first * self._dtype.itemsize)
        count = self._file.readinto(octets.data) if octets.size else 0
        if count != octets.size or self._look() != self._stamp:
            raise PageError(self._name, "the file was changed while it was read")
        return found

    def _not_read(self, why: str) -> PageError:
        return PageError(self._name, f"this is no .npy file of numbers or strings: {why}")


def step_count(asked: int | None, lengths: dict[str, int]) -> int:
    """How many steps: as many as were asked for, or as there are batches."""
    if not lengths:
        return asked or 1
    name, length = min(lengths.items(), key=lambda item: item[1])
    longest = max(lengths, key=lambda n: lengths[n])
    if lengths[longest] != length:
        raise UsageError(f"--feed-batches: {name} has {length} batches, {longest} has {lengths[longest]}")
    if asked is not None and asked > length:
        raise UsageError(f"--steps {asked}: {name} has {length} batches only")
    return asked or length


# -- Names on the command line into what a session runs ---------------------------------------------------------------

# Names on the command line into what a session runs: values under the names they are printed with, and operations.


@dataclass(slots=True)
class Fetches:
    """What is fetched in every step."""

    values: dict[str, Output] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    def add(self, session: ClientSession, name: str) -> None:
        """Fetch what a name means: every value of a block, a pin, or an entry of it."""
        found = session.find(name)
        if isinstance(found, Placed):
            if name in session.graph.sessions:
                raise PageError(name, f"this is a ClientSession block; run it with --session {name}")
            for pin, value in found.pins.items():
                # The parts of a sparse tensor have pins of their own.
                if not isinstance(value, Sparse) or len(found.pins) == 1:
                    self._take(f"{name}.{pin}", value)
        else:
            self._take(name, found)

    def _take(self, name: str, value: Any) -> None:
        if isinstance(value, Output):
            self.values[name] = value
        elif isinstance(value, Operation):
            self.operations.append(value)
        elif isinstance(value, Sparse):
            for part in ("indices", "values", "dense_shape"):
                self._take(f"{name}.{part}", getattr(value, part))
        elif isinstance(value, list):
            for k, item in enumerate(value):
                self._take(f"{name}[{k}]", item)
        else:
            raise make_error(
                "pin_kind", argument=name, bound="a value or an operation", value=type(value).__name__.lower()
            )


# -- One page as the command line asks for it -------------------------------------------------------------------------

# One page as the command line asks for it: its session, what is run in a step, and what came out.


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
