"""Pages for tests, as the files have them: blocks that stand in a row, in few words."""

from __future__ import annotations

from typing import Any

import numpy as np

Json = dict[str, Any]


def typed(array: Any, dtype: str | None = None) -> Json:
    """A value with its dtype."""
    made = np.array(array, dtype)
    return {"dtype": str(made.dtype), "shape": list(made.shape), "data": made.tolist()}


def const(name: str, array: Any, dtype: str | None = None) -> Json:
    return {"id": name, "op": "Const", "values": {"val": typed(array, dtype)}}


def block(name: str, op: str, values: Json | None = None, attrs: Json | None = None, **wires: Any) -> Json:
    """A block; `x="a.output"` is a wire."""
    parts = {"values": values, "attrs": attrs, "in": wires}
    return {"id": name, "op": op} | {key: part for key, part in parts.items() if part}


def session(*fetched: str, name: str = "session") -> Json:
    return block(name, "ClientSession", fetch_outputs=list(fetched))


def page(name: str, *blocks: Json, notes: list[Json] | None = None) -> Json:
    """The blocks beside each other, where they have no place of their own."""
    placed = [{"at": [260 * (k % 4), 200 * (k // 4)]} | one for k, one in enumerate(blocks)]
    return {"format": "rowgrad-page", "version": 1, "name": name, "blocks": placed, "notes": notes or []}
