"""The JSON of a request, read strictly: one object, in UTF-8, nested and branched within bounds."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError
from .limits import Limits

# One that does not end goes to the end: or the search would begin anew at every quote in it.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_MOST_DIGITS = 1000  # as in files of pages


def parse_object(raw: bytes, limits: Limits) -> dict[str, Any]:
    """The arguments of a verb."""
    _check_nesting(raw, limits)
    try:
        found = _DECODER.decode(raw.decode("utf-8"))
        if rb"\u" in raw:  # half a character can be written as an escape only, and no file and no answer takes it
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"the request is not UTF-8: byte {error.start} is {raw[error.start]:#04x}") from None
    except UnicodeEncodeError:
        raise InvalidArgumentError("the request has half a character in it, a lone surrogate") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidArgumentError(f"the request is not JSON: {error.msg}, {where}") from None
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"the request must be a JSON object; got {type(found).__name__}")
    return found


def _check_nesting(raw: bytes, limits: Limits) -> None:
    """Refuse what would run out of stack, or of memory, before it is parsed."""
    brackets = _STRING.sub(b"", raw).translate(None, _NO_BRACKET)
    if len(brackets) > 2 * limits.json_parts:
        raise InvalidArgumentError(f"the request has more than {limits.json_parts} lists and objects")
    opens = np.isin(np.frombuffer(brackets, np.uint8), np.frombuffer(b"[{", np.uint8))
    depth = np.cumsum(np.where(opens, np.int8(1), np.int8(-1)), dtype=np.int32).max(initial=0)
    if depth > limits.json_depth:
        text = f"lists and objects are nested {depth} deep in the request; at most {limits.json_depth} are read"
        raise InvalidArgumentError(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidArgumentError(f"the request has an object with the key {twice[:60]!r} twice")
    return made


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise InvalidArgumentError(f"the request has an integer of {len(digits)} digits; {_MOST_DIGITS} are the most")
    return int(digits)


def _constant(name: str) -> Any:
    raise InvalidArgumentError(f'the request has {name} in it, which is not JSON; write it as a string, "{name}"')


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_constant=_constant)
