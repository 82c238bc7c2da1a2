"""Run the real HTTP server with a fake studio of a few test verbs; started by server_process.py."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rowgrad.errors import InvalidArgumentError
from rowgrad.studio import verbs
from rowgrad.studio.events import Hub
from rowgrad.studio.limits import Limits
from rowgrad.studio.verbs import Arguments

verbs._VERB_MODULES = ()
verbs.VERBS.clear()
_gate = threading.Event()


class FakeStudio:
    """The attributes of a studio that the server uses."""

    def __init__(self, project: Any = ".") -> None:
        self.hub, self.pool = Hub(), SimpleNamespace()
        self.folder = Path(project)

    def close(self) -> None:
        self.hub.close()
        print("closed", file=sys.stderr, flush=True)


@verbs.verb("echo")
def echo(studio: Any, args: Arguments) -> Any:
    return dict(args.fields)


@verbs.verb("upload", takes_file=True)
def upload(studio: Any, args: Arguments) -> Any:
    return {"name": args.text("name"), "bytes": len(args.body)}


@verbs.verb("sleep")
def sleep(studio: Any, args: Arguments) -> Any:
    time.sleep(args.number("seconds", 0, 60))
    return {}


@verbs.verb("gate")
def gate(studio: Any, args: Arguments) -> Any:
    """Wait until another request or SIGUSR1 opens the gate; a response proves that requests run concurrently."""
    if args.truth("open"):
        _gate.set()
    studio.hub.send({"event": "said", "text": "at the gate"})
    return {"opened": _gate.wait(600)}


@verbs.verb("tell")
def tell(studio: Any, args: Arguments) -> Any:
    studio.hub.send({"event": "said", "text": args.text("text")})
    return {}


@verbs.verb("large")
def large(studio: Any, args: Arguments) -> Any:
    return "x" * args.whole("bytes", 0, 100_000_000)


@verbs.verb("fail")
def fail(studio: Any, args: Arguments) -> Any:
    kinds: dict[str, Exception] = {
        "op": InvalidArgumentError("ids must be sorted", argument="ids").in_call("SomeOp", "b1", "SomeOp(…)"),
        "value": ValueError("no such value"),
        "type": TypeError("no such type"),
        "os": OSError(28, "No space left on device"),
        "bug": KeyError("a secret of the inside"),
        "exit": SystemExit(3),
    }
    if args.text("how") == "nan":
        return {"number": math.nan}
    raise kinds[args.text("how")]


def main() -> None:
    from rowgrad.studio.access import Access
    from rowgrad.studio.serve import hosts_of, listen, serve

    settings = json.loads(sys.argv[1])
    host = "127.0.0.1"
    listening = listen(host, 0)
    port = listening.getsockname()[1]
    access = Access(port, settings["token"])
    studio: Any = FakeStudio()

    def started() -> None:
        print(json.dumps({"port": port, "launch": access.new_launch(), "control": access.control}), flush=True)

    signal.signal(signal.SIGUSR1, lambda *_: _gate.set())
    limits = Limits(**settings["limits"])
    serve(studio, listening, hosts_of(host, port), access, started, limits, static=Path(settings["static"]))


if __name__ == "__main__":
    main()
