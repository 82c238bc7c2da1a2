"""Which checkpoint a path means: a prefix, its `.index` file, or a directory that names its latest."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import refuse

_STATE_FILE = "checkpoint"
_STATE_SIZE = 1 << 20  # the latest is named in the first line
_LATEST = re.compile(rb'^\s*model_checkpoint_path\s*:\s*"((?:[^"\\\n]|\\.)*)"', re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")
_INDEX = ".index"


def find_prefix(path: str | os.PathLike[str]) -> Path:
    """The path that the files of a checkpoint begin with."""
    given = Path(path)
    if given.name.endswith(_INDEX) and os.path.isfile(given):
        return given.with_name(given.name.removesuffix(_INDEX))
    if not _is_there(given) and os.path.isdir(given):
        given = _latest(given)
    if not _is_there(given):
        raise refuse("checkpoint_not_there", file=index_path(given))
    return given


def index_path(prefix: Path) -> Path:
    """The file that lists the tensors."""
    return Path(f"{prefix}{_INDEX}")


def data_path(prefix: Path, number: int, count: int) -> Path:
    """One of the files that hold them."""
    return Path(f"{prefix}.data-{number:05}-of-{count:05}")


def _latest(directory: Path) -> Path:
    state = directory / _STATE_FILE
    if not os.path.isfile(state):
        raise refuse("checkpoint_not_there", file=state)
    with state.open("rb") as file:
        named = _LATEST.search(file.read(_STATE_SIZE))
    if named is None:
        raise refuse("checkpoint_state", file=state)
    latest = directory / os.fsdecode(_ESCAPE.sub(_unescaped, named[1]))  # an absolute path stands for itself
    beside = directory / latest.name
    # A directory that was moved still names the place where it was written.
    return beside if _is_there(beside) and not _is_there(latest) else latest


def _is_there(prefix: Path) -> bool:
    return os.path.isfile(index_path(prefix))  # says no to names that no file can have; Path.is_file raises


def _unescaped(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 0xFF]) if code.isdigit() else code
