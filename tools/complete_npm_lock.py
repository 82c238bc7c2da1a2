"""Complete web/package-lock.json with the optional packages of other systems, which `npm ci` requires.

npm omits packages from the lock file that it cannot find for another system, and then rejects the file. Run this after
`npm install` has changed the lock file. Added entries have a version and the system that the package's name states.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[1] / "web" / "package-lock.json"
SYSTEMS = ("aix", "android", "darwin", "freebsd", "linux", "netbsd", "openbsd", "openharmony", "sunos", "win32")
CPUS = ("arm", "arm64", "ia32", "loong64", "mips64el", "ppc64", "riscv64", "s390x", "wasm32", "x64")
LIBRARIES = {"gnu": "glibc", "gnueabihf": "glibc", "musl": "musl", "musleabihf": "musl"}


def entry(name: str, version: str, dev: bool) -> dict[str, Any]:
    """Return the lock file's entry of a package for another system."""
    name_parts = name.rpartition("/")[2].split("-")
    cpus = [word for word in name_parts if word in CPUS]
    systems = [word for word in name_parts if word in SYSTEMS]
    entry_: dict[str, Any] = {"version": version, "cpu": cpus[:1]}
    if not cpus:
        raise SystemExit(f"{name}: its name does not contain a processor")
    if dev:
        entry_["dev"] = True
    if "linux" in systems and (found := [LIBRARIES[word] for word in name_parts if word in LIBRARIES]):
        entry_["libc"] = found
    entry_["optional"] = True
    if systems:
        entry_["os"] = systems[:1]
    return entry_


def complete(lock: dict[str, Any]) -> list[str]:
    """Add the missing entries; return the names of their packages."""
    packages: dict[str, Any] = lock["packages"]
    missing = {
        name: entry(name, version, package.get("dev", False))
        for package in list(packages.values())
        for name, version in package.get("optionalDependencies", {}).items()
        if f"node_modules/{name}" not in packages
    }
    packages.update({f"node_modules/{name}": entry_ for name, entry_ in missing.items()})
    lock["packages"] = {name: packages[name] for name in sorted(packages)}
    return sorted(missing)


if __name__ == "__main__":
    found = json.loads(LOCK.read_text())
    added = complete(found)
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if '"resolved"' in text:
        sys.exit(f"{LOCK} names a registry; run npm with --omit-lockfile-registry-resolved")
    LOCK.write_text(text)
    print(f"{len(added)} added", *added, sep="\n  ")
