"""The studio: one project folder, its arrays, the runs of its pages, and the windows connected to it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from .array_pool import Pool
from .events import Hub
from .project import Folder
from .runs import Runs


class Studio:
    """The object that verbs work on: `folder` has pages, `pool` arrays, `runs` sessions, `hub` windows."""

    def __init__(self, project: str | PathLike[str]) -> None:
        root = Path(project)
        self.hub = Hub()
        self.pool = Pool(root)
        self.folder = Folder(root, self.pool)
        self.runs = Runs(self.hub, root)

    def close(self) -> None:
        """Stop all runs, and close the streams of windows."""
        self.runs.close()
        self.hub.close()
