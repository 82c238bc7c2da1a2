"""Charts: numbers recorded after every step, bounded and thinned; the loss of a training page falls."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from studio_client import StudioClient, client, counter_page

from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph.page import Block, End, Page, Trend
from rowgrad.graph.page_builder import build
from rowgrad.graph.session import ClientSession
from rowgrad.studio import charts
from rowgrad.studio.charts import Trends

__all__ = ["client"]


@pytest.mark.parametrize(("page", "steps", "to"), [("train_embedding", 40, 0.3), ("31_linear", 60, 0.999)])
def test_the_loss_of_a_training_page_decreases(client: StudioClient, page: str, steps: int, to: float) -> None:
    name = client.copy_example(page)
    client.call("run", name=name, mode="steps", steps=steps)
    client.wait_for(name, lambda s: s["phase"] == "paused")
    response = client.call("trend", name=name)
    assert response["run"] == steps
    losses = [s for s in response["series"] if "loss" in s["label"] or "cost" in s["label"]]
    assert losses, response["series"]
    runs, values = zip(*losses[0]["points"], strict=True)
    assert runs == tuple(range(1, steps + 1))
    assert values[-1] < to * values[0]
    assert all(b <= a for a, b in pairwise(values))
    later = client.call("trend", name=name, since=steps - 3)["series"][0]["points"]
    assert [p[0] for p in later] == [steps - 2, steps - 1, steps]


def test_single_elements_can_be_recorded(client: StudioClient) -> None:
    name = client.copy_example("train_embedding")
    page, _ = client.studio.folder.open(name)
    table = next(b.id for b in page.blocks if b.op == "Variable")
    watched = client.call("watch", name=name, series=[{"block": table, "pin": "ref", "at": [1, 0]}])["series"]
    assert [w["label"] for w in watched] == [f"{table}.ref[1,0]"]
    client.call("run", name=name, mode="steps", steps=3)
    client.wait_for(name, lambda s: s["phase"] == "paused")
    (series,) = client.call("trend", name=name)["series"]
    last = client.cells(name, table, "ref")[1][0]
    assert np.float32(series["points"][-1][1]) == np.float32(last)
    client.call("watch", name=name)
    client.call("step", name=name, steps=1)
    client.wait_for(name, lambda s: s["run"] == 4)
    (fetched,) = client.call("trend", name=name)["series"]
    assert fetched["label"] != watched[0]["label"]
    assert [run for run, _ in fetched["points"]] == [4]


def test_the_trends_of_a_page_are_recorded_until_others_are_chosen(client: StudioClient) -> None:
    name = client.copy_example("train_embedding")
    page, revision = client.studio.folder.open(name)
    table = next(b.id for b in page.blocks if b.op == "Variable")
    gone = Trend(End("gone", "output"))
    page.trends = [Trend(End(table, "ref"), (1, 0)), gone, Trend(End(table, "ref"), (99, 0))]
    client.studio.folder.save(name, revision, page)
    assert client.studio.folder.open(name)[0].trends == page.trends
    client.call("run", name=name, mode="steps", steps=3)
    client.wait_for(name, lambda s: s["phase"] == "paused")
    series = client.call("trend", name=name)["series"]
    assert series[0]["label"] == f"{table}.ref[1,0]"
    assert [run for run, _ in series[0]["points"]] == [1, 2, 3]
    assert np.float32(series[0]["points"][-1][1]) == np.float32(client.cells(name, table, "ref")[1][0])
    labels = [s["label"] for s in series]
    assert len(labels) == len(set(labels)) == 2, labels
    client.call("watch", name=name, series=[{"block": table, "pin": "ref", "at": [0, 0]}])
    assert [s["label"] for s in client.call("trend", name=name)["series"]] == [f"{table}.ref[0,0]"]


def test_a_new_series_starts_with_the_last_computed_value(client: StudioClient) -> None:
    client.save_page(counter_page())
    client.call("run", name="counting", mode="steps", steps=3)
    client.wait_for("counting", lambda s: s["phase"] == "paused")
    response = client.call("trend", name="counting")
    assert response["chosen"] is False
    (fetched,) = response["series"]
    assert (fetched["block"], fetched["pin"], fetched["entry"], fetched["at"]) == ("more", "output_ref", None, [])
    both = [{"block": "more", "pin": "output_ref"}, {"block": "count", "pin": "ref"}]
    assert len(client.call("watch", name="counting", series=both)["series"]) == 2
    response = client.call("trend", name="counting")
    assert response["chosen"] is True
    points = {s["label"]: s["points"] for s in response["series"]}
    assert points == {"more.output_ref": [[1, 1.0], [2, 2.0], [3, 3.0]], "count.ref": [[3, 2.0]]}
    client.call("watch", name="counting")
    (fetched,) = client.call("trend", name="counting")["series"]
    assert fetched["points"] == [[1, 1.0], [2, 2.0], [3, 3.0]]


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([{"block": "nobody", "pin": "y"}], r"series\[0\].block must be a block of the page"),
        ([{"block": "more", "pin": "y"}], r"series\[0\]: "),
        ([{"block": "more"}], r"watch: series\[0\]: pin must be a string; got 'nothing'"),
        ([{"block": "more", "pin": "output_ref", "at": [1]}], r"series\[0\].at must be 0 indices"),
        ([{"block": "more", "pin": "output_ref", "of": 1}], r"series\[0\] must be an object with block, pin"),
        (["more"], r"series\[0\] must be an object"),
        ([{}] * 65, "series must be at most 64"),
    ],
)
def test_invalid_series_raise(client: StudioClient, series: Any, message: str) -> None:
    client.save_page(counter_page())
    with pytest.raises(InvalidArgumentError, match=message):
        client.call("watch", name="counting", series=series)


class UnusedSession:
    """A session that must not be used."""


def test_points_are_bounded_and_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "MOST_POINTS", 1000)
    monkeypatch.setattr(charts, "SENT", 100)
    trends = Trends()
    for run in range(1, 2501):
        trends.record(run, UnusedSession(), {"a.y": np.array([float(run)]), "b.y": np.array("x", object)})  # type: ignore[arg-type]
    (series,) = trends.points(0)
    assert series["label"] == "a.y"
    assert len(series["points"]) == 100
    assert series["points"][0] == [1501, 1501.0]
    assert series["points"][-1] == [2500, 2500.0]
    assert len(trends.points(2450)[0]["points"]) == 50
    trends.drop_after(2000)
    trends.record(2001, UnusedSession(), {"a.y": np.array(math.nan)})  # type: ignore[arg-type]
    assert trends.points(1998)[0]["points"] == [[1999, 1999.0], [2000, 2000.0], [2001, None]]


@pytest.mark.parametrize(
    ("array", "at", "expected"),
    [
        (np.arange(6.0).reshape(2, 3), (1, 2), 5.0),
        (np.arange(6.0).reshape(2, 3), (1,), math.nan),
        (np.arange(6.0).reshape(2, 3), (1, 3), math.nan),
        (np.arange(6.0).reshape(2, 3), (), math.nan),
        (np.array([[7]]), (), 7.0),
        (np.array(True), (), 1.0),
        (np.array(2**64 - 1, np.uint64), (), 2.0**64),
        (np.array([1.5], NUMPY_DTYPE["bfloat16"]), (0,), 1.5),
        (np.array([(3,)], NUMPY_DTYPE["qint8"]), (0,), 3.0),
        (np.array(1 + 2j), (), math.nan),
        (np.array("1.5", object), (), math.nan),
        (np.array("1.5", np.dtypes.StringDType()), (), math.nan),
    ],
)
def test_number_of_an_element_or_nan(array: Any, at: tuple[int, ...], expected: float) -> None:
    assert np.array_equal(charts.number(array, at), expected, equal_nan=True)


def test_list_entries_are_recorded_and_missing_pins_have_no_value() -> None:
    constants = [Block(name, "Const", {"val": value}) for name, value in (("a", 3.0), ("b", 4.0))]
    together = Block("l", "InputList", wires={"outputlist": [End("a", "output"), End("b", "output")]})
    session = ClientSession(build(Page("p", [*constants, together])))
    trends = Trends()
    watched = [charts.Watched("l", "output", entry) for entry in (None, 1, 2)]
    trends.watch([*watched, charts.Watched("gone", "output"), charts.Watched("a", "gone")])
    trends.record(1, session, {})  # before any run
    session.run("l.output")
    trends.record(2, session, {})
    assert {s["label"]: s["points"] for s in trends.points(0)} == {
        "l.output": [[1, None], [2, 3.0]],
        "l.output[1]": [[1, None], [2, 4.0]],
        "l.output[2]": [[1, None], [2, None]],
        "gone.output": [[1, None], [2, None]],
        "a.gone": [[1, None], [2, None]],
    }


def test_names_that_are_not_pins_have_only_points() -> None:
    trends = Trends()
    trends.record(1, UnusedSession(), {"of no pin": np.array(2.0), "a.y": np.array(3.0)})  # type: ignore[arg-type]
    assert [s["label"] for s in trends.series()] == ["a.y"]
    assert trends.points(0)[0] == {"label": "of no pin", "points": [[1, 2.0]]}
    assert trends.points(0)[1] == {
        "label": "a.y",
        "block": "a",
        "pin": "y",
        "entry": None,
        "at": [],
        "points": [[1, 3.0]],
    }
