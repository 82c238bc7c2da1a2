"""The model of sharded tables: its counts compared with samples, its bytes with what two ranks send."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.scale import model, report
from bench.scale.model import PHASES, Feature, Setting, counts, memory, sent
from bench.scale.timing import PASSES, Link, Machine, Routing, Work, fit_link, fit_work, predict, step, terms
from bench.scale.workloads import (
    BETWEEN,
    CALIBRATION,
    CHECKS,
    EXCHANGED,
    MLPERF_HOTNESS,
    MLPERF_RANKS,
    MLPERF_ROWS,
    ROUTED,
    WAYS,
    mlperf,
    routed,
)
from bench.scale.world import OWN, WALL, World, bytes_off, compare, listen, pooled_sends_less
from rowgrad.sharding.div_mod import STRATEGIES, locate


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize(("rows", "alpha"), [(1_000, 0.0), (1_000, 1.05), (150_000, 1.2), (5, 0.0)])
def test_counts_agree_with_samples(rows: int, alpha: float, strategy: str) -> None:
    ranks, bags, hotness, rng = 3, 400, 4, np.random.default_rng(5)
    expected = counts(Setting((Feature(rows, hotness, alpha),), 8, bags, ranks, strategy))
    found = np.zeros((4, ranks))
    times = 60
    for _ in range(times):
        ids = model.draw(rng, ranks * bags * hotness, rows, alpha).reshape(ranks, bags, hotness)
        owner, _ = locate(ids.reshape(-1), rows, ranks, strategy)
        owner = owner.reshape(ids.shape)
        for o in range(ranks):
            there = owner[0] == o
            distinct = (len(np.unique(ids[0][there])), there.any(1).sum(), len(np.unique(ids[owner == o])))
            found[:, o] += (there.sum(), *distinct)
    for mean, count in zip(
        found / times, (expected.pairs, expected.rows, expected.bags, expected.updated), strict=True
    ):
        np.testing.assert_allclose(count, mean, rtol=0.03, atol=1)
    np.testing.assert_array_equal(expected.held, np.bincount(locate(np.arange(rows), rows, ranks, strategy)[0]))


def test_binned_rows_count_as_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    binned = model.law(500_000, 1.05)
    monkeypatch.setattr(model, "HEAD", 500_000)
    single = model.law.__wrapped__(500_000, 1.05)
    assert len(binned.p) < len(single.p) / 5
    for strategy in ("div", "mod"):
        counts_of = [x.by_owner(x.distinct(40_000), 7, strategy) for x in (binned, single)]
        np.testing.assert_allclose(*counts_of, rtol=2e-3)


def test_two_ranks_send_the_predicted_bytes() -> None:
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    workloads = [w for w in CHECKS if w.name in ("uniform, 20 ids", "zipf 1.05, 1 id")]
    world = World(2)
    for line in listen(2, [w.name for w in workloads]):
        world.add(line)
    rows = compare(world, workloads)
    assert len(rows) == len(workloads) * len(WAYS)
    assert max(map(bytes_off, rows)) < 0.05
    for row in rows:
        assert row["model_sizes"] == row["sizes"] == 88
        assert row["rows"] == pytest.approx(row["model_rows"], rel=0.05)
    less = {(row["workload"], row["wire_bytes"]): (model, real) for row, model, real in pooled_sends_less(rows)}
    assert less == {
        ("uniform, 20 ids", 4): (True, True), ("uniform, 20 ids", 2): (True, True),
        ("zipf 1.05, 1 id", 4): (False, False), ("zipf 1.05, 1 id", 2): (False, False),
    }  # fmt: skip


def known() -> Machine:
    work = {n: Work((1e-3, 3e-8, 1e-11, 2e-10, 1e-8, 4e-10), 0.0) for n in PASSES}
    routes = {(ranks, s): Routing(1e-4, 5e-9) for ranks in MLPERF_RANKS for s in STRATEGIES}
    return Machine(dict.fromkeys(WAYS, work), routes, Link(2e-4, 1e-9, after_work=5e-5))


def test_fits_recover_the_laws() -> None:
    machine = known()
    for way in WAYS:
        settings = [w.setting(1, *way) for w in CALIBRATION]
        laws_of = machine.work[way]
        seconds = [{n: float((terms(s)[n] @ np.array(laws_of[n].seconds))[0]) for n in PASSES} for s in settings]
        for name, found in fit_work(settings, seconds).items():
            np.testing.assert_allclose(found.seconds, laws_of[name].seconds, rtol=1e-6)
    link = fit_link([0, 1000, 10**6], [2e-4, 2e-4 + 1e-6, 1.2e-3])
    assert (link.message, link.byte) == pytest.approx((2e-4, 1e-9))


def simulated_world(machine: Machine, ranks: int) -> World:
    """Return a world with the machine's times, every other repeat slower."""
    world, link = World(ranks), machine.link

    def add(parts: list[float], **line: Any) -> None:
        repeats = [[*parts, sum(parts)], [parts[0] * 0.9, *(p * 1.5 for p in parts[1:])]]
        repeats[1].append(sum(repeats[1]) + parts[0])
        world.add({**line, "seconds": [[[t, t] for t in repeat] for repeat in repeats]})

    for size in EXCHANGED:
        add([(ranks - 1) * (link.message + link.byte * size)], what="exchange", size=size)
    each = (ranks - 1) * (link.message + link.byte * BETWEEN) + link.after_work
    add([3e-3, each * len(PHASES)], what="after_work", size=BETWEEN)
    for ids, (owners, strategy) in product([b * h for b, h in ROUTED], routed(ranks)):
        r = machine.routes[owners, strategy] if owners > 1 else Routing(0.0, 0.0)
        add([1e-4 + r.call + r.each * ids], what="route", name=[ids, owners, strategy])
    for way in WAYS:
        for w in CALIBRATION:
            found = step(w.setting(1, *way), machine)
            add([found.forward, found.backward], what="single", name=w.name, way=way)
        for w in CHECKS:
            add([step(w.setting(ranks, *way), machine).total], what="step", name=w.name, way=way)
            world.traffic[w.name, way] = [[0] * len(PHASES)] * ranks
    return world


@pytest.mark.parametrize("ranks", [2, 4])
def test_fits_recover_the_numbers_of_a_world(ranks: int) -> None:
    machine = known()
    world = simulated_world(machine, ranks)
    for clock in (WALL, OWN):
        link = world.machine(clock).link
        assert (link.message, link.byte) == pytest.approx((machine.link.message, machine.link.byte))
        assert link.after_work == pytest.approx(machine.link.after_work)
    for row in compare(world):
        assert row["model_ms"] == pytest.approx(row["ms"])


def test_exchanges_start_after_work() -> None:
    setting, machine = CHECKS[0].setting(4, "exact", 4), known()
    together = replace(machine, link=replace(machine.link, after_work=0.0))
    added = step(setting, machine).messages - step(setting, together).messages
    assert added == pytest.approx(len(PHASES) * machine.link.after_work)  # once per exchange
    assert "; 50 µs more where it comes after work." in report.parameters(machine)[-1]


def test_more_ranks_store_less_and_wait_for_the_busiest() -> None:
    one, many = mlperf(1, "exact"), mlperf(64, "exact")
    assert memory(one)["table"].sum() == memory(many)["table"].sum() == sum(MLPERF_ROWS) * 512
    assert sent(one).mean == 0
    assert one.ids == 64 * many.ids == 65_536 * sum(MLPERF_HOTNESS)
    even, skewed = (step(replace(many, features=(Feature(10**6, 20, a),)), known()) for a in (0.0, 1.05))
    assert skewed.backward > 2 * even.backward  # the owner of the hottest row receives its pairs from all ranks


def test_tables_are_written_between_their_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- sizes: written by bench/run.py --scale -->\nold\n<!-- end of sizes -->\nb\n")
    predicted = predict(known())
    for _ in range(2):
        report.put(page, "sizes", report.mlperf_sizes(predicted))
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1], "old" in lines) == ("a", "b", False)
    assert sum(line.startswith("| 1,024 |") for line in lines) == 1
    with pytest.raises(ValueError, match="no place for runs"):
        report.put(page, "runs", [])
