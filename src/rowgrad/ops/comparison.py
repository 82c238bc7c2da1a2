"""Comparisons, logic and the choice between two arrays."""

from __future__ import annotations

from typing import Any

from ..shape import same
from ..spec import EVERYTHING, REALS, Call
from .broadcasting import broadcasting, dense, summed

CATEGORY = "Comparison"

for _name, _sign, _types in (
    ("Equal", "=", EVERYTHING),
    ("NotEqual", "≠", EVERYTHING),
    ("Less", "<", REALS),
    ("LessEqual", "≤", REALS),
    ("Greater", ">", REALS),
    ("GreaterEqual", "≥", REALS),
):
    dense(
        _name,
        "x: T, y: T -> z: bool",
        types={"T": _types},
        shape=broadcasting("x", "y"),
        category=CATEGORY,
        doc=f"Whether x {_sign} y, elementwise; the arrays broadcast.",
        example=f"{_name}(np.array([1., 2., 3.]), np.array([2., 2., 2.]))",
    )
for _name, _word in (("LogicalAnd", "both x and y are"), ("LogicalOr", "x or y is")):
    dense(
        _name,
        "x: bool, y: bool -> z: bool",
        types={},
        shape=broadcasting("x", "y"),
        category=CATEGORY,
        doc=f"Whether {_word} true, elementwise; the arrays broadcast.",
        example=f"{_name}(np.array([True, True, False]), np.array([True, False, False]))",
    )
dense(
    "LogicalNot",
    "x: bool -> y: bool",
    types={},
    shape=same("x"),
    category=CATEGORY,
    doc="Whether x is false, elementwise.",
    example="LogicalNot(np.array([True, False]))",
)


def _select(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    zeros = ops["ZerosLike"](y)
    return (
        summed(ops, ops["Select"](c.condition, y, zeros), c.x) if c.wants("x") else None,
        summed(ops, ops["Select"](c.condition, zeros, y), c.y) if c.wants("y") else None,
    )


dense(
    "Select",
    "condition: bool, x: T, y: T -> output: T",
    types={"T": EVERYTHING},
    shape=broadcasting("condition", "x", "y"),
    category=CATEGORY,
    differentiable=("x", "y"),
    linear=("x", "y"),
    adjoint=_select,
    aliases=("SelectV2",),
    doc="x where `condition` is true, else y, elementwise; the arrays broadcast.",
    example="Select(np.array([True, False]), np.array([1., 2.]), np.array([3., 4.]))",
)
