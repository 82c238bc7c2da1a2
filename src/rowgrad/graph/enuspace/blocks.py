"""Convert enuSpace's drawings into pages: the values of pins, single blocks, and the whole page with its wires."""

from __future__ import annotations

import math
from collections import Counter
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
from ..page import Block, End, Page, PageError
from .drawing import (
    NO_VALUE,
    DataFile,
    Drawing,
    DrawnBlock,
    DrawnPin,
    DrawnWire,
    Report,
    name_of,
    pin_of,
    place_errors,
    record_of,
    valid_ids,
)

# -- values of pins: elements of a host type with a shape, literals, and attributes ------------------------------------

HOST_DTYPE = {"double": "float64", "float": "float32", "int": "int32", "bool": "bool", "string": "string"}
_DTYPES = ("dtype", "DstT", "SrcT", "out_type", "output_type")  # attributes that hold a dtype whatever their default


def value_of(pin: DrawnPin, dtype: str | None, holds_text: bool, data: DataFile) -> Array | None:
    """Return the array typed into an input pin, or None.

    A pin of a numeric host type has flat elements and a shape. A string pin contains a literal, or strings if it
    `holds_text`. `dtype`, from the block or the op, overrides the pin's.
    """
    if pin.type not in HOST_DTYPE:
        raise PageError("", f"{quoted(pin.type)} is not a type of a pin; known are {', '.join(HOST_DTYPE)}")
    shape = _shape(pin.shape)
    if -1 in shape:
        raise PageError("", f"the shape {shape} has an open dimension; a value needs all sizes")
    if pin.offset is not None:
        return _shaped(_converted(data.read(pin.type, shape, pin.offset), dtype), shape)
    text = pin.text.strip()
    if pin.type == "string" and holds_text and not shape:
        return np.array(_string(pin.text), dtype=object)
    if not text and (pin.type == "string" or not shape):
        return None
    if text.rstrip("};, ").endswith("..."):
        raise PageError("", f"the text is cut short; it ends with {quoted(text[-20:])}")
    if pin.type == "string" and not holds_text:
        if not shape:
            return parse_literal(text, dtype)
        return _shaped(
            parse_literal(text, dtype) if text.startswith("{") else parse_elements(_split(text, dtype), dtype), shape
        )
    dtype = dtype or HOST_DTYPE[pin.type]
    if text.startswith("{"):
        return _shaped(parse_literal(text, dtype), shape)
    elements = _split(text, dtype)
    if dtype == "string":
        strings = np.empty(len(elements), dtype=object)
        strings[:] = [_string(element) for element in elements]
        return _shaped(strings, shape)
    return _shaped(parse_elements(elements, dtype), shape)


def dtype_of(text: str) -> str:
    """Parse a dtype, which users may end with a semicolon like an attribute."""
    return parse_dtype(text.rstrip("; "))


def _shape(text: str) -> list[int]:
    text = text.strip().rstrip("; ")
    return parse_shape(f"{{{text}}}" if text.removeprefix("-").isdecimal() else text)


def _split(text: str, dtype: str | None) -> list[str]:
    """Split elements at semicolons; a trailing semicolon starts no element. Strings may be empty, numbers may not."""
    if dtype != "string" and '"' not in text:
        text = text.rstrip("; ")
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
        numbers = parse_literal(text, "int64")
        if numbers.ndim > 1:
            raise PageError("", f"{quoted(text)} is not a list of numbers")
        return numbers.ravel().tolist()
    if isinstance(default, bool):
        return bool(_one(text, "bool"))
    if isinstance(default, int):
        return int(_one(text, "int64"))
    if isinstance(default, float):
        return float(_one(text, "float64"))
    return text


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
    doubled = [block for block, times in Counter(b.id for b in drawing.blocks).items() if times > 1]
    if doubled or any(not b.id for b in drawing.blocks):
        raise PageError("", f"two blocks have the id {doubled[0]!r}" if doubled else "a block has no id")
    ids = valid_ids(b.id for b in drawing.blocks)
    for old, new in ids.items():
        if old != new:
            report.note(new, f"the id {quoted(old)} has characters that names do not allow")
    wires = _Wires(drawing, ids, report)
    page = Page(name, notes=drawing.notes)
    wires_of = Counter(block for w in drawing.wires for block in {w.source.block, w.target.block})
    for drawn in drawing.blocks:
        op = wires.ops[drawn.id]
        if op is None:
            lost = wires_of[drawn.id]
            report.warn(ids[drawn.id], f"no block named {drawn.symbol}; left out, and the {lost} wires to/from it")
            continue
        block = Block(ids[drawn.id], name_of(drawn.symbol), at=drawn.at)
        wires.connect(drawn.id, block)
        to_block(drawn, op, block, data, report)
        page.blocks.append(block)
    unknown = [quoted(drawn.symbol) for drawn in drawing.blocks if wires.ops[drawn.id] is None]
    _check_omitted(Counter([*unknown, *drawing.skipped]), len(page.blocks), report)
    return page


def _check_omitted(left_out: Counter[str], read: int, report: Report) -> None:
    """Raise if all blocks of a file were omitted, and warn if some were."""
    if not left_out:
        return
    kinds = ", ".join(f"{kind} x{times}" for kind, times in left_out.most_common(_KINDS_NAMED))
    kinds += ", ..." if len(left_out) > _KINDS_NAMED else ""
    if not read:
        raise PageError("", f"none of its {left_out.total()} blocks can be imported: {kinds}")
    report.warn("", f"{left_out.total()} of {left_out.total() + read} blocks are left out: {kinds}")


class _Wires:
    """The wires of a drawing by the block they lead to, validated by the catalogue."""

    def __init__(self, drawing: Drawing, ids: dict[str, str], report: Report) -> None:
        self.ops: dict[str, Op | None] = {b.id: record_of(b.symbol) for b in drawing.blocks}
        self._ids = ids
        self._report = report
        self._to: dict[str, list[DrawnWire]] = {}
        self._constants = {b.id: p for b in drawing.blocks if b.symbol in _CONSTANTS for p in b.pins if p.name == "val"}
        for wire in drawing.wires:
            ends = (wire.source, wire.target)
            if not all(end.block and end.pin for end in ends):
                report.warn("", f"the wire from {wire.source} to {wire.target}: one end is empty; left out")
            elif self._is_shown(wire, drawing.display):
                report.count("wires that are display only, left out")
            elif any(end.pin in NO_VALUE for end in ends):
                report.count("wires of scope and status, which a page does not need, left out")
            elif wire.source.block in drawing.display and wire.source.block not in self.ops:
                report.warn("", f"the wire from {wire.source} to {wire.target}: its source is not a block; left out")
            elif all(self._known(end.block, wire) for end in ends):
                self._to.setdefault(wire.target.block, []).append(wire)

    def _is_shown(self, wire: DrawnWire, display: set[str]) -> bool:
        """Return whether a wire only leads to an element that displays values."""
        if wire.target.block in self.ops:
            return False
        return (
            wire.target.block in display or wire.source.block not in self.ops or wire.source.pin.startswith("result_")
        )

    def _known(self, block: str, wire: DrawnWire) -> bool:
        if block not in self.ops:
            self._report.warn("", f"the wire from {wire.source} to {wire.target}: there is no block {block}; left out")
        return self.ops.get(block) is not None

    def connect(self, drawn: str, block: Block) -> None:
        """Set the wires and hidden pins of a block."""
        op = self.ops[drawn]
        assert op is not None
        many = {arg.name: arg.many for arg in op.inputs}
        by_pin: dict[str, list[tuple[DrawnWire, End]]] = {}
        for wire in self._to.get(drawn, ()):
            pin = pin_of(op, wire.target.pin, many)
            source = self._source(wire)
            constant = self._constants.get(wire.source.block)
            if pin is None and constant and is_first_axis(op, wire.target.pin, constant):
                self._report.note(block.id, f"{op.name} uses axis 0, as {wire.source} says; the wire is left out")
            elif pin is None or source is None:
                no = wire.source if pin else wire.target
                self._leave_out(block, wire, f"there is no pin {no}")
            elif by_pin.get(pin) and not many[pin]:
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
        assert op is not None
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
