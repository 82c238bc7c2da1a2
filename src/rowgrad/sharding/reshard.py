"""Repartition a table stored as files of shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import OpError, make_error, shape_text
from .div_mod import check_strategy, id_step, locate_valid, shard_sizes, shard_slice
from .files import Array, InFile, row_bytes, rows_of, size_of
from .manifest import FORMATS, MAX_PARTS, Layout, TensorLayout
from .shards import Part, Source, Target, new_target, open_source

# -- The layout of the source -----------------------------------------------------------------------------------------


def source_layout(source: Source, from_strategy: str | None, table: str | None) -> Layout:
    """Return the layout of the source, from the headers of all parts; no rows are read.

    Raises:
        InvalidArgumentError: If the parts do not belong together, or contradict the manifest or the arguments.
    """
    first = source.parts[0] if source.parts else {}
    for part in source.parts:
        _check_alike(source, first, part)
    manifest = source.manifest
    if manifest is None:
        by_rows, sizes = _row_tensors(source, table)
    else:
        _check_names(source, manifest)
        if table is not None:
            _table(source, table)
        by_rows = {name for name, tensor in manifest.tensors.items() if tensor.by_rows}
        sizes = shard_sizes(manifest.rows, manifest.parts)
    _check_sizes(source, by_rows, sizes)
    tensors = {}
    for name, tensor in first.items():
        shape = (sum(sizes), *tensor.shape[1:]) if name in by_rows else tensor.shape
        tensors[name] = TensorLayout(tensor.dtype, shape, name in by_rows)
    found = Layout(source.format, _strategy(source, from_strategy), len(sizes), sum(sizes), tensors)
    for name, expected in ({} if manifest is None else manifest.tensors).items():
        if tensors[name] != expected:
            raise _contradiction(source, name, *(f"{t.dtype}{shape_text(t.shape)}" for t in (tensors[name], expected)))
    return found


def _check_names(source: Source, manifest: Layout) -> None:
    for name in sorted(manifest.tensors.keys() ^ source.parts[0].keys()):
        states = ("present", "absent")
        raise _contradiction(source, name, *(states if name in source.parts[0] else states[::-1]))


def _contradiction(source: Source, name: str, value: str, bound: str) -> OpError:
    bound = f"{bound} according to the manifest"
    return make_error("parts_value", file=source.path, what=repr(name), value=value, bound=bound)


def _check_alike(source: Source, first: Part, part: Part) -> None:
    """Raise unless two parts have the same tensors with the same dtypes and columns."""
    if part.keys() != first.keys():
        name = min(part.keys() ^ first.keys())
        file = next(iter((part if name not in part else first).values())).where if part and first else source.path
        raise make_error("parts_malformed", file=file, why=f"tensor {name!r} is not in all shards")
    for name, tensor in part.items():
        for what, value, bound in (
            ("dtype", tensor.dtype, first[name].dtype),
            ("rank", len(tensor.shape), len(first[name].shape)),
            ("columns", shape_text(tensor.shape[1:]), shape_text(first[name].shape[1:])),
        ):
            if value != bound:
                raise make_error(
                    "parts_differ", file=tensor.where, what=f"{what} of {name!r}", value=value, bound=bound
                )


def _row_tensors(source: Source, table: str | None) -> tuple[set[str], list[int]]:
    """Return the tensors that have as many rows as the table in every part, and the rows of each part.

    The table is the tensor of this name, or the one with the most bytes.
    """
    chosen = _table(source, table)
    sizes = [part[chosen].shape[0] for part in source.parts]
    with_rows = [n for n, t in source.parts[0].items() if t.shape]
    return {n for n in with_rows if [part[n].shape[0] for part in source.parts] == sizes}, sizes


def _table(source: Source, name: str | None) -> str:
    first = source.parts[0] if source.parts else {}
    with_rows = {n: sum(size_of(p[n].dtype, p[n].shape) for p in source.parts) for n, t in first.items() if t.shape}
    if name is not None and name not in with_rows:
        raise make_error("parts_no_tensor", file=source.path, value=f"{name!r} with rows",
                         bound=", ".join(map(repr, with_rows)) or "none")  # fmt: skip
    if not with_rows:
        raise make_error("parts_malformed", file=source.path, why="there is no tensor with rows")
    return name if name is not None else max(with_rows, key=lambda name: with_rows[name])


def _check_sizes(source: Source, by_rows: set[str], sizes: list[int]) -> None:
    """Raise unless every part has as many rows as the rule requires, and copied tensors have one shape."""
    expected = shard_sizes(sum(sizes), len(sizes))
    for number, part in enumerate(source.parts):
        for name, tensor in part.items():
            if name in by_rows and tensor.shape[:1] != (expected[number],):
                what = f"rows of {name!r} in shard {number}"
                value = tensor.shape[0] if tensor.shape else "none"
                raise make_error("parts_value", file=tensor.where, what=what, value=value, bound=expected[number])
            if name not in by_rows and tensor.shape != source.parts[0][name].shape:
                raise make_error(
                    "parts_rows", file=tensor.where, what=repr(name), value=tensor.shape[0], bound=sizes[number]
                )


def _strategy(source: Source, strategy: str | None) -> str:
    if strategy is not None:
        check_strategy(strategy)
    if source.manifest is None:
        if strategy is None and len(source.parts) > 1:
            raise make_error("parts_strategy", file=source.path)
        return strategy or "div"
    if strategy not in (None, source.manifest.strategy):
        raise _contradiction(source, "from_strategy", str(strategy), source.manifest.strategy)
    return source.manifest.strategy


# -- Moving rows, through a window of rows in table order -------------------------------------------------------------

# Each window is read from, and written to, every part as one run, so each file is read or written once, front to back,
# under either rule.

Progress = Callable[[int, int], object]
_SHARES = 4  # of the memory: a window, a buffer for strided rows, and two for a checkpoint's reader
_MAX_ROW_BYTES = 2**31 - 1  # NumPy's limit for elements of raw bytes


def runs(layout: Layout, begin: int, end: int) -> Iterator[tuple[int, int, slice]]:
    """Yield where rows [begin, end) of the table are stored, one contiguous run of a part's rows at a time.

    Yields:
        The part, the first row of the run in that part, and the positions of the run's rows in [begin, end).
    """
    rule = layout.rows, layout.parts, layout.strategy
    step = id_step(layout.parts, layout.strategy)
    if step > 1:
        for first in range(begin, min(begin + step, end)):
            part, row = locate_valid(first, *rule)
            yield part, row, slice(first - begin, end - begin, step)
        return
    first = begin
    while first < end:
        part, row = map(int, locate_valid(first, *rule))
        stop = min(end, shard_slice(part, *rule).stop)
        yield part, row, slice(first - begin, stop - begin)
        first = stop


def total_bytes(layout: Layout) -> int:
    """Return the number of bytes of all tensors, copied ones counted once."""
    return sum(size_of(tensor.dtype, tensor.shape) for tensor in layout.tensors.values())


def check_memory(layout: Layout, memory: int, where: object) -> None:
    """Raise if a row does not fit its share of the memory."""
    bound = min(memory // _SHARES, _MAX_ROW_BYTES)
    for name, tensor in layout.tensors.items():
        size = row_bytes(tensor.dtype, tensor.shape)
        if size > bound:
            raise make_error("parts_memory", file=where, what=repr(name), value=size, bound=bound)


def move(parts: Sequence[Part], found: Layout, target: Target, memory: int, progress: Progress) -> None:
    """Copy every tensor from the source's parts to the target's."""
    total, done = total_bytes(found), 0
    progress(0, total)
    for name, tensor in found.tensors.items():
        size = row_bytes(tensor.dtype, tensor.shape)
        if size == 0:
            continue
        step = _move_rows if tensor.by_rows else _copy_to_all
        for count in step(name, tensor, parts, found, target, max(1, memory // _SHARES // size)):
            done += count * size
            progress(done, total)


def _move_rows(
    name: str, tensor: TensorLayout, parts: Sequence[Part], found: Layout, target: Target, most: int
) -> Iterator[int]:
    """Move a tensor's rows; yield their number after each window."""
    most = min(most, max(found.rows, 1))
    window, spare = _row_buffer(tensor, most), _row_buffer(tensor, (most + 1) // 2)
    for begin in range(0, found.rows, most):
        end = min(begin + most, found.rows)
        rows = window[: end - begin]
        for part, row, place in runs(found, begin, end):
            into = rows[place]
            if into.flags.c_contiguous:
                parts[part][name].fill(row, into)
            else:
                parts[part][name].fill(row, spare[: len(into)])
                into[:] = spare[: len(into)]
        for part, row, place in runs(target.layout, begin, end):
            out = rows[place]
            if not out.flags.c_contiguous:
                spare[: len(out)] = out
                out = spare[: len(out)]
            target.write(part, name, row, out)
        yield end - begin


def _copy_to_all(
    name: str, tensor: TensorLayout, parts: Sequence[Part], found: Layout, target: Target, most: int
) -> Iterator[int]:
    """Copy a tensor that is the same in all parts; yield the number of rows after each window."""
    total = rows_of(tensor.shape)
    most = min(most, max(total, 1))
    window, other = _row_buffer(tensor, most), _row_buffer(tensor, most)
    for begin in range(0, total, most):
        rows, compared = window[: total - begin], other[: total - begin]
        parts[0][name].fill(begin, rows)
        for part in parts[1:]:
            part[name].fill(begin, compared)
            if not np.array_equal(rows.view(np.uint8), compared.view(np.uint8)):
                raise make_error("parts_differ", file=part[name].where, what=repr(name), value="another value",
                                 bound=parts[0][name].where)  # fmt: skip
        for number in range(target.layout.parts):
            target.write(number, name, begin, rows)
        yield len(rows)


def _row_buffer(tensor: TensorLayout, rows: int) -> Array:
    """Return a buffer for rows with one element of raw bytes per row, which NumPy copies as a unit."""
    return np.empty(rows, np.dtype((np.void, row_bytes(tensor.dtype, tensor.shape))))


# -- reshard ----------------------------------------------------------------------------------------------------------

Name = str | os.PathLike[str]


def reshard(
    source: Name,
    target: Name,
    *,
    parts: int,
    strategy: str = "div",
    from_strategy: str | None = None,
    format: str | None = None,
    table: str | None = None,
    tensors: Mapping[str, str] | Sequence[str] | None = None,
    memory: int = 64 << 20,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Layout:
    """Repartition a table stored as files: change the number of parts, the partition rule, or the file format.

    Tensors with as many rows as the table in every part, such as optimizer slots, are repartitioned with it; all other
    tensors must be the same in all parts. The target appears only when it is complete: an error or a kill leaves what
    was there before.

    Args:
        source: A folder of `part-00000-of-00004.npy` or `.safetensors` files, a single such file under any name, or a
            TensorFlow checkpoint.
        target: The folder to create.
        parts: The number of parts to write.
        strategy: The partition rule to write, "div" or "mod".
        from_strategy: The rule of the source; not needed if there is a manifest or a single part. For a variable that a
            checkpoint saved in slices under one name, pass "mod" if the model looked it up by "mod".
        format: "npy" or "safetensors"; by default the source's.
        table: The name of the table; by default the largest tensor.
        tensors: The tensors to read, as names or as a mapping {new name: name}; required for a checkpoint.
        memory: The approximate number of bytes of rows in memory at a time.
        overwrite: Replace an existing folder of parts.
        progress: Called with the bytes written so far and the total.

    Returns:
        The layout of the target.

    Raises:
        InvalidArgumentError: If an option, the source or its manifest is invalid.
        FileExistsError: If the target exists and may not be replaced.

    >>> import numpy as np, pathlib, tempfile
    >>> from rowgrad.sharding import reshard
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(pathlib.Path(folder, "table.npy"), np.arange(5.0).reshape(5, 1))
    ...     layout = reshard(pathlib.Path(folder, "table.npy"), pathlib.Path(folder, "parts"), parts=2, strategy="mod")
    ...     np.load(pathlib.Path(folder, "parts", "part-00001-of-00002.npy")).ravel().tolist()
    [1.0, 3.0]
    """
    _check_options(parts, strategy, format, memory)
    memory = int(memory)
    path, place = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    _check_elsewhere(place, path)
    opened = open_source(path, _renaming(tensors), from_strategy)
    for tensor in (t for part in opened.parts for t in part.values() if isinstance(t, InFile)):
        _check_elsewhere(place, Path(os.path.realpath(tensor.path)))  # a folder may contain links
    old = source_layout(opened, from_strategy, table)
    new = Layout(format or opened.format, strategy, int(parts), old.rows, old.tensors)
    check_memory(old, memory, path)
    with new_target(place, new, opened.metadata, overwrite) as written:
        move(opened.parts, old, written, memory, progress or _silent)
        _check_unchanged(opened)
    return new


def _check_options(parts: int, strategy: str, format: str | None, memory: int) -> None:
    check_strategy(strategy)
    if not isinstance(parts, int | np.integer) or isinstance(parts, bool) or not 1 <= parts <= MAX_PARTS:
        raise make_error("value_unfit", argument="parts", value=repr(parts), bound=f"1 to {MAX_PARTS}")
    if format is not None and format not in FORMATS:
        raise make_error("value_unfit", argument="format", value=repr(format), bound=" or ".join(FORMATS))
    if not isinstance(memory, int | np.integer) or isinstance(memory, bool) or memory < 1:
        raise make_error("value_unfit", argument="memory", value=repr(memory), bound="a positive number of bytes")


def _renaming(tensors: Mapping[str, str] | Sequence[str] | None) -> dict[str, str] | None:
    if tensors is None:
        return None
    if isinstance(tensors, str):
        tensors = [tensors]
    chosen = dict(tensors) if isinstance(tensors, Mapping) else {name: name for name in tensors}
    if not chosen:
        raise make_error("value_unfit", argument="tensors", value="no names", bound="one name or more")
    return chosen


def _check_elsewhere(target: Path, read: Path) -> None:
    if target == read or target in read.parents:
        raise make_error("parts_same", argument="target")


def _check_unchanged(source: Source) -> None:
    for part in source.parts:
        for tensor in part.values():
            tensor.check_unchanged()


def _silent(done: int, total: int) -> None:
    """Ignore progress."""
