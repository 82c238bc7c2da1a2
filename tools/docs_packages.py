"""Draw the packages of rowgrad and the direction of their imports, from the import contract in pyproject.toml.

The contract "one direction" lists layers from the highest to the lowest: a module may import modules of its own layer
and of those below it. `lint-imports` enforces it, so the drawing cannot contradict the code.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = "one direction"
PICTURE = "docs/images/packages.svg"
IMPORTS_CORE = re.compile(r"^\s*from \.+_core import ", re.MULTILINE)

WIDTH, LEFT, PAD, GAP, BOX, BAND = 720, 56, 12, 10, 28, 40
PUBLIC, PRIVATE, COMPILED = ("#ddf4ff", "#1f6feb"), ("#fff1e5", "#bc4c00"), ("#eaeef2", "#57606a")


def layers() -> list[list[str]]:
    """Return the layers from the highest to the lowest, each as names below `rowgrad`."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (found,) = (c for c in tools["importlinter"]["contracts"] if c["name"] == CONTRACT)
    return [[name.strip().removeprefix("rowgrad.") for name in layer.split(":")] for layer in found["layers"]]


def users_of_core() -> list[str]:
    """Return the packages that import the compiled extension, which is not a module of the source tree."""
    package = ROOT / "src/rowgrad"
    users = [f for f in package.rglob("*.py") if IMPORTS_CORE.search(f.read_text(encoding="utf-8"))]
    return sorted({f.relative_to(package).parts[0].removesuffix(".py") for f in users})


def picture() -> str:
    """Return the picture as SVG."""
    rows = layers()
    height = 2 * PAD + BAND * (len(rows) + 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="ui-monospace, monospace" font-size="13">',
        "<title>Packages of rowgrad: each may import those below it</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_arrow(height),
    ]
    for row, names in enumerate(rows):
        lines += _row(row, [(name, PRIVATE if name.startswith("_") else PUBLIC) for name in names])
    lines += _row(len(rows), [(f"_core: C++, imported by {', '.join(users_of_core())}", COMPILED)])
    return "\n".join([*lines, "</svg>"]) + "\n"


def _row(row: int, boxes: list[tuple[str, tuple[str, str]]]) -> list[str]:
    top = PAD + row * BAND + (BAND - BOX) / 2
    wide = (WIDTH - LEFT - PAD - GAP * (len(boxes) - 1)) / len(boxes)
    lines = []
    for k, (text, (fill, edge)) in enumerate(boxes):
        x = LEFT + k * (wide + GAP)
        lines.append(
            f'<rect x="{x:g}" y="{top:g}" width="{wide:g}" height="{BOX}" rx="4" fill="{fill}" stroke="{edge}"/>'
            f'<text x="{x + wide / 2:g}" y="{top + 18:g}" text-anchor="middle" fill="#1f2328">{escape(text)}</text>'
        )
    return lines


def _arrow(height: int) -> list[str]:
    end = height - 2 * PAD
    middle = height / 2
    return [
        f'<path d="M 36 {2 * PAD} V {end} m -5 -8 l 5 8 l 5 -8" fill="none" stroke="#57606a" stroke-width="1.5"/>',
        f'<text x="24" y="{middle:g}" text-anchor="middle" fill="#57606a" transform="rotate(-90 24 {middle:g})">'
        "may import</text>",
    ]
