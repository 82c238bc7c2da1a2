"""Run `rowgrad` with parts of it replaced, to prove that tests notice a broken server.

`broken` names what to replace: `[("rowgrad.studio.project:Folder.save", "lambda *given: None"), …]`. The expression
is evaluated in the module of the original, which it can call as `original`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection


def replace(place: str, expression: str) -> None:
    """Replace `module:attribute` by the value of an expression."""
    module_name, _, path = place.partition(":")
    module = importlib.import_module(module_name)
    *owners, name = path.split(".")
    owner: object = module
    for part in owners:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    setattr(owner, name, eval(expression, {**vars(module), "original": original}))


def launch(
    command: Sequence[str], broken: Sequence[tuple[str, str]], front_end: str, output: Connection, log: str
) -> None:
    """Run the command in this process: stdout goes to `output`, stderr to the file `log`.

    `front_end` is the folder of another front end build to serve; "" serves the one in the package.
    """
    os.dup2(output.fileno(), 1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)  # the forked ones use other descriptors
    if front_end:
        replace("rowgrad.studio.http:StaticFiles", f"lambda _: original(Path({front_end!r}))")
    for place, expression in broken:
        replace(place, expression)
    from rowgrad.cli import main

    sys.exit(main(command))
