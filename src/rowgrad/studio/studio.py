"""A studio: one project folder, its arrays, the runs of its pages, and the windows that look at it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from .array_pool import Pool
from .events import Hub
from .project import Folder
from .runs import Runs


class Studio:
    """What verbs work on. `folder` keeps pages, `pool` arrays, `runs` sessions; `hub` tells windows what happened."""

    def __init__(self, project: str | PathLike[str]) -> None:
        root = Path(project)
        self.hub = Hub()
        self.pool = Pool(root)
        self.folder = Folder(root, self.pool)
        self.runs = Runs(self.hub, root)

    def close(self) -> None:
        """Stop runs and wake windows."""
        self.runs.close()
        self.hub.close()
