"""The rows of Variables that each step changed, and how far each moved."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from studio_client import StudioClient, client, ends

from rowgrad._runtime.arrays import Array
from rowgrad.errors import OpError
from rowgrad.graph import Block, ClientSession, Page, build
from rowgrad.studio import row_changes
from rowgrad.studio.row_changes import RowChanges, changed_rows

__all__ = ["client"]
TABLE = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


def training_page(table: Array = TABLE) -> Page:
    """A table of which rows 0, 1 and 3 are looked up: 3 twice as often."""
    ids = {"indices": np.array([0, 3, 3, 1]), "segment_ids": np.array([0, 0, 1, 1])}
    return Page(
        "training",
        [
            Block("table", "Variable", {"initvalues": table}),
            Block("mean", "SparseSegmentMean", ids, {"data": ends("table.ref")}),
            Block("loss", "L2Loss", wires={"t": ends("mean.output")}),
            Block("G", "AddSymbolicGradients", wires={"outputs": ends("loss.output"), "inputs": ends("table.ref")}),
            Block("step", "ApplyGradientDescent", {"alpha": np.float32(0.5)[...]},
                  {"var": ends("table.ref"), "delta": ends("G.grad_outputs")}),
            Block("s", "ClientSession", wires={"fetch_outputs": ends("loss.output", "step.out")}),
        ],
    )  # fmt: skip


def run(client: StudioClient, page: Page, steps: int) -> None:
    client.save_page(page)
    client.call("run", name=page.name, mode="steps", steps=steps)
    client.wait_for(page.name, lambda s: s["phase"] == "paused")


def changes(client: StudioClient, **more: Any) -> Any:
    return client.call("row_changes", name="training", **more)


def test_changed_rows_and_their_distances_are_those_of_an_independent_run(client: StudioClient) -> None:
    run(client, training_page(), 4)
    found = changes(client)
    picture = found["picture"]
    assert found["variables"] == [
        {"variable": "table", "dtype": "float32", "shape": [5, 3], "steps": 4, "recorded": True}
    ]
    assert (picture["rows"], picture["steps"], picture["first"], picture["last"]) == (5, 4, 1, 4)
    assert (picture["down"], picture["across"], picture["changed"]) == (5, 4, 3)
    session = ClientSession(build(training_page()))
    values = [session.variables["table"]]
    for _ in range(4):
        session.run_block("s")
        values.append(session.variables["table"])
    expected = []
    for step in range(4):
        moved = np.linalg.norm(values[step + 1].astype(np.float64) - values[step], axis=1)
        expected += [[row, step, 1, moved[row]] for row in (0, 1, 3)]
    for cell, wanted in zip(picture["cells"], sorted(expected), strict=True):
        assert cell == pytest.approx(wanted, rel=1e-12)
    totals = {row: sum(cell[3] for cell in picture["cells"] if cell[0] == row) for row in (0, 1, 3)}
    assert picture["hot"] == [
        [row, 4, pytest.approx(totals[row])] for row in sorted(totals, key=lambda row: -totals[row])
    ]
    assert picture["most"] == max(cell[3] for cell in picture["cells"])


def test_a_run_without_updates_and_a_page_that_never_ran_have_no_changes(client: StudioClient) -> None:
    client.save_page(training_page())
    assert changes(client) == {"variables": [], "variable": "", "picture": None}
    page = training_page()
    page.blocks = [block for block in page.blocks if block.id not in ("step", "s")]
    page.blocks.append(Block("s", "ClientSession", wires={"fetch_outputs": ends("loss.output")}))
    run(client, page, 2)
    assert changes(client) == {"variables": [], "variable": "", "picture": None}
    with pytest.raises(
        OpError, match=r"variable must be one that a step updated \(no step has updated any\); got 'table'"
    ):
        changes(client, variable="table")
    with pytest.raises(OpError, match="there is no page 'nobody'"):
        client.call("row_changes", name="nobody")


def test_reset_and_snapshots_drop_later_changes(client: StudioClient) -> None:
    run(client, training_page(), 2)
    (snapshot,) = client.call("snapshot", name="training")["snapshots"]
    client.call("step", name="training", steps=3)
    client.wait_for("training", lambda s: s["run"] == 5)
    assert changes(client)["picture"]["last"] == 5
    client.call("restore", name="training", snapshot=snapshot["id"])
    assert changes(client)["picture"]["last"] == 2
    client.call("reset", name="training")
    assert changes(client)["variables"] == []


def test_several_sessions_in_one_step_are_one_change(client: StudioClient) -> None:
    page = training_page()
    add = Block("add", "AssignAdd", {"value": np.ones((5, 3), np.float32)}, {"ref": ends("table.ref")})
    page.blocks += [add, Block("s2", "ClientSession", wires={"fetch_outputs": ends("add.output_ref")})]
    run(client, page, 1)
    picture = changes(client)["picture"]
    assert (picture["steps"], picture["changed"]) == (1, 5)
    session = ClientSession(build(page))
    before = session.variables["table"]
    session.run_block("s")
    session.run_block("s2")
    moved = np.linalg.norm(session.variables["table"].astype(np.float64) - before, axis=1)
    assert [cell[3] for cell in picture["cells"]] == pytest.approx(moved.tolist())


def test_a_large_variable_is_recorded_on_request(client: StudioClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_changes, "MOST_ELEMENTS", 14)
    run(client, training_page(), 2)
    found = changes(client)
    assert (found["variables"][0]["recorded"], found["variables"][0]["steps"]) == (False, 0)
    assert found["picture"]["cells"] == []
    assert changes(client, record=True)["variables"][0]["recorded"]
    client.call("step", name="training", steps=1)
    client.wait_for("training", lambda s: s["run"] == 3)
    assert (changes(client)["picture"]["first"], len(changes(client)["picture"]["cells"])) == (3, 3)


def test_rows_and_steps_share_cells_of_a_small_picture(client: StudioClient) -> None:
    run(client, training_page(np.tile(TABLE, (8, 1))), 20)
    cells = changes(client, cells=8)["picture"]["cells"]
    assert {(down, across) for down, across, *_ in cells} == {(0, k) for k in range(8)}
    assert sum(count for _, _, count, _ in cells) == 3 * 20


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.int64, np.complex64]
)
def test_rows_of_every_dtype_are_compared_by_bits(dtype: Any) -> None:
    before = np.arange(12).reshape(4, 3).astype(dtype)
    after = before.copy()
    after[1, 2] += 3
    after[3] += 4
    rows, distances = changed_rows(before, after)
    assert rows.tolist() == [1, 3]
    assert distances.tolist() == pytest.approx([3, 4 * 3**0.5])


@pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 3, 5)])
def test_variables_of_any_rank_may_change_in_no_row_or_all(shape: tuple[int, ...]) -> None:
    before = np.ones(shape, np.float32)
    assert [part.tolist() for part in changed_rows(before, before.copy())] == [[], []]
    rows, distances = changed_rows(before, before + 2)
    assert rows.tolist() == list(range(shape[0]))
    assert distances.tolist() == pytest.approx([2 * np.prod(shape[1:]) ** 0.5] * shape[0])


def test_a_step_that_moves_nothing_is_recorded(client: StudioClient) -> None:
    page = training_page()
    next(block for block in page.blocks if block.id == "step").values["alpha"] = np.float32(0)[...]
    run(client, page, 3)
    picture = changes(client)["picture"]
    assert (picture["steps"], picture["changed"], picture["cells"], picture["hot"]) == (3, 0, [], [])


def test_zeros_of_another_sign_and_numbers_that_are_none_are_changes() -> None:
    before = np.array([[0.0, 1.0], [1.0, 1.0], [np.inf, 1.0], [np.nan, 1.0]])
    after = np.array([[-0.0, 1.0], [np.nan, 1.0], [-np.inf, 1.0], [np.nan, 1.0]])
    rows, distances = changed_rows(before, after)
    assert rows.tolist() == [0, 1, 2]
    assert distances[0] == 0
    assert np.isnan(distances[1])
    assert np.isinf(distances[2])
    found = RowChanges()
    found.add(1, found.compare({"v": (before, after)}))
    picture = found.picture("v", 8)
    assert [cell[3] for cell in picture["cells"]] == [0.0, None, None]
    assert picture["most"] == 0.0
    assert [row for row, *_ in picture["hot"]][:2] == [1, 2]


def test_what_has_no_rows_is_not_recorded() -> None:
    found = RowChanges()
    scalar, empty, texts = np.float32(1)[...], np.zeros((0, 3)), np.array(["a"], object)
    assert found.compare({"a": (scalar, scalar), "b": (empty, empty), "c": (texts, texts)}) == {}


def test_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_changes, "MOST_CHANGES", 10)
    found = RowChanges()
    for k in range(9):
        values = np.full((3, 2), float(k)), np.full((3, 2), k + 1.0)
        found.add(k + 1, found.compare({"v": values}))
    assert (found.picture("v", 8)["first"], found.picture("v", 8)["steps"]) == (7, 3)
    monkeypatch.setattr(row_changes, "MOST_STEPS", 2)
    found.add(10, found.compare({"v": values}))
    assert (found.picture("v", 8)["first"], found.picture("v", 8)["last"]) == (9, 10)
    large = np.zeros((20, 1)), np.ones((20, 1))
    found.add(11, found.compare({"w": large}))
    assert [one["steps"] for one in found.variables()] == [1, 1]
