"""Write the generated part of THIRD_PARTY_NOTICES.md: the packages in Studio's page, with their licence texts.

tools/third_party_notices.py            from web/package-lock.json and web/node_modules (`make web-ready`)
tools/third_party_notices.py --check    check that the committed file is up to date; without web/node_modules only
                                        names and versions are compared, which needs no Node.js
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTICES = ROOT / "THIRD_PARTY_NOTICES.md"
WEB = ROOT / "web"
BEGIN, END = "<!-- generated: packages of the page -->\n", "<!-- end of packages of the page -->\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    packages = bundled()
    text = NOTICES.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    committed, _, after = rest.partition(END)
    if args.check and not (WEB / "node_modules").is_dir():
        is_fresh = committed.startswith(table(packages))
    else:
        generated = table(packages) + licences(packages)
        is_fresh = committed == generated
        if not args.check:
            NOTICES.write_text(before + BEGIN + generated + END + after, encoding="utf-8")
    if args.check and not is_fresh:
        raise SystemExit(f"{NOTICES.name} does not match the packages of {WEB.name}/: run tools/third_party_notices.py")


def bundled() -> dict[str, dict[str, Any]]:
    """Return the page's dependencies by folder; packages of types produce no code."""
    locked = json.loads((WEB / "package-lock.json").read_text())["packages"]
    found: dict[str, dict[str, Any]] = {}
    waiting = [("", name) for name in locked[""]["dependencies"]]
    while waiting:
        importer, name = waiting.pop()
        folder = resolved(locked, importer, name)
        if name.startswith("@types/") or folder in found:
            continue
        found[folder] = locked[folder]
        waiting += [(folder, needed) for needed in locked[folder].get("dependencies", {})]
    return dict(sorted(found.items(), key=lambda entry: (name_of(entry[0]), entry[1]["version"])))


def resolved(locked: dict[str, Any], importer: str, name: str) -> str:
    """Resolve as Node.js does: in the package's own node_modules, then in the outer ones."""
    while True:
        folder = f"{importer}/node_modules/{name}".lstrip("/")
        if folder in locked:
            return folder
        if not importer:
            raise SystemExit(f"web/package-lock.json has no {name}")
        importer = importer.rpartition("/node_modules/")[0] if "/node_modules/" in importer else ""


def name_of(folder: str) -> str:
    return folder.rpartition("node_modules/")[2]


def table(packages: dict[str, dict[str, Any]]) -> str:
    rows = "".join(f"| {name_of(f)} | {p['version']} | {p['license']} |\n" for f, p in packages.items())
    return f"\n| package | version | licence |\n|---|---|---|\n{rows}\n"


def licences(packages: dict[str, dict[str, Any]]) -> str:
    """Return every licence text once, under the names of its packages."""
    texts: dict[str, list[str]] = defaultdict(list)
    for folder in packages:
        own = licence_file(WEB / folder).read_text(encoding="utf-8")
        text = "\n".join(line.strip() for line in own.strip().splitlines())
        texts[text].append(name_of(folder))
    return "".join(
        f"### {', '.join(dict.fromkeys(names))}\n\n```text\n{text}\n```\n\n" for text, names in texts.items()
    )


# Packages without a licence file, and a package of the same author and licence that has one.
LICENCE_OF = {"react-remove-scroll-bar": "react-remove-scroll"}


def licence_file(folder: Path) -> Path:
    folder = folder.with_name(LICENCE_OF.get(folder.name, folder.name))
    found = sorted(p for p in folder.iterdir() if re.match(r"licen[cs]e", p.name, re.IGNORECASE))
    if not found:
        raise SystemExit(f"{folder} has no licence file: add its text by hand")
    return found[0]


if __name__ == "__main__":
    main()
