"""The processes that share a table, and what travels between them."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import refuse
from .failures import forget, lost

TIMEOUT = 30.0
_MADE: dict[str, int] = {}  # how many modules each group has: on all its ranks the same
_ALIVE: weakref.WeakSet[Ranks] = weakref.WeakSet()


@atexit.register
def _let_go() -> None:
    """A group must be gone before the interpreter takes itself apart: gloo's threads do not survive that."""
    for ranks in list(_ALIVE):
        ranks.group = None


@dataclass
class Traffic:
    """Bytes this rank has sent to others, by what they were; its own rows are not counted."""

    sizes: int = 0
    ids: int = 0
    pairs: int = 0
    rows: int = 0
    gradients: int = 0
    calls: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, f.name) for f in fields(self))

    def reset(self) -> None:
        """Count anew."""
        for field in fields(self):
            setattr(self, field.name, 0)


class Sent:
    """Something on its way: `arrived` waits for what the others have sent."""

    def __init__(self, ranks: Ranks, phase: str, work: Any, buffer: Tensor, kept: Any) -> None:
        self._ranks, self._phase, self._work, self._buffer, self._kept = ranks, phase, work, buffer, kept

    def arrived(self) -> Tensor:
        """The bytes or elements of all ranks, rank by rank."""
        if self._work is not None:
            self._ranks._wait(self._work, self._phase)
            self._work = self._kept = None
        return self._buffer


class Ranks:
    """A process group, and how long this module waits for it."""

    def __init__(self, process_group: Any, device_mesh: Any, timeout: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("call torch.distributed.init_process_group before a sharded module is made")
        if device_mesh is not None:
            if process_group is not None:
                raise refuse(
                    "bags_unfit", argument="device_mesh", value="given beside process_group", bound="one of them"
                )
            if device_mesh.ndim != 1:
                raise refuse("bags_unfit", argument="device_mesh", value=f"{device_mesh.ndim} dimensions", bound="1")
            process_group = device_mesh.get_group()
        if not 0.001 <= timeout <= 1e9:  # torch counts in milliseconds, and waits forever for none of them
            raise refuse("value_unfit", argument="timeout", value=timeout, bound="0.001 to 1e9 seconds")
        self.group = process_group if process_group is not None else dist.group.WORLD
        self.mesh, self.timeout = device_mesh, float(timeout)
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise refuse("bags_unfit", argument="process_group", value="a group without this process", bound="its own")
        self.traffic = Traffic()
        self.number = _MADE[self.group.group_name] = _MADE.get(self.group.group_name, 0) + 1
        forget(self.group)
        _ALIVE.add(self)

    @property
    def device(self) -> torch.device:
        """Where the backend of the group wants its tensors."""
        if dist.get_backend(self.group) == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def names(self, ranks: Sequence[int]) -> list[int]:
        """What ranks of this group are called in the world, which errors speak of."""
        return [dist.get_global_rank(self.group, r) for r in ranks]

    def send(self, phase: str, data: Tensor, out: Sequence[int], back: Sequence[int]) -> Sent:
        """Start an exchange: the first `out[0]` elements of `data` go to rank 0, …; `back[r]` come from rank r."""
        if self.size == 1:
            return Sent(self, phase, None, data, None)
        result = data.new_empty(sum(back))
        try:
            work = dist.all_to_all_single(result, data, list(back), list(out), group=self.group, async_op=True)
        except RuntimeError as error:
            raise lost(error, self.group, phase, self.timeout) from error
        return Sent(self, phase, work, result, data)

    def _wait(self, work: Any, phase: str) -> None:
        try:
            if dist.get_backend(self.group) == "nccl":
                work.wait()  # which only queues; NCCL's watchdog keeps the time, the group's own
            else:
                work.wait(timedelta(seconds=self.timeout))
        except RuntimeError as error:
            raise lost(error, self.group, phase, self.timeout) from error
