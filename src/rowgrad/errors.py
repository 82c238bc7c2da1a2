"""The exceptions of the package.

Code that finds a problem raises `make_error("key", …)` with the facts; `_error_messages.py` holds the text for each
key. `error.message` is that text, in TensorFlow's own wording where TensorFlow raises the same error. `str(error)` puts
the op in front, states any fact that the text leaves out, and ends with `error.advice`, if there is any. The arguments
of the call are an exception note, which tracebacks print.
"""

from __future__ import annotations

from typing import Any, Self, get_args

from ._error_messages import MESSAGES, Kind, Message, mentioned

_FACTS = ("argument", "position", "value", "bound")


class OpError(Exception):
    """The base class of all errors of the package.

    Attributes:
        message: the text by itself.
        advice: what to do about it, in one sentence, or "".
        argument, position, value, bound: the argument that is wrong, the index into it, the value found there and the
            limit it violates; None where not applicable.
        op, name, call: the op that raised the error, the `name=` of that call, and a summary of its arguments.
        key: the key of the message; None for errors that were not made by `make_error`.
    """

    def __init__(
        self,
        message: str,
        *,
        argument: str | None = None,
        position: int | None = None,
        value: object = None,
        bound: object = None,
        advice: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.argument = argument
        self.position = position
        self.value = value
        self.bound = bound
        self.op: str | None = None
        self.name: str | None = None
        self.call: str | None = None
        self._context = ""
        self.key: str | None = None
        self._source: Message | None = None
        self._shape: str | None = None
        self._original = {"argument": argument, "position": position, "value": value, "bound": bound}

    def in_call(self, op: str, name: str | None, call: str, *, context: str = "") -> Self:
        """Record the op, the call's name and its arguments, unless an inner call already did.

        `context` is for errors that do not belong to the call the caller is in; `str` shows it.
        """
        if self.op is None:
            self._context = context
            self.replace_call(op, name, call)
        elif self.op == op:  # the same call, caught again outside of the runner
            self.replace_call(op, self.name or name, self.call or call)
        return self

    def replace_call(self, op: str, name: str | None, call: str) -> None:
        """Attribute the error to this call, in place of any other."""
        notes: list[str] = getattr(self, "__notes__", [])
        if (note := self._call_note()) in notes:
            notes.remove(note)
        self.op, self.name, self.call = op, name, call
        if note := self._call_note():
            self.add_note(note)

    def _call_note(self) -> str:
        return f"in {self.op}({self.call})" if self.op and self.call else ""

    @property
    def explanation(self) -> str:
        """The message, and the facts that it does not state."""
        added = self._unstated()
        if not added:
            return self.message
        if self.message.endswith("."):
            return f"{self.message} {added[0].upper()}{added[1:]}."
        return f"{self.message}, {added}" if added.startswith("got ") else f"{self.message} ({added})"

    def _unstated(self) -> str:
        facts = {k: str(v) for k in _FACTS if (v := getattr(self, k)) is not None}
        # Callers may correct a fact after the message was made, which then states another one.
        original = {k: str(v) for k, v in self._original.items() if v is not None}
        stated = self._source.stated(self.message, original) if self._source else mentioned(self.message, original)
        missing = {k for k, v in facts.items() if k not in stated or original.get(k) != v}
        place = facts.get("argument", "")
        if "position" in facts:
            place = f"{place}[{facts['position']}]" if place else f"position {facts['position']}"
        is_sentence = self.message.endswith(".")
        parts = []
        if missing and self._source and self._source.detail:
            parts.append(self._source.detail.format(place=place, value=self.value, bound=self.bound))
        else:
            if "value" in missing or (is_sentence and "value" in facts and missing & {"argument", "position"}):
                parts.append(f"got {place} = {self.value}" if place else f"got {self.value}")
            elif "argument" in missing:
                parts.append(f"the argument is {place}" if is_sentence else place)
            elif "position" in missing:
                parts.append(f"position {self.position}")
            if "bound" in missing:
                parts.append(f"limit {self.bound}")
        if self._shape and "shape" not in stated:
            parts.append(f"got shape {self._shape}")
        return ", ".join(parts)

    def __str__(self) -> str:
        text = f"{self.explanation} ({self._context})" if self._context else self.explanation
        if self.advice:
            text = f"{text.removesuffix('.')}. {self.advice}"
        if self.op is None:
            return text
        named = f" (name: {self.name})" if self.name else ""
        return f"{self.op}{named}: {text}"

    def __reduce__(self) -> tuple[Any, ...]:
        state = {**self.__dict__}
        if "__notes__" in state:
            state["__notes__"] = list(state["__notes__"])
        if type(self).__init__ is OpError.__init__:
            return type(self), self.args, state
        return _restore, (type(self), self.args), state


def _restore(kind: type[OpError], args: tuple[Any, ...]) -> OpError:
    """Return a copy of an error without calling its constructor, which takes other arguments."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


def with_notes(error: BaseException) -> str:
    """Return `str(error)` and the notes of the error, one per line, for errors that are passed on as text."""
    return "\n".join((str(error), *getattr(error, "__notes__", ())))


class InvalidArgumentError(OpError, ValueError):
    """A value, shape or dtype that the op does not accept."""


class RowArithmeticError(InvalidArgumentError, TypeError):
    """Array arithmetic on a row-sparse gradient or on its row ids."""


class InvalidArgumentRuntimeError(InvalidArgumentError, RuntimeError):
    """An invalid argument of a torch lookup or module, where torch raises a RuntimeError."""


class InvalidArgumentIndexError(InvalidArgumentError, IndexError):
    """An id out of range, where torch raises an IndexError."""


class InvalidArgumentAssertionError(InvalidArgumentError, AssertionError):
    """An invalid option of a torch module, where torch raises an AssertionError."""


class InvalidArgumentTypeError(InvalidArgumentError, TypeError):
    """An option of the wrong type, where torch raises a TypeError."""


class NotFoundError(InvalidArgumentError):
    """A dtype that the op declares but has no kernel for."""


class InternalError(OpError, RuntimeError):
    """Inputs that contradict each other; TensorFlow reports these as internal errors."""


class UnimplementedError(OpError, NotImplementedError):
    """A valid request that this package does not support."""


class ResourceExhaustedError(OpError, MemoryError):
    """An output or workspace that does not fit into memory."""


class CheckpointError(InvalidArgumentError):
    """Checkpoint files that are damaged, inconsistent or not checkpoint files at all."""


class CheckpointNotFoundError(OpError, FileNotFoundError):
    """A checkpoint file that does not exist."""


class TensorNotFoundError(OpError, KeyError):
    """A tensor name that a checkpoint does not contain."""


class ShardError(InvalidArgumentError):
    """Shard files that are damaged, or inconsistent with each other or with the partition strategy."""


def shape_text(shape: tuple[int | None, ...]) -> str:
    """Return a shape in TensorFlow's notation: [2,3], with ? for an unknown dimension."""
    return "[" + ",".join("?" if d is None else str(d) for d in shape) + "]"


_ALSO: dict[type[Exception], type[InvalidArgumentError]] = {
    kind.__bases__[1]: kind
    for kind in (
        InvalidArgumentRuntimeError,
        InvalidArgumentIndexError,
        InvalidArgumentAssertionError,
        InvalidArgumentTypeError,
    )
}


def make_also(error: OpError, builtin: type[Exception]) -> None:
    """Make an `InvalidArgumentError` also an instance of a Python error; other errors are unchanged.

    Callers that replace functions of another library use it, so that `except` clauses for that library still work.
    """
    if type(error) is InvalidArgumentError and builtin in _ALSO:
        error.__class__ = _ALSO[builtin]


_CLASSES: dict[str, type[OpError]] = {name: globals()[name] for name in get_args(Kind)}


def make_error(key: str, has: tuple[str, ...] = (), **facts: Any) -> OpError:
    """Return the error for a key of `MESSAGES`, ready to raise.

    Args:
        key: the key of the message.
        has: the names of the op's arguments, to choose one of `Message.arguments`.
        **facts: what the message is about. `argument`, `position`, `value`, `bound` and `advice` (by default that of
            the table) become attributes of the error.
    """
    found = MESSAGES[key]
    argument = facts.get("argument")
    if argument is None:
        argument = next((a for a in found.arguments if a in has or not has), None)
    position = facts.get("position")
    error = _CLASSES[found.kind](
        found.text.format_map(facts),
        argument=argument if isinstance(argument, str) else None,
        position=position if isinstance(position, int) and position >= 0 else None,
        value=facts.get("value"),
        bound=facts.get("bound"),
    )
    error.key, error._source, error._shape = key, found, facts.get("shape")
    error.advice = facts.get("advice") or found.advice
    return error
