"""What a page may be called. The name is also a file's, so that it must be one on every system."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container

from ..errors import InvalidArgumentError

MOST = 100  # characters
_MOST_BYTES = 200  # file systems take 255, and a temporary file's name is longer than the page's
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of characters that show nothing, or turn a text around
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[\d¹²³]|lpt[\d¹²³])\s*(\..*)?", re.IGNORECASE)
_FORBIDDEN = '<>:"|?*'  # in names of files, on Windows
_FALLBACK = "page"


def checked(name: str, argument: str = "name") -> str:
    """The name, if a page may have it."""
    why = fault(name)
    if why is not None:
        raise InvalidArgumentError(f"{argument} must be a page's name: {why}; got {_quoted(name)}", argument=argument)
    return name


def fault(name: str) -> str | None:
    """Why a page cannot have this name; None where it can."""
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
    """What two names have in common that some file system takes for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def fitted(text: str, room: int = 0) -> str:
    """A name near the text, whatever that is, short enough for `room` more characters behind it."""
    seen = "".join(
        "-" if c in "/\\" or c in _FORBIDDEN else " " if unicodedata.category(c) in _UNSEEN else c
        for c in text[: 4 * MOST]
    )
    made = seen[: MOST - room].encode()[: _MOST_BYTES - room].decode(errors="ignore").strip(". ")
    return made if fault(made) is None else _FALLBACK


def free(name: str, taken: Container[str]) -> str:
    """The name, or the first of `name 2`, `name 3`… whose key is not taken."""
    if key(name) not in taken:
        return name
    number = 2
    while key(made := f"{fitted(name, 8)} {number}") in taken:
        number += 1
    return made


def _quoted(name: str) -> str:
    return ascii(name) if len(name) <= 60 else f"{name[:60]!a}… of {len(name)} characters"
