"""Write enuSpace-TensorFlow files in every format and generation, with records of the ops in its samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import rowgrad  # noqa: F401  fills the catalog
from rowgrad._catalog.spec import CATALOG, Op, _parse_args

SAMPLES = Path(__file__).parent / "enuspace_samples"

_WANTED: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "Add": ("x: T, y: T -> z: T", (), {}),
    "Sub": ("x: T, y: T -> z: T", ("Subtract",), {}),
    "Mul": ("x: T, y: T -> z: T", ("Multiply",), {}),
    "Square": ("x: T -> y: T", (), {}),
    "MatMul": ("a: T, b: T -> product: T", (), {"transpose_a": False, "transpose_b": False}),
    "Mean": ("input: T, axis: host Tidx -> output: T", (), {"keep_dims": False}),
    "OneHot": ("indices: TI, depth: host int32, on_value: T, off_value: T -> output: T", (), {"axis": -1}),
    "Cast": ("x: T -> y: any", (), {"DstT": "float32"}),
}


def sample_ops() -> dict[str, Op]:
    """Return records of the ops that the catalog lacks or has with other pins."""
    made = {}
    for name, (signature, aliases, attrs) in _WANTED.items():
        inputs, outputs = (tuple(_parse_args(side)) for side in signature.split("->"))
        found = CATALOG.get(name)
        pins = [arg.name for arg in (*inputs, *outputs)]
        if found is None or [arg.name for arg in (*found.inputs, *found.outputs)] != pins:
            made[name] = Op(name, inputs, outputs, {}, lambda known: (), "", "", attrs=attrs, aliases=aliases)
    return made


@dataclass
class Pin:
    """A pin with its elements; `dat` is their offset if they are in the `.dat` file."""

    type: str = "string"
    shape: str = ""
    elements: str | list[Any] = ""
    dat: int | None = None

    def text(self, generation: int) -> str:
        if isinstance(self.elements, str):
            return self.elements
        words = [str(e) for e in self.elements]
        return ";".join(words) if generation == 3 or not self.shape else "{" + ",".join(words) + "}"


@dataclass
class Drawn:
    symbol: str
    pins: Mapping[str, Pin] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("output",)


Blocks = Mapping[str, Drawn]
Wires = list[tuple[str, ...]]  # from, pin, to, pin, and "hidden" for hidden wires


def svg(blocks: Blocks, wires: Wires, generation: int = 4, inside: str = "") -> str:
    kind = "var-type" if generation == 3 else "type"
    lines = ['<?xml version="1.0" encoding="UTF-16"?>', f'<svg enuspace-version="{generation}.0.3.0"',
             'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">', inside]  # fmt: skip
    for number, (block, drawn) in enumerate(blocks.items()):
        at = f'transform="translate({100 * number},{10 * number}) rotate(0) scale(1, 1)"'
        lines.append(
            f'<use id={quoteattr(block)} type="tensorflow" {at} xlink:href="#{drawn.symbol}" x="0.00" y="0.00">'
        )
        for name, pin in drawn.pins.items():
            held = f"value={quoteattr(pin.text(generation))}"
            if pin.dat is not None:
                held = f'save-type="binary" binary-pos="{pin.dat}"'
            lines.append(f'<pg-set-pin variable="#{name}{pin.shape}" shape="{pin.shape}" {kind}="{pin.type}" {held}/>')
        lines += [f'<pg-set-pin variable="#{name}" shape="" {kind}="string" value=""/>' for name in drawn.outputs]
        lines += [f'<pg-set-pin variable="#result_{name}[9]" shape="[9]" {kind}="double" value="{{1,0...}}"/>'
                  for name in drawn.outputs]  # fmt: skip
        lines.append("</use>")
    for source, output, target, pin, *rest in wires:
        hidden = ' hidden="true"' if rest else ""
        link = f'from-id="{source}" param-from="{output}" to-id="{target}" param-to="{pin}"{hidden}'
        lines.append(f'<polyline points="0,0 1,1"><pg-link {link}></pg-link></polyline>')
    return "\n".join([*lines, "</svg>"])


def task(blocks: Blocks, wires: Wires) -> str:
    objects = []
    for block, drawn in blocks.items():
        pins = []
        for name, pin in drawn.pins.items():
            said = {"pin-name": name, "pin-type": pin.type, "pin-save": "text", "pin-shape": pin.shape,
                    "pin-interface": "Input", "pin-datatype": "", "pin-initial": pin.text(3)}  # fmt: skip
            if pin.dat is not None:
                said |= {"pin-save": "binary", "pin-binary-pos": str(pin.dat)}
                del said["pin-initial"]
            far = [(s, o) for s, o, t, p, *_ in wires if (t, p) == (block, name)] or [("", "")]
            pins += [said | {"in-symbol-id": s, "in-symbol-pin-name": o} for s, o in far]
        outputs = [
            {"pin-name": o, "pin-type": "string", "in-symbol-id": t, "in-symbol-pin-name": p}
            for s, o, t, p, *_ in wires
            if s == block
        ]
        outputs += [{"pin-name": f"result_{o}", "pin-type": "double", "out-symbol-id": ""} for o in drawn.outputs]
        objects.append({"symbol-name": f"#{drawn.symbol}", "id": block, "input": pins, "output": outputs})
    return json.dumps({"object": objects}, indent=1)
