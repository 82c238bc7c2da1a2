"""The command `rowgrad bench`: what may be asked, and who answers it."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from . import comparison, pages, series
from .cases import ALL, USUAL
from .kinds import KINDS, PEERS
from .measure import steps
from .peer_process import PeerEndedError
from .scale import run as scale
from .scale.worlds import WorldEndedError

DESCRIPTION = """\
Times rowgrad beside the libraries it can be compared with, or as sizes and threads grow.

  rowgrad bench                                    the six cases, the sparse ops, tiny calls, all peers
  rowgrad bench --cases mid,S9 --kinds dense,rows --peers rowgrad,torch
  rowgrad bench --series N,D --out growth          time and memory as ids and columns grow
  rowgrad bench --page 5000                        what a page of so many blocks costs besides its ops
  rowgrad bench --scale --out scale                a model of tables split among processes, held against runs

Every peer works in a process of its own; rounds go round the peers in turn, so that a slow spell of the machine hits
all of them. Times are minima over rounds × repeats; answers are compared before they count.
"""


class UnusableError(Exception):
    """What was asked for is not there, in words for the person who asked."""


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    chosen = parser().parse_args(argv)
    try:
        return run(chosen)
    except UnusableError as error:
        print(f"rowgrad bench: {error}", file=sys.stderr)
        return 2
    except PeerEndedError as error:
        print(f"rowgrad bench: rowgrad's own process has ended: {error}", file=sys.stderr)
        return 1
    except WorldEndedError as error:
        print(f"rowgrad bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nrowgrad bench: interrupted, nothing written", file=sys.stderr)
        return 130


def parser(kind: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    """What may be asked, as a parser of the class that is to tell of wrong usage."""
    made = kind(prog="rowgrad bench", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--list", action="store_true", help="print every case, kind, peer and series, and end")
    what = made.add_argument_group("what is timed")
    what.add_argument("--cases", metavar="A,B", help="workloads by name (default: the six, sparse, tiny)")
    what.add_argument("--kinds", metavar="A,B", help="kinds of calls by name (default: all that fit a case)")
    what.add_argument("--peers", metavar="A,B", help=f"libraries (default: {','.join(PEERS)}; rowgrad is always there)")
    what.add_argument("--series", metavar="S", help="rowgrad alone as something grows: N, V, D, threads, or several")
    what.add_argument("--page", metavar="N", type=_positive, help="load, check and run a page of N small blocks")
    what.add_argument("--scale", action="store_true", help="tables split among 1, 2 and 4 processes: a model's bytes "
                      "and times held against runs, within 3 minutes; no --rounds")  # fmt: skip
    what.add_argument("--upto", metavar="X", type=float, default=float("inf"), help="no point of N, V or D above this")
    how = made.add_argument_group("how")
    how.add_argument("--rounds", metavar="R", type=_positive, default=3, help="turns round the peers (default 3)")
    how.add_argument("--repeats", metavar="R", type=_positive, default=5, help="runs of a call in a turn (default 5)")
    how.add_argument("--threads", metavar="T", type=_positive, help="threads of every library (default: all cores)")
    how.add_argument("--peers-python", metavar="PATH", help="an interpreter that has the peers "
                     "(default: .venv-peers/bin/python, else this one)")  # fmt: skip
    result = made.add_argument_group("what becomes of it")
    result.add_argument("--out", metavar="NAME", help="write NAME.json and NAME.csv, a bare name into bench/results "
                        "where that exists")  # fmt: skip
    result.add_argument("--plot", action="store_true", help="draw NAME*.svg beside them; done without asking where "
                        "matplotlib is installed")  # fmt: skip
    return made


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def run(chosen: argparse.Namespace) -> int:
    """Do what was asked; UnusableError where that is not possible."""
    if platform.system() not in ("Linux", "Darwin"):
        raise UnusableError("the benchmarks run on Linux and macOS")
    cases = _names("case", chosen.cases, ALL, USUAL)
    kinds = _names("kind", chosen.kinds, KINDS, KINDS)
    peers = _names("peer", chosen.peers, PEERS, PEERS)
    if chosen.plot and not chosen.out:
        raise UnusableError("--plot draws beside the results: give --out as well")
    if chosen.list:
        _list()
    elif chosen.scale:
        if importlib.util.find_spec("torch") is None:
            raise UnusableError("--scale runs processes of torch.distributed: `pip install 'rowgrad[torch]'`")
        scale.run(chosen)
    elif chosen.page:
        pages.run(chosen.page, chosen)
    elif chosen.series:
        listed = _names("series", chosen.series, series.NAMES, ())
        series.run(listed, cases if chosen.cases else [], chosen)
    else:
        wanted = steps(cases, kinds)
        if not any(wanted.values()):
            raise UnusableError(f"none of the kinds {', '.join(kinds)} fits the cases {', '.join(cases)}")
        comparison.run(wanted, ["rowgrad", *(p for p in peers if p != "rowgrad")], _peers_python(chosen), chosen)
    return 0


def _names(what: str, given: str | None, known: Collection[str], usual: Collection[str]) -> list[str]:
    """The names in a list with commas, all of which must be known."""
    if given is None:
        return list(usual)
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    strange = [name for name in names if name not in known]
    if strange or not names:
        missing = ", ".join(map(repr, strange)) or "''"
        raise UnusableError(f"no {what} {missing}; there are {', '.join(known)}")
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
