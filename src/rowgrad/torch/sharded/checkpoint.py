"""Checkpoints of sharded tables, written with torch.distributed.checkpoint, that any number of ranks can read.

Tables and optimizer state are written as DTensors split by `Shard(0)`, in the order of row ids. Rows are redistributed
if the module's strategy differs, so a checkpoint depends neither on the number of ranks nor on the strategy.
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
from .exchange import Ranks, call_id, check_same_call, redistribute
from .placement import Part

_GROUP = "optimizer group "
_METADATA = ".metadata"  # the file that torch.distributed.checkpoint writes last


class _Entry(NamedTuple):
    """One table in a checkpoint: its name, its rows in its parameter, and how they are sharded."""

    name: str
    rows: slice
    part: Part


class _ShardedParam(NamedTuple):
    """A parameter that stores shards of tables."""

    ranks: Ranks
    entries: list[_Entry]


def save(path: Any, model: torch.nn.Module, optimizer: Any = None, extra: Mapping[str, Any] | None = None) -> None:
    """Save a model, its optimizer and further state. All ranks call it together.

    A checkpoint is complete once its folder has the file `.metadata`, which is written last. If an existing checkpoint
    is overwritten, that file is deleted first.

    Args:
        path: The folder of the checkpoint.
        model: A model with at least one sharded module.
        optimizer: Its optimizer.
        extra: Further values, the same on all ranks: numbers, strings, tensors, or anything that can be pickled.

    Raises:
        CheckpointError: If the checkpoint was not written completely.
        ValueError: If the model has no sharded module.
    """
    ranks = _ranks_of(model)
    check_same_call(ranks, call_id(ranks, "checkpoint.save"))
    state = {**_model_state(model), **_optimizer_state(model, optimizer)}
    state |= {f"extra.{name}": value for name, value in (extra or {}).items()}
    with _failing_together(ranks, "checkpoint.save after its rows"):
        if ranks.rank == 0:
            (Path(path) / _METADATA).unlink(missing_ok=True)
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)  # a dict in `extra` is one value
    with _translate_errors(path, "checkpoint_unwritten"):
        dcp.save(state, checkpoint_id=path, planner=planner, process_group=ranks.group)


def load(path: Any, model: torch.nn.Module, optimizer: Any = None) -> dict[str, Any]:
    """Load a checkpoint of any number of ranks into a model and its optimizer. All ranks call it together.

    The optimizer's state is replaced; parameters that had no state when it was saved have none afterwards.

    Args:
        path: The folder of the checkpoint.
        model: A model with at least one sharded module.
        optimizer: Its optimizer; None does not load its state.

    Returns:
        What was passed to `save` as `extra`.

    Raises:
        CheckpointError: If the checkpoint cannot be read.
        InvalidArgumentError: If it does not fit the model or the optimizer; then nothing is changed.
        ValueError: If the model has no sharded module.
    """
    ranks = _ranks_of(model)
    wanted: dict[str, Any] = {}
    with _failing_together(ranks, "checkpoint.load"):
        known = _entries_of(path)
    with _failing_together(ranks, "checkpoint.load after its metadata"):
        wanted |= _model_state(model, empty=True)
        _check_model(wanted, known)
        if optimizer is not None:
            _check_optimizer(model, optimizer, known)
            wanted |= _optimizer_targets(model, optimizer, known)
    wanted |= {key: _allocate(metadata) for key, metadata in known.items() if key.startswith("extra.")}
    with _translate_errors(path, "checkpoint_unreadable"):
        dcp.load(wanted, checkpoint_id=path, process_group=ranks.group)
    _load_model(model, wanted)
    if optimizer is not None:
        _load_optimizer(model, optimizer, wanted)
    return {key.removeprefix("extra."): wanted[key] for key in wanted if key.startswith("extra.")}


@contextmanager
def _translate_errors(path: Any, key: str) -> Iterator[None]:
    """Translate CheckpointException, a BaseException that torch raises on all ranks, to an error of this library."""
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
    """Raise if a checkpoint lacks an entry of the model, or has one of another shape."""
    for key, value in wanted.items():
        entry = known.get(key)
        if entry is None:
            raise make_error("checkpoint_lacks", argument=key, why="")
        if isinstance(value, Tensor) and isinstance(entry, TensorStorageMetadata) and value.shape != entry.size:
            raise make_error("same_shape", argument=key, value=tuple(entry.size), bound=tuple(value.shape))


def _check_optimizer(model: torch.nn.Module, optimizer: Any, known: Mapping[str, Any]) -> None:
    """Raise if the saved optimizer has other parameter groups, or if a parameter's slots are not those of this rule."""
    groups = {key.removeprefix(_GROUP).partition(":")[0] for key in known if key.startswith(_GROUP)}
    if len(groups) != len(optimizer.param_groups):
        raise make_error("checkpoint_groups", value=len(groups), bound=len(optimizer.param_groups))
    if not isinstance(optimizer, RowOptimizer):
        return
    sharded, rule = _sharded_params(model), type(optimizer).__name__
    slots = [slot.name for slot in RULES[optimizer.rule].slots]
    for name, param in model.named_parameters():
        shapes = {name: tuple(param.shape) or (1,)}
        if name in sharded:
            shapes = {entry.name: (entry.part.rows, *param.shape[1:]) for entry in sharded[name].entries}
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
        unexpected = min(found - set(wanted), default=None)
        if unexpected is not None:
            raise make_error("checkpoint_slot", argument=unexpected, why=rule)


@contextmanager
def _failing_together(ranks: Ranks, what: str) -> Iterator[None]:
    """Make all ranks raise if one of them fails inside this context."""
    rejection: Exception | None = None
    try:
        yield
    except Exception as error:
        rejection = error
    check_same_call(ranks, call_id(ranks, what), rejection)


def latest(folder: Any) -> Path | None:
    """Return the complete checkpoint in `folder` whose name sorts last; None without one."""
    complete = sorted(path.parent for path in Path(folder).glob(f"*/{_METADATA}"))
    return complete[-1] if complete else None


def as_dtensor(ranks: Ranks, rows: Tensor, part: Part) -> DTensor:
    """Return a rank's rows as part of a DTensor split by Shard(0): a view if torch splits like `part`, else a copy.

    torch assigns ⌈rows / ranks⌉ rows to every rank but the last ones; "div" assigns one more to the first ranks. They
    agree if the number of ranks divides that of the rows, and in a few other cases. All ranks call it together.
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
    tensor: DTensor = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
    return tensor


def _sharded_modules(model: torch.nn.Module) -> Iterator[tuple[str, ShardedModule]]:
    return ((name, m) for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, ShardedModule))


def _ranks_of(model: torch.nn.Module) -> Ranks:
    for _, module in _sharded_modules(model):
        return module.ranks
    raise ValueError("the model has no sharded module. Save its state_dict with torch.distributed.checkpoint.")


def _sharded_params(model: torch.nn.Module) -> dict[str, _ShardedParam]:
    """Return the parameters that store sharded tables, by name."""
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
                param = found.setdefault(prefix + key, _ShardedParam(module.ranks, []))
                entry = _Entry(f"{prefix}{table.name}.weight", stack.rows_of(number, rank), stack.parts[number])
                param.entries.append(entry)
    return found


def _dtensors(param: _ShardedParam, rows: Tensor, empty: bool) -> Iterator[tuple[_Entry, DTensor]]:
    """Yield the DTensor of each table of a parameter, or of one of its slots; `empty` only allocates it."""
    for entry in param.entries:
        shard = rows[entry.rows]
        if empty:
            chunk = Part(entry.part.rows, entry.part.ranks, "chunk")
            local = shard.new_empty((chunk.sizes[param.ranks.rank], *shard.shape[1:]))
            yield entry, _dtensor(param.ranks, local, entry.part.rows)
        else:
            yield entry, as_dtensor(param.ranks, shard, entry.part)


def _model_state(model: torch.nn.Module, empty: bool = False) -> dict[str, Any]:
    sharded = _sharded_params(model)
    found: dict[str, Any] = {}
    layouts = {f"{name}.".lstrip(".") + "_extra_state" for name, _ in _sharded_modules(model)}
    for name, value in model.state_dict().items():
        if name in layouts:
            continue  # a checkpoint does not depend on the layout
        if name in sharded:
            found |= {f"model.{entry.name}": rows for entry, rows in _dtensors(sharded[name], value.detach(), empty)}
        else:
            found[f"model.{name}"] = torch.empty_like(value) if empty and isinstance(value, Tensor) else value
    return found


def _optimizer_state(model: torch.nn.Module, optimizer: Any) -> dict[str, Any]:
    if optimizer is None:
        return {}
    sharded, found = _sharded_params(model), dict[str, Any]()
    for name, param in model.named_parameters():
        for slot, value in optimizer.state.get(param, {}).items():
            if name in sharded and isinstance(value, Tensor) and value.ndim:
                for entry, rows in _dtensors(sharded[name], value, False):
                    found[f"optimizer.{entry.name}:{slot}"] = rows
            else:
                found[f"optimizer.{name}:{slot}"] = value
    for number, group in enumerate(optimizer.param_groups):
        found |= {f"{_GROUP}{number}:{option}": value for option, value in group.items() if option != "params"}
    return found


def _optimizer_targets(model: torch.nn.Module, optimizer: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Allocate the slots that the checkpoint has for parameters of this optimizer."""
    sharded, found = _sharded_params(model), dict[str, Any]()
    ours = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, param in model.named_parameters():
        if id(param) not in ours:
            continue
        entries = {e.name: e for e in sharded[name].entries} if name in sharded else {}
        for table in dict.fromkeys([*entries, name]):
            for key in (k for k in known if k.startswith(f"optimizer.{table}:")):
                metadata = known[key]
                if table in entries and isinstance(metadata, TensorStorageMetadata) and len(metadata.size):
                    part = entries[table].part
                    size = Part(part.rows, part.ranks, "chunk").sizes[sharded[name].ranks.rank]
                    local = torch.empty(
                        (size, *metadata.size[1:]), dtype=metadata.properties.dtype, device=param.device
                    )
                    found[key] = _dtensor(sharded[name].ranks, local, part.rows)
                else:
                    found[key] = _allocate(metadata, param.device)
    return found | {key: _allocate(metadata) for key, metadata in known.items() if key.startswith(_GROUP)}


def _allocate(metadata: Any, device: Any = None) -> Tensor | None:
    """Allocate a tensor of a checkpoint; return None for entries that are not tensors."""
    if not isinstance(metadata, TensorStorageMetadata):
        return None
    return torch.empty(metadata.size, dtype=metadata.properties.dtype, device=device)


@torch.no_grad()
def _load_model(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    sharded = _sharded_params(model)
    tables = {f"model.{entry.name}" for param in sharded.values() for entry in param.entries}
    others = {k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.") and k not in tables}
    model.load_state_dict(others, strict=False)
    for name, param in model.named_parameters():
        if name in sharded:
            for entry in sharded[name].entries:
                param[entry.rows] = _own_rows(sharded[name], entry, state[f"model.{entry.name}"])


def _load_optimizer(model: torch.nn.Module, optimizer: Any, state: Mapping[str, Any]) -> None:
    sharded = _sharded_params(model)
    ours = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, param in model.named_parameters():
        if id(param) not in ours:
            continue
        entries = sharded[name].entries if name in sharded else []
        found: dict[str, Any] = {}
        for table in dict.fromkeys([*(e.name for e in entries), name]):
            entry = next((e for e in entries if e.name == table), None)
            for key in (k for k in state if k.startswith(f"optimizer.{table}:")):
                slot, value = key.removeprefix(f"optimizer.{table}:"), state[key]
                if isinstance(value, DTensor) and entry is not None:
                    rows = _own_rows(sharded[name], entry, value)
                    if slot not in found:
                        found[slot] = rows.new_zeros((param.shape[0], *rows.shape[1:]))
                    found[slot][entry.rows] = rows
                else:
                    found[slot] = value
        if found:
            optimizer.state[param] = found
        else:
            optimizer.state.pop(param, None)  # it had no state when it was saved
    for number, group in enumerate(optimizer.param_groups):
        prefix = f"{_GROUP}{number}:"
        group.update({key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)})


def _own_rows(param: _ShardedParam, entry: _Entry, rows: DTensor) -> Tensor:
    return redistribute(param.ranks, rows.to_local(), Part(entry.part.rows, entry.part.ranks, "chunk"), entry.part)
