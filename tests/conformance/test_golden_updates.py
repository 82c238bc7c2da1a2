"""Steps of TensorFlow's Adagrad and Adam: the same bits in every weight and every slot."""

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


CASES = [pytest.param(c, a, id=f"{c['rule']}-{a['before'].dtype}-{a['before'].shape[1]}") for c, a in load()]


@pytest.mark.parametrize(("case", "arrays"), CASES)
def test_step_by_step(case: dict[str, Any], arrays: dict[str, Any]) -> None:
    rule, slots = case["rule"], [s.name for s in optim.RULES[case["rule"]].slots]
    state = {"table": arrays["before"], **{s: np.full_like(arrays["before"], case.get("initial", 0.0)) for s in slots}}
    for t in range(sum(k.endswith("/ids") for k in arrays)):
        step = optim.Step(
            lr=case["lr"],
            eps=case["eps"],
            betas=tuple(case.get("betas", (0.9, 0.999))),
            rate=float(arrays[f"{t}/rate"]) if f"{t}/rate" in arrays else None,
            lazy=False,
            step=t + 1,
        )
        found = {k: v.copy() for k, v in state.items()}
        optim.apply_rows(rule, found["table"], [found[s] for s in slots], arrays[f"{t}/grad"], arrays[f"{t}/ids"], step)
        state = {k: arrays[f"{t}/{k}"] for k in state}  # TensorFlow's, so that each step is judged alone
        assert [k for k in state if not same_bits(found[k], state[k])] == []
        if rule == "adam":  # TensorFlow multiplies float32 powers up, whatever the table is
            own = optim.Step(lr=case["lr"], betas=tuple(case["betas"]), step=t + 1).corrected()
            assert own == pytest.approx(float(arrays[f"{t}/rate"]), rel=1e-4)
