"""Results as JSON and CSV, with the facts of the machine."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from .cases import ALL
from .measure import Results
from .report import gb_per_s

Row = dict[str, Any]


def place(out: str) -> Path:
    """Where results go, without suffix: a bare name into bench/results where that exists, else a path as it is."""
    shelf = Path("bench", "results")
    return shelf / out if Path(out).name == out and shelf.is_dir() else Path(out)


def write(stem: Path, facts: dict[str, Any], parts: dict[str, Any], rows: list[Row]) -> list[Path]:
    """Everything as `stem`.json, and one line per measurement as `stem`.csv."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    as_json, as_csv = (stem.with_name(stem.name + suffix) for suffix in (".json", ".csv"))
    dated = {**facts, "date": date.today().isoformat()}
    as_json.write_text(json.dumps({"facts": dated, **parts}, indent=1) + "\n")
    with open(as_csv, "w", newline="") as f:
        table = csv.DictWriter(f, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return [as_json, as_csv]


def titles(results: Results) -> dict[str, str]:
    """The sizes of the cases, in words."""
    return {name: ALL[name].title for name in results}


def peer_rows(results: Results, copy_gb_per_s: float) -> Iterator[Row]:
    """One line per case, kind and peer."""
    for case, by_kind in results.items():
        for kind, found in by_kind.items():
            for peer, x in found.items():
                rate = gb_per_s(found) if peer == "rowgrad" else None
                yield {
                    "case": case,
                    "kind": kind,
                    "peer": peer,
                    "min_ms": round(x["min"] * 1e3, 4),
                    "median_ms": round(x["median"] * 1e3, 4),
                    "times_slower_than_rowgrad": round(x["min"] / found["rowgrad"]["min"], 3),
                    "agrees": x["agrees"],
                    "gb_per_s": "" if rate is None else round(rate, 2),
                    "of_copy_bandwidth": "" if rate is None else round(rate / copy_gb_per_s, 3),
                }
