"""Sample pages, and damaged versions of their text."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rowgrad._runtime.arrays import NUMPY_DTYPE, Array
from rowgrad.graph.io import dumps, load, loads, save
from rowgrad.graph.page import Block, End, Note, Page, Project


def array_of(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return random bits of a dtype, including NaNs and subnormal numbers, or strings of both kinds."""
    draw = np.random.default_rng(seed)
    count = int(np.prod(shape))
    if dtype == "string":
        made = np.empty(count, dtype=object)
        made[:] = [("é" * (i % 5) + str(i + seed)) if i % 3 else bytes([i % 256, 255, 0]) for i in range(count)]
        return made.reshape(shape)
    if dtype == "bool":
        return draw.integers(0, 2, shape).astype(bool)
    target = NUMPY_DTYPE[dtype]
    return np.frombuffer(draw.bytes(count * target.itemsize), dtype=target).reshape(shape).copy()


def same(one: Any, other: Any) -> bool:
    """Return whether two values have the same bits and types."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
            return False
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if one.dtype == object:
            return same(one.ravel().tolist(), other.ravel().tolist())
        return one.tobytes() == other.tobytes()
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def same_blocks(one: Page, other: Page) -> bool:
    """Return whether two pages have the same content; `==` cannot compare arrays."""

    def row(block: Block) -> list[Any]:
        return [block.id, block.op, list(block.values), *block.values.values(), str(block.wires), list(block.attrs),
                *block.attrs.values(), block.at, block.hidden]  # fmt: skip

    return (
        one.name == other.name
        and one.notes == other.notes
        and len(one.blocks) == len(other.blocks)
        and all(same(row(a), row(b)) for a, b in zip(one.blocks, other.blocks, strict=True))
    )


def page_of(value: Any) -> Page:
    """Return a page with one value."""
    return Page("p", [Block("c", "Const", {"val": value})])


def load_page(text: str) -> Page:
    """Read text that must contain a page, not a project."""
    page = loads(text)
    assert isinstance(page, Page)
    return page


def load_page_file(path: Path) -> Page:
    """Read a file that must contain a page, not a project."""
    page = load(path)
    assert isinstance(page, Page)
    return page


def through_file(value: Any, path: Path) -> Any:
    """Save a value to a file and read it back."""
    save(page_of(value), path)
    return load_page_file(path)["c"].values["val"]


def basic() -> Page:
    """Return a page that fetches a product of two constants."""
    return Page(
        "basic",
        [
            Block("A", "Const", {"val": np.array([[3.0, 2.0], [-1.0, 0.0]])}, at=(40.0, 40.0)),
            Block("b", "Const", {"val": np.array([[3.0, 5.0]])}, at=(40.0, 140.0)),
            Block(
                "v",
                "MatMul",
                wires={"a": [End("A", "output")], "b": [End("b", "output")]},
                attrs={"transpose_b": True},
                at=(200.0, 60.5),
            ),
            Block("s", "ClientSession", wires={"fetch_outputs": [End("v", "product")]}, hidden=("fetch_outputs",)),
        ],
        [Note("A·bᵀ: the example every page begins with", (0.0, 0.0))],
    )


def varied(dtypes: tuple[str, ...] = tuple(NUMPY_DTYPE)) -> Page:
    """Return a page with arrays of every dtype, plain values of every kind and every kind of wire."""
    page = Page("varied")
    for i, dtype in enumerate(dtypes):
        page.blocks.append(Block(f"in/{dtype}", "Const", {"val": array_of(dtype, (2, 3), i)}, at=(i * 10.0, 0.25)))
    page.blocks += [
        Block("weak", "Mystery", {
            "int": 3, "large": 2**63 + 1, "float": 0.1, "nan": float("nan"), "inf": float("-inf"), "text": "NaN",
            "bytes": b"\xff\x00", "truth": True, "complex": complex(1.5, float("inf")), "list": [[1, 2], [3, 4.5]],
            "arrays": [array_of("float32", (2,)), array_of("int64", ())], "empty": [], "void": np.zeros((0, 3)),
        }),
        Block("attributes", "Mystery", attrs={
            "dtype": "float32", "shape": [2, -1], "none": None, "truth": False, "deep": [[1, 2.5], ["a", None]],
            "eps": 1e-300, "limit": float("inf"), "large": -(2**60), "odd name": "ünïcode",
        }),
        Block("wired", "AddN", wires={
            "inputs": [End("weak", "y"), End("attributes", "y", 2)], "one": [End(f"in/{dtypes[0]}", "output")],
            "none": [],
        }),
    ]  # fmt: skip
    return page


def project() -> Project:
    """Return a project of two pages."""
    return Project("all", [basic(), varied(("float32", "string", "bfloat16"))])


STRINGS = [
    *(
        "",
        "A",
        "A.output",
        "NaN",
        "float32",
        "qint8",
        "string",
        "id",
        "op",
        "in",
        "data",
        "file",
        "hex",
        "shape",
        "base64",
    ),
    *("\ud800", "x" * 300, "0" * 64 + ".npy", "../../etc/passwd", "A.output[99999999999999999999]", "A.output[", "é"),
]
NUMBERS = [0, 1, -1, 2, 7, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e308, 5e-324]
# Inserted into the text verbatim: invalid JSON, extreme numbers, deep nesting.
TOKENS = [
    *("NaN", "Infinity", "-Infinity", "1e400", "-1e999", "9" * 5000, "1" + "0" * 30, "01", "+1", ".5", "nul", "'a'"),
    *('{"a": 1, "a": 2}', '{"dtype": "int8"}', '"\\ud83d"', '"\\u0000"', "\x00", "\ufeff", "[" * 5000, '{"a":' * 2000),
    *("[" * depth + "]" * depth for depth in (63, 64, 65, 150, 900, 5000)),
]


def mutations(count: int, seed: int, texts: Sequence[str] = ()) -> Iterator[str]:
    """Yield damaged texts of valid pages: each loads or must raise a PageError."""
    draw = random.Random(seed)
    texts = texts or [
        dumps(basic()),
        dumps(varied(("float32", "int64", "string", "complex64", "bool", "qint8"))),
        dumps(project()),
    ]
    for _ in range(count):
        if draw.random() < 0.35:
            yield _damaged_text(draw, draw.choice(texts))
            continue
        tree = json.loads(draw.choice(texts))
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            tree = _damaged_tree(draw, tree)
        text = json.dumps(tree)
        while "@token@" in text:
            text = text.replace('"@token@"', draw.choice(TOKENS), 1).replace("@token@", "t", 1)
        yield text


def _spots(tree: Any) -> list[tuple[Any, Any]]:
    """Return every container with each of its keys."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        keys: Any = holder if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])
    return found


def _damaged_tree(draw: random.Random, tree: Any) -> Any:
    spots = _spots(tree) if isinstance(tree, dict | list) else []
    if not spots or draw.random() < 0.005:
        return draw.choice([[], {}, None, 3, "page", [tree]])
    holder, key = draw.choice(spots)
    value = holder[key]
    match draw.randrange(9):
        case 0:
            del holder[key]
        case 1:  # duplicate an entry
            if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(value))
            else:
                holder[draw.choice(STRINGS)] = copy.deepcopy(value)
        case 2 if isinstance(holder, dict):  # misspell a name
            items = list(holder.items())
            holder.clear()
            holder |= {(_misspelt(draw, k) if k == key else k): v for k, v in items}
        case 3:
            holder[key] = draw.choice([None, True, False, [], {}, [value], {"a": value}, str(value)[:50], "@token@"])
        case 4:
            holder[key] = draw.choice(NUMBERS)
        case 5:
            holder[key] = draw.choice(STRINGS)
        case 6:  # copy a value from elsewhere
            other, place = draw.choice(spots)
            if key in (holder if isinstance(holder, dict) else range(len(holder))):
                held = other[place] if place in other or isinstance(other, list) else None
                holder[key] = copy.deepcopy(held)
        case 7:
            for _ in range(draw.choice((1, 3, 70))):
                value = [value]
            holder[key] = value
        case _:
            if isinstance(value, str):
                holder[key] = _misspelt(draw, value)
            elif isinstance(value, list):
                draw.shuffle(value)
                del value[draw.randrange(len(value) + 1) :]
            else:
                holder[key] = "@token@"
    return tree


def _misspelt(draw: random.Random, word: str) -> str:
    at = draw.randrange(len(word) + 1)
    return draw.choice([word[:at] + word[at + 1 :], word[:at] + draw.choice("aZ0._[]\\é \n") + word[at:], word[::-1]])


def _damaged_text(draw: random.Random, text: str) -> str:
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(text) + 1)
        match draw.randrange(5):
            case 0:
                text = text[:at] + text[at + draw.choice((1, 1, 2, 10, 100)) :]
            case 1:
                text = text[:at] + draw.choice('{}[]",:0-.eé\\ \n') + text[at:]
            case 2:
                text = text[:at] + chr(draw.choice((draw.randrange(128), draw.randrange(0x3000)))) + text[at + 1 :]
            case 3 if draw.random() < 0.3:
                text = text[:at]
            case _:
                text = text[:at] + draw.choice(TOKENS) + text[at:]
    return text
