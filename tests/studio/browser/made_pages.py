"""Pages that are there when a test begins: written as files, as any program may write them."""

from __future__ import annotations

from typing import Any

import numpy as np

Block = dict[str, Any]


def made(name: str, op: str, at: tuple[int, int] = (0, 0), **fields: Any) -> Block:
    """A block: `wires` by pin, `values` by pin, `attrs`."""
    entries = {"in" if field == "wires" else field: what for field, what in fields.items()}
    return {"id": name, "op": op, "at": list(at)} | entries


def array(dtype: str, data: Any) -> dict[str, Any]:
    """A value with a dtype."""
    return {"dtype": dtype, "shape": list(np.shape(data)), "data": data}


def session(*fetched: str, at: tuple[int, int] = (680, 0), name: str = "session", **wires: Any) -> Block:
    return made(name, "ClientSession", at, wires={"fetch_outputs": list(fetched), **wires})


def counting() -> list[Block]:
    """A Variable that grows by one with every run."""
    return [
        made("count", "Variable", values={"initvalues": array("float32", 0.0)}),
        made("more", "AssignAdd", (340, 0), values={"value": array("float32", 1.0)}, wires={"ref": "count.ref"}),
        session("more.output_ref"),
    ]
