"""Studio's verbs: one table of handlers by name, and the arguments they read. No transport is known here.

The HTTP server and the notebook's widget both call `answer`, from threads of their own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidArgumentError, OpError, with_notes
from ..graph import Page

# -- What came with a request, read with care -------------------------------------------------------------------------

# What came with a request, read with care: every argument has a kind and bounds.

if TYPE_CHECKING:
    from .array_pool import Pool

_ABSENT: Any = object()
MOST_TEXT = 4_000_000  # characters of a literal typed or pasted


class Asked:
    """The arguments of one request, and the bytes of a file where the verb takes one."""

    def __init__(self, verb: str, given: Mapping[str, Any], body: bytes, pool: Pool) -> None:
        self.verb = verb
        self.given = given
        self.body = body
        self.pool = pool

    def __contains__(self, name: str) -> bool:
        return self.given.get(name) is not None

    def text(self, name: str, default: str = _ABSENT, most: int = MOST_TEXT) -> str:
        """A string."""
        value = self._take(name, default, str, "a string")
        if len(value) > most:
            raise self.refuse(name, f"at most {most} characters", f"{len(value)} characters")
        return str(value)

    def truth(self, name: str, default: bool = _ABSENT) -> bool:
        """True or false."""
        return bool(self._take(name, default, bool, "true or false"))

    def whole(self, name: str, least: int, most: int, default: int = _ABSENT) -> int:
        """A whole number within bounds."""
        value = self._take(name, default, int, "a whole number")
        if isinstance(value, bool) or not least <= value <= most:
            raise self.refuse(name, f"a whole number from {least} to {most}", value)
        return int(value)

    def number(self, name: str, least: float, most: float, default: float = _ABSENT) -> float:
        """A number within bounds."""
        value = self._take(name, default, (int, float), "a number")
        if isinstance(value, bool) or not least <= value <= most:
            raise self.refuse(name, f"a number from {least:g} to {most:g}", value)
        return float(value)

    def listed(self, name: str, default: list[Any] = _ABSENT, most: int = 100_000) -> list[Any]:
        """A list."""
        value: list[Any] = self._take(name, default, list, "a list")
        if len(value) > most:
            raise self.refuse(name, f"at most {most} entries", len(value))
        return value

    def texts(self, name: str, default: list[Any] = _ABSENT, most: int = 100_000) -> list[str]:
        """A list of strings."""
        found = self.listed(name, default, most)
        for k, item in enumerate(found):
            if not isinstance(item, str):
                raise self.refuse(f"{name}[{k}]", "a string", item)
        return found

    def wholes(self, name: str, default: list[Any] = _ABSENT, most: int = 64) -> list[int]:
        """A list of whole numbers from 0."""
        found = self.listed(name, default, most)
        for k, item in enumerate(found):
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < 2**62:
                raise self.refuse(f"{name}[{k}]", "a whole number from 0", item)
        return found

    def record(self, name: str, default: dict[str, Any] = _ABSENT) -> dict[str, Any]:
        """An object with named entries."""
        found: dict[str, Any] = self._take(name, default, dict, "an object")
        return found

    def page(self, name: str = "page") -> Page:
        """A page, its large arrays taken from the pool."""
        return self.pool.read_page(self.record(name))

    def value(self, name: str = "value") -> Any:
        """What may be typed into a pin, as Python holds it."""
        if name not in self.given:
            raise self.refuse(name, "a value", "nothing")
        return self.pool.read_value(self.given[name], name)

    def refuse(self, name: str, bound: str, value: Any) -> InvalidArgumentError:
        """The error of an argument that is not as it must be."""
        told = repr(value)
        told = told if len(told) <= 80 else f"{told[:79]}…"
        return InvalidArgumentError(f"{self.verb}: {name} must be {bound}; got {told}", argument=name)

    def _take(self, name: str, default: Any, kind: Any, bound: str) -> Any:
        value = self.given.get(name)
        if value is None:
            if default is _ABSENT:
                raise self.refuse(name, bound, "nothing" if name not in self.given else value)
            return default
        if not isinstance(value, kind):
            raise self.refuse(name, bound, value)
        return value


# -- What may be asked of a studio, by name ---------------------------------------------------------------------------

# What may be asked of a studio, by name: one table of verbs, and one way to answer. No transport is known here.
#
# The HTTP server and the notebook's widget both call `answer`, from threads of their own.

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
_ROOMS = ("project_verbs", "value_verbs", "run_verbs", "import_export_verbs")


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
    told: dict[str, Any] = {"kind": type(error).__name__, "message": str(error), "text": with_notes(error)}
    told |= {"block": None, "pin": None, "place": getattr(error, "place", None)}
    if isinstance(error, OpError):
        told |= {"message": error.message, "block": error.name, "pin": error.argument}
    return told
