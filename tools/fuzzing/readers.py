"""Every reader of untrusted files, as a function of bytes.

A reader may raise only the library's own errors (`OpError` and its subclass `PageError`); any other exception is a
finding. An input with several files is split into sections by lines of `--`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import checkpoint_files
from rowgrad.checkpoint import Checkpoint
from rowgrad.errors import OpError
from rowgrad.graph import ClientSession, Page, Project, build, check, dumps, load, loads
from rowgrad.graph.enuspace import read_enuspace
from rowgrad.graph.io.state_file import load_state, save_state
from rowgrad.graph.literal import parse_literal
from rowgrad.sharding import files, reshard
from rowgrad.sharding.manifest import MANIFEST
from rowgrad.studio import verbs
from rowgrad.studio.http_requests import RequestError, parse_object
from rowgrad.studio.limits import LIMITS
from rowgrad.studio.studio import Studio

ROOT = Path(__file__).parents[2]
PARTING = b"\n--\n"
MOST_ELEMENTS = 1 << 16  # of a tensor that is read: other tests cover large sizes
Reader = Callable[[bytes], None]
READERS: dict[str, Reader] = {}


def reader(function: Reader) -> Reader:
    READERS[function.__name__] = function
    return function


@contextmanager
def folder() -> Iterator[Path]:
    """Yield a new temporary folder, in memory if possible."""
    fresh = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def sections(data: bytes, count: int) -> list[bytes]:
    """Return the sections of an input; missing ones are empty."""
    found = data.split(PARTING, count - 1)
    return found + [b""] * (count - len(found))


def require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


# -- pages -----------------------------------------------------------------------------------------------------------


@reader
def page_text(data: bytes) -> None:
    """The text of a page: read, written, read again; checked, built, and opened in a session."""
    page = loads(data.decode("utf-8", "surrogateescape"))
    text = dumps(page)
    require(dumps(loads(text)) == text, "a page that was written is read as another")
    require(dumps(loads(dumps(page, browser=True))) == text, "a page for a browser is read as another")
    for one in page.pages if isinstance(page, Project) else [page]:
        _check_and_build(one)


def _check_and_build(page: Page) -> None:
    checked = check(page)
    if checked.ok:
        ClientSession(build(page))


@reader
def page_run(data: bytes) -> None:
    """A page that runs once if no known shape is large."""
    page = loads(data.decode("utf-8", "surrogateescape"))
    if isinstance(page, Project):
        return
    scope = build(page)
    shapes = [output.shape for node in scope.graph.nodes for output in node.outputs]
    if all(math.prod(d or 1 for d in shape or ()) <= MOST_ELEMENTS for shape in shapes):
        ClientSession(scope).run_block()


@reader
def page_file(data: bytes) -> None:
    """A page in a file with array files: the second section is the content of every file that it names."""
    text, beside = sections(data, 2)
    digest = hashlib.sha256(beside).hexdigest().encode()
    with folder() as at:
        (at / "p.json").write_bytes(text.replace(b"HASH", digest))
        (at / "p.json.arrays").mkdir()
        for ending in ("npy", "json"):
            (at / "p.json.arrays" / f"{digest.decode()}.{ending}").write_bytes(beside)
        load(at / "p.json")


@reader
def literal(data: bytes) -> None:
    """A value as text, with or without a dtype."""
    text, dtype = sections(data, 2)
    parse_literal(text.decode("utf-8", "replace"), dtype.decode("utf-8", "replace") or None)


@reader
def enuspace(data: bytes) -> None:
    """An enuSpace page and its binary file."""
    drawing, binary = sections(data, 2)
    with folder() as at:
        (at / "p.svg").write_bytes(drawing)
        if binary:
            (at / "p.dat").write_bytes(binary)
        imported = read_enuspace(at / "p.svg")
    dumps(imported.page)
    check(imported.page)


@reader
def state(data: bytes) -> None:
    """A state file: as it is, or as sections to be zipped, so that checksums do not stop the reader."""
    with folder() as at:
        path = at / "s.state"
        if data.startswith(b"PK"):
            path.write_bytes(data)
        else:
            head, *members = sections(data, 4)
            with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr("state.json", head)
                for i, member in enumerate(m for m in members if m):
                    archive.writestr(f"variables/{i}.{'npy' if member[:1] == bytes([0x93]) else 'json'}", member)
        found = load_state(path)
        save_state(at / "again", found.variables, found.counters, found.page)
        again = load_state(at / "again")
        require(found.counters == again.counters and list(found.variables) == list(again.variables), "another state")


# -- parts of tables, and checkpoints --------------------------------------------------------------------------------


@reader
def npy_header(data: bytes) -> None:
    with folder() as at:
        (at / "p.npy").write_bytes(data)
        files.read_npy_header(at / "p.npy")


@reader
def safetensors_header(data: bytes) -> None:
    """Prefix the length of the header, unless the input begins with a zero and brings its own."""
    with folder() as at:
        file = data[1:] if data[:1] == b"\0" else _with_length(data)
        (at / "p.safetensors").write_bytes(file)
        files.read_safetensors_header(at / "p.safetensors")


def _with_length(data: bytes) -> bytes:
    head, _, body_ = data.partition(b"\n-\n")
    return len(head).to_bytes(8, "little") + head + body_


@reader
def parts(data: bytes) -> None:
    """A sharded table with its manifest, resharded into three parts."""
    manifest, first, second = sections(data, 3)
    ending = "npy" if first[:1] == bytes([0x93]) else "safetensors"
    with folder() as at:
        source = at / "source"
        source.mkdir()
        if manifest:
            (source / MANIFEST).write_bytes(manifest)
        files = [f for f in (first, second) if f]
        for i, content in enumerate(files):
            whole = content if ending == "npy" else _with_length(content)
            (source / f"part-{i:05}-of-{len(files):05}.{ending}").write_bytes(whole)
        reshard(source, at / "target", parts=3, from_strategy=None if manifest else "div", memory=1 << 16)


@reader
def checkpoint(data: bytes) -> None:
    """An index file of blocks with valid checksums, and a data file; every tensor that is not large is read."""
    blocks, stored = sections(data, 2)
    with folder() as at:
        if blocks[:1] == b"\0":
            (at / "m.index").write_bytes(blocks[1:])
        else:
            packed = blocks[:1] == b"\3"  # compressed by Snappy
            parts_ = blocks[1:].split(b"\n-\n")
            raw = checkpoint_files.index_of([(block, int(packed)) for block in parts_])
            (at / "m.index").write_bytes(raw)
        (at / "m.data-00000-of-00001").write_bytes(stored)
        found = Checkpoint(at / "m", verify=bool(len(data) % 2))
        repr(found)
        for name in found.names():
            with suppress(OpError):
                dtype, shape = found.dtype(name), found.shape(name)
                if int(np.prod([float(d) for d in shape])) <= MOST_ELEMENTS:
                    read = found.read(name)
                    require(read.dtype == dtype and read.shape == shape, f"{name!r}: not the listed dtype and shape")


# -- Studio ----------------------------------------------------------------------------------------------------------

_LATER = {"run", "resume", "step", "command", "watch", "restore"}  # these start work that continues after the response


@reader
def studio_body(data: bytes) -> None:
    """The JSON of a request."""
    parse_object(data, LIMITS)


@reader
def studio_verb(data: bytes) -> None:
    """A verb with its arguments, on a project of one page; the response is JSON. The third section is a file."""
    name, body, file = sections(data, 3)
    verb = name.decode("utf-8", "replace")
    with folder() as at:
        (at / "page.json").write_text(PAGE)
        studio = Studio(at)
        try:
            if verb not in _LATER:
                _respond(studio, verb, body, file)
        finally:
            studio.close()


def _respond(studio: Studio, verb: str, body: bytes, file: bytes) -> None:
    arguments: dict[str, Any] = parse_object(body, LIMITS)
    try:
        answer = verbs.answer(studio, verb, arguments, file)
    except (RequestError, verbs.UnknownVerbError):
        return  # handled by the server
    json.dumps(answer, allow_nan=False)


PAGE = (ROOT / "examples/pages/02_sparse_segment_mean_grad.json").read_text()


def one_input(name: str, data: bytes) -> None:
    """Read one input; any exception other than the library's errors is a finding."""
    with suppress(OpError):
        READERS[name](data)
