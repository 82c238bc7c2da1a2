"""Checkpoints of torch.distributed.checkpoint that any number of ranks can read.

Rows are written as DTensors split by `Shard(0)`, in the order of their ids, whatever the module's own rule: rows are
moved there and back where the two differ. So neither the number of ranks nor the rule is part of a checkpoint. The
optimizer's state of a row goes with the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ...errors import make_error
from ...optim import RULES, slot_shapes
from ..optim import RowOptimizer
from .bag import RowShardedEmbeddingBag
from .base import ShardedModule
from .embeddings import RowShardedEmbeddings
from .exchange import Ranks, call_number, check_same_call, redistribute
from .placement import Part

_GROUP = "optimizer group "
_METADATA = ".metadata"  # what torch.distributed.checkpoint writes last


class _Entry(NamedTuple):
    """One table in a checkpoint: its name, its rows in its parameter, and how they are sharded."""

    name: str
    rows: slice
    part: Part


class _ShardedParam(NamedTuple):
    """A parameter that stores rows of tables."""

    ranks: Ranks
    entries: list[_Entry]


def save(path: Any, model: torch.nn.Module, optimizer: Any = None, extra: Mapping[str, Any] | None = None) -> None:
    """Save a model, its optimizer and further state. All ranks call it together.

    `extra` are numbers, strings, tensors, or what else can be pickled, the same on all ranks. The checkpoint is whole
    when the folder has a file `.metadata`, which is written last; one that is written over loses it first.
    """
    ranks = _ranks_of(model)
    check_same_call(ranks, "checkpoint.save", call_number("save", ranks.number))
    found = {**_model_state(model), **_optimizer_state(model, optimizer)}
    found |= {f"extra.{name}": value for name, value in (extra or {}).items()}
    with _failing_together(ranks, "checkpoint.save: what was there"):
        if ranks.rank == 0:
            (Path(path) / _METADATA).unlink(missing_ok=True)
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)  # a dict is a value like others
    with _translate_errors(path, "checkpoint_unwritten"):
        dcp.save(found, checkpoint_id=path, planner=planner, process_group=ranks.group)


def load(path: Any, model: torch.nn.Module, optimizer: Any = None) -> dict[str, Any]:
    """Read what `save` has written, by any number of ranks, into a model and an optimizer; gives `extra`.

    The optimizer's state is replaced: parameters that had none when it was saved have none then. What does not fit the
    model or the optimizer is rejected before anything is changed.
    """
    ranks = _ranks_of(model)
    wanted: dict[str, Any] = {}
    with _failing_together(ranks, "checkpoint.load"):
        known = _entries_of(path)
    with _failing_together(ranks, "checkpoint.load: what it holds"):
        wanted |= _model_state(model, empty=True)
        _check_model(wanted, known)
        if optimizer is not None:
            _check_optimizer(model, optimizer, known)
            wanted |= _optimizer_targets(model, optimizer, known)
    wanted |= {key: _allocate(what) for key, what in known.items() if key.startswith("extra.")}
    with _translate_errors(path, "checkpoint_unreadable"):
        dcp.load(wanted, checkpoint_id=path, process_group=ranks.group)
    _load_model(model, wanted)
    if optimizer is not None:
        _load_optimizer(model, optimizer, wanted)
    return {key.removeprefix("extra."): wanted[key] for key in wanted if key.startswith("extra.")}


@contextmanager
def _translate_errors(path: Any, key: str) -> Iterator[None]:
    """Raise what torch.distributed.checkpoint raises on all ranks, a BaseException, as an error of this library."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise make_error(key, file=path, why=f"rank {rank}: {type(cause).__name__}: {cause}") from error


def _entries_of(path: Any) -> Mapping[str, Any]:
    """Return the entries of a checkpoint by name."""
    try:
        return dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    except OSError:
        raise
    except Exception as error:  # whatever unpickling raises
        why = f"{_METADATA} is damaged: {type(error).__name__}: {error}"
        raise make_error("checkpoint_unreadable", file=path, why=why) from error


def _check_model(wanted: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Reject a checkpoint of another model: one that lacks an entry, or has it in another shape."""
    for key, value in wanted.items():
        what = known.get(key)
        if what is None:
            raise make_error("checkpoint_lacks", argument=key, why="")
        if isinstance(value, Tensor) and isinstance(what, TensorStorageMetadata) and value.shape != what.size:
            raise make_error("same_shape", argument=key, value=tuple(what.size), bound=tuple(value.shape))


def _check_optimizer(model: torch.nn.Module, optimizer: Any, known: Mapping[str, Any]) -> None:
    """Reject the state of another optimizer: other groups, or entries of a parameter that lack a slot of this rule."""
    groups = {key.removeprefix(_GROUP).partition(":")[0] for key in known if key.startswith(_GROUP)}
    if len(groups) != len(optimizer.param_groups):
        raise make_error("checkpoint_groups", value=len(groups), bound=len(optimizer.param_groups))
    if not isinstance(optimizer, RowOptimizer):
        return
    held, rule = _sharded_params(model), type(optimizer).__name__
    slots = [slot.name for slot in RULES[optimizer.rule].slots]
    for name, param in model.named_parameters():
        shapes = {name: tuple(param.shape) or (1,)}
        if name in held:
            shapes = {entry.name: (entry.part.rows, *param.shape[1:]) for entry in held[name].entries}
        prefixes = [f"optimizer.{table}:" for table in dict.fromkeys([*shapes, name])]
        found = {key for key in known if key.startswith(tuple(prefixes))}
        wanted: dict[str, Any] = {f"optimizer.{name}:step": None}
        for table, shape in shapes.items():
            sized = slot_shapes(optimizer.rule, shape)
            wanted |= {f"optimizer.{table}:{slot}": size for slot, size in zip(slots, sized, strict=True)}
        for key, size in wanted.items() if found else ():
            if key not in known:
                raise make_error("checkpoint_lacks", argument=key, why=f", which {rule} needs")
            saved = getattr(known[key], "size", None)
            if size is not None and (saved is None or tuple(saved) != tuple(size)):
                raise make_error(
                    "checkpoint_rule", argument=key, value=saved and tuple(saved), bound=tuple(size), why=rule
                )
        other = min(found - set(wanted), default=None)
        if other is not None:
            raise make_error("checkpoint_slot", argument=other, why=rule)


@contextmanager
def _failing_together(ranks: Ranks, what: str) -> Iterator[None]:
    """Let all ranks learn whether one of them fails inside this context."""
    rejection: Exception | None = None
    try:
        yield
    except Exception as error:
        rejection = error
    check_same_call(ranks, what, call_number(what, ranks.number), rejection)


def latest(folder: Any) -> Path | None:
    """Return the complete checkpoint in `folder` whose name sorts last."""
    found = sorted(path.parent for path in Path(folder).glob(f"*/{_METADATA}"))
    return found[-1] if found else None


def as_dtensor(ranks: Ranks, rows: Tensor, part: Part) -> DTensor:
    """Return a rank's rows as part of a DTensor split by Shard(0): a view if torch splits like `part`, else a copy.

    torch gives every rank but the last ones ⌈rows / ranks⌉ rows, "div" gives the first ranks one more than the others.
    They agree where ranks divide the rows, and in a few cases besides. All ranks call it together.
    """
    chunk = Part(part.rows, part.ranks, "chunk")
    local = redistribute(ranks, rows.detach(), part, chunk)
    return _dtensor(ranks, local, part.rows)


def _dtensor(ranks: Ranks, local: Tensor, rows: int) -> DTensor:
    mesh = ranks.mesh
    if mesh is None:
        mesh = DeviceMesh.from_group(ranks.group, local.device.type)
    shape = torch.Size([rows, *local.shape[1:]])
    stride = torch.empty(shape, device="meta").stride()
    found: DTensor = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
    return found


def _sharded_modules(model: torch.nn.Module) -> Iterator[tuple[str, ShardedModule]]:
    return ((name, m) for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, ShardedModule))


def _ranks_of(model: torch.nn.Module) -> Ranks:
    for _, module in _sharded_modules(model):
        return module.ranks
    raise ValueError("the model has no sharded module; torch.distributed.checkpoint takes its state_dict as it is")


def _sharded_params(model: torch.nn.Module) -> dict[str, _ShardedParam]:
    """Return every stack of tables by the name of its parameter."""
    found: dict[str, _ShardedParam] = {}
    for name, module in _sharded_modules(model):
        prefix = f"{name}." if name else ""
        rank = module.ranks.rank
        if isinstance(module, RowShardedEmbeddingBag):
            entry = _Entry(f"{prefix}weight", module.stack.rows_of(0, rank), module.stack.parts[0])
            found[f"{prefix}weight"] = _ShardedParam(module.ranks, [entry])
        elif isinstance(module, RowShardedEmbeddings):
            for table in module.tables:
                key, stack, number = module.place(table.name)
                held = found.setdefault(prefix + key, _ShardedParam(module.ranks, []))
                entry = _Entry(f"{prefix}{table.name}.weight", stack.rows_of(number, rank), stack.parts[number])
                held.entries.append(entry)
    return found


def _dtensors(held: _ShardedParam, rows: Tensor, empty: bool) -> Iterator[tuple[_Entry, DTensor]]:
    """Return the DTensor of every table in a parameter, or in one of its slots."""
    for entry in held.entries:
        mine = rows[entry.rows]
        if empty:
            chunk = Part(entry.part.rows, entry.part.ranks, "chunk")
            local = mine.new_empty((chunk.sizes[held.ranks.rank], *mine.shape[1:]))
            yield entry, _dtensor(held.ranks, local, entry.part.rows)
        else:
            yield entry, as_dtensor(held.ranks, mine, entry.part)


def _model_state(model: torch.nn.Module, empty: bool = False) -> dict[str, Any]:
    held = _sharded_params(model)
    found: dict[str, Any] = {}
    layouts = {f"{name}.".lstrip(".") + "_extra_state" for name, _ in _sharded_modules(model)}
    for name, value in model.state_dict().items():
        if name in layouts:
            continue  # rows are written in the order of their ids
        if name in held:
            found |= {f"model.{entry.name}": rows for entry, rows in _dtensors(held[name], value.detach(), empty)}
        else:
            found[f"model.{name}"] = torch.empty_like(value) if empty and isinstance(value, Tensor) else value
    return found


def _optimizer_state(model: torch.nn.Module, optimizer: Any) -> dict[str, Any]:
    if optimizer is None:
        return {}
    held, found = _sharded_params(model), dict[str, Any]()
    for name, param in model.named_parameters():
        for slot, value in optimizer.state.get(param, {}).items():
            if name in held and isinstance(value, Tensor) and value.ndim:
                for entry, rows in _dtensors(held[name], value, False):
                    found[f"optimizer.{entry.name}:{slot}"] = rows
            else:
                found[f"optimizer.{name}:{slot}"] = value
    for number, group in enumerate(optimizer.param_groups):
        found |= {f"{_GROUP}{number}:{option}": value for option, value in group.items() if option != "params"}
    return found


def _optimizer_targets(model: torch.nn.Module, optimizer: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Allocate every slot that the checkpoint has for parameters of this optimizer."""
    held, found = _sharded_params(model), dict[str, Any]()
    ours = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, param in model.named_parameters():
        if id(param) not in ours:
            continue
        entries = {e.name: e for e in held[name].entries} if name in held else {}
        for table in dict.fromkeys([*entries, name]):
            for key in (k for k in known if k.startswith(f"optimizer.{table}:")):
                what = known[key]
                if table in entries and isinstance(what, TensorStorageMetadata) and len(what.size):
                    part = entries[table].part
                    size = Part(part.rows, part.ranks, "chunk").sizes[held[name].ranks.rank]
                    local = torch.empty((size, *what.size[1:]), dtype=what.properties.dtype, device=param.device)
                    found[key] = _dtensor(held[name].ranks, local, part.rows)
                else:
                    found[key] = _allocate(what, param.device)
    return found | {key: _allocate(what) for key, what in known.items() if key.startswith(_GROUP)}


def _allocate(what: Any, device: Any = None) -> Tensor | None:
    """Allocate a tensor of a checkpoint; other entries need no memory."""
    if not isinstance(what, TensorStorageMetadata):
        return None
    return torch.empty(what.size, dtype=what.properties.dtype, device=device)


@torch.no_grad()
def _load_model(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    held = _sharded_params(model)
    tables = {f"model.{entry.name}" for h in held.values() for entry in h.entries}
    others = {k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.") and k not in tables}
    model.load_state_dict(others, strict=False)
    for name, param in model.named_parameters():
        if name in held:
            for entry in held[name].entries:
                param[entry.rows] = _own_rows(held[name], entry, state[f"model.{entry.name}"])


def _load_optimizer(model: torch.nn.Module, optimizer: Any, state: Mapping[str, Any]) -> None:
    held = _sharded_params(model)
    ours = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, param in model.named_parameters():
        if id(param) not in ours:
            continue
        entries = held[name].entries if name in held else []
        found: dict[str, Any] = {}
        for table in dict.fromkeys([*(e.name for e in entries), name]):
            entry = next((e for e in entries if e.name == table), None)
            for key in (k for k in state if k.startswith(f"optimizer.{table}:")):
                slot, value = key.removeprefix(f"optimizer.{table}:"), state[key]
                if isinstance(value, DTensor) and entry is not None:
                    rows = _own_rows(held[name], entry, value)
                    if slot not in found:
                        found[slot] = rows.new_zeros((param.shape[0], *rows.shape[1:]))
                    found[slot][entry.rows] = rows
                else:
                    found[slot] = value
        if found:
            optimizer.state[param] = found
        else:
            optimizer.state.pop(param, None)  # it had not taken a step
    for number, group in enumerate(optimizer.param_groups):
        prefix = f"{_GROUP}{number}:"
        group.update({key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)})


def _own_rows(held: _ShardedParam, entry: _Entry, rows: DTensor) -> Tensor:
    return redistribute(held.ranks, rows.to_local(), Part(entry.part.rows, entry.part.ranks, "chunk"), entry.part)
