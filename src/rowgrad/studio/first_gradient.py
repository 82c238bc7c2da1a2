"""The tour that Studio offers on an empty project: a first gradient in six steps on the real canvas."""

from __future__ import annotations

from typing import Any

_OP = "SparseSegmentMeanGrad"

# Each step waits until the page shows that it is done. `kind` says what for: "place" for a block of `op`, "type" for
# values on its pins, "run" for its result, "read" for nothing. `values` are the texts to type.
FIRST_GRADIENT: dict[str, Any] = {
    "op": _OP,
    "steps": [
        {
            "kind": "place",
            "title": "Place a block",
            "text": f"Type {_OP} into the search field, where the key / leads from anywhere, and press Enter. It is "
            "the gradient of looking up rows of a table and averaging them in bags.",
        },
        {
            "kind": "type",
            "title": "Type the incoming gradient",
            "text": "Click the value beside grad and type it: one row for each of two bags.",
            "values": {"grad": "[[1, 2], [6, 8]]"},
        },
        {
            "kind": "type",
            "title": "Name the rows",
            "text": "indices are the rows of the table that were looked up: row 0 once and row 2 twice. Tab leads to "
            "the next pin.",
            "values": {"indices": "[0, 2, 2]"},
        },
        {
            "kind": "type",
            "title": "Put them into bags",
            "text": "segment_ids has the bag of each id: two ids in bag 0, one in bag 1. The table has 4 rows, "
            "which output_dim0 says.",
            "values": {"segment_ids": "[0, 0, 1]", "output_dim0": "4"},
        },
        {
            "kind": "run",
            "title": "Run",
            "text": "Press Run, or Ctrl-Enter. It needs no session block: what nothing else consumes is computed.",
        },
        {
            "kind": "read",
            "title": "Read the result",
            "text": "Row 2 is [6.5, 9]: half of [1, 2], because bag 0 has two ids, plus all of [6, 8]. Rows 1 and 3 "
            "were never named and get zeros. Trace shows where each row comes from.",
        },
    ],
}
