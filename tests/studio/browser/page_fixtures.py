"""Build the JSON of blocks with explicit positions, as page files contain them."""

from __future__ import annotations

from typing import Any

import numpy as np

Block = dict[str, Any]


def block(name: str, op: str, at: tuple[float, float] = (0, 0), **fields: Any) -> Block:
    """Return a block; `values`, `attrs` and `wires` are by pin, other fields are copied."""
    entries = {"in" if field == "wires" else field: value for field, value in fields.items()}
    return {"id": name, "op": op, "at": list(at)} | entries


def array(dtype: str, data: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(np.shape(data)), "data": data}


def const(name: str, at: tuple[float, float], data: Any, dtype: str = "float32") -> Block:
    return block(name, "Const", at, values={"val": array(dtype, data)})


def session(*fetched: str, at: tuple[int, int] = (680, 0), name: str = "session", **wires: Any) -> Block:
    return block(name, "ClientSession", at, wires={"fetch_outputs": list(fetched), **wires})


def counter_blocks() -> list[Block]:
    """Return a page whose Variable grows by one with every run."""
    return [
        block("count", "Variable", values={"initvalues": array("float32", 0.0)}),
        block("more", "AssignAdd", (340, 0), values={"value": array("float32", 1.0)}, wires={"ref": "count.ref"}),
        session("more.output_ref"),
    ]
