"""The runs of a project's pages: one each, side by side, none of which waits for another."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError
from ..graph.page import Page
from ..graph.session import ClientSession
from .hub import Hub
from .page_run import SAVES_WITHIN, PageRun
from .snapshots import Snapshots
from .trends import Watched


class Runs:
    """Every page's run by the page's name. `folder` is the project's: snapshots are kept there."""

    def __init__(self, hub: Hub, folder: str | PathLike[str] | None = None) -> None:
        self._hub = hub
        self._pages: dict[str, PageRun] = {}
        self._lock = threading.Lock()
        self.kept = Snapshots(None if folder is None else Path(folder))

    def of(self, name: str) -> PageRun:
        """The run of a page; one that was never run is idle."""
        with self._lock:
            if name not in self._pages:
                self._pages[name] = PageRun(name, self._hub.tell)
            return self._pages[name]

    def state(self, name: str) -> dict[str, Any]:
        """RunState of a page."""
        return self.of(name).state()

    def start(
        self,
        name: str,
        page: Page,
        revision: str,
        sessions: Sequence[str] = (),
        mode: str = "once",
        steps: int | None = None,
        rate: float | None = None,
        engine: str = "numpy",
    ) -> dict[str, Any]:
        """Run a page as it was saved, on from where its Variables are."""
        self.of(name).start(page, revision, sessions, mode, steps, rate, engine)
        return self.state(name)

    def pause(self, name: str) -> dict[str, Any]:
        """Stop after the step in progress; `resume` goes on."""
        self.of(name).pause()
        return self.state(name)

    def resume(self, name: str) -> dict[str, Any]:
        """Go on after a pause."""
        self.of(name).resume()
        return self.state(name)

    def step(self, name: str, steps: int = 1) -> dict[str, Any]:
        """So many steps more, then pause."""
        self.of(name).step(steps)
        return self.state(name)

    def stop(self, name: str) -> dict[str, Any]:
        """End; results stay to be looked at."""
        self.of(name).stop()
        return self.state(name)

    def reset(self, name: str) -> dict[str, Any]:
        """Variables begin anew, results are forgotten."""
        self.of(name).reset()
        return self.state(name)

    def edited(self, name: str, page: Page, revision: str, recipes: Mapping[str, str] | None = None) -> None:
        """A page was saved. `recipes` spare judging it once more."""
        if name in self._pages:
            self.of(name).edited(page, revision, recipes)

    def session_of(self, name: str) -> ClientSession | None:
        """The session last used, to look at."""
        found = self._pages.get(name)
        return None if found is None or found.opened is None else found.opened.session

    # -- what is kept --------------------------------------------------------------------------------------------------

    def snapshot(self, name: str, label: str = "") -> list[dict[str, Any]]:
        """Keep Variables and counters as they are between two steps."""
        run = self.of(name)
        opened = run.opened
        if opened is None:
            message = f"name: page {name!r} has not been run: there is nothing to keep"
            raise InvalidArgumentError(message, argument="name")
        with opened.gate.between(SAVES_WITHIN):
            self.kept.take(name, opened.session, label, run.run)
        return self.kept.all(name)

    def snapshots(self, name: str) -> list[dict[str, Any]]:
        """What was kept of a page, the oldest first."""
        return self.kept.all(name)

    def restore(self, name: str, snapshot: str, page: Page, revision: str) -> dict[str, Any]:
        """Go back to what was kept."""
        told, path = self.kept.find(name, snapshot)
        self.of(name).restore(page, revision, path, told["run"], snapshot)
        return self.state(name)

    # -- numbers over time ---------------------------------------------------------------------------------------------

    def watch(self, name: str, watched: list[Watched] | None) -> list[dict[str, Any]]:
        """Record these after every step; None: every number that a session fetches."""
        return self.of(name).watch(watched)

    def trend(self, name: str, since: int = 0) -> dict[str, Any]:
        """The points after a run."""
        run = self.of(name)
        return {"series": run.trends.points(since), "run": run.run, "chosen": run.trends.is_chosen}

    # -- pages come and go ---------------------------------------------------------------------------------------------

    def forget(self, name: str) -> None:
        """A page is gone."""
        with self._lock:
            found = self._pages.pop(name, None)
        if found is not None:
            found.close()

    def renamed(self, old: str, new: str) -> None:
        """A page has another name; its run goes on."""
        with self._lock:
            found, gone = self._pages.pop(old, None), self._pages.pop(new, None)
            if found is not None:
                found.name = new
                self._pages[new] = found
        if gone is not None:  # the run of a page that another program has taken away
            gone.close()
        self.kept.renamed(old, new)

    def close(self) -> None:
        """End all runs."""
        for name in list(self._pages):
            self.forget(name)
        self.kept.close()
