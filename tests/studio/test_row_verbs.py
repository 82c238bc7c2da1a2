"""Verbs about rows: the sum behind a row, the scatter view, and the spy plot of a large batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from studio_client import StudioClient, client, ends

from rowgrad.errors import OpError
from rowgrad.graph import Block, Page

__all__ = ["client"]
GRAD = np.array([[1, 2], [6, 8]], np.float32)


def gradient_page(op: str = "SparseSegmentMeanGrad", **attrs: Any) -> Page:
    rows = {"indices": [0, 2, 2], "segment_ids": [0, 0, 1], "output_dim0": 4}
    return Page(
        "shown",
        [
            Block("upstream", "Const", {"val": GRAD}),
            Block("back", op, rows, {"grad": ends("upstream.output")}, attrs),
            Block("s", "ClientSession", wires={"fetch_outputs": ends("back.output")}),
        ],
    )


def run(client: StudioClient, page: Page) -> None:
    client.save_page(page)
    client.call("run", name=page.name)
    client.wait_for(page.name, lambda s: s["phase"] in ("done", "failed"))


def explain(client: StudioClient, **more: Any) -> Any:
    return client.call("explain", {"name": "shown", **more})


def test_a_row_of_a_mean_gradient_is_written_out(client: StudioClient) -> None:
    run(client, gradient_page())
    found = explain(client, block="back", pin="output", row=2)
    assert (found["op"], found["kind"], found["rows"], found["of_columns"]) == ("SparseSegmentMeanGrad", "sum", 4, 2)
    terms = [
        (t["pin"], t["row"], t["place"], t["factor"], t["weight"], t["values"], t["product"]) for t in found["terms"]
    ]
    assert terms == [
        ("grad", 0, 1, "1/2", 0.5, ["1.0", "2.0"], ["0.5", "1.0"]),
        ("grad", 1, 2, "1", 1.0, ["6.0", "8.0"], ["6.0", "8.0"]),
    ]
    assert (found["result"], found["sum"], found["differing"]) == (["6.5", "9.0"], ["6.5", "9.0"], 0)
    (part,) = found["parts"]
    assert part["additions"] == [
        {"path": [], "item": 0, "total": ["0.5", "1.0"]},
        {"path": [], "item": 1, "total": ["6.5", "9.0"]},
    ]
    assert found["origins"]["grad"] == {"block": "upstream", "pin": "output", "entry": None, "inner": ""}
    assert explain(client, block="back", pin="output", row=1)["kind"] == "zero"
    assert explain(client, block="back", pin="output", row=2, columns=[1, 2])["result"] == ["9.0"]


def hot_page(ids: int) -> Page:
    grad = np.random.default_rng(0).standard_normal((ids, 3)).astype(np.float32)
    values = {"grad": grad, "indices": np.zeros(ids, np.int64), "segment_ids": np.arange(ids), "output_dim0": 2}
    return Page(
        "shown",
        [
            Block("back", "SparseSegmentSumGrad", values),
            Block("s", "ClientSession", wires={"fetch_outputs": ends("back.output")}),
        ],
    )


def test_the_blocked_order_is_a_tree_and_its_difference_is_counted(client: StudioClient) -> None:
    run(client, hot_page(6500))
    found = explain(client, block="back", pin="output", row=0, most=70)
    assert (found["total_terms"], len(found["terms"]), found["differing"]) == (6500, 70, 0)
    assert len(found["parts"][0]["additions"]) == 70
    blocked = explain(client, block="back", pin="output", row=0, order="blocked", most=70)
    tree = blocked["parts"][0]["tree"]
    assert [(part["count"], part["size"]) for part in tree["of"]] == [(64, 4096), (38, 2404)]
    assert tree["of"][1]["of"][-1]["count"] == 36
    assert tree["total"] == blocked["sum"] != found["sum"]
    assert blocked["differing"] == 3  # the op added in the other order


def test_lookups_and_symbolic_gradients_are_explained_step_by_step(client: StudioClient) -> None:
    ids = {"indices": [0, 2, 2], "segment_ids": [0, 0, 1]}
    page = Page(
        "shown",
        [
            Block("table", "Variable", {"initvalues": np.arange(8, dtype=np.float32).reshape(4, 2)}),
            Block("mean", "SparseSegmentMean", ids, {"data": ends("table.ref")}),
            Block("square", "Square", wires={"x": ends("mean.output")}),
            Block("G", "AddSymbolicGradients", wires={"outputs": ends("square.y"), "inputs": ends("table.ref")}),
            Block("s", "ClientSession", wires={"fetch_outputs": ends("G.grad_outputs")}),
        ],
    )  # fmt: skip
    run(client, page)
    found = explain(client, block="G", pin="grad_outputs", entry=0, row=2)
    assert (found["op"], found["kind"], found["result"]) == ("SparseSegmentMeanGrad", "sum", ["10.0", "13.0"])
    assert [(t["row"], t["factor"]) for t in found["terms"]] == [(0, "1/2"), (1, "1")]
    assert client.call("explained", name="shown")["results"] == [
        {"block": "mean", "pin": "output", "entry": None, "op": "SparseSegmentMean", "sums": True},
        {"block": "G", "pin": "grad_outputs", "entry": 0, "op": "SparseSegmentMeanGrad", "sums": True},
    ]
    pairs = client.call("trace", name="shown", block="G", pin="grad_outputs", entry=0)
    assert pairs["pairs"] == [[0, 0], [2, 0], [2, 1]]
    inner = found["origins"]["grad"]["inner"]
    step = explain(client, block="G", pin="grad_outputs", entry=0, inner=inner, row=1)
    assert (step["op"], step["kind"], step["result"]) == ("Mul", "by row", ["8.0", "10.0"])
    assert [t["pin"] for t in step["terms"]] == ["x", "y"]
    following = [origin for origin in step["origins"].values() if origin["inner"]]
    assert following
    with pytest.raises(OpError, match="depends on no 'G:Nothing' inside the block"):
        explain(client, block="G", pin="grad_outputs", entry=0, inner="G:Nothing", row=1)


def test_the_default_value_of_filled_rows_is_explained(client: StudioClient) -> None:
    values = {"reverse_index_map": [0, 1, 3], "grad_values": [1.0, 2.0, 4.0, 8.0, 16.0]}
    blocks = [
        Block("fill", "SparseFillEmptyRowsGrad", values),
        Block("s", "ClientSession", wires={"fetch_outputs": ends("fill.d_default_value", "fill.d_values")}),
    ]
    run(client, Page("shown", blocks))
    found = explain(client, block="fill", pin="d_default_value", row=0)
    assert [(t["pin"], t["row"]) for t in found["terms"]] == [("grad_values", 2), ("grad_values", 4)]
    assert (found["rows"], found["result"]) == (1, ["20.0"])
    copied = explain(client, block="fill", pin="d_values", row=2)
    assert (copied["kind"], copied["terms"][0]["row"], copied["result"]) == ("copy", 3, ["8.0"])


def test_the_scatter_view_has_every_id_in_order(client: StudioClient) -> None:
    run(client, gradient_page())
    found = client.call("scatter", name="shown", block="back")
    assert [(s["place"], s["from"], s["to"], s["factor"], s["total"]) for s in found["steps"]] == [
        (0, 0, 0, "1/2", ["0.5", "1.0"]),
        (1, 0, 2, "1/2", ["0.5", "1.0"]),
        (2, 1, 2, "1", ["6.5", "9.0"]),
    ]
    assert (found["rows"], found["named"], found["sources"]) == (4, 2, [{"pin": "grad", "rows": 2}])
    assert found["ends"] == [
        {"row": 0, "terms": 1, "sum": ["0.5", "1.0"]},
        {"row": 2, "terms": 2, "sum": ["6.5", "9.0"]},
    ]
    cut = client.call("scatter", name="shown", block="back", most=2)
    assert (len(cut["steps"]), cut["total"]) == (1, 3)


def test_the_spy_plot_counts_and_names_hot_rows(client: StudioClient) -> None:
    ids = np.concatenate([np.full(700, 7), np.arange(300)])
    values = {"grad": np.ones((100, 2)), "indices": ids, "segment_ids": np.arange(1000) // 10, "output_dim0": 5000}
    blocks = [
        Block("back", "SparseSegmentSumGrad", values),
        Block("s", "ClientSession", wires={"fetch_outputs": ends("back.output")}),
    ]
    run(client, Page("shown", blocks))
    found = client.call("spy", name="shown", block="back", cells=50)
    across, down = found["across"], found["down"]
    assert (found["table"], found["total"], across["rows"], down["rows"]) == ("outputs", 1000, 5000, 100)
    assert (across["named"], across["hot"]) == (300, [[7, 701]])
    assert across["degrees"] == [299, *[0] * 9, 1]
    assert down["degrees"] == [0, 0, 0, 0, 100]
    assert sum(count for _, _, count in found["cells"]) == 1000
    assert found["cells"][0] == [0, 0, 20]  # two segments of ten ids each
    assert found["most"] == 20


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("explain", {"row": 4}, r"row must be in \[0, 4\), the rows of output; got 4"),
        ("explain", {"row": -1}, "row must be an integer"),
        ("explain", {"row": 0, "pin": "grad"}, "pin must be an output of back, which has output"),
        ("explain", {"row": 0, "order": "pairwise"}, "order must be one of sequential, blocked"),
        ("explain", {"row": 0, "block": "upstream"}, "Const has no record of which rows"),
        ("scatter", {"block": "nothing"}, "block must be a block of the page"),
        ("spy", {"block": "upstream"}, "Const has no record of which rows"),
    ],
)
def test_invalid_requests_raise(client: StudioClient, verb: str, arguments: dict[str, Any], message: str) -> None:
    run(client, gradient_page())
    with pytest.raises(OpError, match=message):
        client.call(verb, {"name": "shown", "block": "back", **arguments})


def compare(client: StudioClient, **more: Any) -> Any:
    return client.call("compare", name="shown", **more)


def test_a_page_is_compared_under_two_orders(client: StudioClient) -> None:
    run(client, hot_page(6500))
    found = compare(client, b_order="blocked")
    (one,) = [r for r in found["results"] if r["block"] == "back"]
    assert (found["differing"], one["pin"], one["elements"], one["differing"]) == (1, "output", 6, 3)
    sequential, blocked = (
        explain(client, block="back", row=0, order=order)["sum"] for order in ("sequential", "blocked")
    )
    assert one["cells"] == [
        {"at": [0, c], "a": a, "b": b} for c, (a, b) in enumerate(zip(sequential, blocked, strict=True))
    ]
    assert one["greatest"] > 0
    assert compare(client)["differing"] == 0
    with pytest.raises(OpError, match="order must be one that a block of the page has; got 'pairwise'"):
        compare(client, b_order="pairwise")


def test_comparing_changes_no_variable(client: StudioClient) -> None:
    blocks = [
        Block("v", "Variable", {"initvalues": [1.0, 2.0]}),
        Block("noise", "RandomUniform", {"shape": [2]}),
        Block("step", "AssignAdd", wires={"ref": ends("v.ref"), "value": ends("noise.output")}),
        Block("s", "ClientSession", wires={"fetch_outputs": ends("step.output_ref")}),
    ]
    run(client, Page("shown", blocks))
    session = client.studio.runs.session_of("shown")
    assert session is not None
    before = session.variables["v"].tolist()
    assert compare(client)["differing"] == 0
    assert session.variables["v"].tolist() == before
    assert session.runs == 1


def test_engines_are_compared(client: StudioClient) -> None:
    pytest.importorskip("torch")
    run(client, hot_page(100))
    assert compare(client, b_engine="torch")["differing"] == 0
    with pytest.raises(OpError, match="nothing"):
        compare(client, b_engine="nothing")
