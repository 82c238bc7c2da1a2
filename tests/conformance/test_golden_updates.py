"""Steps of TensorFlow's optimizers: the same bits in every weight and every slot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_cases import same_bits
from rowgrad import optim

FILE = Path(__file__).parent.parent / "golden" / "updates.npz"


def load() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    with np.load(FILE) as file:
        cases = json.loads(str(file["cases"]))["cases"]
        arrays = [
            {k.partition("/")[2]: file[k] for k in file.files if k.startswith(f"{i}/")} for i in range(len(cases))
        ]
    return list(zip(cases, arrays, strict=True))


def label(case: dict[str, Any], arrays: dict[str, Any]) -> str:
    variant = "-nesterov" if case.get("nesterov") else f"{case['lr_power']}" if "lr_power" in case else ""
    return f"{case['rule']}{variant}-{arrays['before'].dtype}-{arrays['before'].shape[1]}"


CASES = [pytest.param(c, a, id=label(c, a)) for c, a in load()]


@pytest.mark.parametrize(("case", "arrays"), CASES)
def test_step_by_step(case: dict[str, Any], arrays: dict[str, Any]) -> None:
    rule, slots = case["rule"], [s.name for s in optim.RULES[case["rule"]].slots]
    initial = {s.name: 0.0 if s.zeros else case.get("initial", 0.0) for s in optim.RULES[rule].slots}
    state = {"table": arrays["before"], **{s: np.full_like(arrays["before"], initial[s]) for s in slots}}
    numbers = {k: case[k] for k in ("eps", "momentum", "nesterov", "lr_power", "l1", "l2", "l2_shrinkage") if k in case}
    for t in range(sum(k.endswith("/ids") for k in arrays)):
        step = optim.Step(
            lr=case["lr"],
            betas=tuple(case.get("betas", (0.9, 0.999))),
            rate=float(arrays[f"{t}/rate"]) if f"{t}/rate" in arrays else None,
            lazy=False,
            step=t + 1,
            **numbers,
        )
        found = {k: v.copy() for k, v in state.items()}
        optim.apply_rows(rule, found["table"], [found[s] for s in slots], arrays[f"{t}/grad"], arrays[f"{t}/ids"], step)
        before, state = state, {k: arrays[f"{t}/{k}"] for k in state}  # restart from TensorFlow's state
        if case.get("lr_power", -0.5) == -0.5 or arrays["before"].shape[1] == 1:
            assert [k for k in state if not same_bits(found[k], state[k])] == []
        else:
            check_powers(case, before, found, state)
        if rule == "adam":  # TensorFlow multiplies powers in float32 for every table dtype
            own = optim.Step(lr=case["lr"], betas=tuple(case["betas"]), step=t + 1).corrected()
            assert own == pytest.approx(float(arrays[f"{t}/rate"]), rel=1e-4)


def check_powers(case: dict[str, Any], before: dict[str, Any], found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check FTRL with a power other than a root, in several columns, where TensorFlow has its own vectorized pow.

    The sum of squares has the same bits. A power that differs in its last bit moves `linear` by some units of the term
    it is added to, and the weight by some units of the old one: allow 2 units of the largest term of each.
    """
    eps, power, lr = np.finfo(found["table"].dtype).eps, -case["lr_power"], case["lr"]
    assert same_bits(found["accumulator"], expected["accumulator"])
    scale = expected["accumulator"] ** power / lr  # the divisor of a power
    term = np.maximum.reduce([np.abs(expected["linear"]), np.abs(before["linear"]), scale * np.abs(before["table"])])
    assert np.all(np.abs(found["linear"] - expected["linear"]) <= 2 * eps * term)
    assert np.all(
        np.abs(found["table"] - expected["table"]) <= 2 * eps * np.maximum(np.abs(expected["table"]), term / scale)
    )
