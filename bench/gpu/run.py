"""rowgrad on a GPU compared with torch, and with figures of cuEmbed measured elsewhere.

    python3 bench/gpu/run.py                                   every case in float32
    python3 bench/gpu/run.py --only 1,5 --kinds dense,rows --repeat 200
    python3 bench/gpu/run.py --dtypes float32,bfloat16,float16 --name dtypes
    python3 bench/gpu/run.py --device cpu --shrink 1000 --name trial --out build    try out the script

Writes bench/results/<device>-<name>.json and .md after every case.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import accuracy
import bandwidth
import rowgrad_calls
import torch
import torch_calls
from cases import CASES, Batch, make
from report import Report, machine
from timing import CLOCKS, Timing, Work, on_host

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("dense", "rows", "forward", "planned dense", "planned rows", "fused")


class Run:
    """One run of the benchmark."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self.is_cuda = self.device.type == "cuda"
        self.begun = time.perf_counter()
        self.failed = 0

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"[{time.perf_counter() - self.begun:6.1f} s] {text}", flush=True)

    def clock(self, name: str, work: Work, runs: int = 0) -> Timing:
        """Time with the clock of this name; without a CUDA device there is only one."""
        runs = runs or self.args.repeat
        return CLOCKS[name](work, runs) if self.is_cuda else on_host(work, min(runs, 3))

    def attempt(self, what: str, do: Callable[[], Any]) -> Any:
        """Return the result of `do`, or the reason of its failure, so that other measurements continue."""
        try:
            return do()
        except rowgrad_calls.MissingError as error:
            return f"missing: {error}"
        except Exception as error:
            self.failed += 1
            self.say(f"FAILED {what}: {type(error).__name__}: {error}")
            traceback.print_exc()
            if self.is_cuda:
                torch.cuda.synchronize()  # raises here if the device is lost, and ends the run
            return f"failed: {type(error).__name__}: {error}"

    def time_rowgrad(self, batch: Batch, kind: str, reference: Any) -> dict[str, Any]:
        """Time one kind of work in rowgrad, in every way of calling it."""
        found: dict[str, Any] = {}
        if kind in rowgrad_calls.KERNELS:
            work = self.attempt(f"{kind}, kernels", partial(rowgrad_calls.KERNELS[kind], batch))
            if callable(work):
                found["answer"] = self.check_accuracy(work, kind, reference, batch)
                for name in CLOCKS:
                    timed = self.attempt(f"{kind}, {name}", partial(self.clock, name, work))
                    found[name] = timed.as_dict() if isinstance(timed, Timing) else timed
            else:
                found["graph"] = work
        work = None
        call = self.attempt(f"{kind}, call", partial(rowgrad_calls.CALLS[kind], batch))
        if callable(call):
            found["call answer"] = self.check_accuracy(call, kind, reference, batch)
            clocks = {"call": "eager", "call queued": "queued"}
            if kind != "rows":  # their number depends on data, so the call waits for it and cannot be captured
                clocks["call graph"] = "graph"
            for cell, name in clocks.items():
                timed = self.attempt(f"{kind}, {cell}", partial(self.clock, name, call))
                found[cell] = timed.as_dict() if isinstance(timed, Timing) else timed
        else:
            found["call"] = call
        return found

    def check_accuracy(self, work: Work, kind: str, reference: Any, batch: Batch) -> dict[str, Any]:
        """Compare a result with the one in float64."""
        if reference is None:
            return {"is": "not compared"}

        def compare() -> float | None:
            got = work()
            return None if got is None else accuracy.error_of(got, kind, reference)

        error = self.attempt(f"{kind}, answer", compare)
        if error is None:
            return {"is": "not compared"}
        if isinstance(error, float) and error <= accuracy.ALLOWED[batch.grad.dtype]:
            return {"is": "right", "error": error}
        if isinstance(error, float):
            self.failed += 1
            self.say(f"WRONG {kind}: differs by {error:.2e} of the largest element")
        return {"is": "wrong", "error": error}

    def time_torch(self, batch: Batch, kind: str) -> dict[str, Any]:
        """Time torch in the same run."""
        if kind not in torch_calls.WORK:
            return {}
        found = {}
        work = self.attempt(f"torch {kind}", partial(torch_calls.WORK[kind], batch))
        for name in ("queued", "eager"):
            timed = self.attempt(f"torch {kind}, {name}", partial(self.clock, name, work)) if callable(work) else work
            found[name] = timed.as_dict() if isinstance(timed, Timing) else timed
        return found

    def rewrite(self, batch: Any) -> dict[str, float]:
        """Return the lower bound for an update, measured with Triton."""
        from row_rewrite import rewrite

        return rewrite(batch, partial(self.clock, "queued"), self.args.repeat)

    def case(self, number: int, dtype: str, copy: float) -> dict[str, Any]:
        """Measure one case in one dtype."""
        case = CASES[number - 1]
        case = case.shrunk(self.args.shrink) if self.args.shrink > 1 else case
        batch = make(case, self.device, getattr(torch, dtype), getattr(torch, self.args.ids))
        moved: dict[str, Any] = bandwidth.least_bytes(batch)
        for by in moved.values():
            by.update({f"{k} ms": v / copy / 1e6 for k, v in list(by.items())})
        gathered = bandwidth.gather(batch, partial(self.clock, "queued"), self.args.repeat)
        found: dict[str, Any] = {
            "ids": batch.N, "unique": batch.unique, "ours": {}, "torch": {},
            "floors": {"bytes": moved, "gather": gathered},
        }  # fmt: skip
        if "fused" in self.args.kinds:
            rewritten = self.attempt("rewriting", partial(self.rewrite, batch))
            found["floors"]["rewrite"] = rewritten
        self.say(f"{case.name}, {dtype}: {batch.N} ids, {batch.unique} distinct")
        reference: dict[str, Any] = {}
        for kind in self.args.kinds:
            about = "forward" if kind == "forward" else "dense"
            if self.args.check and kind != "fused" and about not in reference:
                reference[about] = accuracy.expected(batch, about)
            found["ours"][kind] = self.time_rowgrad(batch, kind, reference.get(about) if kind != "fused" else None)
            found["torch"][kind] = self.time_torch(batch, kind)
            self.say(f"  {kind}: {shown(found['ours'][kind])}; torch: {shown(found['torch'][kind])}")
            if self.is_cuda:
                torch.cuda.empty_cache()
        return found


def shown(cells: dict[str, Any]) -> str:
    """Return the cells as one line."""

    def text(cell: Any) -> str:
        if not isinstance(cell, dict):
            return str(cell)
        return f"{cell['median']:.4f}" if "median" in cell else str(cell["is"])

    return ", ".join(f"{k} {text(v)}" for k, v in cells.items()) or "-"


def main() -> int:
    """Run the requested cases; return 1 if anything failed or was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="numbers of cases, such as 1,5; default: all")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--dtypes", default="float32", help="of the values, such as float32,bfloat16,float16")
    parser.add_argument("--ids", default="int32", choices=("int32", "int64"), help="dtype of ids and segment ids")
    parser.add_argument("--repeat", type=int, default=50, help="timed runs of each")
    parser.add_argument("--name", default="latest", help="of the files")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", help="folder of the files")
    parser.add_argument("--device", default="cuda", help="cpu tries the script out")
    parser.add_argument("--shrink", type=int, default=1, help="cases so many times smaller, to try the script out")
    parser.add_argument("--no-check", dest="check", action="store_false", help="leave out the comparison of answers")
    args = parser.parse_args()
    args.kinds = args.kinds.split(",")
    unknown = [k for k in args.kinds if k not in KINDS]
    if unknown:
        parser.error(f"no such kind: {', '.join(unknown)}")
    numbers = [int(n) for n in args.only.split(",") if n] or [case.number for case in CASES]
    if not all(1 <= n <= len(CASES) for n in numbers):
        parser.error(f"cases are 1 to {len(CASES)}")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("found no CUDA device; --device cpu --shrink 1000 tries out the script")
    if args.repeat < 1 or args.shrink < 1:
        parser.error("--repeat and --shrink are 1 or more")
    sys.path.insert(0, str(ROOT / "src"))
    run = Run(args)
    options = {"ids": args.ids, "repeat": args.repeat, "shrink": args.shrink, "answers compared": args.check}
    report = Report(args.out, args.name, machine(run.device), options)
    if args.shrink > 1:
        report.data["elsewhere"] += " The cases were shrunk, so no figure here can be compared with those."
    run.say(f"{report.data['machine']}")
    rates = bandwidth.bandwidths(run.device, partial(run.clock, "queued"), args.repeat, (1 << 30) // args.shrink)
    report.data["bandwidth GB/s"] = rates
    run.say(f"GB/s: {rates}")
    for number in numbers:
        for dtype in args.dtypes.split(","):
            case = CASES[number - 1].shrunk(args.shrink) if args.shrink > 1 else CASES[number - 1]
            report.add(case, dtype, run.case(number, dtype, rates["copy"]))
    run.say(f"written: {report.path}" + (f"; {run.failed} failed or wrong" if run.failed else ""))
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
