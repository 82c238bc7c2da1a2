"""Write initial inputs of the readers, from the example pages and from files that the library writes.

They go to build/fuzz/corpus. Runs grow them there, and `--merge` copies the useful ones to tests/corpus.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from readers import PAGE, PARTING
from targets import READERS, ROOT, WORK

import checkpoint_files as files
from rowgrad.graph.io.state_file import save_state
from rowgrad.sharding import files as safetensors_file

PAGES = sorted((ROOT / "examples/pages").glob("*.json"), key=lambda p: p.stat().st_size)
LITERALS = ["5", "{5, 3}", "{{1, 2}, {3, 4}}", "1.5f", "{1e3, -inf, nan}", '{"a\\n", "ü"}', "{1+2j, 3j}", "{}",
            "{{}, {}}", "true", "0x1f", "{1, 2};", "-0.0", "9223372036854775807", "{{{1}}}"]  # fmt: skip
DTYPES = ["", "float32", "int8", "bool", "string", "bfloat16", "complex64", "qint8", "half"]


def npy(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def page_text() -> Iterator[bytes]:
    yield from (p.read_bytes() for p in PAGES[:30])


page_run = page_text


def page_file() -> Iterator[bytes]:
    for dtype, shape in (("float32", [2, 3]), ("bool", [4]), ("int64", []), ("bfloat16", [2])):
        plain = {"bfloat16": "<u2"}.get(dtype, dtype)
        value = {"dtype": dtype, "shape": shape, "file": "HASH.npy"}
        yield _page(value) + PARTING + npy(np.ones(shape, plain))
    yield _page({"dtype": "string", "shape": [2], "file": "HASH.json"}) + PARTING + b'["a", {"base64": "/w=="}]'
    yield _page({"dtype": "float16", "shape": [1], "hex": "003c"})


def _page(value: object) -> bytes:
    block = {"id": "c", "op": "Const", "values": {"val": value}}
    return json.dumps({"format": "rowgrad-page", "version": 1, "name": "p", "blocks": [block]}).encode()


def literal() -> Iterator[bytes]:
    for i, text in enumerate(LITERALS):
        yield text.encode() + PARTING + DTYPES[i % len(DTYPES)].encode()


def enuspace() -> Iterator[bytes]:
    for path in sorted((ROOT / "tests/graph/enuspace_samples").iterdir()):
        if path.stat().st_size < 20_000:
            yield path.read_bytes()


def state() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as at:
        path = Path(at) / "s"
        variables = {"w": np.ones((2, 2), np.float32), "s": np.array(["a", b"\xff"], object), "n": np.int64(3)}
        save_state(path, variables, {"steps": 4}, "page")
        yield path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            yield PARTING.join(archive.read(name) for name in archive.namelist())


def npy_header() -> Iterator[bytes]:
    yield from (
        npy(np.ones(shape, dtype)) for shape, dtype in (((2, 3), "f4"), ((0, 2), "i8"), ((), "?"), ((4,), "V2"))
    )


def _tensors() -> tuple[bytes, bytes]:
    head, _ = safetensors_file.safetensors_header(
        {"table": ("float32", (2, 2)), "bias": ("int8", (3,))}, {"by": "rowgrad"}
    )
    return head[8:], bytes(19)


def safetensors_header() -> Iterator[bytes]:
    head, values = _tensors()
    yield head + b"\n-\n" + values
    yield b"\0" + len(head).to_bytes(8, "little") + head + values


def parts() -> Iterator[bytes]:
    two = [npy(np.ones((2, 3), np.float32)), npy(np.zeros((1, 3), np.float32))]
    yield PARTING.join([b"", *two])
    tensor = {"dtype": "float32", "shape": [3, 3], "by_rows": True}
    manifest = {
        "format": "rowgrad.parts",
        "version": 1,
        "files": "npy",
        "strategy": "div",
        "parts": 2,
        "rows": 3,
    }
    yield PARTING.join([json.dumps(manifest | {"tensors": {"table": tensor}}).encode(), *two])
    yield PARTING.join([b"", b"\n-\n".join(_tensors())])


def checkpoint() -> Iterator[bytes]:
    one = np.arange(6, dtype=np.float32).tobytes()
    tensor = files.entry(1, (2, 3), size=24, checksum=files.masked(files.crc32c(one)))
    text = files.entry(7, (2,), size=8)
    sliced = files.entry(1, (4, 3), slices=[[(0, 2), (0, 3)], [(2, 2), (0, 3)]])
    for table in ({b"": files.header(), b"t": tensor}, {b"": files.header(), b"s": text, b"v": sliced}):
        block = files.block(sorted(table.items()))
        yield b"\2" + block + PARTING + one
        yield b"\3" + files.varint(len(block)) + bytes([60 << 2, len(block) - 1]) + block + PARTING + one  # Snappy


def studio_body() -> Iterator[bytes]:
    yield from (p.read_bytes() for p in PAGES[:3])
    yield b'{"a": [1, 2.5e3, null, "\\u00e4"], "b": {"c": true}}'


def studio_verb() -> Iterator[bytes]:
    page = json.loads(PAGE)
    arguments = {"name": "page", "page": page, "window": "w", "base": "", "block": "op", "pin": "output"}
    arguments |= {"from": "grad.output", "rows": [0, 2], "value": "{1, 2}", "text": "{{1, 2}, {3, 4}}"}
    arguments |= {"dtype": "float32", "format": "python"}
    names = "open save check candidates gradients hello new rename remove bring_back gallery picture pause stop reset"
    names += (
        " state snapshot snapshots parse cells describe sparse sparse_list sparse_cells window map trend trace export"
    )
    for name in names.split():
        yield name.encode() + PARTING + json.dumps(arguments).encode()
    for name in ("upload", "import"):
        yield PARTING.join([name.encode(), b'{"name": "x.npy"}', npy(np.ones((2, 2), np.float32))])


def write() -> None:
    for name in READERS:
        folder = WORK / "corpus" / name
        folder.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(globals()[name]()):
            (folder / f"seed-{i:02}").write_bytes(data)
        print(f"{name}: {len(list(folder.iterdir()))} inputs")
