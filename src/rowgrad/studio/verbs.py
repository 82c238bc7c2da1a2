"""What may be asked of a studio, by name: one table of verbs, and one way to answer. No transport is known here.

The HTTP server and the notebook's widget both call `answer`, from threads of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import OpError
from .asked import Asked

if TYPE_CHECKING:
    from .studio import Studio

Json = Any  # what `json.dumps` writes
Handler = Callable[["Studio", Asked], Json]


class Verb(NamedTuple):
    """A handler, and whether it takes the bytes of a file."""

    handler: Handler
    takes_file: bool


VERBS: dict[str, Verb] = {}
# Rooms of verbs; each puts its own into the table when it is imported.
_ROOMS = ("project_verbs", "page_verbs", "value_verbs", "run_verbs", "look_verbs", "out_verbs")


class UnknownVerbError(LookupError):
    """Something no studio answers to."""


def verb(name: str, takes_file: bool = False) -> Callable[[Handler], Handler]:
    """Put a function into the table of verbs."""

    def put(handler: Handler) -> Handler:
        if name in VERBS:
            raise ValueError(f"verb {name} is declared twice")
        VERBS[name] = Verb(handler, takes_file)
        return handler

    return put


def find(name: str) -> Verb:
    """The verb of a name."""
    for room in _ROOMS:
        importlib.import_module(f"{__package__}.{room}")
    if name not in VERBS:
        raise UnknownVerbError(f"there is no verb {name!r}; there are {', '.join(sorted(VERBS))}")
    return VERBS[name]


def answer(studio: Studio, name: str, given: Mapping[str, Any], body: bytes = b"") -> Json:
    """What a verb gives; raises what went wrong."""
    return find(name).handler(studio, Asked(name, given, body, studio.pool))


def error_json(error: BaseException) -> dict[str, Any]:
    """An error as a browser shows it: its class, its words, and the block and pin it belongs to."""
    told: dict[str, Any] = {"kind": type(error).__name__, "message": str(error), "text": str(error)}
    told |= {"block": None, "pin": None, "place": getattr(error, "place", None)}
    if isinstance(error, OpError):
        told |= {"message": error.message, "block": error.name, "pin": error.argument}
    return told
