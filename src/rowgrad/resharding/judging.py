"""What parts hold together: which tensors are dealt out by rows, whether all parts fit, by which rule they were cut."""

from __future__ import annotations

from ..errors import OpError, refuse, shape_text
from ..parts import check_strategy, shard_sizes
from .layout import Layout, TensorLayout
from .source import Part, Source
from .stored import size_of


def judge(source: Source, from_strategy: str | None, table: str | None) -> Layout:
    """The layout of parts, all of which have been looked at; nothing of their rows has been read."""
    first = source.parts[0] if source.parts else {}
    for part in source.parts:
        _check_alike(source, first, part)
    manifest = source.manifest
    if manifest is None:
        by_rows, sizes = _dealt(source, table)
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
    for name, wanted in ({} if manifest is None else manifest.tensors).items():
        if tensors[name] != wanted:
            raise _against(source, name, *(f"{t.dtype}{shape_text(t.shape)}" for t in (tensors[name], wanted)))
    return found


def _check_names(source: Source, manifest: Layout) -> None:
    for name in sorted(manifest.tensors.keys() ^ source.parts[0].keys()):
        there = ("there", "missing")
        raise _against(source, name, *(there if name in source.parts[0] else there[::-1]))


def _against(source: Source, name: str, value: str, bound: str) -> OpError:
    bound = f"{bound}, as the manifest says"
    return refuse("parts_value", file=source.path, what=repr(name), value=value, bound=bound)


def _check_alike(source: Source, first: Part, part: Part) -> None:
    """The same tensors, with the same dtypes and columns."""
    if part.keys() != first.keys():
        name = min(part.keys() ^ first.keys())
        there = next(iter((part if name not in part else first).values())).where if part and first else source.path
        raise refuse("parts_malformed", file=there, why=f"tensor {name!r} is not in all parts")
    for name, tensor in part.items():
        for what, value, bound in (
            ("dtype", tensor.dtype, first[name].dtype),
            ("rank", len(tensor.shape), len(first[name].shape)),
            ("columns", shape_text(tensor.shape[1:]), shape_text(first[name].shape[1:])),
        ):
            if value != bound:
                raise refuse("parts_differ", file=tensor.where, what=f"{what} of {name!r}", value=value, bound=bound)


def _dealt(source: Source, table: str | None) -> tuple[set[str], list[int]]:
    """Tensors that have as many rows as the table in every part, and those numbers.

    The table is the tensor of this name, or the one that has the most bytes.
    """
    chosen = _table(source, table)
    sizes = [part[chosen].shape[0] for part in source.parts]
    with_rows = [n for n, t in source.parts[0].items() if t.shape]
    return {n for n in with_rows if [part[n].shape[0] for part in source.parts] == sizes}, sizes


def _table(source: Source, name: str | None) -> str:
    first = source.parts[0] if source.parts else {}
    with_rows = {n: sum(size_of(p[n].dtype, p[n].shape) for p in source.parts) for n, t in first.items() if t.shape}
    if name is not None and name not in with_rows:
        raise refuse("parts_no_tensor", file=source.path, value=f"{name!r} that has rows",
                     bound=", ".join(map(repr, with_rows)) or "none")  # fmt: skip
    if not with_rows:
        raise refuse("parts_malformed", file=source.path, why="there is no tensor that has rows")
    return name if name is not None else max(with_rows, key=lambda name: with_rows[name])


def _check_sizes(source: Source, by_rows: set[str], sizes: list[int]) -> None:
    """Parts have the rows the rules give them; what is not dealt out has one shape everywhere."""
    wanted = shard_sizes(sum(sizes), len(sizes))
    for number, part in enumerate(source.parts):
        for name, tensor in part.items():
            if name in by_rows and tensor.shape[:1] != (wanted[number],):
                what = f"rows of {name!r} in part {number}"
                value = tensor.shape[0] if tensor.shape else "none"
                raise refuse("parts_value", file=tensor.where, what=what, value=value, bound=wanted[number])
            if name not in by_rows and tensor.shape != source.parts[0][name].shape:
                raise refuse(
                    "parts_rows", file=tensor.where, what=repr(name), value=tensor.shape[0], bound=sizes[number]
                )


def _strategy(source: Source, given: str | None) -> str:
    if given is not None:
        check_strategy(given)
    if source.manifest is None:
        if given is None and len(source.parts) > 1:
            raise refuse("parts_strategy", file=source.path)
        return given or "div"
    if given not in (None, source.manifest.strategy):
        raise _against(source, "from_strategy", str(given), source.manifest.strategy)
    return source.manifest.strategy
