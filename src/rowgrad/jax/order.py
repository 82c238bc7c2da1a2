"""The order of additions of a gradient that was requested without `order=`: that of the platform it is lowered for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._catalog.spec import Op

_DEFAULT = {"cuda": "blocked"}


def leave_open(op: Op, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes of a call, with the order None if no attribute was passed."""
    return {**attrs, "order": None} if attrs is op.attrs and "order" in attrs else attrs


def choose(attrs: Mapping[str, Any], platform: str) -> dict[str, Any]:
    """Return the attributes with the platform's order in place of None."""
    chosen = dict(attrs)
    if "order" in chosen and chosen["order"] is None:
        chosen["order"] = _DEFAULT.get(platform, "sequential")
    return chosen
