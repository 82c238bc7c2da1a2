"""Names of pages: validation, comparison, unused names. A name is also a file name, so it must be valid everywhere."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container

from ..errors import InvalidArgumentError

MOST = 100  # characters
_MOST_BYTES = 200  # file systems allow 255, and temporary files have longer names
_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of invisible characters and those that reverse text
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[\d¹²³]|lpt[\d¹²³])\s*(\..*)?", re.IGNORECASE)
_FORBIDDEN = '<>:"|?*'  # in file names, on Windows
_FALLBACK = "page"


def checked(name: str, argument: str = "name") -> str:
    """Return a valid name; raise InvalidArgumentError for any other."""
    why = fault(name)
    if why is not None:
        raise InvalidArgumentError(f"{argument} must be a page's name: {why}; got {_quoted(name)}", argument=argument)
    return name


def fault(name: str) -> str | None:
    """Return why a name is invalid, or None if it is valid."""
    invisible = next((c for c in name if unicodedata.category(c) in _INVISIBLE), None)
    if not name or name != name.strip():
        return "it must not be empty, nor begin or end with a space"
    if "/" in name or "\\" in name:
        return "it must not contain / or \\"
    forbidden = next((c for c in name if c in _FORBIDDEN), None)
    if forbidden is not None:
        return f"it must not contain {forbidden}, which some systems do not allow in file names"
    if invisible is not None:
        return f"it must not contain the character U+{ord(invisible):04X}"
    if name.startswith(".") or name.endswith("."):
        return "it must not begin or end with a dot"
    if len(name) > MOST or len(name.encode()) > _MOST_BYTES:
        return f"it must have at most {MOST} characters and {_MOST_BYTES} bytes"
    if _DEVICES.fullmatch(name):
        return "some systems reserve this name for a device"
    return None


def key(name: str) -> str:
    """Return a key that is equal for names which some file system treats as the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def valid_name(text: str, reserved: int = 0) -> str:
    """Return a valid name similar to the text, short enough to append `reserved` characters."""
    cleaned = "".join(
        "-" if c in "/\\" or c in _FORBIDDEN else " " if unicodedata.category(c) in _INVISIBLE else c
        for c in text[: 4 * MOST]
    )
    shortened = cleaned[: MOST - reserved].encode()[: _MOST_BYTES - reserved].decode(errors="ignore").strip(". ")
    return shortened if fault(shortened) is None else _FALLBACK


def unused_name(name: str, used: Container[str]) -> str:
    """Return the name, or the first of `name 2`, `name 3`… whose key is unused."""
    if key(name) not in used:
        return name
    number = 2
    while key(numbered := f"{valid_name(name, 8)} {number}") in used:
        number += 1
    return numbered


def _quoted(name: str) -> str:
    return ascii(name) if len(name) <= 60 else f"{name[:60]!a}… of {len(name)} characters"
