"""enuSpace files that an import rejects with the place of the error; damaged files are read or rejected."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from enuspace_files import SAMPLES, Blocks, Drawn, Pin, sample_ops, svg, task

from rowgrad._catalog.spec import CATALOG
from rowgrad.graph.enuspace import Imported, read_enuspace
from rowgrad.graph.enuspace.blocks import to_page
from rowgrad.graph.enuspace.drawing import DataFile, Drawing, DrawnBlock, DrawnEnd, DrawnWire, Report
from rowgrad.graph.page import PageError

CONST = Drawn("Const", {"val": Pin("double", "", [1])})


@pytest.fixture(autouse=True)
def _catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, op in sample_ops().items():
        monkeypatch.setitem(CATALOG, name, op)


def read(folder: Path, text: str, name: str = "page.svg") -> Imported:
    (folder / name).write_text(text, encoding="utf-16")
    return read_enuspace(folder / name)


def text(elements: str) -> Pin:
    return Pin(elements=elements)


def const(pin: Pin) -> str:
    return svg({"A": Drawn("Const", {"val": pin})}, [])


VARIABLE: Blocks = {"A": Drawn("Variable", {"shape": text("{2,2}"), "initvalues": text("{1,2,3}")})}
TASK = task({"A": CONST}, [])


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "neither a page"),
        ("hello", "neither a page"),
        ("[1]", "neither a page"),
        ("{", "is not JSON"),
        ("{}", "page.svg: 'object' is missing"),
        ('{"object": 3}', "'object' is not a list"),
        ('{"object": [3]}', r"object\[0\]: must be an object"),
        ('{"object": [' + "[" * 50_000, "is not JSON"),
        (TASK.replace('"A"', "5"), "'id' is not text"),
        (TASK.replace('"A"', '"\\ud800"'), "lone surrogate"),
        (TASK.replace('"text"', '"binary"'), "'pin-binary-pos' is missing"),
        ("<svg>", "is not XML"),
        ("<a/>", "must be svg"),
        ('<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY a "b">]><svg>&a;</svg>', "<!DOCTYPE is not allowed"),
        ("<svg>&unknown;</svg>", "is not XML"),
        ('<!-- --><!DOCTYPE svg><svg><!-- --></svg>', "<!DOCTYPE is not allowed"),
        ('<?a <!-- ?><!DOCTYPE svg [<!ENTITY a "b">]><!-- --><svg>&a;</svg>', "<!DOCTYPE is not allowed"),
        ('<!DOC<?xml a?>TYPE svg [<!ENTITY a "b">]><svg>&a;</svg>', "is not XML"),
        ('<svg><!ENTITY a "b"></svg>', "is not XML"),
        ("<svg><!-- <!DOCTYPE svg></svg>", "is not XML"),
        (svg({"A": CONST, "B": CONST}, []).replace('"B"', '"A"'), "page.svg: two blocks have the id 'A'"),
        (const(Pin("double", "[2]", [1, 2, 3])), r"A.val: the shape \[2\] has 2 elements; got 3"),
        (const(Pin("double", "[2]", "")), r"A.val: the shape \[2\] has 2 elements; got 0"),
        (const(Pin("double", "[9]", "{1,0,0...}")), "A.val: the text is cut short"),
        (const(Pin("double", "[2]", ["1", "x"])), "A.val: 'x' at character 4 is not a valid float64"),
        (const(Pin("double", "[2]", "1;x")), "A.val: 'x' at element 1 is not a valid float64"),
        (const(Pin("int", "", ["3000000000"])), "A.val: '3000000000' .* is not in .*2147483647"),
        (const(Pin("double", "[two]", [1])), r"A.val: '\[two\]' is not a shape"),
        (const(Pin("double", "[-1]", [1])), "A.val: .* has an open dimension"),
        (const(Pin("colour", "", [1])), "A.val: 'colour' is not a type of a pin"),
        (const(Pin("double", "[0][99999999999999999][99999999999999999]", [])), "A.val: the shape .* is invalid"),
        (const(Pin("double", "[99999999999999999]", dat=0)), "A.val: needs 799999999999999992 bytes from byte 0"),
        (const(Pin("int", "[2]", dat=96)), r"A.val: needs 8 bytes from byte 96 on of page.dat, which has 100"),
        (const(Pin("bool", "[2]", dat=0)), "A.val: a .dat file cannot hold elements of type 'bool'"),
        (const(Pin("int", "[2]", dat=-1)), "A.val: '-1' is not an offset in a file"),
        (svg(VARIABLE, []), r"A.initvalues: the shape \[2, 2\] has 4 elements; got 3"),
        (svg({"A": Drawn("Placeholder", {"dtype": text("DT_WHAT")})}, []), "A.dtype: 'DT_WHAT' is not a dtype"),
        (svg({"A": Drawn("MatMul", {"attrs": text("transpose_a_ = maybe;")})}, []), "A.attrs: 'maybe' .* valid bool"),
        (svg({"A": Drawn("MatMul", {"attrs": text("transpose_a_")})}, []), "A.attrs: .* is not an attribute"),
        (svg({"A": Drawn("Mean", {"axis": text("{0,{1}}")})}, []), "A.axis: braces beside values, at character 4"),
    ],
)  # fmt: skip
def test_invalid_files_raise_with_the_place(written: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "page.dat").write_bytes(bytes(100))
    with pytest.raises(PageError, match=message) as caught:
        read(tmp_path, written)
    assert caught.value.place.startswith("page.svg")


def test_missing_and_binary_files_raise(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"gone.svg: cannot be read: No such file"):
        read_enuspace(tmp_path / "gone.svg")
    with pytest.raises(PageError, match=r"needs 800 bytes from byte 8 on of page.dat, which cannot be read"):
        read(tmp_path, const(Pin("double", "[100]", dat=8)))
    for raw in (b"\xff\xfe<\0\0", b"<\xff", b"\xff\xfe\x00\xd8"):
        (tmp_path / "page.svg").write_bytes(raw)
        with pytest.raises(PageError, match="this is not text in UTF"):
            read_enuspace(tmp_path / "page.svg")


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """Return data with bytes, characters or lines changed, dropped, duplicated or moved, or truncated."""
    kind = rng.randrange(4)
    if kind == 0:
        some = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            some[rng.randrange(len(some))] = rng.randrange(256)
        return bytes(some)
    if kind == 1:
        return raw[: rng.randrange(len(raw))]
    parts = raw.decode("utf-16").splitlines(keepends=True) if kind == 2 else list(raw.decode("utf-16"))
    for _ in range(rng.randint(1, 4)):
        at, other = rng.randrange(len(parts)), rng.randrange(len(parts))
        parts[at : at + 1] = rng.choice([[], [parts[at]] * 2, [parts[other]], [rng.choice('{}[]";#<>&,.-0é')]])
    return "".join(parts).encode("utf-16")


def test_damaged_files_are_read_or_rejected(tmp_path: Path) -> None:
    rng = random.Random(0)
    originals = [p.read_bytes() for p in sorted(SAMPLES.iterdir())]
    began = time.process_time()  # processor time: the machine may be busy
    rejected = 0
    for number in range(2000):
        path = tmp_path / "page.svg"
        path.write_bytes(mutated(originals[number % len(originals)], rng))
        try:
            read_enuspace(path)
        except PageError:
            rejected += 1
    assert time.process_time() - began < 10
    assert 200 < rejected < 1800  # both happen


# -- unknown blocks --------------------------------------------------------------------------------


def test_a_file_without_any_readable_block_is_an_error(tmp_path: Path) -> None:
    """An empty page from a file full of blocks would look like a successful import."""
    page = svg({"A": CONST, "B": CONST}, [])
    with pytest.raises(PageError, match=r"none of its 2 blocks can be imported: 'Const' as use of type 'keras' x2"):
        read(tmp_path, page.replace('type="tensorflow"', 'type="keras"'))
    with pytest.raises(PageError, match="'Const' as use of type 'none' x2"):
        read(tmp_path, page.replace('type="tensorflow"', ""))
    inside = '<defs><use id="Z" type="tensorflow" href="#Const"/></defs>'
    with pytest.raises(PageError, match="'Const' in defs or symbol x1"):
        read(tmp_path, svg({}, [], inside=inside))


def test_files_without_blocks_are_empty_pages_with_a_warning(tmp_path: Path) -> None:
    shown = '<use id="T" type="trend"/><text>hello</text>'
    for written in (svg({}, [], inside=shown), '{"object": []}', '<svg><rect width="3"/></svg>'):
        imported = read(tmp_path, written)
        assert imported.page.blocks == []
        assert [r.text for r in imported.report if r.level == "warning"] == [
            "this file has no blocks; is it a page of enuSpace-TensorFlow?"
        ]


def test_blocks_of_the_second_plugin_are_read_like_those_of_the_first(tmp_path: Path) -> None:
    blocks = {"A": CONST, "B": CONST, "C": Drawn("Add", {"x": Pin(), "y": Pin()}, ("z",))}
    wires = [("A", "output", "C", "x"), ("B", "output", "C", "y")]
    page = svg(blocks, wires)
    kinds = ("tensorflow", "enu_tensorflow2_0")
    first, second = (read(tmp_path, page.replace('"tensorflow"', f'"{kind}"')) for kind in kinds)
    assert [(b.id, b.op, b.wires, b.at) for b in first.page] == [(b.id, b.op, b.wires, b.at) for b in second.page]
    assert len(second.page.blocks) == 3
    assert first.report == second.report
    (extra,) = read(tmp_path, svg(blocks, wires, inside='<use id="Z" type="keras" href="#Add"/>')).report[:1]
    assert str(extra) == "warning: 1 of 4 blocks are left out: 'Add' as use of type 'keras' x1"


def test_importing_unknown_blocks_takes_linear_time(tmp_path: Path) -> None:
    """Twice the blocks and wires take about twice the comparisons of ids."""

    class Counted(str):
        seen = 0

        def __eq__(self, other: object) -> bool:
            Counted.seen += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    def work(many: int) -> int:
        ids = [Counted(f"\u00c4{chr(0x4E00 + k)}") for k in range(many)]
        blocks = [DrawnBlock(name, "Nonsense", []) for name in ids]
        wires = [DrawnWire(DrawnEnd(name, "output"), DrawnEnd(name, "x")) for name in ids]
        drawing = Drawing([*blocks, DrawnBlock("A", "Const", [])], wires)
        Counted.seen = 0
        to_page("p", drawing, DataFile(tmp_path / "none.dat"), Report())
        return Counted.seen

    assert work(400) < 3 * work(200) + 100


def test_a_task_with_an_integer_of_many_digits_raises(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"this is not JSON: an integer of 5000 characters$"):
        read(tmp_path, '{"object": [' + "9" * 5000 + "]}", "task.json")
