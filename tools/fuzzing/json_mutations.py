"""Mutations of JSON that keep it valid: random bytes rarely pass the parser."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

PARTING = b"\n--\n"
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308),
    *(
        "",
        "NaN",
        "Infinity",
        "0",
        "-1",
        "a",
        "ä\u2028",
        "x" * 300,
        "float32",
        "string",
        "int64",
        "../x",
        "con",
        "\ud800",
    ),
    *([], {}, [[]], [0], [-1], [[1, 2], [3]], {"": 0}, {"float": 3.0}, {"int": "5"}, {"base64": "AA=="}),
    *({"dtype": "float32", "shape": [2], "data": [1, "NaN"]}, {"dtype": "bfloat16", "shape": [], "hex": "0080"}),
    *("page", "op.output", "grad.output[0]"),
]


def changed(data: bytes, longest: int, seed: int) -> bytes | None:
    """Return a section with values replaced, moved, duplicated or dropped; None to change bytes instead."""
    rng = random.Random(seed)
    if rng.random() < 0.4:
        return None
    sections = data.split(PARTING)
    at = rng.randrange(len(sections))
    head, inner, rest = sections[at].partition(b"\n-\n")
    try:
        tree = json.loads(head)
    except (ValueError, RecursionError):
        return None
    for _ in range(rng.choice((1, 1, 2, 4))):
        tree = _one_change(tree, rng)
    try:
        sections[at] = json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace") + inner + rest
    except (ValueError, RecursionError):
        return None
    mutated = PARTING.join(sections)
    return mutated if len(mutated) <= longest else None


def _one_change(tree: Any, rng: random.Random) -> Any:
    places = list(_places(tree))
    if not places:
        return copy.deepcopy(rng.choice(VALUES))
    holder, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.45:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    elif kind < 0.65:  # the value of another place
        other, there = rng.choice(places)
        holder[key] = copy.deepcopy(other[there])
    elif kind < 0.8:
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    else:  # under another key
        other, there = rng.choice(places)
        holder[str(there)] = copy.deepcopy(holder[key])
    return tree


def _places(tree: Any) -> Any:
    """Yield every value as its container and its key."""
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        keys = range(len(holder)) if isinstance(holder, list) else list(holder) if isinstance(holder, dict) else ()
        for key in keys:
            yield holder, key
            waiting.append(holder[key])
