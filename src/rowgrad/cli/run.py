"""`rowgrad run`: the sessions of a page step by step, its state kept in a file, the results shown or written."""

from __future__ import annotations

import argparse
import os
import signal
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from .._runtime.arrays import Array
from ..graph.io.arrays import Writer
from ..graph.io.state_file import save_arrays
from ..graph.page import PageError
from .errors import OK, UsageError
from .pages import PageRun, check_writable, files_of, open_runs, read_pages
from .terminal import Progress, Stopping, array_text, emit, say, sentence, show


def command(chosen: argparse.Namespace) -> int:
    """Run, keep, show."""
    tell = partial(say, "run", quiet=chosen.quiet)
    pages = read_pages(chosen.file, chosen.page, tell, chosen.follow_links)
    if chosen.state is not None and len(pages) > 1:
        names = ", ".join(p.name for p in pages)
        raise UsageError(f"--state keeps one page, and there are several; choose one with --page: {names}")
    fed = [what.partition("=")[2] for what in (*chosen.feed, *chosen.feed_batches)]
    used = [*files_of(chosen.file), *fed] if chosen.state or chosen.out else []
    if chosen.state is not None:
        check_writable(chosen.state, used)
    if chosen.out is not None:
        check_writable(chosen.out, [chosen.state, *used])
    opened = open_runs(chosen, pages, tell)
    runs = [run for run in opened if not run.is_idle]
    if not runs:
        raise PageError(chosen.file, "there is no ClientSession block to run; say with --fetch what to compute")
    if not (chosen.fetch or chosen.session):
        for run in opened:
            if run.is_idle:
                tell(f"page {run.page.name}: there is no ClientSession block to run")
    if chosen.out is not None:
        _check_names(chosen.file, runs)
    with Stopping() as stopping:
        if chosen.state is not None and os.path.exists(chosen.state):
            with warnings.catch_warnings(record=True) as remarks:
                warnings.simplefilter("always")
                runs[0].session.restore(chosen.state, other_page=chosen.other_page)
            for remark in remarks:
                tell(f"warning: {remark.message}")
            tell(f"state restored from {chosen.state}")
        try:
            _work(chosen, runs, stopping)
        except Exception:
            _save_what_was_done(chosen.state, runs[0], tell)
            raise
        if chosen.state is not None:
            runs[0].session.save(chosen.state)
        if chosen.out is not None:
            save_arrays(chosen.out, {name: value for run in runs for name, value in _named(run, runs).items()})
    _show(chosen, runs, stopping.number)
    if stopping.number is None:
        return OK
    done, total = (sum(getattr(run, n) for run in runs) for n in ("done", "steps"))
    kept = f"; state saved in {chosen.state}" if chosen.state is not None else ""
    tell(f"{_word(stopping.number)} after {done} of {total} steps{kept}")
    return 128 + stopping.number


def _work(chosen: argparse.Namespace, runs: list[PageRun], stopping: Stopping) -> None:
    progress = Progress(sum(run.steps for run in runs), not (chosen.quiet or chosen.json))
    try:
        for run in runs:
            run.run(stopping.watch(run.loop(chosen.rate, progress.step)))
    finally:
        progress.clear()


def _save_what_was_done(path: str | None, run: PageRun, tell: Callable[[str], None]) -> None:
    """A step that fails costs that step alone."""
    if path is None or run.done == 0:
        return
    try:
        run.session.save(path)
    except Exception as error:  # the failed step is what the command ends with
        tell(f"the state after {run.done} of {run.steps} steps could not be saved: {sentence(error)}")
    else:
        tell(f"the state after {run.done} of {run.steps} steps is saved in {path}")


def _check_names(file: str, runs: list[PageRun]) -> None:
    """Raise if results of two pages have the same name in the output file: page `a/b` may have what `a` calls `b/…`."""
    seen: dict[str, PageRun] = {}
    for run in runs:
        for name in run.result_names():
            full = _full_name(run, name, runs)
            if seen.setdefault(full, run) is not run:
                raise PageError(file, f"results of two pages are called {full}; choose one page with --page")


def _named(run: PageRun, runs: list[PageRun]) -> dict[str, Array]:
    """Results as they are printed."""
    return {_full_name(run, name, runs): value for name, value in run.results.items()}


def _full_name(run: PageRun, name: str, runs: list[PageRun]) -> str:
    """With the page's name before it where there are several."""
    return f"{run.page.name}/{name}" if len(runs) > 1 else name


def _show(chosen: argparse.Namespace, runs: list[PageRun], number: int | None) -> None:
    if chosen.json:
        found = [_document(run) for run in runs]
        document = found[0] if len(found) == 1 else {"pages": found}
        emit(document | ({} if number is None else {"interrupted": signal.Signals(number).name}))
        return
    for run in runs:
        for name, value in _named(run, runs).items():
            show(array_text(name, value))
        if run.steps > 1:
            page = f"{run.page.name}: " if len(runs) > 1 else ""
            show(f"{page}{run.done} steps in {run.seconds:.3g} s")


def _document(run: PageRun) -> dict[str, Any]:
    writer = Writer(apart=False)
    results = {name: writer.encode(value, name) for name, value in run.results.items()}
    return {"page": run.page.name, "steps": run.done, "seconds": run.seconds, "results": results}


def _word(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else "terminated"
