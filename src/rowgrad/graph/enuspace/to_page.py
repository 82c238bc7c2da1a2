"""A drawing as a page: blocks by the catalogue, what is typed into them, and the wires."""

from __future__ import annotations

from collections import Counter

from ...spec import Op
from ..literal_elements import shown
from ..page import Block, End, Page, PageError
from .binary import DataFile
from .blocks import is_first_axis, to_block
from .drawn import Drawing, DrawnWire
from .names import NO_VALUE, legal, name_of, pin_of, record_of
from .report import Report

_CONSTANTS = ("Const", "Const_ex")
_KINDS_NAMED = 8  # in a message about blocks that are left out


def to_page(name: str, drawing: Drawing, data: DataFile, report: Report) -> Page:
    """The page; what cannot be on it is left out and reported."""
    doubled = [block for block, times in Counter(b.id for b in drawing.blocks).items() if times > 1]
    if doubled or any(not b.id for b in drawing.blocks):
        raise PageError("", f"two blocks have the id {doubled[0]!r}" if doubled else "a block has no id")
    ids = legal(b.id for b in drawing.blocks)
    for old, new in ids.items():
        if old != new:
            report.note(new, f"the id {shown(old)} has characters that names do not allow")
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
    unknown = [shown(drawn.symbol) for drawn in drawing.blocks if wires.ops[drawn.id] is None]
    _check_read(Counter([*unknown, *drawing.skipped]), len(page.blocks), report)
    return page


def _check_read(left_out: Counter[str], read: int, report: Report) -> None:
    """Reject a file whose blocks were all left out, and warn where some were."""
    if not left_out:
        return
    kinds = ", ".join(f"{kind} x{times}" for kind, times in left_out.most_common(_KINDS_NAMED))
    kinds += ", ..." if len(left_out) > _KINDS_NAMED else ""
    if not read:
        raise PageError("", f"none of its {left_out.total()} blocks can be imported: {kinds}")
    report.warn("", f"{left_out.total()} of {left_out.total() + read} blocks are left out: {kinds}")


class _Wires:
    """The wires of a drawing by the block they lead to, judged by the catalogue."""

    def __init__(self, drawing: Drawing, ids: dict[str, str], report: Report) -> None:
        self.ops: dict[str, Op | None] = {b.id: record_of(b.symbol) for b in drawing.blocks}
        self._ids = ids
        self._report = report
        self._to: dict[str, list[DrawnWire]] = {}
        self._constants = {b.id: p for b in drawing.blocks if b.symbol in _CONSTANTS for p in b.pins if p.name == "val"}
        for wire in drawing.wires:
            ends = (wire.source, wire.target)
            if not all(end.block and end.pin for end in ends):
                report.warn("", f"the wire from {wire.source} to {wire.target}: one of its ends is empty; left out")
            elif self._is_shown(wire, drawing.display):
                report.count("wires that are display only, left out")
            elif any(end.pin in NO_VALUE for end in ends):
                report.count("wires of scope and status, which nothing needs, left out")
            elif wire.source.block in drawing.display and wire.source.block not in self.ops:
                report.warn("", f"the wire from {wire.source} to {wire.target}: it comes from no block; left out")
            elif all(self._known(end.block, wire) for end in ends):
                self._to.setdefault(wire.target.block, []).append(wire)

    def _is_shown(self, wire: DrawnWire, display: set[str]) -> bool:
        """Whether a wire leads to what shows values, where no block takes anything from it."""
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
        """Give a block the wires that lead to it."""
        op = self.ops[drawn]
        assert op is not None
        many = {arg.name: arg.many for arg in op.inputs}
        by_pin: dict[str, list[tuple[DrawnWire, End]]] = {}
        for wire in self._to.get(drawn, ()):
            pin = pin_of(op, wire.target.pin, many)
            source = self._source(wire)
            constant = self._constants.get(wire.source.block)
            if pin is None and constant and is_first_axis(op, wire.target.pin, constant):
                self._report.note(block.id, f"{op.name} goes along axis 0, as {wire.source} says; its wire is left out")
            elif pin is None or source is None:
                no = wire.source if pin else wire.target
                self._leave_out(block, wire, f"there is no pin {no}")
            elif by_pin.get(pin) and not many[pin]:
                if by_pin[pin][0][1] != source:
                    self._leave_out(block, wire, f"{pin} takes one wire, and has one from {by_pin[pin][0][1]}")
            else:
                by_pin.setdefault(pin, []).append((wire, source))
        for pin, wires in by_pin.items():
            if all(wire.target.index is not None for wire, _ in wires):
                wires.sort(key=lambda entry: entry[0].target.index or 0)
            block.wires[pin] = [end for _, end in wires]
        # A pin is hidden as a whole, so one wire that shows keeps the others in sight.
        block.hidden = tuple(pin for pin, wires in by_pin.items() if all(wire.hidden for wire, _ in wires))

    def _source(self, wire: DrawnWire) -> End | None:
        op = self.ops[wire.source.block]
        assert op is not None
        many = {arg.name: arg.many for arg in op.outputs}
        pin = pin_of(op, wire.source.pin, many)
        another = wire.source.pin.isidentifier() and not wire.source.pin.startswith("result_")
        if pin is None and another and list(many.values()) == [False]:
            (pin,) = many  # the one output there is, under a name the catalogue does not use
            self._report.count(f"output {wire.source.pin} of {op.name} is called {pin} here")
        if pin is None or (wire.source.index is not None and not many[pin]):
            return None
        return End(self._ids[wire.source.block], pin, wire.source.index)

    def _leave_out(self, block: Block, wire: DrawnWire, why: str) -> None:
        self._report.warn(block.id, f"the wire from {wire.source} to {wire.target}: {why}; left out")
