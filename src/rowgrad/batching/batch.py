"""A call whose arguments have a batch dimension, as the rules of vmap see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import refuse
from ..spec import CATALOG, Aval, Op

Run = Callable[[Op, dict[str, Any], Mapping[str, Any]], tuple[Any, ...]]
Outputs = tuple[tuple[Any, ...], tuple[int | None, ...]]  # and where each has the batch; None: it has none

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class Batch:
    """One op for all items of a batch."""

    xp: Any  # the namespace of its arrays
    op: Op
    attrs: Mapping[str, Any]
    size: int  # how many items
    arguments: Mapping[str, Any]  # arrays, those of `batched` with the items first; host values as they are
    batched: frozenset[str]
    in_dims: Mapping[str, int | None]  # where the batch stood when the call came
    outputs: tuple[Aval, ...]  # of one item; None where data decides
    run: Run  # calls an op one level of vmap further down

    def with_shared(self, **arguments: Any) -> Batch:
        """The same call with arguments that are one for all items."""
        changed = {**self.arguments, **arguments}
        return replace(self, arguments=changed, batched=self.batched - arguments.keys())

    def rows_of(self, name: str) -> Any:
        """The first dimension of an item's argument."""
        return self.arguments[name].shape[1 if name in self.batched else 0]

    def each(self, name: str) -> Any:
        """An argument with the items first, whether they share it or not."""
        value = self.arguments[name]
        return value if name in self.batched else self.xp.broadcast_to(value, (self.size, *value.shape))

    def joined(self, rows: Any) -> Any:
        """The rows of all items one after the other."""
        return self.xp.reshape(rows, (rows.shape[0] * rows.shape[1], *rows.shape[2:]))

    def numbers(self, like: Any, dtype: Any = None) -> Any:
        """0, 1, 2, … for the items, in a column on the device of another array; int64 unless told."""
        return self.xp.numbers(self.size, like, dtype or self.xp.int64)[:, None]

    def dtype_for(self, name: str, count: Any) -> Any:
        """The dtype of ids among `count` rows of every item: that of the argument where it holds them."""
        if isinstance(count, int):  # no symbol, and known without data
            total = count * self.size
            if count <= _INT32_MAX and total <= _INT32_MAX:
                return self.arguments[name].dtype
            self.check_count(name, count)
            self.check_count(name, total)
        return self.xp.int64

    def check_count(self, name: str, total: Any) -> None:
        """Refuse more rows in one call than the longest integers count: JAX may have those of 32 bits only."""
        longest = self.xp.highest(self.xp.int64)
        if isinstance(total, int) and total > longest:
            raise refuse("batch_too_large", argument=name, value=total, bound=longest)

    def call(self, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """The op itself, one level down."""
        return self.run(self.op, arguments, self.attrs)

    def call_other(self, name: str, *arguments: Any, **attrs: Any) -> Any:
        """Another op of one output, one level down."""
        op = CATALOG[name]
        return self.run(op, dict(zip(op.input_names, arguments, strict=True)), {**op.attrs, **attrs})[0]

    def item(self, number: int) -> dict[str, Any]:
        """The arguments of one item."""
        return {k: v[number] if k in self.batched else v for k, v in self.arguments.items()}
