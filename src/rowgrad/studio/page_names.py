"""Names of pages: validation, comparison, unused names. A name is also a file name, so it must be valid everywhere."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container

from ..errors import InvalidArgumentError

MOST = 100  # characters
_MOST_BYTES = 200  # file systems allow 255, and temporary files have longer names
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of invisible characters and those that reverse text
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[\d¹²³]|lpt[\d¹²³])\s*(\..*)?", re.IGNORECASE)
_FORBIDDEN = '<>:"|?*'  # in names of files, on Windows
_FALLBACK = "page"


def checked(name: str, argument: str = "name") -> str:
    """Return a valid name; raise InvalidArgumentError for any other."""
    why = fault(name)
    if why is not None:
        raise InvalidArgumentError(f"{argument} must be a page's name: {why}; got {_quoted(name)}", argument=argument)
    return name


def fault(name: str) -> str | None:
    """Return why a name is invalid, or None if it is valid."""
    unseen = next((c for c in name if unicodedata.category(c) in _UNSEEN), None)
    if not name or name != name.strip():
        return "it must not be empty, nor begin or end with a space"
    if "/" in name or "\\" in name:
        return "it must not have / or \\ in it"
    forbidden = next((c for c in name if c in _FORBIDDEN), None)
    if forbidden is not None:
        return f"it must not have {forbidden} in it, which some systems do not allow in names of files"
    if unseen is not None:
        return f"it must not have the character U+{ord(unseen):04X} in it"
    if name.startswith(".") or name.endswith("."):
        return "it must not begin or end with a dot"
    if len(name) > MOST or len(name.encode()) > _MOST_BYTES:
        return f"it must have at most {MOST} characters and {_MOST_BYTES} bytes"
    if _DEVICES.fullmatch(name):
        return "some systems keep this name for a device"
    return None


def key(name: str) -> str:
    """Return a key that is equal for names which some file system treats as the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def fitted(text: str, room: int = 0) -> str:
    """Return a valid name similar to the text, with space for `room` more characters."""
    seen = "".join(
        "-" if c in "/\\" or c in _FORBIDDEN else " " if unicodedata.category(c) in _UNSEEN else c
        for c in text[: 4 * MOST]
    )
    made = seen[: MOST - room].encode()[: _MOST_BYTES - room].decode(errors="ignore").strip(". ")
    return made if fault(made) is None else _FALLBACK


def free(name: str, taken: Container[str]) -> str:
    """Return the name, or the first of `name 2`, `name 3`… whose key is unused."""
    if key(name) not in taken:
        return name
    number = 2
    while key(made := f"{fitted(name, 8)} {number}") in taken:
        number += 1
    return made


def _quoted(name: str) -> str:
    return ascii(name) if len(name) <= 60 else f"{name[:60]!a}… of {len(name)} characters"
