"""Complete the files of a release: pack the site, check that everything is there, write the checksums.

    tools/release_files.py --version-only
    tools/release_files.py --dist dist --site build/docs/html

`make release` runs the first form before it builds anything, and the second at the end. A release is a source
distribution, a Linux wheel for each processor, the documentation as an archive, and SHA256SUMS.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROCESSORS = ("x86_64", "aarch64")
SUMS = "SHA256SUMS"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version-only", action="store_true", help="only check that all files state the same version")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the files are")
    parser.add_argument("--site", type=Path, default=ROOT / "build/docs/html", help="the built documentation")
    args = parser.parse_args()
    version = common_version(ROOT)
    if args.version_only:
        print(f"rowgrad {version}")
        return
    pack_site(args.site, args.dist / f"rowgrad-{version}-docs.tar.gz", f"rowgrad-{version}-docs")
    files = release_files(args.dist, version)
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (args.dist / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
    for path in files:
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {sums[path.name][:12]}…  {path.name}")
    print(f"wrote {args.dist / SUMS}")


def common_version(root: Path) -> str:
    """Return the version; exit unless the package, the citation and the changelog agree on it."""
    version: str = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    stated = {
        "src/rowgrad/__init__.py": rf'^__version__ = "{re.escape(version)}"$',
        "CITATION.cff": rf"^version: {re.escape(version)}$",
        "CHANGELOG.md": rf"^## {re.escape(version)}\b",
    }
    for name, pattern in stated.items():
        if not re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE):
            sys.exit(f"{name} does not state version {version}, as pyproject.toml does")
    return version


def pack_site(site: Path, archive: Path, folder: str) -> None:
    """Pack the site; the same files always make the same archive."""
    if not (site / "index.html").is_file():
        sys.exit(f"{site} has no index.html: run `make docs`")
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in sorted(p for p in site.rglob("*") if p.is_file()):
            if path.name in (".buildinfo", "objects.inv.tmp"):
                continue
            entry = tarfile.TarInfo(f"{folder}/{path.relative_to(site).as_posix()}")
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)


def release_files(dist: Path, version: str) -> list[Path]:
    """Return the files of a release; exit if one is missing or there are others."""
    found = {path.name: path for path in sorted(dist.iterdir()) if path.name != SUMS}
    expected = [f"rowgrad-{version}.tar.gz", f"rowgrad-{version}-docs.tar.gz"]
    for processor in PROCESSORS:
        wheel = re.compile(rf"rowgrad-{re.escape(version)}-cp311-abi3-manylinux_[\w.]+_{processor}\.whl")
        expected.append(next((name for name in found if wheel.fullmatch(name)), f"a manylinux wheel for {processor}"))
    if missing := [name for name in expected if name not in found]:
        sys.exit(f"{dist} lacks {', '.join(missing)}")
    if others := [name for name in found if name not in expected]:
        sys.exit(f"{dist} has files that do not belong to the release: {', '.join(others)}")
    return [found[name] for name in expected]


if __name__ == "__main__":
    main()
