"""Optimizers' rules as data: the state each keeps beside a table, and the numbers of one step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import make_error

_MOST = 2**63 - 1
_NUMBERS = ("lr", "eps", "weight_decay", "betas", "betas", "rate")  # as `Step.numbers` returns them
# From which doubles on rounding gives infinity, and 1.
_ROUNDED_AWAY = {"float32": (2.0**128 - 2.0**103, 1 - 2.0**-25), "float64": (math.inf, 1.0)}


class Slot(NamedTuple):
    """State a rule keeps beside a table: a number for every weight, or one for every row."""

    name: str
    per_row: bool = False


class Rule(NamedTuple):
    """What an optimizer does to a row: its number among the kernels' rules, its slots, its usual numbers."""

    number: int
    slots: tuple[Slot, ...]
    defaults: Mapping[str, Any]


RULES: dict[str, Rule] = {
    "sgd": Rule(0, (), {"lr": 1e-3, "weight_decay": 0.0}),
    "adagrad": Rule(1, (Slot("sum"),), {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0}),
    "row_wise_adagrad": Rule(2, (Slot("sum", per_row=True),), {"lr": 1e-2, "eps": 1e-8, "weight_decay": 0.0}),
    "adam": Rule(
        3, (Slot("exp_avg"), Slot("exp_avg_sq")), {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    ),
    "adamw": Rule(
        4, (Slot("exp_avg"), Slot("exp_avg_sq")), {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
    ),
}


@dataclass(frozen=True, slots=True)
class Step:
    """The numbers of one step. A rule looks at those it has; `docs/optimizers.md` says what each is.

    `rate` is Adam's learning rate with its bias corrected; without one it follows from `lr`, `betas` and `step`. `step`
    counts from 1. `seed` and `step` decide the chance of stochastic rounding.
    """

    lr: float
    eps: float = 1e-8
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    rate: float | None = None
    lazy: bool = True
    stochastic_rounding: bool = False
    seed: int = 0
    step: int = 1

    def __post_init__(self) -> None:
        check_number("lr", self.lr)
        check_number("eps", self.eps, least=0.0)
        check_number("weight_decay", self.weight_decay, least=0.0)
        check_betas(self.betas)
        if self.rate is not None:
            check_number("rate", self.rate)
        for name, value in (("lazy", self.lazy), ("stochastic_rounding", self.stochastic_rounding)):
            if not isinstance(value, bool):
                raise make_error("number_unfit", argument=name, value=repr(value), bound="True or False")
        check_count("seed", self.seed)
        check_count("step", self.step, least=1)

    def corrected(self) -> float:
        """`rate`, or lr·√(1 − β₂ᵗ) / (1 − β₁ᵗ), in double precision."""
        if self.rate is not None:
            return float(self.rate)
        b1, b2 = self.betas
        return float(self.lr) * math.sqrt(1.0 - b2**self.step) / (1.0 - b1**self.step)

    def numbers(self) -> list[float]:
        """What kernels read, in their order."""
        return [float(self.lr), float(self.eps), float(self.weight_decay), *self.betas, self.corrected()]


def check_number(name: str, value: Any, least: float = -math.inf) -> None:
    """A finite number, not below `least`."""
    try:
        good = math.isfinite(value) and value >= least
    except (TypeError, ValueError, OverflowError):  # no number, or an integer no float reaches
        good = False
    if not good:
        raise make_error("number_unfit", argument=name, value=repr(value), bound=_range_text(least))


def check_betas(betas: Any) -> None:
    """Two numbers in [0, 1)."""
    good = isinstance(betas, tuple | list) and len(betas) == 2
    if not good or not all(isinstance(b, int | float) and 0.0 <= b < 1.0 for b in betas):
        raise make_error("number_unfit", argument="betas", value=repr(betas), bound="two numbers in [0, 1)")


def check_count(name: str, value: Any, least: int = 0) -> None:
    """An int from `least` to what an int64 holds."""
    good = isinstance(value, int) and not isinstance(value, bool)
    if not good or not least <= value <= _MOST:
        raise make_error("number_unfit", argument=name, value=repr(value), bound=f"an int from {least} to 2⁶³ − 1")


def check_range(rule: str, numbers: Sequence[float], dtype: str) -> None:
    """The numbers of a step that a rule reads stay finite, and betas below 1, in the type it computes in."""
    used = rule_named(rule).defaults
    most, one = _ROUNDED_AWAY[dtype]
    for name, value in zip(_NUMBERS, numbers, strict=True):
        if name == "betas" and value >= one and name in used:
            raise make_error("number_unfit", argument=name, value=repr(value), bound=f"below 1 in {dtype}")
        if not abs(value) < most and (name in used or (name == "rate" and "betas" in used)):
            raise make_error("number_unfit", argument=name, value=repr(value), bound=f"a number that fits {dtype}")


def _range_text(least: float) -> str:
    return "a finite number" if least == -math.inf else f"a finite number of at least {least:g}"


# -- state ------------------------------------------------------------------------------------------------------------


def rule_named(name: str) -> Rule:
    """A rule of the table."""
    if not isinstance(name, str) or name not in RULES:
        raise make_error("attr_not_allowed", argument="rule", value=repr(name), bound=", ".join(map(repr, RULES)))
    return RULES[name]


def slot_dtype(table_dtype: str) -> str:
    """Slots are held in the type arithmetic is done in."""
    return "float64" if table_dtype == "float64" else "float32"


def slot_shapes(rule: str, table_shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The shape of every slot of a table."""
    return tuple((table_shape[0],) if slot.per_row else tuple(map(int, table_shape)) for slot in rule_named(rule).slots)
