"""Write a page as a Python script with one statement per block, which computes the same bits.

Large arrays are .npy files beside the script, named after their content, as beside a page.
"""

from __future__ import annotations

import builtins
import keyword
import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..._catalog.spec import QUANTIZED, Op, find_op
from ..._hints import counted
from ..._runtime.arrays import aval_of, canonical
from ..io.arrays import Content, npy_content
from ..io.files import write_atomically
from ..leaves import SPARSE_PARTS, leaves_of
from ..nodes import Operation, Placed, Sparse
from ..page import NAME, Block, End, Page, PageError
from ..page_builder import check, value_at, without_unknown_ops

_HEAD = '''"""A page of {blocks}, written out by rowgrad."""

{imports}

root = Scope.new_root_scope({name!r})
'''
_MAIN = """

def main() -> None:
    parser = argparse.ArgumentParser(description={about!r})
    parser.add_argument("--steps", type=int, default=1, help="how often each session runs")
    parser.add_argument("--out", help="an .npz file for the last results")
    arguments = parser.parse_args()
    session = ClientSession(root)
    results = {{}}
    for _ in range(arguments.steps):
{step}
    for name, value in results.items():
        print(f"{{name}}  {{value.dtype}}{{list(value.shape)}}")
        print(value)
    if arguments.out:
        save_arrays(arguments.out, results)


if __name__ == "__main__":
    main()
"""
_RUN_SESSIONS = """        for block in {sessions!r}:
            results.update(session.run_block(block))"""
_RESERVED = {
    *dir(builtins),
    *("root", "np", "ops", "Scope", "ClientSession", "main", "argparse", "ml_dtypes", "save_arrays"),
}


def save_python(page: Page, path: str | os.PathLike[str], to_text: Callable[[Page, Any], str] | None = None) -> None:
    """Write the script, and the files of its large arrays in the folder `<script>.arrays`.

    Args:
        page: The page.
        path: The file to write.
        to_text: `to_python`, the default, or `to_plain_python`.
    """
    folder = Path(f"{os.fspath(path)}.arrays")
    if folder.is_symlink():
        raise PageError(str(folder), "this is a symbolic link, which is not followed")
    contents: list[Content] = []

    def outside(value: np.ndarray[Any, Any]) -> str:
        dtype = aval_of(value).dtype
        contents.append(npy_content(dtype, value))
        view = f".view({_dtype_text(dtype)})" if dtype == "bfloat16" else ""
        return f'np.load(f"{{__file__}}.arrays/{contents[-1].name}"){view}'

    text = (to_text or to_python)(page, outside)  # first, so that a faulty page leaves no files behind
    for content in contents:
        folder.mkdir(exist_ok=True)
        write_atomically(folder / content.name, lambda file, content=content: file.writelines(content.buffers))  # type: ignore[misc]
    write_atomically(path, text.encode())


def to_python(page: Page, outside: Callable[[np.ndarray[Any, Any]], str] | None = None) -> str:
    """Return the text of the script; `outside` returns the expression that loads an array too large to write out.

    Blocks of ops that the catalogue lacks, and those that depend on them, become comments.
    """
    names = python_names(b.id for b in page.blocks)
    kept, lost = without_unknown_ops(page)
    body = [_statement(block, names, outside) for block in kept]
    sessions = [b.id for b in kept if b.op == "ClientSession"]
    step = _RUN_SESSIONS.format(sessions=sessions) if sessions else _leaves_text(page, names)
    text = "\n".join([*body, *(["", *_LOST, *map(_as_comment, lost)] if lost else ())])
    imports = [
        "import argparse",
        "",
        "import numpy as np",
        "",
        "from rowgrad.graph import ClientSession, Scope, ops, save_arrays",
    ]
    if "ml_dtypes." in text:
        imports.insert(2, "import ml_dtypes")
    notes = "".join(f"# {comment_line(line)}\n" for n in page.notes for line in n.text.strip().splitlines())
    head = _HEAD.format(name=page.name, blocks=counted(len(page.blocks), "block"), imports="\n".join(imports))
    return head + notes + "\n" + text + "\n" + _MAIN.format(about=page.name.replace("%", "%%"), step=step)


def _leaves_text(page: Page, names: dict[str, str]) -> str:
    """Return the statement that computes every block that nothing consumes."""
    checked = check(page)
    leaves = leaves_of(checked)
    values, operations = [], []
    for end in leaves.ends:
        value, text = value_at(checked.scope.graph, end), _end(end, names)
        if isinstance(value, Operation):
            operations.append(text)
        elif isinstance(value, Sparse):
            values += [f"{f'{end}.{part}'!r}: {text}.{part}" for part in SPARSE_PARTS]
        else:
            values.append(f"{str(end)!r}: {text}")
    feeds = [f"{_end(end, names)}.placeholder: {_end(end, names)}.value" for end in leaves.feed_ends]
    arguments = [f"{{{', '.join(values)}}}"]
    arguments += [f"{{{', '.join(feeds)}}}"] if feeds or operations else []
    arguments += [f"[{', '.join(operations)}]"] if operations else []
    return f"        results.update(session.run({', '.join(arguments)}))"


_LOST = ("# rowgrad does not have the ops of these blocks, or of blocks they depend on:",)


def _as_comment(block: Block) -> str:
    """Write a block that cannot run, with its wires and attributes, and small values."""
    parts = [f"{pin}={'[' + ', '.join(map(str, ends)) + ']'}" for pin, ends in block.wires.items()]
    for pin, value in block.values.items():
        large = f"{aval_of(value).dtype}{list(value.shape)}" if is_large(value) else value_text(value)
        parts.append(f"{pin}={large}")
    parts += [f"{name}={plain_text(value)}" for name, value in block.attrs.items()]
    return "# " + comment_line(f"{block.id} = {block.op}({', '.join(parts)})")


def comment_line(line: str) -> str:
    """Replace unprintable characters, which could end the comment."""
    return "".join(c if c.isprintable() else " " for c in line)


def python_names(ids: Iterable[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """Return a Python name for every id, similar to it."""
    names: dict[str, str] = {}
    used = {*_RESERVED, *reserved}
    numbers: dict[str, int] = {}  # the last suffix tried for each name
    for id_ in ids:
        plain = re.sub(r"\W", "_", id_)
        name = plain if plain.isidentifier() and not plain.startswith("__") else f"block_{plain}"
        if name in used or keyword.iskeyword(name):
            wanted, name = name, f"{name}_"
            while name in used:
                numbers[wanted] = numbers.get(wanted, 1) + 1
                name = f"{wanted}_{numbers[wanted]}"
        used.add(name)
        names[id_] = name
    return names


def _statement(block: Block, names: dict[str, str], outside: Any) -> str:
    op = _checked(block, names)
    arguments = [f"root.with_op_name({block.id!r})"]
    for arg in op.inputs:
        if arg.name in block.wires:
            ends = [_end(e, names) for e in block.wires[arg.name]]
            arguments.append(f"{arg.name}={'[' + ', '.join(ends) + ']' if arg.many else ends[0]}")
        elif arg.name in block.values:
            value = block.values[arg.name]
            value = canonical(value, arg.name) if isinstance(value, np.ndarray) else value
            is_outside = outside is not None and is_large(value)
            arguments.append(f"{arg.name}={outside(value) if is_outside else value_text(value)}")
    arguments += [f"{k}={plain_text(v)}" for k, v in block.attrs.items()]
    call = f"ops.{block.op}({', '.join(arguments)})"
    if len(call) + len(names[block.id]) > 110:
        call = f"ops.{block.op}(\n    " + ",\n    ".join(arguments) + ",\n)"
    return f"{names[block.id]} = {call}" if op.outputs else call


def _checked(block: Block, names: dict[str, str]) -> Op:
    """Return the block's op, after checking that its record has every name that goes into the script."""
    op = find_op(block.op)
    if op is None:
        raise PageError(block.id, f"there is no block {block.op!r}")
    if not NAME.fullmatch(block.id):
        raise PageError(block.id, "this is not a valid id of a block")
    for pin in (*block.values, *block.wires):
        if pin not in op.input_names:
            raise PageError(f"{block.id}.{pin}", f"{op.name} has no input {pin!r}")
    for name in block.attrs:
        if name not in op.attrs:
            raise PageError(f"{block.id}.{name}", f"{op.name} has no attribute {name!r}")
    for arg in op.inputs:
        ends = block.wires.get(arg.name)
        if ends is not None and not arg.many and len(ends) != 1:
            raise PageError(f"{block.id}.{arg.name}", f"it takes one wire, got {len(ends)}")
        for end in ends or ():
            if end.block not in names or not end.pin.isidentifier():
                raise PageError(f"{block.id}.{arg.name}", f"there is no {end}")
    return op


def _end(end: End, names: dict[str, str]) -> str:
    index = "" if end.index is None else f"[{end.index}]"
    return f"{names[end.block]}.{_attribute(end.pin)}{index}"


def _attribute(pin: str) -> str:
    """Return the attribute of a pin; a name that Placed itself uses is read from its `pins`."""
    return f"pins[{pin!r}]" if hasattr(Placed, pin) or keyword.iskeyword(pin) or pin in ("block", "op", "pins") else pin


def value_text(value: Any) -> str:
    """Write a value as a Python expression that restores every bit."""
    if not isinstance(value, np.ndarray):
        return plain_text(value)
    dtype = aval_of(value).dtype
    if dtype == "string":
        return f"np.array({plain_text(value.tolist())}, dtype=object).reshape({value.shape!r})"
    if dtype in QUANTIZED or not _survives(value):
        spelled = f"np.dtype({value.dtype.descr!r})" if dtype in QUANTIZED else _dtype_text(dtype)
        return f"np.frombuffer(bytes.fromhex({value.tobytes().hex()!r}), {spelled}).reshape({value.shape!r})"
    plain = value.astype(np.float64) if dtype in ("bfloat16", "float16", "float32") else value
    text = plain_text(plain.tolist()) if dtype != "float32" else _short_floats(value)
    shaped = f".reshape({value.shape!r})" if value.size == 0 else ""
    return f"np.array({text}, {_dtype_text(dtype)}){shaped}"


def is_large(value: Any) -> bool:
    """Return whether an array is stored in a file beside the script."""
    return isinstance(value, np.ndarray) and value.nbytes > 1024 and aval_of(value).dtype not in ("string", *QUANTIZED)


def _dtype_text(dtype: str) -> str:
    return "ml_dtypes.bfloat16" if dtype == "bfloat16" else f"np.{dtype if dtype != 'bool' else 'bool_'}"


def plain_text(value: Any) -> str:
    """Write a number, a text or a list as a Python expression."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(plain_text, value))}]"
    if isinstance(value, np.ndarray):  # an entry of a list
        return value_text(canonical(value, "value"))
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, complex):
        return f"complex({plain_text(value.real)}, {plain_text(value.imag)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _short_floats(value: np.ndarray[Any, Any]) -> str:
    """Write float32 with the fewest digits that identify it."""
    if value.ndim:
        return (
            f"[{', '.join(_short_floats(v) for v in value)}]"
            if value.ndim > 1
            else f"[{', '.join(map(_float, value))}]"
        )
    return _float(value[()])


def _float(value: Any) -> str:
    text = str(value)
    return f'float("{text}")' if text in ("nan", "inf", "-inf") else text


def _survives(value: np.ndarray[Any, Any]) -> bool:
    """Return whether the text restores the same bits; NaNs with a payload do not."""
    if value.dtype.kind == "c":
        return not np.isnan(value).any()
    if value.dtype.kind != "f" and value.dtype.name != "bfloat16":
        return True
    plain = value.copy()
    plain[np.isnan(plain)] = float("nan")
    return plain.tobytes() == value.tobytes()
