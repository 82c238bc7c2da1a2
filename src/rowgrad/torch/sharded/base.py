"""What sharded modules share: the ranks, options, and one call from bags to combined rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import OpError, refuse
from ..bags import Bags
from ..fused import FusedWeight, _refuse_surroundings
from ..tensors import new_table
from .agreement import EITHER, PLAIN, WEIGHTED, Asked, agree
from .layout import Stack
from .lookup import Exchange, Options, Wanted
from .ranks import Ranks, Traffic
from .recorded import sharded_lookup
from .routes import check_bags, route

MODES = ("exact", "pooled")
ORDERS = (None, "sequential", "blocked")
_WIRES = (None, torch.bfloat16)
_BLOCK = 4096  # rows drawn from one seed


class ShardedModule(torch.nn.Module):
    """The base of sharded modules; see those."""

    def __init__(
        self,
        strategy: str,
        process_group: Any,
        device_mesh: Any,
        mode: str,
        wire_dtype: torch.dtype | None,
        grad: str,
        fused: bool,
        order: str | None,
        timeout: float,
    ) -> None:
        super().__init__()
        for name, value, allowed in (
            ("mode", mode, MODES),
            ("order", order, ORDERS),
            ("wire_dtype", wire_dtype, _WIRES),
            ("grad", grad, ("dense", "rows")),
        ):
            if value not in allowed:
                raise refuse("attr_not_allowed", argument=name, value=repr(value), bound=", ".join(map(repr, allowed)))
        self.ranks = Ranks(process_group, device_mesh, timeout)
        self.strategy, self.mode, self.wire_dtype = strategy, mode, wire_dtype
        self.grad, self.fused, self.order = grad, fused, order
        self._calls = 0

    def __deepcopy__(self, memo: Any) -> Any:
        raise refuse("not_here", argument="a copy", value="deepcopy", bound="made by its constructor, on every rank")

    @property
    def traffic(self) -> Traffic:
        """Bytes this rank has sent to others; `traffic.reset()` starts anew."""
        return self.ranks.traffic

    def _new_part(self, stack: Stack, columns: int, device: Any, dtype: Any) -> Any:
        rows = stack.sizes[self.ranks.rank]
        data = new_table(rows, columns, self.ranks.device if device is None else device, dtype)
        return FusedWeight(data) if self.fused else torch.nn.Parameter(data)

    @torch.no_grad()
    def _draw(self, table: Tensor, stack: Stack, seed: int) -> None:
        """Normal rows. A row's numbers follow from the seed and its id alone, whoever holds it."""
        rank, generator = self.ranks.rank, torch.Generator(table.device)
        for number, part in enumerate(stack.parts):
            ids, rows = part.ids_of(rank), table[stack.rows_of(number, rank)]
            for block in torch.unique(ids // _BLOCK).tolist():
                generator.manual_seed((seed + 2**32 * number + block) % 2**63)
                drawn = torch.empty(_BLOCK, *rows.shape[1:], dtype=table.dtype, device=table.device)
                drawn.normal_(generator=generator)
                mine = ids // _BLOCK == block
                rows[mine.to(table.device)] = drawn[(ids[mine] % _BLOCK).to(table.device)]

    def _seed(self) -> int:
        """A number drawn by rank 0 from torch's generator, the same on all ranks."""
        drawn = torch.randint(0, 2**31, (1,), dtype=torch.int64).to(self.ranks.device)
        return int(self.ranks.broadcast(drawn))

    def _look_up(
        self,
        tables: Sequence[Any],
        stacks: Sequence[Stack],
        kinds: Sequence[str],
        prepare: Callable[[], Sequence[Bags]],
    ) -> tuple[Tensor, ...]:
        """One call. `prepare` reads the bags; whatever it refuses, all ranks come to know before anything is sent."""
        if self.fused:
            _refuse_surroundings()
        self._calls += 1
        enabled = torch.is_grad_enabled()
        bags: Sequence[Bags] = ()
        refusal: Exception | None = None
        try:
            bags = prepare()
            for b, stack, table in zip(bags, stacks, tables, strict=True):
                check_bags(b, stack.rows, table.device)
            routes = [route(b, s, k, t.dtype) for b, s, k, t in zip(bags, stacks, kinds, tables, strict=True)]
        except Exception as error:
            refusal = error.in_call(type(self).__name__, None, "ids") if isinstance(error, OpError) else error
        if refusal is not None:
            asked = [Asked(None, False, EITHER, False) for _ in tables]
        else:
            asked = [
                Asked(r, enabled and t.requires_grad, _weighted(b), enabled and _wants_gradient(b))
                for r, t, b in zip(routes, tables, bags, strict=True)
            ]
        told = agree(self.ranks, self._call_number(stacks, kinds, tables), asked, refusal)
        wanted = [Wanted(*w) for w in zip(tables, stacks, kinds, bags, routes, told, strict=True)]
        order = {} if self.order is None else {"order": self.order}
        options = Options(self.mode == "pooled", self.wire_dtype, self.grad == "rows", order)
        return sharded_lookup(Exchange(self.ranks, options, wanted))

    def _call_number(self, stacks: Sequence[Stack], kinds: Sequence[str], tables: Sequence[Any]) -> int:
        """What tells this call of this module from every other."""
        described = [
            (s.rows, s.strategy, k, str(t.dtype), *t.shape[1:]) for s, k, t in zip(stacks, kinds, tables, strict=True)
        ]
        return zlib.crc32(repr((self.ranks.number, self._calls, self.mode, str(self.wire_dtype), described)).encode())


def _weighted(bags: Bags) -> int:
    if bags.indices.shape[0] == 0:
        return EITHER
    return PLAIN if bags.weights is None else WEIGHTED


def _wants_gradient(bags: Bags) -> bool:
    return bags.weights is not None and bags.weights.requires_grad
