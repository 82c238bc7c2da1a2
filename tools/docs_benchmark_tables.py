"""Generate the tables of docs/explanation/performance.md from bench/results, so that no number is typed by hand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "bench" / "results"
PEERS = {"tensorflow": "TensorFlow", "torch": "torch", "fbgemm": "FBGEMM", "jax": "JAX", "scipy": "SciPy"}
KINDS = {
    "forward": "forward, mean",
    "weighted": "forward, weighted mean",
    "dense": "gradient, fresh dense table",
    "dense_kept": "gradient into a `GradBuffer`",
    "rows": "gradient by unique rows",
    "rows_planned": "gradient by unique rows, with a `Plan`",
    "weighted_dense": "weighted gradient, fresh dense table",
    "slice": "`SparseSlice`",
    "slice_grad": "`SparseSliceGrad`",
    "fill": "`SparseFillEmptyRows`",
    "fill_grad": "`SparseFillEmptyRowsGrad`",
    "add": "`SparseAdd`",
    "add_grad": "`SparseAddGrad`",
    "tiny": "1,000 tiny calls from NumPy",
    "train": "a step: forward, backward, row-wise Adagrad",
    "train_tables": "a step with 26 tables",
    "tiny_torch": "1,000 tiny calls from torch",
    "tiny_torch_grad": "1,000 tiny calls from torch, gradient recorded",
    "tiny_torch_backward": "1,000 tiny backward passes of torch",
    "tiny_module": "1,000 calls of `EmbeddingBag`",
    "forward_jit": "forward, compiled",
    "dense_jit": "dense gradient, compiled",
    "rows_jit": "gradient by unique rows, compiled",
    "tiny_jit": "1,000 tiny calls in a compiled loop",
}
# Names in h200-steps.json: how a row is shown, and the row of torch it is compared with.
STEPS = {
    "forward module, ": ("`EmbeddingBag`, no gradient, ", "torch module, "),
    "forward raw op, ": ("`SparseSegmentMeanWithNumSegments`; torch: `F.embedding_bag`, ", "torch F.embedding_bag, "),
    "dense backward, ": ("forward and dense backward, ", "torch dense backward, "),
    "GradV2": ("`SparseSegmentMeanGradV2`, 16384 bags", ""),
    "step fused, ": ("step, `fused=True`, ", "torch step sparse, "),
    "step rows, ": ('step, `grad="rows"`, ', "torch step sparse, "),
    "26 tables fused, stacked, ": (
        "step, 26 tables, one output, fused SGD, ids ",
        "torch 26 tables stacked sparse SGD",
    ),
    "26 tables fused, ": ("step, 26 tables, fused SGD, ids ", "torch 26 tables sparse SGD"),
    "26 tables grad='rows', ": ('step, 26 tables, `grad="rows"`, SGD, ids ', "torch 26 tables sparse SGD"),
    "26 tables forward, ": ("lookup in 26 tables, ids ", "torch 26 tables forward"),
    "compiled step, fused, ": ("step, `fused=True`, RowWiseAdagrad, compiled: ", "torch compiled step, dense, "),
    "compiled step, rows, ": ('step, `grad="rows"`, RowWiseAdagrad, compiled: ', "torch compiled step, dense, "),
    "compiled step, dense, ": ("step, dense gradient, RowWiseAdagrad, compiled: ", "torch compiled step, dense, "),
    "click model, ": ("step of the click model, ", "torch click model, "),
    "forward and backward, rows": ('forward and backward, `grad="rows"`, 16384 bags', ""),
}
JAX_CALLS = {
    "gather": "`table[ids]`",
    "forward": "`SparseSegmentMeanWithNumSegments`",
    "dense": "`SparseSegmentMeanGrad`, a dense table",
    "rows": "`SparseSegmentMeanGradV2`, `size=` the number of ids",
    "weighted": "`WeightedSparseSegmentMeanWithNumSegments`",
    "weighted dense": "`WeightedSparseSegmentMeanGrad`, a dense table",
}
JAX_STEPS = {"step sgd": "SGD", "step row_wise_adagrad": "row-wise Adagrad"}
COMPARISONS = ("six_cases", "shapes", "dtypes", "tiny", "torch_steps", "jax_jit")
Ratios = dict[tuple[str, str], dict[str, float]]  # (kind, peer) -> case -> how many times faster


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def ratios(name: str) -> Ratios:
    """Return ratios of minimal times, only for results that agree."""
    found: Ratios = {}
    for case, kinds in load(name)["results"].items():
        for kind, peers in kinds.items():
            ours = peers["rowgrad"]["min"]
            for peer in PEERS:
                theirs = peers.get(peer)
                if theirs and theirs["agrees"]:
                    found.setdefault((kind, peer), {})[case] = theirs["min"] / ours
    return found


def wrong_results() -> int:
    """Return the number of peers' results that did not agree: 16-bit gradients accumulated in 16 bits."""
    runs = (peers for name in COMPARISONS for kinds in load(name)["results"].values() for peers in kinds.values())
    return sum(not answer["agrees"] for peers in runs for peer, answer in peers.items() if peer in PEERS)


def mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def short(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 1.05 else f"{value:.2f}"


def shown(value: float) -> str:
    return f"**{short(value)}**" if value < 1 else short(value)


def facts(name: str) -> str:
    f = load(name)["facts"]
    machine = f"{f['processor']}, {f['cores']} cores, {f['threads']} threads, {f['level']}"
    return f"{machine}, {', '.join(f['versions'])}, {f['date']}"


def summary(name: str) -> Iterator[str]:
    """Yield kind by peer: the geometric mean over the cases and the worst case; losses are bold."""
    found = ratios(name)
    peers = [p for p in PEERS if any(peer == p for _, peer in found)]
    yield "| | " + " | ".join(PEERS[p] for p in peers) + " |"
    yield "|---|" + "---|" * len(peers)
    for kind in dict.fromkeys(kind for kind, _ in found):
        cells = []
        for peer in peers:
            cases = found.get((kind, peer), {})
            if not cases:
                cells.append("")
            elif len(cases) == 1:
                cells.append(shown(mean(cases.values())))
            else:
                cells.append(f"{shown(mean(cases.values()))}, worst {shown(min(cases.values()))}")
        yield f"| {KINDS.get(kind, kind)} | " + " | ".join(cells) + " |"
    yield ""
    yield f"`bench/results/{name}.json`: {facts(name)}."


def cases(name: str) -> Iterator[str]:
    yield from ("| case | |", "|---|---|")
    yield from (f"| `{case}` | {text} |" for case, text in load(name)["cases"].items())


def losses() -> Iterator[str]:
    """Yield every comparison in which a peer was faster, the largest loss first."""
    found = [
        (ratio, name, case, kind, peer)
        for name in COMPARISONS
        for (kind, peer), by_case in ratios(name).items()
        for case, ratio in by_case.items()
        if ratio < 1
    ]
    total = sum(len(by_case) for name in COMPARISONS for by_case in ratios(name).values())
    yield f"{len(found)} of {total} comparisons on the CPU were lost. {wrong_results()} more are left out,"
    yield "because the other library's result was different:"
    yield ""
    yield from ("| what | case | against | times as fast | file |", "|---|---|---|---|---|")
    for ratio, name, case, kind, peer in sorted(found):
        yield f"| {KINDS.get(kind, kind)} | `{case}` | {PEERS[peer]} | {ratio:.2f} | `{name}` |"


def gpu() -> Iterator[str]:
    """Yield queued calls next to torch's in the same run."""
    data = load("h200-float32")
    yield from ("| batch | forward, ms | torch | times | dense gradient, ms | torch | times |", "|---|" + "---|" * 6)
    products: dict[str, list[float]] = {"forward": [], "dense": []}
    for case in data["cases"]:
        cells = []
        for kind, times in products.items():
            ours = case["ours"][kind]["call queued"]["median"]
            theirs = case["torch"][kind].get("queued", {}).get("median")
            if theirs:
                times.append(theirs / ours)
            cells += [f"{ours:.3f}", f"{theirs:.3f}" if theirs else "", shown(theirs / ours) if theirs else ""]
        yield f"| {case['case']} | " + " | ".join(cells) + " |"
    means = [shown(mean(v)) for v in products.values()]
    yield f"| geometric mean | | | {means[0]} | | | {means[1]} |"
    yield ""
    machine = data["machine"]
    yield f"`bench/results/h200-float32.json`: {machine['device']}, torch {machine['torch']}, {machine['date']}."


def gpu_steps() -> Iterator[str]:
    """Yield whole calls and steps on a GPU next to torch's in the same run, and how many were lost."""
    data = load("h200-steps")
    rows = {r["name"]: r for r in data["rows"]}
    yield from ("| call | rowgrad, µs | torch, µs | times | host, µs | replayed, µs |", "|---|" + "---:|" * 5)
    times = []
    for name, row in rows.items():
        if name.startswith("torch "):
            continue
        start, (label, peer) = next(((k, v) for k, v in STEPS.items() if name.startswith(k)), (name, (name, "")))
        rest = name.removeprefix(start)
        theirs = rows.get(peer) or rows.get(peer + rest) or rows.get(peer + rest.removeprefix("RowWise"), {})
        pair = [row.get("eager"), theirs.get("eager")]
        times += [pair[1] / pair[0]] if all(pair) else []
        cells = [*(f"{t:,.0f}" if t else "" for t in pair), shown(times[-1]) if all(pair) else ""]
        cells += [f"{row[k]:,.0f}" if k in row else "–" for k in ("host", "graph")]
        yield f"| {re.sub(r'[0-9]{4,}', lambda m: f'{int(m[0]):,}', label + rest)} | " + " | ".join(cells) + " |"
    yield ""
    yield f"{sum(t < 1 for t in times)} of {len(times)} comparisons were lost (bold)."
    yield f"`bench/results/h200-steps.json`: {data['device']}, torch {data['torch']}, {data['date']}."


def gpu_host_work() -> Iterator[str]:
    """Yield the host's time of calls on a GPU whose launches do nothing."""
    data = load("gpu_host_work")
    yield from ("| call | host, µs | launches |", "|---|---:|---:|")
    for row in data["rows"]:
        name = row["name"].replace("torch: ", "torch on the CPU: ")
        yield f"| {name} | {row['host']:.1f} | {row.get('launches', '')} |"
    yield ""
    yield f"`bench/results/gpu_host_work.json`: {data['machine']['processor']}, torch {data['torch']}, {data['date']}."


def gpu_jax() -> Iterator[str]:
    """Yield the times of calls in compiled JAX programs on a GPU next to plain jnp's, and how many were lost."""
    data = load("h200-jax")
    found = {(r["name"], r["bags"]): r for r in data["rows"]}
    yield from (
        "| call | bags | rowgrad, µs | jnp, µs | times | host, µs | outside of `jit`, µs |",
        "|---|" + "---:|" * 6,
    )
    times = []
    for (name, bags), row in found.items():
        if name not in JAX_CALLS:
            continue
        theirs = found.get((f"jnp {name}", bags), {}).get("device")
        times += [theirs / row["device"]] if theirs else []
        cells = [f"{row['device']:,.1f}", f"{theirs:,.1f}" if theirs else "", shown(times[-1]) if theirs else ""]
        cells += [f"{row[k]:,.0f}" for k in ("host", "outside of jit")]
        yield f"| {JAX_CALLS[name]} | {bags:,} | " + " | ".join(cells) + " |"
    yield ""
    yield f"{sum(t < 1 for t in times)} of {len(times)} comparisons were lost (bold)."
    yield from jax_steps([r for r in data["rows"] if r["name"] in JAX_STEPS])
    yield f"`bench/results/h200-jax.json`: {data['device']}, JAX {data['jax']}, {data['date']}."


def jax_steps(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the times of training steps next to plain jnp's with dense gradients and with rows, if there are any."""
    if not rows:
        return
    yield from (
        "",
        "Training steps with donated tables and state; plain jnp with a dense gradient, and with scattered rows:",
        "",
        "| step | bags | rowgrad, µs | jnp, dense | jnp, rows | times the faster | host, µs |",
        "|---|" + "---:|" * 6,
    )
    found = {(r["name"], r["tables"], r["bags"], r["way"]): r for r in rows}
    times = []
    for (name, tables, bags, way), row in found.items():
        if way != "rowgrad":
            continue
        theirs = [found[name, tables, bags, peer].get("device") for peer in ("jnp dense", "jnp rows")]
        ours, known = row.get("device"), [t for t in theirs if t]
        times += [min(known) / ours] if ours and known else []
        cells = [f"{t:,.1f}" if t else "" for t in (ours, *theirs)]
        cells += [shown(times[-1]) if ours and known else "", f"{row['host']:,.0f}" if "host" in row else ""]
        label = f"{JAX_STEPS[name]}, {tables} tables" if tables > 1 else JAX_STEPS[name]
        yield f"| {label} | {bags:,} | " + " | ".join(cells) + " |"
    yield ""
    yield f"{sum(t < 1 for t in times)} of {len(times)} steps were slower (bold)."


def threads() -> Iterator[str]:
    """Yield the speed-up of the second thread, next to plain reads of the same rows."""
    rows = load("threads")["threads"]
    yield from ("| what | case | speed-up | of plain reads | quotient |", "|---|---|---|---|---|")
    for r in rows:
        cells = (f"{r[k]:.2f}" for k in ("speed_up", "probe_speed_up", "quotient"))
        yield f"| {KINDS.get(r['kind'], r['kind'])} | `{r['case']}` | " + " | ".join(cells) + " |"


def growth() -> Iterator[str]:
    """Yield nanoseconds per id as the number of ids grows."""
    rows = load("growth")["series"]["N"]
    kinds = list(dict.fromkeys(r["kind"] for r in rows))
    yield "| ids | " + " | ".join(f"{KINDS[k]}, ns an id" for k in kinds) + " |"
    yield "|---|" + "---|" * len(kinds)
    for ids in dict.fromkeys(r["ids"] for r in rows):
        times = {r["kind"]: r["seconds"] / ids * 1e9 for r in rows if r["ids"] == ids}
        yield f"| {ids:,} | " + " | ".join(f"{times[k]:.1f}" for k in kinds) + " |"


def pages() -> Iterator[str]:
    page, studio = load("page")["page"], load("studio")["studio"]
    ms = {k: v * 1e3 for k, v in page["seconds"].items()}
    frames, answer = studio["drag"]["frames_per_second"], studio["run_ms"]["median"]
    yield f"- A page of {page['blocks']:,} blocks loads in {ms['load']:.0f} ms and is checked in {ms['check']:.0f} ms."
    yield f"- It runs in {ms['run']:.1f} ms, of which the ops alone take {ms['ops alone']:.1f}."
    yield f"- In the browser a page of {studio['blocks']:,} blocks is drawn after {studio['load_ms'] / 1e3:.1f} s,"
    yield f"  dragged at {frames:.0f} frames a second, and its run is answered in {answer:.0f} ms."


def click_tables() -> Iterator[str]:
    """Yield the times of the embeddings of a click model: every variant, batch and number of threads."""
    columns = ("fused", "fused, ids by feature", "rows", "FBGEMM", "torch")
    shown_names = ("fused, one vector of ids", *columns[1:])
    yield "| threads, ids, examples | " + " | ".join(shown_names) + " | FBGEMM / fused |"
    yield "|---|" + "---|" * (len(columns) + 1)
    for threads in (1, 2):
        for case in load(f"click_tables_{threads}")["cases"]:
            times = {name: case["times"][name]["min"] for name in columns}
            ratio = times["FBGEMM"][3] / times["fused"][3]
            cells = [" + ".join(f"{x:,.0f}" for x in times[n][:3] if x) + f" = {times[n][3]:,.0f}" for n in columns]
            shown = f"{ratio:.2f}" if ratio >= 1 else f"**{ratio:.2f}**"
            yield f"| {threads}, {case['ids']}, {case['examples']:,} | " + " | ".join(cells) + f" | {shown} |"
    facts = load("click_tables_1")["facts"]
    yield ""
    versions = f"torch {facts['torch']}, FBGEMM {facts['FBGEMM']}"
    yield f"`bench/results/click_tables_1.json` and `click_tables_2.json`: {versions}, {facts['date']}."


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "six cases": lambda: summary("six_cases"),
    "cases": lambda: cases("six_cases"),
    "shapes": lambda: summary("shapes"),
    "shape cases": lambda: cases("shapes"),
    "dtypes measured": lambda: summary("dtypes"),
    "tiny": lambda: summary("tiny"),
    "torch steps": lambda: summary("torch_steps"),
    "click tables": click_tables,
    "jax jit": lambda: summary("jax_jit"),
    "losses": losses,
    "gpu": gpu,
    "gpu steps": gpu_steps,
    "gpu host work": gpu_host_work,
    "gpu jax": gpu_jax,
    "threads": threads,
    "growth": growth,
    "pages": pages,
}


def parts() -> dict[str, str]:
    """Return the generated parts of docs/explanation/performance.md by name."""
    return {name: "\n".join(make()) + "\n" for name, make in PARTS.items()}


def readme_numbers() -> str:
    """Return the README's three numbers; both ratios are geometric means of minimal times over the same cases."""
    steps, tables = (ratios("torch_steps")[kind, "torch"] for kind in ("train", "train_tables"))
    six = load("six_cases")
    lookups = [
        sum(kinds[k]["tensorflow"]["min"] for k in ("forward", "rows"))
        / sum(kinds[k]["rowgrad"]["min"] for k in ("forward", "rows"))
        for kinds in six["results"].values()
        if "rows" in kinds and all(kinds[k]["tensorflow"]["agrees"] for k in ("forward", "rows"))
    ]
    machine = f"{six['facts']['processor']}, {six['facts']['cores']} cores"
    times = f"{short(mean(lookups))}\N{NO-BREAK SPACE}× and {short(mean(steps.values()))}\N{NO-BREAK SPACE}×"
    rows = {
        "4096, not 256": "The sum of 4,096 bfloat16 gradients of 1 for one row. `torch.nn.EmbeddingBag` stops at 256 "
        "([why](docs/explanation/sums_in_16_bits.md)).",
        times: "Faster than TensorFlow's lookup with its gradient, and than PyTorch's training step of one table "
        "without clipping: Adagrad, here with one number of state per row, there with one per weight. "
        f"{short(mean(tables.values()))}\N{NO-BREAK SPACE}× with 26 tables. "
        f"Measured on {machine}; [all measurements](docs/explanation/performance.md), losses included.",
        "The same bits": "On NumPy, PyTorch and JAX, on CPU and GPU, for the order of addition you choose and any "
        "number of threads ([how this is tested](docs/explanation/exact.md)).",
    }
    return "| | |\n|---|---|\n" + "".join(f"| **{number}** | {text} |\n" for number, text in rows.items())
