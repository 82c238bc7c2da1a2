"""The benchmarks' command line: `python bench/run.py --help`."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

if not __package__:  # started as a script: its own folder must not shadow other modules
    _HERE = Path(__file__).resolve().parent
    sys.path = [str(_HERE.parent), *(p for p in sys.path if Path(p).resolve() != _HERE)]

from bench import page
from bench.cpu import compare, series
from bench.cpu.cases import ALL, USUAL
from bench.cpu.kinds import KINDS, PEERS
from bench.cpu.peer_process import PeerEndedError
from bench.scale import report as scale
from bench.scale.world import WorldEndedError

DESCRIPTION = """\
Times rowgrad beside the libraries it can be compared with, or alone as sizes and threads grow.

  python bench/run.py                                  the six cases, the sparse ops, tiny calls, all peers
  python bench/run.py --cases mid,S9 --kinds dense,rows --peers rowgrad,torch
  python bench/run.py --series N,D --out growth        time and memory as ids and columns grow
  python bench/run.py --page 5000                      the overhead of a page with so many blocks
  python bench/run.py --scale --out scale              a model of sharded tables, checked against runs

Every peer runs in its own process; peers take turns in each round, so a slow phase of the machine affects all of them.
Times are minima over rounds × repeats; answers are compared before they count.
"""


class UnavailableError(Exception):
    """The request names something that is not available; the text is for the user."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    chosen = make_parser().parse_args(argv)
    try:
        return run(chosen)
    except UnavailableError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except PeerEndedError as error:
        print(f"bench: rowgrad's own process has ended: {error}", file=sys.stderr)
        return 1
    except WorldEndedError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbench: interrupted, nothing written", file=sys.stderr)
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all options."""
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print every case, kind, peer and series, and exit")
    what = parser.add_argument_group("what is timed")
    what.add_argument("--cases", metavar="A,B", help="workloads by name (default: the six, sparse, tiny)")
    what.add_argument("--kinds", metavar="A,B", help="kinds of calls by name (default: all that fit a case)")
    what.add_argument("--peers", metavar="A,B", help=f"libraries (default: {','.join(PEERS)}; rowgrad always runs)")
    what.add_argument("--series", metavar="S", help="rowgrad alone as something grows: N, V, D, threads, or several")
    what.add_argument("--page", metavar="N", type=_positive, help="load, check and run a page of N small blocks")
    what.add_argument("--scale", action="store_true", help="tables sharded among 1, 2 and 4 processes: compare a "
                      "model's bytes and times with runs, within 3 minutes; ignores --rounds")  # fmt: skip
    what.add_argument("--upto", metavar="X", type=float, default=float("inf"), help="no point of N, V or D above this")
    how = parser.add_argument_group("how")
    how.add_argument("--rounds", metavar="R", type=_positive, default=3, help="rounds over the peers (default 3)")
    how.add_argument("--repeats", metavar="R", type=_positive, default=5, help="runs of a call per round (default 5)")
    how.add_argument("--threads", metavar="T", type=_positive, help="threads of every library (default: all cores)")
    how.add_argument("--peers-python", metavar="PATH", help="an interpreter that has the peers "
                     "(default: .venv-peers/bin/python, else this one)")  # fmt: skip
    result = parser.add_argument_group("output files")
    result.add_argument("--out", metavar="NAME", help="write NAME.json and NAME.csv; a bare name goes into "
                        "bench/results if that exists")  # fmt: skip
    result.add_argument("--plot", action="store_true", help="draw NAME*.svg too; the default if matplotlib is "
                        "installed")  # fmt: skip
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def run(chosen: argparse.Namespace) -> int:
    """Run the requested benchmarks; raise UnavailableError if that is not possible."""
    if platform.system() not in ("Linux", "Darwin"):
        raise UnavailableError("the benchmarks run on Linux and macOS")
    cases = _names("case", chosen.cases, ALL, USUAL)
    kinds = _names("kind", chosen.kinds, KINDS, KINDS)
    peers = _names("peer", chosen.peers, PEERS, PEERS)
    if chosen.plot and not chosen.out:
        raise UnavailableError("--plot draws beside the results: give --out as well")
    if chosen.list:
        _list()
    elif chosen.scale:
        if importlib.util.find_spec("torch") is None:
            raise UnavailableError("--scale needs torch.distributed: `pip install 'rowgrad[torch]'`")
        scale.run(chosen)
    elif chosen.page:
        page.run(chosen.page, chosen)
    elif chosen.series:
        series_names = _names("series", chosen.series, series.NAMES, ())
        series.run(series_names, cases if chosen.cases else [], chosen)
    else:
        steps = compare.steps(cases, kinds)
        if not any(steps.values()):
            raise UnavailableError(f"none of the kinds {', '.join(kinds)} fits the cases {', '.join(cases)}")
        compare.run(steps, ["rowgrad", *(p for p in peers if p != "rowgrad")], _peers_python(chosen), chosen)
    return 0


def _names(what: str, text: str | None, known: Collection[str], default: Collection[str]) -> list[str]:
    """Return the names in a comma-separated list; raise UnavailableError if one is unknown."""
    if text is None:
        return list(default)
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        missing = ", ".join(map(repr, unknown)) or "''"
        raise UnavailableError(f"no {what} {missing}; there are {', '.join(known)}")
    return names


def _peers_python(chosen: argparse.Namespace) -> str:
    beside = Path(".venv-peers", "bin", "python")
    return chosen.peers_python or (str(beside) if beside.exists() else sys.executable)


def _list() -> None:
    print("cases")
    for case in ALL.values():
        print(f"  {case.name:17} {case.group:7} {case.title}")
    print("\nkinds")
    for kind in KINDS.values():
        print(f"  {kind.name:17} {kind.group:7} {kind.title}")
    print(f"\npeers\n  {', '.join(PEERS)}")
    print("\nseries")
    for name, title in series.NAMES.items():
        print(f"  {name:17} {title}")


if __name__ == "__main__":
    sys.exit(main())
