"""Two wrote the same page: the first wins, and what the second wrote becomes a page of its own."""

from __future__ import annotations

import re
from datetime import datetime

from . import names

_KEPT = re.compile(r" \(kept \d\d-\d\d-\d\d\)( \d+)?$")


def kept_name(name: str, when: datetime) -> str:
    """`net (kept 12-03-09)`; a page that was kept already is not marked twice."""
    mark = f" (kept {when:%H-%M-%S})"
    return names.fitted(_KEPT.sub("", name), len(mark)) + mark
