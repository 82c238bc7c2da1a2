"""Comparisons, logic and the choice between two arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Equal": lambda xp, x, y: x == y,
    "NotEqual": lambda xp, x, y: x != y,
    "Less": lambda xp, x, y: x < y,
    "LessEqual": lambda xp, x, y: x <= y,
    "Greater": lambda xp, x, y: x > y,
    "GreaterEqual": lambda xp, x, y: x >= y,
    "LogicalAnd": lambda xp, x, y: x & y,
    "LogicalOr": lambda xp, x, y: x | y,
    "LogicalNot": lambda xp, x: ~x,
    "Select": lambda xp, condition, x, y: xp.where(condition, x, y),
}
