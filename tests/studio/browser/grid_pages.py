"""Build the JSON of pages whose blocks are placed automatically in rows of four."""

from __future__ import annotations

from typing import Any

import numpy as np

Json = dict[str, Any]


def array_value(data: Any, dtype: str | None = None) -> Json:
    array = np.array(data, dtype)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": array.tolist()}


def const(name: str, data: Any, dtype: str | None = None) -> Json:
    return {"id": name, "op": "Const", "values": {"val": array_value(data, dtype)}}


def block(name: str, op: str, values: Json | None = None, attrs: Json | None = None, **wires: Any) -> Json:
    """Return a block without a position; `x="a.output"` is a wire."""
    parts = {"values": values, "attrs": attrs, "in": wires}
    return {"id": name, "op": op} | {key: part for key, part in parts.items() if part}


def session(*fetched: str, name: str = "session") -> Json:
    return block(name, "ClientSession", fetch_outputs=list(fetched))


def page(name: str, *blocks: Json, notes: list[Json] | None = None) -> Json:
    """Return a page; blocks that have no position get one."""
    placed = [{"at": [260 * (k % 4), 200 * (k // 4)]} | one for k, one in enumerate(blocks)]
    return {"format": "rowgrad-page", "version": 1, "name": name, "blocks": placed, "notes": notes or []}
