"""Parse JSON strictly: constructs that parsers interpret differently are rejected, with their place."""

from __future__ import annotations

import json
import re
from typing import Any

from ..page import PageError

MAX_DIGITS = 1000  # digits of one integer; Python's limit is 4,300, and no dtype needs more than 20
MAX_DEPTH = 64  # nested lists in a value: NumPy's limit of dimensions
_TOO_DEEP = 200  # far deeper than any page; up to here the parser never runs out of stack
_STEP = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]')


class Unreadable:
    """A placeholder in parsed data for a rejected construct; the error is raised where its place is known."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


def _integer(digits: str) -> int | Unreadable:
    return int(digits) if len(digits) <= MAX_DIGITS else Unreadable(f"an integer of {len(digits)} characters")


def _constant(name: str) -> Unreadable:
    return Unreadable(f'{name}, which is not JSON; write it as a string, "{name}"')


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | Unreadable:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    keys = [key for key, _ in pairs]
    twice = next(key for i, key in enumerate(keys) if key in keys[:i]) if len(keys) < 1000 else ""
    return Unreadable(f"an object with the key {twice[:60]!r} twice" if twice else "an object with a key twice")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_constant=_constant)


def parse(text: str) -> Any:
    """Parse a JSON text, with `Unreadable` in place of rejected constructs; raise PageError for bad syntax."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise PageError(f"line {error.lineno}, column {error.colno}", f"not JSON: {error.msg}") from None
    except RecursionError:
        raise PageError(_deepest(text), "lists and objects are nested too deep") from None


def parse_bytes(raw: bytes) -> Any:
    """Parse the bytes of a JSON file."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PageError(
            f"line {line}", f"not UTF-8: byte {error.start} of the file is {raw[error.start]:#04x}"
        ) from None
    return parse(text)


def _deepest(text: str) -> str:
    depth = 0
    for step in _STEP.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(step[0], 0)
        if depth > _TOO_DEEP:
            line = text.count("\n", 0, step.start()) + 1
            return f"line {line}, column {step.start() - text.rfind(chr(10), 0, step.start())}"
    return "line 1, column 1"
