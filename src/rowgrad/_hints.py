"""Words of messages: the name that was probably meant, the command that installs an extra, numbers of things."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from .errors import OpError, make_error

_LONGEST, _MOST = 200, 2000  # length of a name, and number of names, that are compared


def nearest(name: object, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known names that are most like a name, ignoring case; an empty list if none is similar."""
    from difflib import get_close_matches  # only when there is an error

    if not isinstance(name, str):
        return []
    spelled: dict[str, str] = {}
    for other in islice(known, _MOST):
        spelled.setdefault(other[:_LONGEST].casefold(), other[:_LONGEST])
    return [spelled[found] for found in get_close_matches(name[:_LONGEST].casefold(), list(spelled), count, cutoff)]


def did_you_mean(name: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return a sentence that suggests the known name most like a name; `otherwise` if none is similar."""
    found = nearest(name, known)
    return f"Did you mean {found[0]!r}?" if found else otherwise


def counted(number: int, noun: str) -> str:
    """Return "1 block" or "2 blocks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def no_attribute(
    module: str, name: str, known: Iterable[str], otherwise: str = "", inner: Iterable[str] = ()
) -> AttributeError:
    """Return the error for a name that a module does not have.

    `inner` are names of its submodules, such as "nn.EmbeddingBag", which are suggested if they are very similar.
    """
    text = f"module {module!r} has no attribute {name!r}"
    suggestion = ""
    if not name.startswith("_"):
        public = [other for other in known if not other.startswith("_")]
        paths = {path.rpartition(".")[2].casefold(): path for path in inner}
        searches: list[tuple[str, Iterable[str]]] = [(name, public), (name, paths), (name.replace("_", ""), paths)]
        very_similar = next((found for n, names in searches if (found := nearest(n, names, cutoff=0.85))), [])
        found = [paths.get(other, other) for other in very_similar]
        suggestion = f"Did you mean {found[0]!r}?" if found else did_you_mean(name, public, otherwise)
    # Without an object, tracebacks do not add a suggestion of their own.
    return AttributeError(f"{text}. {suggestion}" if suggestion else text, name=name, obj=None)


def missing_extra(what: str, library: str, extra: str) -> ImportError:
    """Return the error for a feature that needs a library which an extra of rowgrad installs."""
    return ImportError(f"{what} needs {library}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that adds an extra to any installation of rowgrad."""
    return f"pip install 'rowgrad[{extra}]'"


def check_option_names(owner: str, passed: Iterable[str], known: Iterable[str]) -> None:
    """Raise the error for the first keyword argument that a function with options does not have."""
    names = list(known)
    for name in passed:
        if name not in names:
            hint = did_you_mean(name, names, f"Options: {', '.join(names)}.")
            raise TypeError(f"{owner} has no option {name!r}. {hint}")


def unknown_option(argument: str, value: object, choices: Iterable[str | None]) -> OpError:
    """Return the error for an option of a function or module that is not one of its choices."""
    known = list(choices)
    return make_error(
        "option_unknown",
        argument=argument,
        value=repr(value),
        bound=", ".join(map(repr, known)),
        advice=did_you_mean(value, filter(None, known)),
    )
