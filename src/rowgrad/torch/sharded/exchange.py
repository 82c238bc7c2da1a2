"""Communication between ranks: packed buffers, routing, agreement on a call, redistribution of rows."""

from __future__ import annotations

import atexit
import math
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import OpError, make_error
from ...raw_ops import OPS
from ...sharding.partition import weighted_scales
from ..bags import Bags
from ..tensors import check_storage
from .liveness import Pulse, RankError, RankLostError, RankRefusedError, start_pulse
from .placement import Part, Stack

# -- Packed buffers: several tensors in one exchange ------------------------------------------------------------------

# A buffer has the bytes for each rank in turn; the bytes for one rank are those of each tensor in turn.


class Section(NamedTuple):
    """A tensor with rows for rank 0, then for rank 1, …; and the number of rows sent to and received from each rank."""

    rows: Tensor
    out: Sequence[int]
    back: Sequence[int]


class PackedExchange:
    """An exchange of several sections in one packed buffer."""

    def __init__(self, ranks: Ranks, phase: str, sections: Sequence[Section]) -> None:
        self._kinds = [(s.rows.dtype, (sum(s.back), *s.rows.shape[1:])) for s in sections]
        self._backs = [[n * _row_bytes(s.rows) for n in s.back] for s in sections]
        flat = [_bytes(s.rows) for s in sections]
        outs = [[n * _row_bytes(s.rows) for n in s.out] for s in sections]
        out = [sum(o[r] for o in outs) for r in range(ranks.size)]
        back = [sum(b[r] for b in self._backs) for r in range(ranks.size)]
        setattr(ranks.traffic, phase, getattr(ranks.traffic, phase) + sum(out) - out[ranks.rank])
        if len(flat) == 1:
            data = flat[0]
        else:
            shares = [f.split(o) for f, o in zip(flat, outs, strict=True)]
            data = torch.cat([share[r] for r in range(ranks.size) for share in shares])
        self._sent: PendingExchange = ranks.send(phase, data, out, back)

    def wait(self) -> list[Tensor]:
        """Wait for the other ranks; return the received rows of each section, ordered by rank."""
        data = self._sent.wait()
        if len(self._kinds) == 1:
            found = [data]
        else:
            ends = list(accumulate(b[r] for r in range(len(self._backs[0])) for b in self._backs))
            pieces = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
            found = [torch.cat(pieces[k :: len(self._kinds)]) for k in range(len(self._kinds))]
        return [_typed(f, *kind) for f, kind in zip(found, self._kinds, strict=True)]


def _row_bytes(rows: Tensor) -> int:
    return rows.element_size() * math.prod(rows.shape[1:])


def _bytes(rows: Tensor) -> Tensor:
    return rows.contiguous().view(-1).view(torch.uint8)


def _typed(data: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    result: Any = data.view(dtype).view(shape)
    return result


# -- Ranks: the processes that share a table --------------------------------------------------------------------------

TIMEOUT = 30.0  # seconds without a heartbeat
_NUM_MODULES: dict[str, int] = {}  # modules created for each group, equal on all ranks
_ALL_RANKS: weakref.WeakSet[Ranks] = weakref.WeakSet()


@atexit.register
def _release_groups() -> None:
    """Release process groups before interpreter shutdown, which gloo's threads do not survive."""
    for ranks in list(_ALL_RANKS):
        ranks.group = None


@dataclass
class Traffic:
    """Bytes that this rank sent to other ranks, by kind."""

    sizes: int = 0
    ids: int = 0
    pairs: int = 0
    rows: int = 0
    gradients: int = 0
    calls: int = 0

    @property
    def total(self) -> int:
        """The sum of all kinds."""
        return sum(getattr(self, f.name) for f in fields(self))

    def reset(self) -> None:
        """Reset all counts to zero."""
        for field in fields(self):
            setattr(self, field.name, 0)


class PendingExchange:
    """An exchange in progress: `wait` returns what the other ranks sent."""

    def __init__(self, ranks: Ranks, phase: str, work: Any, buffer: Tensor, in_use: Any) -> None:
        self._ranks, self._phase, self._work, self._buffer, self._in_use = ranks, phase, work, buffer, in_use

    def wait(self) -> Tensor:
        """Return the bytes or elements of all ranks, rank by rank."""
        if self._work is not None:
            self._ranks._wait(self._work, self._phase)
            self._work = self._in_use = None
        return self._buffer


class Ranks:
    """The process group of a module, and how long to wait for its ranks."""

    def __init__(self, process_group: Any, device_mesh: Any, timeout: float, module: str) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("call torch.distributed.init_process_group before creating a sharded module")
        if device_mesh is not None:
            if process_group is not None:
                raise make_error(
                    "bags_unfit", argument="device_mesh", value="both", bound="either device_mesh or process_group"
                )
            if device_mesh.ndim != 1:
                raise make_error(
                    "bags_unfit", argument="device_mesh", value=f"{device_mesh.ndim} dimensions", bound="1"
                )
            process_group = device_mesh.get_group()
        if not 0.1 <= timeout <= 1e9:
            raise make_error("value_unfit", argument="timeout", value=timeout, bound="0.1 to 1e9 seconds")
        self.group = process_group if process_group is not None else dist.group.WORLD
        self.mesh, self.timeout, self.module = device_mesh, float(timeout), module
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise make_error(
                "bags_unfit",
                argument="process_group",
                value="a group without it",
                bound="a group that contains this process",
            )
        self.traffic = Traffic()
        self.number = _NUM_MODULES[self.group.group_name] = _NUM_MODULES.get(self.group.group_name, 0) + 1
        self.pulse: Pulse | None = start_pulse(self.group, self.timeout) if self.size > 1 else None
        _ALL_RANKS.add(self)

    @property
    def device(self) -> torch.device:
        """The device of the tensors that the group's backend exchanges."""
        if dist.get_backend(self.group) == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def names(self, ranks: Sequence[int]) -> list[int]:
        """Return the global ranks of ranks of this group, for errors."""
        return [dist.get_global_rank(self.group, r) for r in ranks]

    def send(self, phase: str, data: Tensor, out: Sequence[int], back: Sequence[int]) -> PendingExchange:
        """Start an exchange: the first `out[0]` elements of `data` go to rank 0, …; `back[r]` come from rank r."""
        if self.size == 1:
            return PendingExchange(self, phase, None, data, None)
        self._check_usable(phase)
        result = data.new_empty(sum(back))
        try:
            work = dist.all_to_all_single(result, data, list(back), list(out), group=self.group, async_op=True)
        except RuntimeError as error:
            raise self._pulse.lost_error(self.group.group_name, phase, error) from error
        return PendingExchange(self, phase, work, result, data)

    @contextmanager
    def completing(self, what: str) -> Iterator[None]:
        """Report to the other ranks if this rank fails in the middle of a call, in which they wait for it."""
        try:
            yield
        except RankError:
            raise
        except BaseException as error:
            if self.pulse is not None:
                self.pulse.fail(self.group.group_name, what, error)
            raise

    @property
    def _pulse(self) -> Pulse:
        assert self.pulse is not None  # there are other ranks
        return self.pulse

    def _check_usable(self, phase: str) -> None:
        """Raise if an earlier call failed: its exchanges may still be in progress, and would mix with new ones."""
        blame = self._pulse.broken(self.group.group_name)
        if blame is not None:
            text = f"the process group cannot be used after an earlier failure: {blame.text}. Restart all ranks."
            raise RankLostError(text, phase, blame.ranks)

    def _wait(self, work: Any, phase: str) -> None:
        try:
            if dist.get_backend(self.group) == "nccl":
                work.wait()  # only queues the wait; NCCL's watchdog enforces the group's timeout
            else:
                self._pulse.wait(work, self.group.group_name, phase, self.timeout)
        except RankError:
            raise
        except RuntimeError as error:
            raise self._pulse.lost_error(self.group.group_name, phase, error) from error
        except BaseException as error:  # KeyboardInterrupt: the exchange is still in progress
            self._pulse.fail(self.group.group_name, f"the exchange of {phase}", error)
            raise


# -- Routing: a rank's own bags, sorted by the owners of their rows ---------------------------------------------------

Counts = list[int]
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Route(NamedTuple):
    """What this rank requests from the others for one lookup. All but `inverse` and `scales` are sorted by owner."""

    rows: Tensor  # the distinct rows, numbered as their owners store them
    inverse: Tensor  # the position in `rows` of each id, in the order of the bags
    pair_rows: Tensor  # one pair per id, by owner, then in the order of the bags: position among the owner's rows
    pair_bags: Tensor  # position among the owner's bags
    pair_ids: Tensor  # position among the ids of the bags
    bags: Tensor  # for each owner, the bags that have ids there
    scales: Tensor | None  # of every bag: 1/n, 1/√n; or with weights Σw, √Σw²; None for sums
    num_rows: Counts  # by owner
    num_pairs: Counts
    num_bags: Counts


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the accumulation type of a dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_bags(bags: Bags, rows: int, device: torch.device) -> None:
    """Validate bags before anything is sent, so that owners need not."""
    ids, segments = bags.indices, bags.segment_ids
    if ids.device != device:
        raise make_error("not_here", argument="ids", value=f"a tensor on {ids.device}", bound=f"on {device}")
    if ids.shape != segments.shape:
        raise make_error("segments_match_indices", value=segments.shape[0], bound=ids.shape[0])
    if bags.weights is not None:
        _check_weights(bags.weights, ids)
    if ids.numel() == 0:
        return
    bad = (ids < 0) | (ids >= rows)
    falls = segments[1:] < segments[:-1]
    outside = (segments < 0) | (segments >= bags.num_bags)
    found = torch.stack([bad.any(), falls.any(), outside.any()]).tolist()
    if found[0]:
        at = int(torch.nonzero(bad)[0])
        raise make_error("index_not_in_data", argument="ids", position=at, value=int(ids[at]), bound=rows)
    if found[1]:
        raise make_error("segments_not_increasing", argument="segment_ids", position=int(torch.nonzero(falls)[0]) + 1)
    if found[2]:
        at = int(torch.nonzero(outside)[0])
        raise make_error(
            "segment_not_in_output", argument="segment_ids", position=at, value=int(segments[at]), bound=bags.num_bags
        )


def _check_weights(weights: Tensor, ids: Tensor) -> None:
    facts: dict[str, Any] = {"argument": "per_sample_weights"}
    if weights.dtype not in _FLOATS:
        raise make_error("dtype_not_allowed", **facts, value=weights.dtype, bound=", ".join(map(str, _FLOATS)))
    if weights.device != ids.device:
        raise make_error("not_here", **facts, value=f"a tensor on {weights.device}", bound=f"on {ids.device}")
    if weights.shape != ids.shape:
        raise make_error("same_shape", **facts, value=tuple(weights.shape), bound=tuple(ids.shape))


def route(bags: Bags, stack: Stack, kind: str, dtype: torch.dtype) -> Route:
    """Sort validated bags by owner. The ids of several tables are numbered consecutively."""
    ids, device = bags.indices, bags.indices.device
    places, segments = stack.places(ids), bags.segment_ids.to(torch.int64)
    unique, starts, _, positions, counts = OPS["RowPlan"](places, segments, stack.rows, bags.num_bags)
    inverse = torch.empty_like(positions).scatter_(0, positions, _run_numbers(starts, ids.shape[0]))
    firsts = torch.tensor(stack.firsts, device=device)
    owners = torch.searchsorted(firsts[1:], places, right=True)
    row_counts = torch.searchsorted(unique, firsts).diff()
    num_rows, num_pairs = torch.stack([row_counts, torch.bincount(owners, minlength=stack.ranks)]).tolist()
    _, _, pair_bags, pair_ids, _ = OPS["RowPlan"](owners, segments, stack.ranks, bags.num_bags)
    by_owner = spread(num_pairs, range(stack.ranks), device)
    is_first = torch.ones_like(by_owner, dtype=torch.bool)  # the first pair of its bag with its owner
    is_first[1:] = (pair_bags[1:] != pair_bags[:-1]) | (by_owner[1:] != by_owner[:-1])
    first_pairs = torch.nonzero(is_first).squeeze(1)
    begin_bags = torch.searchsorted(
        first_pairs, torch.tensor([*starts_of(num_pairs), ids.shape[0]], device=device)
    ).tolist()
    return Route(
        rows=unique - spread(num_rows, stack.firsts[:-1], device),
        inverse=inverse,
        pair_rows=(inverse.index_select(0, pair_ids) - spread(num_pairs, starts_of(num_rows), device)).to(torch.int32),
        pair_bags=(is_first.cumsum(0) - 1 - spread(num_pairs, begin_bags[:-1], device)).to(torch.int32),
        pair_ids=pair_ids,
        bags=pair_bags.index_select(0, first_pairs),
        scales=_scales(bags, counts, kind, wide_dtype(dtype)),
        num_rows=num_rows,
        num_pairs=num_pairs,
        num_bags=[end - begin for begin, end in pairwise(begin_bags)],
    )


def spread(counts: Counts, values: Sequence[int], device: torch.device) -> Tensor:
    """Repeat values[0] counts[0] times, then values[1] counts[1] times, …"""
    repeats = torch.tensor(counts, device=device)
    return torch.tensor(values, device=device).repeat_interleave(repeats, output_size=sum(counts))


def starts_of(counts: Counts) -> list[int]:
    """Return where each of several runs begins."""
    return [0, *accumulate(counts)][:-1]


def _run_numbers(starts: Tensor, size: int) -> Tensor:
    """Return 0, 0, 1, 1, 1, 2, … for runs that begin at `starts`."""
    marks = torch.zeros(size, dtype=torch.int64, device=starts.device)
    marks[starts] = 1
    return marks.cumsum(0) - 1


def _scales(bags: Bags, counts: Tensor, kind: str, wide: torch.dtype) -> Tensor | None:
    if kind == "Sum":
        return None
    if bags.weights is not None:
        scales: Tensor = weighted_scales(
            OPS, kind, bags.segment_ids, bags.weights.detach().to(wide), int(bags.num_bags)
        )
        return scales
    number = counts.clamp(min=1).to(torch.float64)  # like the kernels: computed in double, rounded once
    return (1.0 / (number if kind == "Mean" else number.sqrt())).to(wide)


# -- Agreement before data is sent: sizes, whether all ranks make the same call, whether one rejects it ---------------

WEIGHTED, PLAIN, EITHER = 1, 0, 2  # EITHER: a rank without ids
_FINE, _BAD_ID, _OTHER = 0, 1, 2
_HEAD = 5  # call, status, and three facts: of the call, or of a bad id
_EACH = 6  # trains, weighted, wants the gradient of weights, rows, pairs, bags
_LINE = _HEAD + _EACH
# The first exchange of every call sends one line of this length to each rank, so that ranks notice if they make
# different calls. gloo would end the process if a rank sent more than expected.


class LookupRequest(NamedTuple):
    """One lookup of this rank: its route, or None if it rejected its ids, and its options."""

    route: Route | None
    trains: bool
    weighted: int
    weights_gradient: bool


class LookupSizes(NamedTuple):
    """How much each rank sends in one lookup, and the options that all ranks agreed on."""

    num_rows: Counts
    num_pairs: Counts
    num_bags: Counts
    trains: bool
    weighted: bool
    weights_gradient: bool


_CALLS = (
    "forward",
    "backward",
    "reset_parameters or the constructor",
    "full_weight",
    "to_dtensor or a checkpoint",
    "checkpoint.save",
    "checkpoint.save after its rows",
    "checkpoint.load",
    "checkpoint.load after its metadata",
    "backward of replicated tables",
)


class CallId(NamedTuple):
    """What identifies a call: equal on all ranks that take part."""

    key: int  # a hash of everything else, and of the module's options
    what: int  # in _CALLS
    module: int
    number: int  # of the module's lookups

    def of(self, what: str) -> CallId:
        """Return the identity of a call that belongs to this one."""
        return CallId(zlib.crc32(repr((what, self.key)).encode()), _CALLS.index(what), self.module, self.number)


def call_id(ranks: Ranks, what: str, *facts: object, number: int = 0) -> CallId:
    """Return the identity of a call of a module; `facts` are its options."""
    key = zlib.crc32(repr((what, ranks.number, number, facts)).encode())
    return CallId(key, _CALLS.index(what), ranks.number, number)


def exchange_sizes(
    ranks: Ranks, call: CallId, requests: Sequence[LookupRequest], rejection: Exception | None
) -> list[LookupSizes]:
    """Exchange sizes. If one rank rejects the call, all raise, and nothing else is sent."""
    lines = []
    for r in range(ranks.size):
        line = [call.key, *_status(call, rejection)]
        for q in requests:
            sizes = (0, 0, 0) if q.route is None else (q.route.num_rows[r], q.route.num_pairs[r], q.route.num_bags[r])
            line += [int(q.trains), q.weighted, int(q.weights_gradient), *sizes]
        lines.append(line)
    received = _exchange_lines(ranks, "sizes", [line[:_LINE] for line in lines])
    _check_agreement(ranks, "sizes", received, rejection)
    if len(requests) > 1:
        rest = _exchange_lines(ranks, "sizes", [line[_LINE:] for line in lines])
        received = [first + more for first, more in zip(received, rest, strict=True)]
    _check_same_options(ranks, received)
    return [_lookup_sizes(received, _HEAD + k * _EACH) for k in range(len(requests))]


def check_same_call(ranks: Ranks, call: CallId, rejection: Exception | None = None, value: int = 0) -> list[int]:
    """Check that all ranks are about to make the same call; return every rank's `value`."""
    line = [call.key, *_status(call, rejection), value]
    received = _exchange_lines(ranks, "calls", [line + [0] * (_LINE - len(line))] * ranks.size)
    _check_agreement(ranks, "calls", received, rejection)
    return [line[_HEAD] for line in received]


def _exchange_lines(ranks: Ranks, phase: str, lines: list[list[int]]) -> list[list[int]]:
    each = [1] * ranks.size
    sent = torch.tensor(lines, dtype=torch.int64).to(ranks.device)
    (lines_of_ranks,) = PackedExchange(ranks, phase, [Section(sent, each, each)]).wait()
    received: list[list[int]] = lines_of_ranks.tolist()
    return received


def _status(call: CallId, rejection: Exception | None) -> tuple[int, int, int, int]:
    if rejection is None:
        return _FINE, call.what, call.module, call.number
    facts = [getattr(rejection, name, None) for name in ("position", "value", "bound")]
    if getattr(rejection, "argument", None) in ("ids", "indices") and all(isinstance(f, int) for f in facts):
        return _BAD_ID, *(int(f) for f in facts if isinstance(f, int))  # type: ignore[return-value]
    return _OTHER, call.what, call.module, call.number


def _check_agreement(ranks: Ranks, phase: str, received: list[list[int]], rejection: Exception | None) -> None:
    """Raise if a rank rejects the call, or makes a different one."""
    if rejection is not None:
        raise rejection
    bad = [r for r, line in enumerate(received) if line[1] != _FINE]
    if bad:
        raise _refused_error(ranks, phase, {r: _rejected(ranks, received[r]) for r in bad}, "nothing was done")
    own = received[ranks.rank]
    others = [r for r, line in enumerate(received) if line[0] != own[0]]
    if others:
        here = _describe_call(ranks, own)
        calls = {r: _describe_call(ranks, received[r]) for r in others}
        texts = {r: f"is in {c}" if c != here else f"is in {c} with different options" for r, c in calls.items()}
        raise _refused_error(ranks, phase, texts, f"this rank, {ranks.names([ranks.rank])[0]}, is in {here}")


def _describe_call(ranks: Ranks, line: list[int]) -> str:
    what, module, number = line[2:_HEAD]
    name = next((r.module for r in _ALL_RANKS if r.group is ranks.group and r.number == module), "not created here")
    call = f", call {number}" if _CALLS[what] in ("forward", "backward") else ""
    return f"{_CALLS[what]} of module {module} ({name}{call})"


def _rejected(ranks: Ranks, line: list[int]) -> str:
    if line[1] == _BAD_ID:
        position, value, bound = line[2:_HEAD]
        return f"rejected its arguments: ids[{position}] = {value} is not in [0, {bound})"
    return f"rejected {_describe_call(ranks, line)}, where it raised the error that says why"


def _refused_error(ranks: Ranks, phase: str, texts: dict[int, str], end: str) -> RankRefusedError:
    """Return an error with a text for each of some ranks; ranks with the same text are named together."""
    names = dict(zip(texts, ranks.names(list(texts)), strict=True))
    parts = [
        f"rank {', '.join(str(names[r]) for r in texts if texts[r] == text)} {text}"
        for text in dict.fromkeys(texts.values())
    ]
    return RankRefusedError("; ".join([*parts, end]), phase, list(names.values()))


def _check_same_options(ranks: Ranks, received: list[list[int]]) -> None:
    """Raise if ranks differ in whether they need gradients, or in whether they have weights."""
    own = received[ranks.rank]
    for k in range(_HEAD, len(own), _EACH):
        others = [r for r, line in enumerate(received) if line[k] != own[k]]
        if others:
            ways = ("without", "with")
            text = f"looks up {ways[1 - own[k]]} gradients"
            raise _refused_error(ranks, "sizes", dict.fromkeys(others, text), f"this rank {ways[own[k]]} them")
        if {line[k + 1] for line in received} >= {WEIGHTED, PLAIN}:
            plain = [r for r, line in enumerate(received) if line[k + 1] == PLAIN]
            text = "has no per_sample_weights"
            raise _refused_error(ranks, "sizes", dict.fromkeys(plain, text), "other ranks have")


def _lookup_sizes(received: list[list[int]], first: int) -> LookupSizes:
    trains, weighted, weights_gradient, *sizes = list(zip(*received, strict=True))[first : first + _EACH]
    rows, pairs, bags = (list(s) for s in sizes)
    return LookupSizes(rows, pairs, bags, bool(trains[0]), WEIGHTED in weighted, any(weights_gradient))


# -- Redistributing the rows of a table -------------------------------------------------------------------------------


def redistribute(ranks: Ranks, rows: Tensor, have: Part, want: Part) -> Tensor:
    """Return this rank's rows under the rule `want`; ranks store rows by `have`. All ranks call it together."""
    if have.is_like(want):
        return rows
    what = "to_dtensor or a checkpoint"
    _check_same_table(ranks, what, rows, have, want)
    with ranks.completing(what):
        targets, _ = want.locate(have.ids_of(ranks.rank, rows.device))
        order = torch.argsort(targets, stable=True)
        sources, _ = have.locate(want.ids_of(ranks.rank, rows.device))
        positions = torch.argsort(sources, stable=True)  # each rank sends its rows in the order of their ids
        out, back = (torch.bincount(x, minlength=ranks.size).tolist() for x in (targets, sources))
        (received,) = PackedExchange(ranks, "rows", [Section(rows[order], out, back)]).wait()
        result = torch.empty_like(received)
        result[positions] = received
    return result


def gather_table(ranks: Ranks, rows: Tensor, have: Part) -> Tensor:
    """Return all rows of the table on every rank. All ranks call it together."""
    _check_same_table(ranks, "full_weight", rows, have, have)
    with ranks.completing("full_weight"):
        out = [rows.shape[0]] * ranks.size
        (found,) = PackedExchange(ranks, "rows", [Section(torch.cat([rows] * ranks.size), out, have.sizes)]).wait()
        result = torch.empty_like(found)
        result[torch.cat([have.ids_of(r, rows.device) for r in range(ranks.size)])] = found
    return result


def copy_rows(shard: Tensor, table: Tensor, ids: Tensor, num_rows: int) -> None:
    """Copy rows of a whole table to a shard; raise if its shape differs, because copy_ would broadcast."""
    shape = (num_rows, *shard.shape[1:])
    if tuple(table.shape) != shape:
        raise make_error("same_shape", argument="table", value=tuple(table.shape), bound=shape)
    check_storage(table, "table")
    check_storage(shard, "weight")
    shard.copy_(table[ids.to(table.device)])


def _check_same_table(ranks: Ranks, what: str, rows: Tensor, have: Part, want: Part) -> None:
    kind = str(rows.dtype), *rows.shape[1:]
    rejection: Exception | None = None
    try:
        check_storage(rows, "weight")
    except OpError as error:  # raised below, on all ranks
        rejection = error
    check_same_call(ranks, call_id(ranks, what, have.rows, have.strategy, want.strategy, kind), rejection)
