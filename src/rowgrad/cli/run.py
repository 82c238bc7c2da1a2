"""`rowgrad run`: run the sessions of a page step by step, save its state, print or write the results."""

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
from .terminal import Progress, SignalWatch, array_text, emit, say, sentence, show


def command(options: argparse.Namespace) -> int:
    """Run the pages, save state and results, print the results."""
    remark = partial(say, "run", quiet=options.quiet)
    pages = read_pages(options.file, options.page, remark, options.follow_links)
    if options.state is not None and len(pages) > 1:
        names = ", ".join(p.name for p in pages)
        raise UsageError(f"--state takes one page, but the file has several; choose one with --page: {names}")
    feed_files = [what.partition("=")[2] for what in (*options.feed, *options.feed_batches)]
    inputs = [*files_of(options.file), *feed_files] if options.state or options.out else []
    if options.state is not None:
        check_writable(options.state, inputs)
    if options.out is not None:
        check_writable(options.out, [options.state, *inputs])
    all_runs = open_runs(options, pages, remark)
    runs = [run for run in all_runs if not run.is_idle]
    if not runs:
        raise PageError(options.file, "no block of it has a value to compute")
    if not (options.fetch or options.session):
        for run in all_runs:
            if run.is_idle:
                remark(f"page {run.page.name}: no block to run")
    if options.out is not None:
        _check_names(options.file, runs)
    with SignalWatch() as signals:
        if options.state is not None and os.path.exists(options.state):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                runs[0].session.restore(options.state, other_page=options.other_page)
            for warning in caught:
                remark(f"warning: {warning.message}")
            remark(f"state restored from {options.state}")
        try:
            _run_all(options, runs, signals)
        except Exception:
            _save_finished_steps(options.state, runs[0], remark)
            raise
        if options.state is not None:
            runs[0].session.save(options.state)
        if options.out is not None:
            save_arrays(
                options.out, {name: value for run in runs for name, value in _results_by_name(run, runs).items()}
            )
    _show(options, runs, signals.number)
    if signals.number is None:
        return OK
    done, total = (sum(getattr(run, n) for run in runs) for n in ("done", "steps"))
    saved = f"; state saved in {options.state}" if options.state is not None else ""
    remark(f"{_signal_text(signals.number)} after {done} of {total} steps{saved}")
    return 128 + signals.number


def _run_all(options: argparse.Namespace, runs: list[PageRun], signals: SignalWatch) -> None:
    progress = Progress(sum(run.steps for run in runs), not (options.quiet or options.json))
    try:
        for run in runs:
            run.run(signals.watch(run.loop(options.rate, progress.step)))
    finally:
        progress.clear()


def _save_finished_steps(path: str | None, run: PageRun, remark: Callable[[str], None]) -> None:
    """Save the state of the steps before the one that failed."""
    if path is None or run.done == 0:
        return
    try:
        run.session.save(path)
    except Exception as error:  # the command reports the failed step
        remark(f"the state after {run.done} of {run.steps} steps could not be saved: {sentence(error)}")
    else:
        remark(f"the state after {run.done} of {run.steps} steps is saved in {path}")


def _check_names(file: str, runs: list[PageRun]) -> None:
    """Raise if two pages have results of the same name: `x` of page `a/b` and `b/x` of page `a`."""
    owners: dict[str, PageRun] = {}
    for run in runs:
        for name in run.result_names():
            full = _full_name(run, name, runs)
            if owners.setdefault(full, run) is not run:
                raise PageError(file, f"two pages have results named {full}; choose one page with --page")


def _results_by_name(run: PageRun, runs: list[PageRun]) -> dict[str, Array]:
    """Return the results under their printed names."""
    return {_full_name(run, name, runs): value for name, value in run.results.items()}


def _full_name(run: PageRun, name: str, runs: list[PageRun]) -> str:
    """Return the name, prefixed with the page's name if there are several pages."""
    return f"{run.page.name}/{name}" if len(runs) > 1 else name


def _show(options: argparse.Namespace, runs: list[PageRun], number: int | None) -> None:
    if options.json:
        found = [_document(run) for run in runs]
        document = found[0] if len(found) == 1 else {"pages": found}
        emit(document | ({} if number is None else {"interrupted": signal.Signals(number).name}))
        return
    for run in runs:
        for name, value in _results_by_name(run, runs).items():
            show(array_text(name, value))
        if run.steps > 1:
            page = f"{run.page.name}: " if len(runs) > 1 else ""
            show(f"{page}{run.done} steps in {run.seconds:.3g} s")


def _document(run: PageRun) -> dict[str, Any]:
    writer = Writer(apart=False)
    results = {name: writer.encode(value, name) for name, value in run.results.items()}
    return {"page": run.page.name, "steps": run.done, "seconds": run.seconds, "results": results}


def _signal_text(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else "terminated"
