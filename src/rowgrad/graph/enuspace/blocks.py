"""One block: which of its pins are values, which attributes, and what they hold."""

from __future__ import annotations

import numpy as np

from ...arrays import NUMPY_DTYPE
from ...spec import ALL_DTYPES, Arg, Op
from ..literal import parse_attrs
from ..literal_elements import shown
from ..page import Block
from .binary import DataFile
from .drawn import DrawnBlock, DrawnPin, placed
from .names import NO_VALUE, pin_of
from .report import Report
from .typed import attribute_of, declared, dtype_of, value_of

# An attribute the record lacks is no loss where it says what TensorFlow does without it; None: whatever it says.
_NOTHING = ("", "false", "0", "0.0", "none", "{}")
_DEFAULTS: dict[str, tuple[str, ...] | None] = {
    "validate_indices": ("", "true"),
    "validate_shape": ("", "true"),
    "data_format": ("", "nhwc"),
    "use_locking": None,  # nothing else changes a variable meanwhile
    # The dtypes of the inputs say these.
    **dict.fromkeys(("t", "tidx", "tindices", "tparams", "tdim", "tdims", "tlabels", "tshape", "tpaddings", "tperm")),
}


def to_block(drawn: DrawnBlock, op: Op, block: Block, data: DataFile, report: Report) -> None:
    """Put what is typed into a drawn block's pins into `block`, which has its wires already."""
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
                report.warn(block.id, f"pin {pin.name} is there twice; the last one is read")
            values[name] = pin
        elif name := pin_of(op, pin.name, op.attrs):
            with placed(place):
                _check(pin)
                if pin.text.strip():
                    block.attrs[name] = attribute_of(op, name, pin.text)
        elif pin_of(op, pin.name, (arg.name for arg in op.outputs)) is not None or not pin.filled:
            continue
        elif pin.name.startswith("m_") or pin.type == "color":
            report.count("pins of the studio's own, such as colours, left out")
        elif is_first_axis(op, pin.name, pin):
            report.note(block.id, f"{op.name} goes along axis 0, as pin axis says; it is left out")
        else:
            report.warn(
                block.id, f"{op.name} has no pin {pin.name}; what is typed there is left out: {shown(pin.text)}"
            )
    for name, pin in values.items():
        if name in block.wires:
            if pin.filled:
                report.count("values typed into pins that have a wire, which are not used")
            continue
        with placed(f"{drawn.id}.{pin.name}"):
            _value(inputs[name], pin, op, block, data, report)
    _initial_zeros(op, block, report)


def is_first_axis(op: Op, name: str, pin: DrawnPin) -> bool:
    """Whether a pin `name` asks a Gather for the axis it has anyway."""
    try:
        return op.name == "Gather" and name == "axis" and not float(pin.text.strip(" {};f"))
    except ValueError:
        return False


def _check(pin: DrawnPin) -> None:
    if pin.fault is not None:
        raise pin.fault


def _initial_zeros(op: Op, block: Block, report: Report) -> None:
    """A Variable that says its shape and dtype alone was filled by an Assign; until then it holds zeros."""
    shape, dtype = block.attrs.get("shape"), block.attrs.get("dtype")
    given = "initvalues" in block.wires or "initvalues" in block.values
    if op.name != "Variable" or given or not dtype or shape is None or -1 in shape:
        return
    block.values["initvalues"] = np.array("", object) if dtype == "string" else np.zeros((), NUMPY_DTYPE[dtype])
    report.warn(block.id, "it has no initial values; it begins with zeros")


def _attributes(pin: DrawnPin, place: str, op: Op, block: Block, report: Report) -> None:
    with placed(place):
        _check(pin)
        for name, text in parse_attrs(pin.text).items():
            known = pin_of(op, name, op.attrs)
            harmless = _DEFAULTS.get(name.lower(), _NOTHING)
            if known is None and (harmless is None or text.lower() in harmless):
                report.count(f"attribute {name} of {op.name}, at its default, left out")
            elif known is None:
                report.warn(block.id, f"{op.name} has no attribute {name}; left out, with its value {shown(text)}")
            elif text:
                block.attrs[known] = attribute_of(op, known, text)


def _value(arg: Arg, pin: DrawnPin, op: Op, block: Block, data: DataFile, report: Report) -> None:
    if arg.many:
        if pin.filled:
            report.warn(block.id, f"pin {pin.name} takes wires; what is typed there is left out: {shown(pin.text)}")
        return
    _check(pin)
    dtype = dtype_of(pin.dtype) if pin.dtype.strip() and pin.filled else None
    if _keeps_a_value(op):
        dtype = block.attrs.get("dtype") or dtype
    elif dtype is None and pin.type == "string" and arg.type in ALL_DTYPES:
        dtype = arg.type
    array = value_of(pin, dtype, dtype in (None, "string") and _holds_strings(op, pin), data)
    if array is None:
        return
    shape = block.attrs.get("shape")
    if _keeps_a_value(op) and shape is not None:
        fitting = declared(array, shape)
        if fitting.shape != array.shape:
            report.note(block.id, f"{pin.name} is written with shape {list(array.shape)}, and has the block's, {shape}")
        array = fitting
    block.values[arg.name] = array


def _keeps_a_value(op: Op) -> bool:
    """Whether dtype and shape of the block are those of its one input: Const, Variable, Tensor and their like."""
    return len(op.inputs) == 1 and "dtype" in op.attrs and "shape" in op.attrs


def _holds_strings(op: Op, pin: DrawnPin) -> bool:
    """Whether text in a string pin is strings, and no literal that says by its spelling what it is."""
    if op.name == "Const":
        return True  # it has no dtype but the type of its pin
    if op.name == "Const_ex":
        return bool(pin.shape.strip()) or not pin.text.lstrip().startswith("{")
    return op.name == "Variable" and bool(pin.shape.strip())
