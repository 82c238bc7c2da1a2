"""Compare the CUDA kernels of an op, emulated on the host, with its CPU kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulated_call import emulate, on_cpu, same_bits
from torch import Tensor

from rowgrad.errors import OpError


def agree(op: str, seed: int = 1, /, *, attrs: dict[str, Any] | None = None, **arguments: Any) -> None:
    """Check that both return the same bits, or raise the same error."""
    chosen = attrs or {}
    expected = _outcome(lambda: on_cpu(op, arguments, **chosen))
    got = _outcome(lambda: emulate(op, arguments, seed, **chosen))
    if isinstance(expected, OpError) or isinstance(got, OpError):
        assert _facts(got) == _facts(expected)
        return
    for mine, reference in zip(got, expected, strict=True):
        assert same_bits(mine, reference), f"{op}\n{mine}\n{reference}"


def _outcome(run: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...] | OpError:
    try:
        return run()
    except OpError as error:
        return error


def _facts(outcome: tuple[Tensor, ...] | OpError) -> Any:
    return (type(outcome), outcome.message, outcome.position) if isinstance(outcome, OpError) else "no error"
