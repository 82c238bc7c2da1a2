"""Edge cases of single blocks: an error in one block does not affect the rest of the page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rowgrad.graph import Block, ClientSession, Page, build
from rowgrad.graph.page_summary import summary


@pytest.mark.parametrize("ids", [1, [[1, 2]], [[]]])
def test_positions_rejects_ids_that_are_not_a_vector(ids: Any) -> None:
    found = summary(Page("p", [Block("b", "Positions", {"ids": ids}), Block("c", "Const", {"val": 1.0})]))
    assert "vector" in found["errors"]["b"]["message"]
    assert found["errors"]["b"]["pin"] == "ids"
    assert found["blocks"]["c"]["outputs"]["output"]["text"] == "float32[]"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniform"])
def test_random_blocks_return_empty_arrays(op: str, dtype: str) -> None:
    page = Page("p", [Block("b", op, {"shape": [0, 3]}, attrs={"dtype": dtype})])
    assert ClientSession(build(page)).run("b").shape == (0, 3)


def test_pad_like_accepts_scalars() -> None:
    given = {"x": np.float32(2), "begin": np.zeros(0, np.int32), "like": np.float32(1)}
    page = Page("p", [Block("b", "PadLike", given)])
    assert ClientSession(build(page)).run("b").tolist() == 2.0
