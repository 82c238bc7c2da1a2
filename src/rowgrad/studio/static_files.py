"""The page, its script and its style: files of one folder, found by their exact names and by nothing else."""

from __future__ import annotations

import gzip
import hashlib
import threading
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from .refusals import RefusedError

FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
_PACKED = {".html", ".js", ".css", ".json", ".svg", ".txt"}


class _File(NamedTuple):
    changed: int
    plain: bytes
    packed: bytes | None
    kind: str
    tag: str


class StaticFiles:
    """The files there are when the server starts. What a client sends is looked up among them, never in the disk."""

    def __init__(self, folder: Path = FOLDER) -> None:
        found = (p for p in sorted(folder.rglob("*")) if p.suffix in _TYPES and p.is_file())
        self._paths = {f"/{p.relative_to(folder).as_posix()}": p for p in found}
        if "/index.html" in self._paths:
            self._paths["/"] = self._paths["/index.html"]
        self._files: dict[Path, _File] = {}
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Response:
        """The file a path names, packed where the browser can unpack it, or word that it has not changed."""
        name = request.scope["raw_path"].decode("latin-1")
        path = self._paths.get(name)
        if path is None:
            if name == "/":
                raise RefusedError(503, "NotBuilt", "the studio's page is not built: there is no static/index.html")
            raise RefusedError(404, "NotFound", f"there is no {name[:80]!r}")
        file = self._read(path)
        accepted = {part.partition(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")}
        packed = file.packed if "gzip" in accepted else None
        tag = f'"{file.tag}{"-gz" if packed is not None else ""}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if tag in (part.strip() for part in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        if packed is not None:
            headers["Content-Encoding"] = "gzip"
        return Response(file.plain if packed is None else packed, headers=headers | {"Content-Type": file.kind})

    def _read(self, path: Path) -> _File:
        """The file as it is now: it may be built anew while the server runs."""
        changed = path.stat().st_mtime_ns
        with self._lock:
            file = self._files.get(path)
            if file is None or file.changed != changed:
                plain = path.read_bytes()
                packed = gzip.compress(plain, 6, mtime=0) if path.suffix in _PACKED else None
                tag = hashlib.sha256(plain).hexdigest()[:24]
                file = self._files[path] = _File(changed, plain, packed, _TYPES[path.suffix], tag)
            return file
