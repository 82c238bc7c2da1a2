"""Which checkpoint a path means: a prefix, its `.index` file, or a directory that names its latest."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import refuse
from ..plain_file import open_plain

_STATE_FILE = "checkpoint"
_STATE_SIZE = 1 << 20  # the latest is named in the first line
_LATEST = re.compile(rb'^[ \t]*model_checkpoint_path[ \t]*:[ \t]*"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")
_INDEX = ".index"


def find_prefix(path: str | os.PathLike[str], follow_links: bool = False) -> Path:
    """The path that the files of a checkpoint begin with; of a directory, one in it unless `follow_links`."""
    given = Path(path)
    if given.name.endswith(_INDEX) and os.path.isfile(given):
        return given.with_name(given.name.removesuffix(_INDEX))
    if not _is_there(given) and os.path.isdir(given):
        given = _latest(given, follow_links)
    if not _is_there(given):
        raise refuse("checkpoint_not_there", file=index_path(given))
    return given


def index_path(prefix: Path) -> Path:
    """The file that lists the tensors."""
    return Path(f"{prefix}{_INDEX}")


def data_path(prefix: Path, number: int, count: int) -> Path:
    """One of the files that hold them."""
    return Path(f"{prefix}.data-{number:05}-of-{count:05}")


def _latest(directory: Path, follow_links: bool) -> Path:
    state = directory / _STATE_FILE
    if not os.path.isfile(state):
        raise refuse("checkpoint_not_there", file=state)
    with open_plain(state) as file:
        named = _LATEST.search(file.read(_STATE_SIZE))
    if named is None:
        raise refuse("checkpoint_state", file=state)
    latest = directory / os.fsdecode(_ESCAPE.sub(_unescaped, named[1]))  # an absolute path stands for itself
    beside = directory / latest.name
    inside = follow_links or _is_inside(latest, directory)
    # A directory that was moved still names the place where it was written.
    if _is_there(beside) and not (inside and _is_there(latest)):
        return beside
    if not inside:
        raise refuse("checkpoint_elsewhere", file=state, value=repr(str(latest)))
    return latest


def _is_inside(prefix: Path, directory: Path) -> bool:
    folder = os.path.realpath(directory)
    try:
        return os.path.commonpath([os.path.realpath(prefix.parent), folder]) == folder
    except ValueError:  # a name that no file can have, or another drive
        return False


def _is_there(prefix: Path) -> bool:
    return os.path.isfile(index_path(prefix))  # says no to names that no file can have; Path.is_file raises


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 0xFF]) if code.isdigit() else code
