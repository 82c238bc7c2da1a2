"""Write the outcome of a run as Markdown and as JSON."""

from __future__ import annotations

import json
import platform
import time

from run_target import Outcome
from targets import WORK


def write(outcomes: list[Outcome], what: str) -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    findings = [o for o in outcomes if o.finding]
    report = {"what": what, "ended": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()), "machine": platform.machine(),
            "executions": sum(o.executions for o in outcomes), "seconds": round(sum(o.seconds for o in outcomes), 1),
            "findings": len(findings), "targets": [o.to_json() for o in outcomes]}  # fmt: skip
    (WORK / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    lines = [
        f"# Fuzzing: {what}",
        "",
        f"{report['executions']:,} executions in {report['seconds']:,.0f} s; {len(findings)} findings.",
        "",
        "| target | level | executions | seconds | per second | coverage | corpus | seed | finding |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {o.target} | {o.level} | {o.executions:,} | {o.seconds:.0f} | {o.executions / max(o.seconds, 1e-3):.0f} "
        f"| {o.coverage or ''} | {o.corpus or ''} | {o.seed} | {o.finding} |"
        for o in outcomes
    ]
    lines += [line for o in findings for line in ("", f"{o.target}: `{o.again}`, log in {o.log}")]
    (WORK / "report.md").write_text("\n".join(lines) + "\n")
