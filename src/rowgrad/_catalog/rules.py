"""Records of the optimizer rules. Kernels, runners, the torch classes, the JAX factories and the docs read them.

A new rule is a record here, its arithmetic in `cpp/kernels/update_rows.cpp`, in `cuda/source/update_rules.cuh` and in
`jax/update_rules.py`; `tests/test_completeness.py` names what is missing. CONTRIBUTING.md has the recipe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import pack, unpack
from typing import Any, Literal, NamedTuple

from .._hints import unknown_option
from ..errors import OpError, make_error

_INT64_MAX = 2**63 - 1
# The numbers of a step in the order in which kernels read them, each with the hyperparameter it comes from.
NUMBERS = {
    "lr": "lr",
    "eps": "eps",
    "weight_decay": "weight_decay",
    "beta1": "betas",
    "beta2": "betas",
    "rate": "betas",  # Adam's learning rate with its bias corrected
    "momentum": "momentum",
    "nesterov": "nesterov",
    "lr_power": "lr_power",
    "l1": "l1",
    "l2": "l2",
    "l2_shrinkage": "l2_shrinkage",
}
# The smallest doubles that a dtype rounds to infinity, and to 1.
_ROUNDING_LIMITS = {"float32": (2.0**128 - 2.0**103, 1 - 2.0**-25), "float64": (math.inf, 1.0)}


class Slot(NamedTuple):
    """State of a rule for a table: one number per weight, or one per row."""

    name: str
    per_row: bool = False
    zeros: bool = False  # always starts as zeros


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """An optimizer rule.

    Args:
        name: The name that functions take, and the C++ enumerator.
        class_name: The name of the torch class and of the CUDA struct.
        number: Its position in `RULES`, which kernels read.
        slots: The state of a table.
        defaults: Its hyperparameters, in the order of signatures, with the defaults of the torch class.
        state_defaults: Options of the initial state, with defaults.
        decay: Whether weight_decay is added to the gradient ("coupled"), applied separately ("decoupled"), or absent.
        fades: Whether `lazy=False` is supported: moments of rows without a gradient decay and still move the weights.
        positive: Hyperparameters that must be above 0.
        needs_weights: Whether the step depends on the weights even without decay.
        formula: The step, shown in docs/reference/optimizers.md.
        doc: The first line of the torch class's and the JAX factory's docstring.
    """

    name: str
    class_name: str
    number: int
    slots: tuple[Slot, ...]
    defaults: Mapping[str, Any]
    formula: str
    doc: str
    decay: Literal["coupled", "decoupled", "none"] = "coupled"
    fades: bool = False
    positive: tuple[str, ...] = ()
    needs_weights: bool = False
    state_defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def per_row(self) -> bool:
        """Whether its slot has one number per row, so that the step of a weight depends on its whole row."""
        return any(slot.per_row for slot in self.slots)

    @property
    def torch_options(self) -> dict[str, Any]:
        """The options of the torch class and their defaults, in the order of its signature."""
        lazy = {"lazy": True} if self.fades else {}
        return {**self.defaults, **self.state_defaults, **lazy, "stochastic_rounding": False, "seed": 0, **_OF_TORCH}

    def annotation(self, option: str) -> str:
        """Return the type of an option of the torch class, for signatures and stubs."""
        if option == "lr":
            return "float | Tensor"
        value = self.torch_options[option]
        if value is None:
            return "bool | None"
        return "tuple[float, float]" if isinstance(value, tuple) else type(value).__name__

    def reads(self, number: str) -> bool:
        """Return whether the rule reads a number of the step."""
        return NUMBERS[number] in self.defaults


RULES: dict[str, RuleSpec] = {}
# Options that all of torch's optimizers have.
_OF_TORCH = {"maximize": False, "capturable": False, "foreach": None, "differentiable": False, "fused": None}


def rule(name: str, class_name: str, *slots: Slot, **fields: Any) -> RuleSpec:
    """Declare a rule."""
    if name in RULES:
        raise ValueError(f"rule {name} is declared twice")
    spec = RuleSpec(name=name, class_name=class_name, number=len(RULES), slots=slots, **fields)
    unknown = [h for h in spec.defaults if h not in Step.__dataclass_fields__]
    if unknown:
        raise ValueError(f"rule {name}: Step has no hyperparameter {', '.join(unknown)}")
    RULES[name] = spec
    return spec


@dataclass(frozen=True, slots=True)
class Step:
    """The numbers of one optimizer step. Each rule reads those it needs; docs/reference/optimizers.md has the formulas.

    Args:
        lr: The learning rate.
        eps: Added to the denominator of Adagrad and Adam.
        weight_decay: The weight decay.
        betas: The decay rates of moments, in [0, 1).
        rate: Adam's bias-corrected learning rate; by default computed from `lr`, `betas` and `step`.
        momentum: The decay rate of the momentum buffer.
        nesterov: Whether to use Nesterov momentum.
        lr_power: The exponent of FTRL's accumulator, at most 0.
        l1: FTRL's L1 regularization.
        l2: FTRL's L2 regularization.
        l2_shrinkage: FTRL's L2 shrinkage.
        lazy: Whether rows without a gradient stay unchanged.
        stochastic_rounding: Whether 16-bit tables are rounded stochastically.
        seed: The seed of stochastic rounding, used together with `step`.
        step: The number of the step, from 1.

    Raises:
        OpError: If a number is out of range.

    >>> from rowgrad import optim
    >>> optim.Step(lr=0.1, step=3).lazy
    True
    """

    lr: float
    eps: float = 1e-8
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    rate: float | None = None
    momentum: float = 0.9
    nesterov: bool = False
    lr_power: float = -0.5
    l1: float = 0.0
    l2: float = 0.0
    l2_shrinkage: float = 0.0
    lazy: bool = True
    stochastic_rounding: bool = False
    seed: int = 0
    step: int = 1

    # Numbers of the step that kernels read from memory of a device: the address of the learning rate, whether it is a
    # float64, the address of the number of completed steps. 0: it is not there.
    _on_device = 0, False, 0

    def __post_init__(self) -> None:
        check_number("lr", self.lr)
        if self.rate is not None:
            check_number("rate", self.rate)
        for name in _CHECKED:
            check_hyperparameter(name, getattr(self, name))
        check_count("seed", self.seed)
        check_count("step", self.step, least=1)

    def corrected(self) -> float:
        """Return `rate`, or lr·√(1 − β₂ᵗ) / (1 − β₁ᵗ), in double precision."""
        if self.rate is not None:
            return float(self.rate)
        b1, b2 = self.betas
        return float(self.lr) * math.sqrt(1.0 - power(b2, self.step)) / (1.0 - power(b1, self.step))

    def numbers(self) -> list[float]:
        """Return the numbers that kernels read, in their order."""
        plain = [getattr(self, name) for name in _PLAIN_NUMBERS]
        return [
            float(self.lr),
            float(self.eps),
            float(self.weight_decay),
            *self.betas,
            self.corrected(),
            *map(float, plain),
        ]


@lru_cache(8)  # all tables of a step have the same
def power(base: float, exponent: int) -> float:
    """Return a power of a number in [0, 1), rounded to double; the exponent is at least 1.

    It is computed in integers, with 128 bits after the point, so that kernels on a device (source/step_numbers.cuh) get
    the same bits. The C library's `pow` differs from machine to machine.
    """
    numerator, denominator = base.as_integer_ratio()
    found = factor = (numerator << 128) // denominator
    for bit in f"{exponent:b}"[1:]:
        found = found * found >> 128
        if bit == "1":
            found = found * factor >> 128
    return found / (1 << 128)


_PLAIN_NUMBERS = list(NUMBERS)[list(NUMBERS).index("rate") + 1 :]  # those that are fields of a Step of the same name
_CHECKED = (
    "eps", "weight_decay", "betas", "momentum", "nesterov", "lr_power", "l1", "l2", "l2_shrinkage", "lazy",
    "stochastic_rounding",
)  # fmt: skip


def check_number(name: str, value: Any, least: float = -math.inf) -> None:
    """Raise unless a value is a finite number, at least `least`."""
    try:
        good = math.isfinite(value) and value >= least
    except (TypeError, ValueError, OverflowError):  # not a number, or an integer too large for a float
        good = False
    if not good:
        raise make_error("number_unfit", argument=name, value=repr(value), bound=_range_text(least))


def check_hyperparameter(name: str, value: Any) -> None:
    """Raise unless a value is valid for the hyperparameter or option of this name."""
    if name == "betas":
        check_betas(value)
    elif name in ("lazy", "nesterov", "stochastic_rounding", "maximize", "capturable", "differentiable"):
        if not isinstance(value, bool):
            raise make_error("number_unfit", argument=name, value=repr(value), bound="True or False")
    elif name == "lr_power":
        check_number(name, value)
        if value > 0:
            raise make_error("number_unfit", argument=name, value=repr(value), bound="a finite number of at most 0")
    elif name == "seed":
        check_count(name, value)
    else:
        check_number(name, value, least=0.0)


def check_betas(betas: Any) -> None:
    """Raise unless `betas` are two numbers in [0, 1)."""
    good = isinstance(betas, tuple | list) and len(betas) == 2
    if not good or not all(isinstance(b, int | float) and 0.0 <= b < 1.0 for b in betas):
        raise make_error("number_unfit", argument="betas", value=repr(betas), bound="two numbers in [0, 1)")


def check_count(name: str, value: Any, least: int = 0) -> None:
    """Raise unless a value is an int from `least` to the largest int64."""
    good = isinstance(value, int) and not isinstance(value, bool)
    if not good or not least <= value <= _INT64_MAX:
        raise make_error("number_unfit", argument=name, value=repr(value), bound=f"an int from {least} to 2⁶³ − 1")


def number_error(position: int, value: int, bound: int) -> OpError:
    """Return the error of a number that a kernel has read (cuda/source/step_numbers.cuh, cpp/bind/xla_steps.cpp).

    The number is lr or rate, by its position; `value` has its bits; `bound` is 4 · the rule's number + what is wrong.
    """
    number = unpack("d", pack("q", value))[0]
    rule, kind = divmod(bound, 4)
    texts = ("a finite number", "a number that fits float32", f"above 0 for {list(RULES)[rule]}")
    return make_error("number_unfit", argument=("lr", "rate")[position], value=repr(number), bound=texts[kind])


def check_range(rule: str, numbers: Sequence[float], dtype: str) -> None:
    """Raise unless the numbers that a rule reads stay finite, and betas below 1, in the dtype it computes in."""
    spec = rule_named(rule)
    most, one = _ROUNDING_LIMITS[dtype]
    for number, value in zip(NUMBERS, numbers, strict=True):
        if not spec.reads(number):
            continue
        name = number if number == "rate" else NUMBERS[number]
        if name == "betas" and value >= one:
            raise make_error("number_unfit", argument=name, value=repr(value), bound=f"below 1 in {dtype}")
        if name in spec.positive and not value > 0:
            raise make_error("number_unfit", argument=name, value=repr(value), bound=f"above 0 for {rule}")
        if not abs(value) < most:
            raise make_error("number_unfit", argument=name, value=repr(value), bound=f"a number that fits {dtype}")


def _range_text(least: float) -> str:
    return "a finite number" if least == -math.inf else f"a finite number of at least {least:g}"


def rule_named(name: str) -> RuleSpec:
    """Return the record of a rule; raise if it is unknown."""
    if not isinstance(name, str) or name not in RULES:
        raise unknown_option("rule", name, RULES)
    return RULES[name]


def slot_dtype(table_dtype: str) -> str:
    """Return the dtype of slots, which is that of the arithmetic."""
    return "float64" if table_dtype == "float64" else "float32"


def slot_shapes(rule: str, table_shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the shape of each slot of a table."""
    return tuple((table_shape[0],) if slot.per_row else tuple(map(int, table_shape)) for slot in rule_named(rule).slots)


# -- The rules --------------------------------------------------------------------------------------------------------

_ACCUMULATOR = {"initial_accumulator_value": 0.0}
_MOMENTS = (Slot("exp_avg"), Slot("exp_avg_sq"))
_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}

rule(
    "sgd",
    "SGD",
    defaults={"lr": 1e-3, "weight_decay": 0.0},
    formula="w ← w − lr·g",
    doc="w ← w − lr·g, with g ← g + weight_decay·w first.",
)
rule(
    "adagrad",
    "Adagrad",
    Slot("sum"),
    defaults={"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0},
    state_defaults=_ACCUMULATOR,
    formula="a ← a + g·g; w ← w − (lr·g) / (√a + eps)",
    doc="a ← a + g²; w ← w − lr·g / (√a + eps). TensorFlow's rule.",
)
rule(
    "row_wise_adagrad",
    "RowWiseAdagrad",
    Slot("sum", per_row=True),
    defaults={"lr": 1e-2, "eps": 1e-8, "weight_decay": 0.0},
    state_defaults=_ACCUMULATOR,
    formula="a ← a + (Σg²)/D; w ← w − (lr / (√a + eps))·g",
    doc="a ← a + mean(g²), one number for every row; w ← w − (lr / (√a + eps))·g.",
)
rule(
    "adam",
    "Adam",
    *_MOMENTS,
    defaults={**_ADAM, "weight_decay": 0.0},
    fades=True,
    formula="m ← m·β₁ + g·(1 − β₁); v ← v·β₂ + (g·g)·(1 − β₂); w ← w − (rate·m) / (√v + eps)",
    doc="TensorFlow's sparse rule of Adam; rows without a gradient and their moments do not change.",
)
rule(
    "adamw",
    "AdamW",
    *_MOMENTS,
    defaults={**_ADAM, "weight_decay": 1e-2},
    decay="decoupled",
    fades=True,
    formula="w ← w − (lr·weight_decay)·w, then Adam",
    doc="Adam after w ← w − lr·weight_decay·w: the decay is not part of the gradient.",
)
rule(
    "momentum",
    "Momentum",
    Slot("momentum_buffer"),
    defaults={"lr": 1e-3, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0},
    formula="a ← a·momentum + g; w ← w − lr·a; with `nesterov`: w ← w − (lr·g + (momentum·lr)·a)",
    doc="SGD with momentum, optionally Nesterov's: TensorFlow's sparse rule. Rows without a gradient do not change.",
)
rule(
    "lion",
    "Lion",
    Slot("exp_avg"),
    defaults={"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0},
    decay="decoupled",
    formula="w ← w − (lr·weight_decay)·w; w ← w − lr·sign(m·β₁ + g·(1 − β₁)); m ← m·β₂ + g·(1 − β₂)",
    doc="Steps by the sign of the interpolated moment; rows without a gradient do not change.",
)
rule(
    "ftrl",
    "Ftrl",
    Slot("accumulator"),
    Slot("linear", zeros=True),
    defaults={"lr": 1e-3, "lr_power": -0.5, "l1": 0.0, "l2": 0.0, "l2_shrinkage": 0.0},
    state_defaults={"initial_accumulator_value": 0.1},
    decay="none",
    positive=("lr",),
    needs_weights=True,
    formula="s ← g + (2·l2_shrinkage)·w; b ← a + g·g; l ← l + (s − ((b^p − a^p) / lr)·w); a ← b;"
    " w ← (max(min(l, l1), −l1) − l) / (a^p / lr + 2·l2), with p = −lr_power",
    doc="Follow the regularized leader, TensorFlow's rule (FTRL-Proximal): sparse weights by l1.",
)
