"""Studio's verbs: the table of handlers by name, and the validated arguments they read, for any transport.

The HTTP server and the notebook's widget both call `answer`, from their own threads.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidArgumentError, OpError, with_notes
from ..graph import Page

if TYPE_CHECKING:
    from .array_pool import Pool
    from .studio import Studio

# -- arguments ---------------------------------------------------------------------------------------------------------

_ABSENT: Any = object()
MOST_TEXT = 4_000_000  # characters of a literal typed or pasted


class Arguments:
    """The arguments of one request, validated by type and bounds, and the bytes of a file if the verb takes one."""

    def __init__(self, verb: str, fields: Mapping[str, Any], body: bytes, pool: Pool) -> None:
        self.verb = verb
        self.fields = fields
        self.body = body
        self.pool = pool

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def text(self, name: str, default: str = _ABSENT, most: int = MOST_TEXT) -> str:
        """Return a string."""
        value = self._take(name, default, str, "a string")
        if len(value) > most:
            raise self.error(name, f"at most {most} characters", f"{len(value)} characters")
        return str(value)

    def truth(self, name: str, default: bool = _ABSENT) -> bool:
        """Return a boolean."""
        return bool(self._take(name, default, bool, "true or false"))

    def whole(self, name: str, least: int, most: int, default: int = _ABSENT) -> int:
        """Return an integer within bounds."""
        value = self._take(name, default, int, "an integer")
        if isinstance(value, bool) or not least <= value <= most:
            raise self.error(name, f"an integer from {least} to {most}", value)
        return int(value)

    def number(self, name: str, least: float, most: float, default: float = _ABSENT) -> float:
        """Return a number within bounds."""
        value = self._take(name, default, (int, float), "a number")
        if isinstance(value, bool) or not least <= value <= most:
            raise self.error(name, f"a number from {least:g} to {most:g}", value)
        return float(value)

    def listed(self, name: str, default: list[Any] = _ABSENT, most: int = 100_000) -> list[Any]:
        """Return a list."""
        value: list[Any] = self._take(name, default, list, "a list")
        if len(value) > most:
            raise self.error(name, f"at most {most} entries", len(value))
        return value

    def texts(self, name: str, default: list[Any] = _ABSENT, most: int = 100_000) -> list[str]:
        """Return a list of strings."""
        found = self.listed(name, default, most)
        for k, item in enumerate(found):
            if not isinstance(item, str):
                raise self.error(f"{name}[{k}]", "a string", item)
        return found

    def wholes(self, name: str, default: list[Any] = _ABSENT, most: int = 64) -> list[int]:
        """Return a list of integers >= 0."""
        found = self.listed(name, default, most)
        for k, item in enumerate(found):
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < 2**62:
                raise self.error(f"{name}[{k}]", "an integer >= 0", item)
        return found

    def record(self, name: str, default: dict[str, Any] = _ABSENT) -> dict[str, Any]:
        """Return an object."""
        found: dict[str, Any] = self._take(name, default, dict, "an object")
        return found

    def page(self, name: str = "page") -> Page:
        """Return a page, with its large arrays from the pool."""
        return self.pool.read_page(self.record(name))

    def value(self, name: str = "value") -> Any:
        """Return a value of a pin."""
        if name not in self.fields:
            raise self.error(name, "a value", "nothing")
        return self.pool.read_value(self.fields[name], name)

    def error(self, name: str, bound: str, value: Any) -> InvalidArgumentError:
        """Return the error of an invalid argument."""
        text = repr(value)
        text = text if len(text) <= 80 else f"{text[:79]}…"
        return InvalidArgumentError(f"{self.verb}: {name} must be {bound}; got {text}", argument=name)

    def _take(self, name: str, default: Any, kind: Any, bound: str) -> Any:
        value = self.fields.get(name)
        if value is None:
            if default is _ABSENT:
                raise self.error(name, bound, "nothing" if name not in self.fields else value)
            return default
        if not isinstance(value, kind):
            raise self.error(name, bound, value)
        return value


# -- the table of verbs ------------------------------------------------------------------------------------------------

Json = Any  # plain data for `json.dumps`
Handler = Callable[["Studio", Arguments], Json]


class Verb(NamedTuple):
    """A handler, and whether it takes the bytes of a file."""

    handler: Handler
    takes_file: bool


VERBS: dict[str, Verb] = {}
# Modules that register their verbs when they are imported.
_VERB_MODULES = ("project_verbs", "value_verbs", "row_verbs", "compare_verbs", "run_verbs", "import_export_verbs")


class UnknownVerbError(LookupError):
    """Error of a request for an unknown verb."""


def verb(name: str, takes_file: bool = False) -> Callable[[Handler], Handler]:
    """Register a function as a verb."""

    def put(handler: Handler) -> Handler:
        if name in VERBS:
            raise ValueError(f"verb {name} is declared twice")
        VERBS[name] = Verb(handler, takes_file)
        return handler

    return put


def find(name: str) -> Verb:
    """Return a verb by its name; raise UnknownVerbError for any other name."""
    for module in _VERB_MODULES:
        importlib.import_module(f"{__package__}.{module}")
    if name not in VERBS:
        raise UnknownVerbError(f"no verb named {name!r}; known are {', '.join(sorted(VERBS))}")
    return VERBS[name]


def answer(studio: Studio, name: str, fields: Mapping[str, Any], body: bytes = b"") -> Json:
    """Run a verb with the fields and the body of a request; return its response."""
    return find(name).handler(studio, Arguments(name, fields, body, studio.pool))


def error_json(error: BaseException) -> dict[str, Any]:
    """Return an error as a browser shows it: its class, its text, and the block and pin it belongs to."""
    facts: dict[str, Any] = {"kind": type(error).__name__, "message": str(error), "text": with_notes(error)}
    facts |= {"block": None, "pin": None, "place": getattr(error, "place", None)}
    if isinstance(error, OpError):
        facts |= {"message": error.explanation, "block": error.name, "pin": error.argument}
    return facts
