"""What the compiled extension offers; arguments are checked before they come here."""

from collections.abc import Callable, Sequence
from typing import Any

class Job:
    """One call of one kernel: made, it has measured; run, it has checked and computed."""

    def __init__(
        self,
        kernel: int,
        attrs: Sequence[int],
        arrays: tuple[Any, ...],
        codes: bytes,
        shapes: tuple[tuple[Any, ...], ...] | None = None,
    ) -> None:
        """`shapes`: what was checked of the arrays; one that has another shape by now is a BufferError."""
    @property
    def measured(self) -> tuple[tuple[str, int, int, int] | None, int, bool]:
        """Fault, rows and fills together."""
    @property
    def fault(self) -> tuple[str, int, int, int] | None: ...
    @property
    def rows(self) -> int: ...
    @property
    def fills(self) -> bool: ...
    def run(
        self, arrays: tuple[Any, ...], codes: bytes, zeros: bool, stale: tuple[Any, ...], stale_code: bytes
    ) -> tuple[str, int, int, int] | None: ...
    @property
    def wrote_all(self) -> bool: ...
    def written(self) -> Any: ...

def run_kernel(
    kernel: int,
    attrs: Sequence[int],
    arrays: tuple[Any, ...],
    codes: bytes,
    outputs: tuple[Any, ...],
    out_codes: bytes,
    zeros: bool,
) -> tuple[str, int, int, int] | None:
    """A whole call, where the outputs' sizes are known beforehand."""

def kernels() -> list[tuple[str, list[str]]]: ...
def update_kernels() -> list[tuple[str, list[str]]]:
    """Their numbers for a Job follow those of `kernels()`."""

def dtypes() -> list[str]: ...
def faults() -> list[str]: ...
def recycled(bytes: int) -> Any: ...
def zeroed(bytes: int) -> Any: ...
def gradient_algorithm(ids: int, rows: int, cols: int, bytes_per_sum: int) -> str: ...
def level() -> str: ...
def memory_limit() -> int: ...
def num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def xla_handler() -> Any:
    """The handler of XLA's custom calls, as a capsule."""

def set_xla_checker(check: Callable[[list[int], list[list[int]], list[list[int]]], str]) -> None:
    """Set the function that checks XLA calls against the catalogue: script, argument and result shapes; "" is valid."""

def set_xla_messages(message: Callable[[str, int, int, int, int, str], str]) -> None:
    """Set the function that returns the error text of an XLA call: op, fault, position, value, bound, arguments."""

class FeatureLayout: ...

def feature_layout(dtype: int, tables: Sequence[Sequence[int]], features: Sequence[int]) -> FeatureLayout:
    """Describe tables by rows, columns, padding (-1: none) and combiner, and features by the number of their table."""

def apply_rows(dtype: int, steps: Sequence[int], only_check: bool) -> str:
    """Step tables with row-sparse gradients; return "", or "overlap", "ids" or "memory" if nothing was done."""

class FeatureBatch:
    """The ids of one lookup of many features; arrays are addresses (cpp/bind/feature_bags.cpp)."""

    def __init__(self, layout: FeatureLayout, bags: int) -> None: ...
    def forward(
        self, inputs: Sequence[int], joined: bool, partial: bool, tables: Sequence[int], outs: Sequence[int]
    ) -> bool: ...
    def overlaps(self, steps: Sequence[int], gradients: Sequence[int]) -> bool: ...
    def sort(self, tables: Sequence[int]) -> list[int]: ...
    def gradient(self, table: int, gradients: Sequence[int], order: int, rounding: int, out: int, ids: int) -> bool: ...
    def update(self, steps: Sequence[int], gradients: Sequence[int], order: int, rounding: int) -> bool: ...
