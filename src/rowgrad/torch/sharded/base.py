"""The base of sharded modules: options, state dict, and the call that turns bags into combined rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._hints import unknown_option
from ...errors import OpError, make_error
from ..bags import Bags, check_storages
from ..fused import FusedWeight, TableModule, layout_of, reject_unsupported_context
from ..tensors import check_storage, new_table
from .exchange import (
    EITHER,
    PLAIN,
    WEIGHTED,
    LookupRequest,
    Ranks,
    Traffic,
    call_id,
    check_bags,
    check_same_call,
    exchange_sizes,
    route,
)
from .lookup import Exchange, Options, TableLookup, sharded_lookup
from .placement import Stack

MODES = ("exact", "pooled")
ORDERS = (None, "sequential", "blocked")
_WIRES = (None, torch.bfloat16)
_BLOCK = 4096  # rows that are drawn from one seed


class ShardedModule(TableModule):
    """The base of sharded modules."""

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
                raise unknown_option(name, value, allowed)
        self.ranks = Ranks(process_group, device_mesh, timeout, type(self).__name__)
        self.strategy, self.mode, self.wire_dtype = strategy, mode, wire_dtype
        self.grad, self.fused, self.order = grad, fused, order
        self._calls = 0

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise make_error(
            "not_here", argument="a sharded module", value="copy or pickle", bound="constructed on every rank"
        )

    def _facts(self) -> tuple[object, ...]:
        """Return the options that must be equal on all ranks."""
        options = self.strategy, self.mode, str(self.wire_dtype), self.grad, self.fused, self.order
        return type(self).__name__, *options, self.ranks.timeout

    def _tables(self) -> dict[str, list[list[Any]]]:
        """Return the tables stacked in each parameter: name and total number of rows."""
        raise NotImplementedError

    def _layout(self) -> dict[str, Any]:
        """Return which rows this rank's parameters store."""
        return layout_of(self._tables(), self.strategy, self.ranks.rank, self.ranks.size)

    def _layouts(self) -> dict[str, dict[str, Any]]:
        return {name: {**self._layout(), "tables": tables} for name, tables in self._tables().items()}

    def register_parameter(self, name: str, param: Any) -> None:
        """Register a parameter, and attach which rows it stores."""
        super().register_parameter(name, param)
        self._restore_tables()

    def get_extra_state(self) -> Tensor:
        """Return which rows this rank's parameters store, as JSON bytes, for the state dict."""
        return torch.frombuffer(bytearray(json.dumps(self._layout()).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Raise unless a state dict stores the rows of this module."""
        try:
            saved = json.loads(bytes(state.tolist()))
        except (AttributeError, TypeError, ValueError):
            raise make_error("state_layout_unreadable", argument="_extra_state", value=type(state).__name__) from None
        if saved != self._layout():
            raise make_error("state_layout_differs", value=json.dumps(saved), bound=json.dumps(self._layout()))

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = f"{prefix}_extra_state"
        if any(prefix + name in state_dict for name in self._parameters):
            try:
                if key not in state_dict:
                    raise make_error("state_layout_missing", argument=key)
                self.set_extra_state(state_dict[key])
            except OpError as error:  # no row is loaded
                error_msgs.append(f"{prefix or type(self).__name__}: {error.message}")
                return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    @property
    def traffic(self) -> Traffic:
        """Bytes that this rank sent to other ranks; `traffic.reset()` resets the counts."""
        return self.ranks.traffic

    def _new_part(self, stack: Stack, columns: int, device: Any, dtype: Any) -> Any:
        rows = stack.sizes[self.ranks.rank]
        data = new_table(rows, columns, self.ranks.device if device is None else device, dtype)
        return FusedWeight(data) if self.fused else torch.nn.Parameter(data)

    @torch.no_grad()
    def _draw(self, table: Tensor, stack: Stack, seed: int) -> None:
        """Draw normal rows. A row depends only on the seed and its id, not on its rank."""
        rank, generator = self.ranks.rank, torch.Generator(table.device)
        for number, part in enumerate(stack.parts):
            ids, rows = part.ids_of(rank), table[stack.rows_of(number, rank)]  # ids ascend
            blocks, counts = torch.unique_consecutive(ids // _BLOCK, return_counts=True)
            for block, block_ids, block_rows in zip(
                blocks.tolist(), ids.split(counts.tolist()), rows.split(counts.tolist()), strict=True
            ):
                generator.manual_seed((seed + 2**32 * number + block) % 2**63)
                drawn = torch.empty(_BLOCK, *rows.shape[1:], dtype=table.dtype, device=table.device)
                drawn.normal_(generator=generator)
                block_rows.copy_(drawn[(block_ids % _BLOCK).to(table.device)])

    def _seed(self) -> int:
        """Return a number drawn by rank 0 from torch's generator, equal on all ranks."""
        drawn = int(torch.randint(0, 2**31, (1,), dtype=torch.int64))
        call = call_id(self.ranks, "reset_parameters or the constructor", self._facts())
        return check_same_call(self.ranks, call, value=drawn)[0]

    def _look_up(
        self,
        tables: Sequence[Any],
        stacks: Sequence[Stack],
        kinds: Sequence[str],
        prepare: Callable[[], Sequence[Bags]],
        read: Callable[[], Sequence[Bags]] | None = None,
    ) -> tuple[Tensor, ...]:
        """Run one lookup. `prepare` returns the bags; if it raises on one rank, all ranks raise and nothing is sent.

        `read` returns the bags with padding and without filling empty ones: errors name positions in these.
        """
        if torch.jit.is_tracing():
            raise make_error("jit_trace")  # on each rank alone: the tracer does not support process groups
        if self.fused:
            reject_unsupported_context()
        enabled = torch.is_grad_enabled()
        bags: Sequence[Bags] = ()
        rejection: Exception | None = None
        try:
            if torch._C._are_functorch_transforms_active():
                raise make_error(
                    "not_here", argument="a sharded table", value="torch.func", bound="used without transforms"
                )
            try:
                bags = prepare()
                _check_all(bags, stacks, tables)
            except OpError as error:
                if read is not None and error.position is not None:
                    _check_all(read(), stacks, tables)
                raise
            routes = [route(b, s, k, t.dtype) for b, s, k, t in zip(bags, stacks, kinds, tables, strict=True)]
        except Exception as error:
            rejection = error.in_call(type(self).__name__, None, "ids") if isinstance(error, OpError) else error
        if rejection is not None:
            requests = [LookupRequest(None, False, EITHER, False) for _ in tables]
        else:
            requests = [
                LookupRequest(r, enabled and t.requires_grad, _weighted(b), enabled and _wants_gradient(b))
                for r, t, b in zip(routes, tables, bags, strict=True)
            ]
        call = call_id(self.ranks, "forward", [str(t.dtype) for t in tables], self._facts(), number=self._calls)
        sizes = exchange_sizes(self.ranks, call, requests, rejection)
        self._calls += 1  # not if a rank rejected the call
        wanted = [TableLookup(*w) for w in zip(tables, stacks, kinds, bags, routes, sizes, strict=True)]
        order = {} if self.order is None else {"order": self.order}
        options = Options(self.mode == "pooled", self.wire_dtype, self.grad == "rows", order)
        return sharded_lookup(Exchange(self.ranks, call, options, wanted))


def _check_all(bags: Sequence[Bags], stacks: Sequence[Stack], tables: Sequence[Any]) -> None:
    for b, stack, table in zip(bags, stacks, tables, strict=True):
        check_storages(b)
        check_storage(table, "weight")
        check_bags(b, stack.rows, table.device)


def _weighted(bags: Bags) -> int:
    if bags.indices.shape[0] == 0:
        return EITHER
    return PLAIN if bags.weights is None else WEIGHTED


def _wants_gradient(bags: Bags) -> bool:
    return bags.weights is not None and bags.weights.requires_grad
