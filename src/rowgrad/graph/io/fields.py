"""Validate fields of parsed JSON. Every error names the place of the field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from ..._hints import nearest as nearest_names
from ..page import PageError
from .strict_json import Unreadable

_PLAIN_KEY = re.compile(r"\w+", re.ASCII)
_LONGEST = 60  # characters of anything a message repeats


def under(place: str, key: str | int) -> str:
    """Return the place of a member: `blocks[3]` for `blocks` and 3, `blocks[3].id` for that and `id`."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    if _PLAIN_KEY.fullmatch(key) and len(key) <= _LONGEST:
        return f"{place}.{key}" if place else key
    return f"{place}[{json.dumps(shorten(key))}]"


def shorten(text: str) -> str:
    """Return the text, or the beginning of a long one."""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def describe(value: Any) -> str:
    """Describe a value for an error message."""
    if isinstance(value, Unreadable):
        return value.why
    if isinstance(value, float) and not math.isfinite(value):
        return "a number beyond float64"
    if isinstance(value, str):
        return ascii(shorten(value))
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if value is None or isinstance(value, bool | int | float):
        return shorten(json.dumps(value))
    return f"a value of type {type(value).__name__}"  # only in a page that is about to be written


def error(place: str, wanted: str, value: Any) -> PageError:
    """Return the error for an invalid field."""
    return PageError(place, f"must be {wanted}; got {describe(value)}")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return `; did you mean 'x'?`, or an empty text if no known name is similar."""
    near = nearest_names(name, known, cutoff=cutoff)
    return f"; did you mean {near[0][:_LONGEST]!r}?" if near else ""


def text(value: Any, place: str) -> str:
    """Validate a string without lone surrogates, which JSON can express and UTF-8 cannot."""
    if not isinstance(value, str):
        raise error(place, "a string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise error(place, "a string without lone surrogates", value) from None
    return value


def items(value: Any, place: str) -> list[Any]:
    """Validate a list."""
    if not isinstance(value, list):
        raise error(place, "a list", value)
    return value


def whole(value: Any, place: str, wanted: str = "an integer") -> int:
    """Validate an integer; booleans are rejected."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise error(place, wanted, value)
    return value


def number(value: Any, place: str) -> float:
    """Validate a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise error(place, "a number", value)
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise error(place, "a number", math.inf)
    return found


def positive(value: Any, place: str) -> float:
    """Validate a finite number above 0."""
    found = number(value, place)
    if found <= 0:
        raise error(place, "above 0", value)
    return found


def mapping(value: Any, place: str) -> dict[str, Any]:
    """Validate an object with arbitrary keys."""
    if not isinstance(value, dict):
        raise error(place or "the whole text", "an object", value)
    for key in value:
        text(key, under(place, key) if isinstance(key, str) else place)
    return value


def record(value: Any, place: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Validate an object with known keys."""
    found = mapping(value, place)
    known = (*required, *optional)
    for key in found:
        if key not in known:
            meant = nearest(key, known) or f"; known are {', '.join(known)}"
            raise PageError(under(place, key), f"an unknown field{meant}")
    for key in required:
        if key not in found:
            raise PageError(under(place, key), "this field is missing")
    return found
