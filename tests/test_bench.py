"""The benchmark programs: what they run, count and write. No test here depends on speed."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import machine, output
from bench.cpu import compare, kinds, series
from bench.cpu.cases import ALL, Case
from bench.cpu.kinds import KINDS
from bench.cpu.peer_process import Peer, PeerEndedError
from bench.cpu.peers import rowgrad as peer
from bench.cpu.point import Point
from bench.fit import fit, regime
from bench.output import Progress, clock
from bench.run import main

QUICK = ["--rounds", "1", "--repeats", "1"]


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    printed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert printed >= {*ALL, *KINDS, "N", "V", "D", "threads"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cases", "mid,nowhere"], "no case 'nowhere'; there are mid, wide"),
        (["--kinds", "sideways"], "no kind 'sideways'; there are forward"),
        (["--peers", "abacus"], "no peer 'abacus'; there are rowgrad"),
        (["--series", "Q"], "no series 'Q'; there are N, V, D, threads"),
        (["--cases", ""], "no case ''"),
        (["--cases", "tiny", "--kinds", "rows"], "none of the kinds rows fits the cases tiny"),
        (["--plot"], "give --out as well"),
    ],
)
def test_unknown_names_raise(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments]) == 2
    assert message in capsys.readouterr().err


def test_numbers_must_be_positive() -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--rounds", "0"])


def test_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--cases", "S12,sparse_small", "--kinds", "forward,dense,rows,weighted_dense,page_touch,slice"]
    peers = ["--peers", "scipy", "--peers-python", sys.executable]
    assert main([*arguments, *peers, *QUICK, "--out", str(tmp_path / "small")]) == 0
    out, err = capsys.readouterr()
    assert "dense by (page_touch + rows)" in out
    assert "*" not in out.partition("how many times")[0], "answers differ"
    assert "[1/6] S12 forward" in err
    written = json.loads((tmp_path / "small.json").read_text())
    assert written["facts"]["copy_gb_per_s"] > 0
    assert written["cases"]["S12"] == ALL["S12"].title
    assert set(written["results"]["S12"]["dense"]) == {"rowgrad", "scipy"}
    with open(tmp_path / "small.csv", newline="") as f:
        rows = list(csv.DictReader(f))
    assert [(r["case"], r["kind"]) for r in rows if r["peer"] == "rowgrad"] == [
        ("S12", "forward"), ("S12", "dense"), ("S12", "rows"), ("S12", "weighted_dense"), ("S12", "page_touch"),
        ("sparse_small", "slice"),
    ]  # fmt: skip


def test_a_peer_that_is_missing_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--cases", "S12", "--kinds", "rows", "--peers", "fbgemm", "--peers-python", sys.executable]
    assert main([*arguments, *QUICK]) == 0
    assert "without fbgemm: ModuleNotFoundError" in capsys.readouterr().err


def test_a_peer_that_ends_says_so() -> None:
    ending = Peer("scipy", sys.executable)
    ending._process.kill()
    with pytest.raises(PeerEndedError, match="status -9"):
        ending.send("make", kind="dense")
    assert ending.ended


def test_a_small_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--series", "N", "--upto", "1000", *QUICK, "--out", str(tmp_path / "n")]) == 0
    assert "t = a + b·N + c·N·D" in capsys.readouterr().out
    measured = json.loads((tmp_path / "n.json").read_text())["series"]["N"]
    assert [(m["kind"], m["ids"]) for m in measured] == [(kind, 1000) for kind in series.KINDS]
    assert len((tmp_path / "n.csv").read_text().splitlines()) == 4


def test_scaling() -> None:
    case = Case("small", 1_000, 8, 64, 5)
    measured = series.measure_threads([case], 2, 1, 1, Progress(3, io.StringIO()))
    assert [m["kind"] for m in measured] == list(series.KINDS)
    assert all(m["quotient"] == m["speed_up"] / m["probe_speed_up"] for m in measured)
    assert len(series.threads_report(measured)) == 5


def test_the_probe_reads_rows_in_the_kernels_order() -> None:
    x = {"dtype": "float32", "grad": np.eye(3, dtype=np.float32)}
    x |= {"table": np.eye(4, dtype=np.float32), "ids": np.array([2, 0, 2, 1]), "segments": np.array([0, 0, 1, 2])}
    assert series.reads("forward", x)[1].tolist() == [2, 0, 2, 1]
    assert series.reads("rows", x)[1].tolist() == [0, 2, 0, 1]


def test_every_kind_can_be_made_and_has_its_bytes() -> None:
    assert set(peer.KINDS) == set(KINDS)
    counted = {name for name, kind in KINDS.items() if kind.group in ("bags", "sparse")}
    assert {*kinds.BAG_BYTES, *kinds.SPARSE_BYTES} == counted


def test_least_bytes_of_bags() -> None:
    # 3 ids, 2 of them different, 2 bags, a table of 4 × 5 floats: a row has 20 bytes, an id 4.
    grad, ids = np.zeros((2, 5), np.float32), np.array([0, 2, 2], np.int32)
    x = {"grad": grad, "ids": ids, "rows": 4, "bags": 2, "dtype": "float32"}
    assert kinds.least_bytes(x, list(KINDS)) == {
        "forward": 3 * 20 + 24 + 2 * 20,
        "weighted": 3 * 20 + 24 + 12 + 2 * 20,
        "rows": 3 * 20 + 24 + 2 * 24,
        "rows_planned": 3 * 20 + 12 + 2 * 24,
        "dense_kept": 3 * 20 + 24 + 2 * 20 + 2 * 20,
        "dense": 3 * 20 + 24 + 2 * 20 + 4 * 20,
        "weighted_dense": 3 * 20 + 24 + 12 + 2 * 20 + 4 * 20,
        "page_touch": 2 * 20,
        "forward_jit": 3 * 20 + 24 + 2 * 20,
        "dense_jit": 3 * 20 + 24 + 2 * 20 + 4 * 20,
        "rows_jit": 3 * 20 + 24 + 2 * 5 // 4 * 24,
        "zeros_jit": 4 * 20,
        "train": (3 * 20 + 24 + 2 * 20) + (3 * 20 + 24) + 2 * (2 * 20 + 8),
    }
    assert kinds.bag_sizes({**x, "dtype": "bfloat16"}).w == 2


def test_least_bytes_of_sparse_matrices() -> None:
    # Entries (0, 0), (2, 1) and (0, 0), (2, 2) in 3 × 4; the slice holds row 2; row 1 is empty; the sum has 3 entries.
    x = {"indices": np.array([[0, 0], [2, 1]]), "b_indices": np.array([[0, 0], [2, 2]]), "shape": np.array([3, 4])}
    x |= {"start": np.array([1, 0]), "size": np.array([2, 4])}
    assert kinds.sparse_sizes(x) == kinds.SparseSizes(n=2, inside=1, rows=3, empty=1, union=3)
    assert kinds.least_bytes(x, ["slice", "add"]) == {"slice": 3 * 20, "add": 7 * 20}


def test_pages_of_rows() -> None:
    assert peer.pages_of_rows(np.array([0, 1, 3]), 3000).tolist() == [0, 4096, 8192]
    assert peer.pages_of_rows(np.array([1]), 10_000).tolist() == [8192, 12288, 16384]
    assert peer.pages_of_rows(np.array([], np.int32), 4).tolist() == []


def test_the_fit_finds_the_law() -> None:
    sizes = [(n, d) for n in (1e3, 1e4, 1e5, 1e6) for d in (1, 16, 256)]
    law = fit([n for n, _ in sizes], [d for _, d in sizes], [1e-5 + 2e-9 * n + 3e-10 * n * d for n, d in sizes])
    assert (law.a, law.b, law.c) == pytest.approx((1e-5, 2e-9, 3e-10), rel=1e-6)
    assert law.deviation < 1e-9
    assert law.at(1e4, 16) == pytest.approx(1e-5 + 2e-5 + 4.8e-5)


def test_the_fit_shows_that_there_is_no_law() -> None:
    ids = [1e3, 1e4, 1e5, 1e6]
    assert fit(ids, [1] * 4, [n * n * 1e-12 for n in ids]).deviation > series.MOST_DEVIATION
    falling = fit(ids, [1] * 4, [1e-3 / n for n in ids])
    assert min(falling.a, falling.b, falling.c) >= 0


def test_a_point_counts_its_memory_and_its_regime() -> None:
    point = Point(1_000, 50, 4)
    assert point.bags == 50
    assert series.bytes_per_id(point, 16_400) == 16.0
    assert series.bytes_per_id(point, None) is None
    assert point.working_set(unique=50) == 100 * 16 + 8_000
    caches = {2: 1_000, 3: 20_000}
    sizes = (1_000, 1_001, 2_000, 10_000, 10_001, 39_999, 40_000)
    found = ["L2", "between", "L3", "L3", "between", "between", "memory"]
    assert [regime(bytes_, caches) for bytes_ in sizes] == found


def test_cache_sizes(tmp_path: Path) -> None:
    assert machine.cache_sizes(tmp_path) == machine.USUAL_CACHES
    for index, (level, size) in enumerate([(1, "32K"), (2, "512K"), (3, "8M")]):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{size}\n")
    assert machine.cache_sizes(tmp_path) == {2: 512 << 10, 3: 8 << 20}


def test_progress_tells_each_step_on_a_line_of_its_own() -> None:
    out = io.StringIO()
    progress = Progress(2, out)
    progress.begin("first")
    progress.begin("second")
    progress.clear()
    first, second = out.getvalue().splitlines()
    assert first == "[1/2] first  0:00 elapsed"
    assert second == "[2/2] second  0:00 elapsed, about 0:00 left"
    assert [clock(s) for s in (5, 83, 3_725)] == ["0:05", "1:23", "1:02:05"]


def test_where_results_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert output.place("mine") == Path("mine")
    (tmp_path / "bench" / "results").mkdir(parents=True)
    assert output.place("mine") == Path("bench/results/mine")
    assert output.place("./elsewhere/mine.2") == Path("elsewhere/mine.2")


FOUND = {"mid": {"rows": {"rowgrad": {"min": 1.0, "agrees": True}, "torch": {"min": 2.0, "agrees": True}}}}


def test_drawings_are_the_same_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")
    grown = {"N": [{"kind": k, "ids": n, "seconds": n * 1e-8} for k in series.KINDS for n in (10, 100)]}
    for draw in (lambda stem: compare.draw_ratios(stem, FOUND), lambda stem: series.draw_growth(stem, grown)):
        first, second = (draw(tmp_path / name)[0].read_bytes() for name in ("a", "b"))
        assert first == second


def test_without_matplotlib_a_hint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    output.draw_if_possible(True, [Path("a.json")], lambda: [Path("a.svg")])
    assert capsys.readouterr().err.splitlines()[0].endswith("brings matplotlib, which draws them")


def test_started_from_another_folder(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[1] / "bench" / "run.py"
    arguments = ["--series", "N", "--upto", "1000", *QUICK, "--out", "n"]  # starts processes that import the package
    subprocess.run([sys.executable, str(script), *arguments], cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "n.csv").exists()


def test_the_package_does_not_have_them() -> None:
    sources = Path(__file__).resolve().parents[1] / "src" / "rowgrad"
    assert not (sources / "bench").exists()
    named = [
        p for p in sources.rglob("*.py") if re.search(r"^\s*(from|import) (rowgrad\.|\.+)?bench\b", p.read_text(), re.M)
    ]
    assert named == []


# -- Scripts for a GPU -------------------------------------------------------------------------------------------------


def test_gpu_steps_run_on_a_cpu_to_try_them() -> None:
    command = [sys.executable, "bench/gpu/steps.py", "--host"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = [json.loads(line)["name"] for line in done.stdout.splitlines()]
    assert names.count("step fused, RowWiseAdagrad") == 1
    parts = (
        "forward raw op",
        "step rows",
        "torch 3 tables",
        "compiled step, fused",
        "click model",
        "torch click model",
    )
    assert all(any(name.startswith(part) for name in names) for part in parts)


def test_host_work_of_a_gpu_is_measured_without_one() -> None:
    command = [sys.executable, "bench/gpu/host_work.py", "--runs", "2"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    launches = {row["name"]: row.get("launches") for row in map(json.loads, done.stdout.splitlines())}
    assert launches["EmbeddingBag, no gradient"] == launches["SparseSegmentMeanWithNumSegments"] == 1
    # the lookup; zeros, a scan, a pass and the rows of the sort; sums and their joins; the steps
    assert launches["step, fused=True, SGD"] == 8
    assert launches["torch: step, sparse=True, SGD"] is None


def loaded(path: str) -> Any:
    """Return a script as a module."""
    file = Path(__file__).resolve().parents[1] / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_jax_steps_at_small_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything runs, on any platform, and performance.md can show it; now it has no steps."""
    pytest.importorskip("jax", reason="the extra `jax` is not installed")
    script, tables = loaded("bench/gpu/jax_steps.py"), loaded("tools/docs_benchmark_tables.py")
    assert "row-wise Adagrad" not in "".join(tables.gpu_jax())
    script.main(["--small", "--out", str(tmp_path / "h200-jax.json")])
    rows = json.loads((tmp_path / "h200-jax.json").read_text())["rows"]
    assert [r for r in rows if "error" in r] == []
    ways = ("rowgrad", "jnp dense", "jnp rows")
    assert {(r["name"], r["tables"], r["way"]) for r in rows if "way" in r} == {
        (name, count, way) for name in ("step sgd", "step row_wise_adagrad") for count in (1, 3) for way in ways
    }
    assert all(r["device"] > 0 and r["call"] > 0 and r["host"] > 0 for r in rows if "way" in r)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    lines = list(tables.gpu_jax())
    assert sum(line.startswith("| row-wise Adagrad") for line in lines) == 2
    assert any(line.startswith("| SGD, 3 tables | 4 |") for line in lines)
    assert any(line.startswith("| `table[ids]` |") for line in lines)


@pytest.mark.parametrize("rule", ["sgd", "row_wise_adagrad"])
def test_jax_steps_of_all_ways_are_equal(rule: str) -> None:
    """What is compared computes the same tables, up to rounding."""
    jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
    script = loaded("bench/gpu/jax_steps.py")
    batch, found = script.batch_of(2, 30, 4, 9, 3), {}
    for way, training in script.trainings(rule, 2, 30, 4).items():
        state = training.init()
        for _ in range(3):
            state, loss = jax.jit(training.step)(state, batch)
        found[way] = [*(np.asarray(x) for x in jax.tree.leaves(state[0])), np.asarray(loss)]
    start = [np.asarray(x) for x in jax.tree.leaves(script.trainings(rule, 2, 30, 4)["rowgrad"].init()[0])]
    assert all(np.abs(x - y).max() > 0.01 for x, y in zip(found["rowgrad"], start, strict=False))
    for way in ("jnp dense", "jnp rows"):
        for x, y in zip(found["rowgrad"], found[way], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
