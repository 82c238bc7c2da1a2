"""Convert enuSpace's drawings into pages: the values of pins, single blocks, and the whole page with its wires."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from ..._catalog.spec import ALL_DTYPES, Arg, Op
from ..._runtime.arrays import NUMPY_DTYPE, Array
from ..literal import (
    QUOTED,
    decode_text,
    parse_attrs,
    parse_dtype,
    parse_elements,
    parse_literal,
    parse_shape,
    quoted,
    unquote,
)
from ..page import Block, End, Page, PageError, Trend
from .drawing import (
    NO_VALUE,
    DataFile,
    Drawing,
    DrawnBlock,
    DrawnEnd,
    DrawnPin,
    DrawnWire,
    Report,
    name_of,
    pin_of,
    place_errors,
    record_of,
    valid_ids,
)
from .positions import spread_out

# -- values of pins: elements of a host type with a shape, literals, and attributes ------------------------------------

HOST_DTYPE = {"double": "float64", "float": "float32", "int": "int32", "bool": "bool", "string": "string"}
# How Microsoft's library prints values that are not finite.
_INFINITE = re.compile(r"([-+]?)1\.#(?:INF|J)\d*", re.IGNORECASE | re.ASCII)
_NAN = re.compile(r"[-+]?1\.#(?:QNAN|SNAN|NAN|IND)\d*", re.IGNORECASE | re.ASCII)
# What parts elements: a semicolon or comma with blanks, or blanks alone.
_PARTED = re.compile(r"\s*[;,]\s*|\s+", re.ASCII)
_BLANKS = re.compile(r"(?<=[^\s,{])\s+(?=[^\s,}])", re.ASCII)
_DTYPES = ("dtype", "DstT", "SrcT", "out_type", "output_type")  # attributes that hold a dtype whatever their default


def value_of(pin: DrawnPin, dtype: str | None, holds_text: bool, data: DataFile) -> Array | None:
    """Return the array typed into an input pin, or None.

    A pin of a numeric host type has flat elements and a shape. A string pin, or one without a type, contains a literal,
    or strings if it `holds_text`. `dtype`, from the block or the op, overrides the pin's. Elements without a shape and
    without braces are a vector, and one element is a scalar.
    """
    if pin.type and pin.type not in HOST_DTYPE:
        raise PageError("", f"{quoted(pin.type)} is not a type of a pin; known are {', '.join(HOST_DTYPE)}")
    is_literal = pin.type in ("", "string")
    shape = _shape(pin.shape)
    if -1 in shape:
        raise PageError("", f"the shape {shape} has an open dimension; a value needs all sizes")
    if pin.offset is not None:
        return _shaped(_converted(data.read(pin.type, shape, pin.offset), dtype), shape)
    text = pin.text.strip()
    if pin.type == "string" and holds_text and not shape:
        return np.array(_string(pin.text), dtype=object)
    if not text and (is_literal or not shape):
        return None
    if text.rstrip("};, ").endswith("..."):
        raise PageError("", f"the text is cut short; it ends with {quoted(text[-20:])}")
    if not (is_literal and not holds_text):
        dtype = dtype or HOST_DTYPE[pin.type or "string"]
    if dtype != "string" and '"' not in text:
        text = _spelled(text)
    if text.startswith("{"):
        array = parse_literal(text, dtype)
        return _shaped(array, shape) if pin.shape.strip() else array
    elements = _split(text, dtype)
    shape = shape if pin.shape.strip() or len(elements) == 1 else [len(elements)]
    if dtype == "string" and not (is_literal and not holds_text):
        strings = np.empty(len(elements), dtype=object)
        strings[:] = [_string(element) for element in elements]
        return _shaped(strings, shape)
    return _shaped(parse_elements(elements, dtype), shape)


def _spelled(text: str) -> str:
    """Return a text of numbers in the spelling of literals: with commas inside of braces, `inf` and `nan`."""
    text = _NAN.sub("nan", _INFINITE.sub(r"\1inf", text))
    if not text.startswith("{"):
        return text
    return _BLANKS.sub(",", text.rstrip("; ").replace(";", ","))


def dtype_of(text: str) -> str:
    """Parse a dtype, which users may end with a semicolon like an attribute."""
    return parse_dtype(text.rstrip("; "))


def _shape(text: str) -> list[int]:
    text = text.strip().rstrip("; ")
    return parse_shape(f"{{{text}}}" if text.removeprefix("-").isdecimal() else text)


def _split(text: str, dtype: str | None) -> list[str]:
    """Split elements, numbers also at commas and blanks. A trailing separator starts no element.

    Strings may be empty; an empty number is an error of the parser.
    """
    if dtype != "string" and '"' not in text:
        text = text.strip().rstrip(";, ")
        return [element or '""' for element in _PARTED.split(text)] if text else []
    return [element.strip() or '""' for element in text.removesuffix(";").split(";")] if text else []


def in_declared_shape(array: Array, shape: list[int]) -> Array:
    """Reshape initial values to the shape that a block declares; a single number fills it."""
    if -1 in shape or not array.ndim:
        return array
    # A single number in braces fills the shape too, once it is a scalar.
    return array.reshape(()) if array.size == 1 != math.prod(shape) else _shaped(array, shape)


def _string(element: str) -> str | bytes:
    return decode_text(unquote(element)) if QUOTED.fullmatch(element) else element


def _shaped(array: Array, shape: list[int]) -> Array:
    if array.size != math.prod(shape):
        raise PageError("", f"the shape {shape} has {math.prod(shape)} elements; got {array.size}")
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise PageError("", f"the shape {shape} is invalid: {error}") from None


def _converted(array: Array, dtype: str | None) -> Array:
    """Convert elements of a file to the dtype of a block, as text: the parser rejects any loss."""
    if dtype is None or np.dtype(array.dtype).name == dtype:
        return array
    return parse_elements([str(v) for v in array.tolist()], dtype)


def attribute_of(op: Op, name: str, text: str) -> Any:
    """Parse an attribute as the type of its default."""
    default = op.attrs[name]
    text = text.strip()
    if name in _DTYPES or (isinstance(default, str) and default in ALL_DTYPES):
        return dtype_of(text)
    if name == "shape" or (isinstance(default, list | tuple) and text.startswith("[")):
        return _shape(text)
    if isinstance(default, list | tuple):
        is_flat = not text.startswith("{") and len(elements := _split(text, "int64")) > 1
        numbers = parse_elements(elements, "int64") if is_flat else parse_literal(_spelled(text), "int64")
        if numbers.ndim > 1:
            raise PageError("", f"{quoted(text)} is not a list of numbers")
        return numbers.ravel().tolist()
    if isinstance(default, bool):
        return bool(_one(text, "bool"))
    if isinstance(default, int):
        return int(_one(text, "int64"))
    if isinstance(default, float):
        return float(_one(text, "float64"))
    return _string(text) if isinstance(default, str) else text


def _one(text: str, dtype: str) -> Any:
    array = parse_literal(text, dtype)
    if array.ndim:
        raise PageError("", f"{quoted(text)} is not one {dtype}")
    return array.item()


# -- one block ---------------------------------------------------------------------------------------------------------

# Attributes that the record lacks can be omitted if they have TensorFlow's default; None: with any value.
_NOTHING = ("", "false", "0", "0.0", "none", "{}")
_DEFAULTS: dict[str, tuple[str, ...] | None] = {
    "validate_indices": ("", "true"),
    "validate_shape": ("", "true"),
    "data_format": ("", "nhwc"),
    "use_cudnn_on_gpu": None,  # every convolution has the same result
    "explicit_paddings": ("", "{}", "[]"),
    "use_locking": None,  # no other thread updates a Variable during a run
    # These follow from the dtypes of the inputs.
    **dict.fromkeys(("t", "tidx", "tindices", "tparams", "tdim", "tdims", "tlabels", "tshape", "tpaddings", "tperm")),
}


def to_block(drawn: DrawnBlock, op: Op, block: Block, data: DataFile, report: Report) -> None:
    """Convert the pins of a drawn block into values and attributes of `block`, whose wires are already set."""
    inputs = {arg.name: arg for arg in op.inputs}
    values: dict[str, DrawnPin] = {}
    for pin in drawn.pins:
        if pin.name in NO_VALUE or pin.name.startswith("result_"):
            continue
        place = f"{drawn.id}.{pin.name}"
        if pin.name == "attrs" and "attrs" not in inputs:
            _attributes(pin, place, op, block, report)
        elif name := pin_of(op, pin.name, inputs):
            if name in values:
                report.warn(block.id, f"pin {pin.name} occurs twice; the last one is used")
            values[name] = pin
        elif name := pin_of(op, pin.name, op.attrs):
            with place_errors(place):
                _check(pin)
                if pin.text.strip():
                    block.attrs[name] = attribute_of(op, name, pin.text)
        elif pin_of(op, pin.name, (arg.name for arg in op.outputs)) is not None or not pin.filled:
            continue
        elif pin.name.startswith("m_") or pin.type == "color":
            report.count("pins for display only, such as colours, left out")
        elif is_first_axis(op, pin.name, pin):
            report.note(block.id, f"{op.name} uses axis 0, as pin axis says; the pin is left out")
        else:
            report.warn(
                block.id, f"{op.name} has no pin {pin.name}; what is typed there is left out: {quoted(pin.text)}"
            )
    for name, pin in values.items():
        if name in block.wires:
            if pin.filled:
                report.count("values typed into pins that have a wire, which are not used")
            continue
        with place_errors(f"{drawn.id}.{pin.name}"):
            _value(inputs[name], pin, op, block, data, report)
    _initial_zeros(op, block, report)
    device = str(block.attrs.get("device", ""))
    if device and "cpu" not in device.lower():
        why = "it has no effect: --engine, or the engine chosen in Studio, says what runs the page"
        report.note(block.id, f"device {quoted(device)} is kept, but {why}")


def is_first_axis(op: Op, name: str, pin: DrawnPin) -> bool:
    """Return whether a pin sets the axis of a Gather to 0, its only axis."""
    try:
        return op.name == "Gather" and name == "axis" and not float(pin.text.strip(" {};f"))
    except ValueError:
        return False


def _check(pin: DrawnPin) -> None:
    if pin.fault is not None:
        raise pin.fault


def _initial_zeros(op: Op, block: Block, report: Report) -> None:
    """Initialize a Variable that has only shape and dtype with zeros; in enuSpace an Assign set its value."""
    shape, dtype = block.attrs.get("shape"), block.attrs.get("dtype")
    has_value = "initvalues" in block.wires or "initvalues" in block.values
    if op.name != "Variable" or has_value or not dtype or shape is None or -1 in shape:
        return
    block.values["initvalues"] = np.array("", object) if dtype == "string" else np.zeros((), NUMPY_DTYPE[dtype])
    report.warn(block.id, "it has no initial values; it starts with zeros")


def _attributes(pin: DrawnPin, place: str, op: Op, block: Block, report: Report) -> None:
    with place_errors(place):
        _check(pin)
        for name, text in parse_attrs(pin.text).items():
            known = pin_of(op, name, op.attrs)
            harmless = _DEFAULTS.get(name.lower(), _NOTHING)
            if known is None and (harmless is None or text.lower() in harmless):
                report.count(f"attribute {name} of {op.name}, at its default, left out")
            elif known is None:
                report.warn(block.id, f"{op.name} has no attribute {name}; left out, with its value {quoted(text)}")
            elif text:
                block.attrs[known] = attribute_of(op, known, text)


def _value(arg: Arg, pin: DrawnPin, op: Op, block: Block, data: DataFile, report: Report) -> None:
    if arg.many:
        if pin.filled:
            report.warn(block.id, f"pin {pin.name} takes wires; what is typed there is left out: {quoted(pin.text)}")
        return
    _check(pin)
    dtype = dtype_of(pin.dtype) if pin.dtype.strip() and pin.filled else None
    if _has_declared_type(op):
        dtype = block.attrs.get("dtype") or dtype
    elif dtype is None and pin.type == "string" and arg.type in ALL_DTYPES:
        dtype = arg.type
    array = value_of(pin, dtype, dtype in (None, "string") and _holds_strings(op, pin), data)
    if array is None:
        return
    shape = block.attrs.get("shape")
    if _has_declared_type(op) and shape is not None:
        fitting = in_declared_shape(array, shape)
        if fitting.shape != array.shape:
            report.note(block.id, f"{pin.name} has shape {list(array.shape)}, and is reshaped to the block's, {shape}")
        array = fitting
    block.values[arg.name] = array


def _has_declared_type(op: Op) -> bool:
    """Return whether dtype and shape of the block apply to its one input, as in Const, Variable and Tensor."""
    return len(op.inputs) == 1 and "dtype" in op.attrs and "shape" in op.attrs


def _holds_strings(op: Op, pin: DrawnPin) -> bool:
    """Return whether a string pin contains a string and not a literal."""
    if pin.type != "string":
        return False
    if op.name == "Const":
        return True  # its only dtype is the type of its pin
    if op.name == "Const_ex":
        return bool(pin.shape.strip()) or not pin.text.lstrip().startswith("{")
    return op.name == "Variable" and bool(pin.shape.strip())


# -- the page and its wires --------------------------------------------------------------------------------------------

_CONSTANTS = ("Const", "Const_ex")
_KINDS_NAMED = 8  # in a message about blocks that are left out


def to_page(name: str, drawing: Drawing, data: DataFile, report: Report) -> Page:
    """Make a page of a drawing; omit what a page cannot have, and report it."""
    doubled = [block for block, times in Counter(b.id for b in drawing.blocks if b.id).items() if times > 1]
    if doubled:
        raise PageError("", f"two blocks have the id {doubled[0]!r}")
    blocks = _named(drawing.blocks, report)
    ids = valid_ids(b.id for b in blocks)
    for old, new in ids.items():
        if old != new:
            report.note(new, f"the id {quoted(old)} has characters that names do not allow")
    wires = _Wires(blocks, drawing, ids, report)
    page = Page(name)
    for drawn in blocks:
        op = wires.ops[drawn.id]
        block = Block(ids[drawn.id], name_of(drawn.symbol), at=drawn.at)
        wires.connect(drawn.id, block)
        if op is None:
            to_ghost(drawn, block, data, report)
        else:
            to_block(drawn, op, block, data, report)
        page.blocks.append(block)
    page.trends = _trends(wires, drawing, report)
    _report_omitted(blocks, wires, drawing, report)
    page.notes = spread_out(page.blocks, drawing.notes)
    return page


def _named(blocks: list[DrawnBlock], report: Report) -> list[DrawnBlock]:
    """Name blocks that have no id after their kind. No wire leads to them, because a wire names ids."""
    used = {block.id for block in blocks}
    named: list[DrawnBlock] = []
    for block in blocks:
        if not block.id:
            numbers = count(1)
            name = next(n for k in numbers if (n := f"{block.symbol}_{k}") not in used)
            used.add(name)
            report.warn(name, f"a {block.symbol} without an id, which no wire can name")
            block = replace(block, id=name)
        named.append(block)
    return named


def _report_omitted(blocks: list[DrawnBlock], wires: _Wires, drawing: Drawing, report: Report) -> None:
    """Report blocks that cannot run or were omitted; raise if a file has no blocks that a page can have."""
    if drawing.skipped:
        kinds = _kinds(drawing.skipped)
        if not blocks:
            raise PageError("", f"none of its {len(drawing.skipped)} blocks can be imported: {kinds}")
        report.warn("", f"{len(drawing.skipped)} of {len(drawing.skipped) + len(blocks)} blocks are left out: {kinds}")
    elif not blocks:
        report.warn("", "this file has no blocks; is it a page of enuSpace-TensorFlow?")
    unknown = [quoted(drawn.symbol) for drawn in blocks if wires.ops[drawn.id] is None]
    if unknown:
        kinds = _kinds(unknown)
        report.warn("", f"{len(unknown)} of {len(blocks)} blocks are of kinds that rowgrad does not have: {kinds}")


def _kinds(named: list[str]) -> str:
    found = Counter(named)
    kinds = ", ".join(f"{kind} x{times}" for kind, times in found.most_common(_KINDS_NAMED))
    return kinds + (", ..." if len(found) > _KINDS_NAMED else "")


# -- charts ------------------------------------------------------------------------------------------------------------

_ELEMENT = re.compile(r"(\w+?)((?:\[\d{1,9}\])*)", re.ASCII)
_INDEX = re.compile(r"\d+")


def _trends(wires: _Wires, drawing: Drawing, report: Report) -> list[Trend]:
    """Return the numbers that charts show: those at the ends of their wires, and those they name themselves."""
    shown = [(wire.source.block, str(wire.source).removeprefix(f"{wire.source.block}.result_"))
             for wire in drawing.wires
             if wire.target.block in drawing.trends and _shows_result(wire)]  # fmt: skip
    found: dict[Trend, None] = {}
    for block, variable in dict.fromkeys([*shown, *drawing.shown]):
        trend = wires.trend(block, variable)
        if trend is None:
            report.warn("", f"the chart of {block}.result_{variable}: there is no such result; left out")
        else:
            found[trend] = None
    if found:
        report.note("", f"charts become trends: {', '.join(map(str, found))}")
    elif drawing.trends:
        report.note("", "charts of no result of a block are left out")
    return list(found)


# -- blocks that the catalogue does not have ---------------------------------------------------------------------------


def to_ghost(drawn: DrawnBlock, block: Block, data: DataFile, report: Report) -> None:
    """Keep what is typed into a block of an unknown kind: numbers as values, texts and attributes as attributes."""
    report.warn(block.id, f"rowgrad has no block {drawn.symbol}; it is kept with its wires, but does not run")
    for pin in drawn.pins:
        if pin.name in NO_VALUE or pin.name in block.wires or pin.name.startswith(("result_", "m_")) or not pin.filled:
            continue
        if pin.name == "attrs":
            block.attrs |= _ghost_attributes(pin.text)
            continue
        value = _ghost_value(pin, data)
        if value is None:
            block.attrs[pin.name] = pin.text
        else:
            block.values[pin.name] = value


def _ghost_value(pin: DrawnPin, data: DataFile) -> Array | None:
    """Return the numbers of a pin, or None for a text, which may be anything."""
    if pin.type == "string":
        return None
    try:
        return value_of(pin, None, False, data)
    except PageError:
        return None


def _ghost_attributes(text: str) -> dict[str, str]:
    try:
        return {name: value for name, value in parse_attrs(text).items() if value}
    except PageError:
        return {"attrs": text}


# -- wires -------------------------------------------------------------------------------------------------------------


class _Wires:
    """The wires of a drawing by the block they lead to, validated by the catalogue."""

    def __init__(self, blocks: list[DrawnBlock], drawing: Drawing, ids: dict[str, str], report: Report) -> None:
        self.ops: dict[str, Op | None] = {b.id: record_of(b.symbol) for b in blocks}
        self._ids = ids
        self._report = report
        self._to: dict[str, list[DrawnWire]] = {}
        self._constants = {b.id: p for b in blocks if b.symbol in _CONSTANTS for p in b.pins if p.name == "val"}
        for wire in drawing.wires:
            ends = (wire.source, wire.target)
            if not all(end.block and end.pin for end in ends):
                report.warn("", f"the wire from {wire.source} to {wire.target}: one end is empty; left out")
            elif wire.target.block in drawing.trends and _shows_result(wire) and wire.source.block in self.ops:
                continue  # `trend` reads these
            elif self._is_shown(wire, drawing.display):
                report.count("wires that are display only, left out")
            elif any(end.pin in NO_VALUE for end in ends):
                report.count("wires of scope and status, which a page does not need, left out")
            elif wire.source.block in drawing.display and wire.source.block not in self.ops:
                report.warn("", f"the wire from {wire.source} to {wire.target}: its source is not a block; left out")
            elif _shows_result(wire) and self.ops.get(wire.target.block) is None:
                report.count("wires that are display only, left out")
            elif all(self._known(end.block, wire) for end in ends):
                self._to.setdefault(wire.target.block, []).append(wire)

    def _is_shown(self, wire: DrawnWire, display: set[str]) -> bool:
        """Return whether a wire only leads to an element that displays values."""
        if wire.target.block in self.ops:
            return False
        return wire.target.block in display or wire.source.block not in self.ops or _shows_result(wire)

    def _known(self, block: str, wire: DrawnWire) -> bool:
        if block not in self.ops:
            self._report.warn("", f"the wire from {wire.source} to {wire.target}: there is no block {block}; left out")
        return block in self.ops

    def trend(self, block: str, variable: str) -> Trend | None:
        """Return the number that a chart shows: `output[0][1]` of a block, without `result_`."""
        match = _ELEMENT.fullmatch(variable)
        if match is None or block not in self.ops:
            return None
        op, at = self.ops[block], tuple(map(int, _INDEX.findall(match[2])))
        if op is None:
            return Trend(End(self._ids[block], match[1]), at)
        many = {arg.name: arg.many for arg in op.outputs}
        pin = pin_of(op, match[1], many)
        if pin is None:
            return None
        return (
            Trend(End(self._ids[block], pin, at[0]), at[1:])
            if many[pin] and at
            else Trend(End(self._ids[block], pin), at)
        )

    def connect(self, drawn: str, block: Block) -> None:
        """Set the wires and hidden pins of a block."""
        op = self.ops[drawn]
        many = {arg.name: arg.many for arg in op.inputs} if op else {}
        by_pin: dict[str, list[tuple[DrawnWire, End]]] = {}
        for wire in self._to.get(drawn, ()):
            pin = pin_of(op, wire.target.pin, many) if op else _ghost_pin(wire.target)
            source = self._source(wire)
            constant = self._constants.get(wire.source.block)
            if op and pin is None and constant and is_first_axis(op, wire.target.pin, constant):
                self._report.note(block.id, f"{op.name} uses axis 0, as {wire.source} says; the wire is left out")
            elif pin is None or source is None:
                no = wire.source if pin else wire.target
                self._leave_out(block, wire, f"there is no pin {no}")
            elif op and by_pin.get(pin) and not many[pin]:
                if by_pin[pin][0][1] != source:
                    self._leave_out(block, wire, f"{pin} takes one wire and already has one from {by_pin[pin][0][1]}")
            else:
                by_pin.setdefault(pin, []).append((wire, source))
        for pin, wires in by_pin.items():
            if all(wire.target.index is not None for wire, _ in wires):
                wires.sort(key=lambda entry: entry[0].target.index or 0)
            block.wires[pin] = [end for _, end in wires]
        # A pin is hidden as a whole, so one visible wire makes the others visible.
        block.hidden = tuple(pin for pin, wires in by_pin.items() if all(wire.hidden for wire, _ in wires))

    def _source(self, wire: DrawnWire) -> End | None:
        op = self.ops[wire.source.block]
        if op is None:
            ghost_pin = _ghost_pin(wire.source)
            return None if ghost_pin is None else End(self._ids[wire.source.block], ghost_pin, wire.source.index)
        many = {arg.name: arg.many for arg in op.outputs}
        pin = pin_of(op, wire.source.pin, many)
        another = wire.source.pin.isidentifier() and not wire.source.pin.startswith("result_")
        if pin is None and another and list(many.values()) == [False]:
            (pin,) = many  # the only output, under a name that the catalogue does not have
            self._report.count(f"output {wire.source.pin} of {op.name} is called {pin} here")
        if pin is None or (wire.source.index is not None and not many[pin]):
            return None
        return End(self._ids[wire.source.block], pin, wire.source.index)

    def _leave_out(self, block: Block, wire: DrawnWire, why: str) -> None:
        self._report.warn(block.id, f"the wire from {wire.source} to {wire.target}: {why}; left out")


def _shows_result(wire: DrawnWire) -> bool:
    """Return whether a wire begins at a result, which only elements that display values read."""
    return wire.source.pin.startswith("result_")


def _ghost_pin(end: DrawnEnd) -> str | None:
    """Return the pin of an unknown block, if a page can have a pin of this name."""
    return end.pin if re.fullmatch(r"\w+", end.pin) else None
