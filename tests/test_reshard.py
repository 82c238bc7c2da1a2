"""Repartition sharded tables: the same rows by every rule and in every file, or an error and nothing changed."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rowgrad as rg
from rowgrad.checkpoint import Checkpoint, read_table
from rowgrad.cli import main
from rowgrad.errors import CheckpointError, ShardError
from rowgrad.sharding.manifest import Layout
from rowgrad.sharding.reshard import runs
from signal_defaults import restored

GOLDEN = Path(__file__).parent / "golden" / "checkpoints"
CODES = {"float32": "F32", "float64": "F64", "int64": "I64", "bfloat16": "BF16"}
Part = dict[str, np.ndarray]


def split_rows(table: np.ndarray, parts: int, strategy: str) -> list[np.ndarray]:
    if strategy == "mod":
        return [table[k::parts] for k in range(parts)]
    return np.array_split(table, parts)  # the first parts get one row more


def join(parts: list[np.ndarray], strategy: str) -> np.ndarray:
    table = np.concatenate(parts)
    if strategy == "mod":
        for k, rows in enumerate(parts):
            table[k :: len(parts)] = rows
    return table


def to_safetensors(tensors: Part, metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, array in tensors.items():
        span = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": CODES[array.dtype.name], "shape": list(array.shape), "data_offsets": span}
        data += array.tobytes()
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


def from_safetensors(path: Path) -> tuple[Part, dict[str, str]]:
    """Read a file by the format's description, independent of the code under test."""
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    assert begin % 8 == 0
    header = json.loads(raw[8:begin])
    metadata = header.pop("__metadata__", {})
    dtypes = {code: np.dtype(getattr(ml_dtypes, name, name)) for name, code in CODES.items()}
    found = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        array = np.frombuffer(raw[begin + first : begin + last], dtypes[entry["dtype"]])
        found[name] = array.reshape(entry["shape"])
    return found, metadata


def write_npy(folder: Path, parts: list[np.ndarray], name: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    for k, rows in enumerate(parts):
        np.save(folder / f"part-{k:05}-of-{len(parts):05}{name}.npy", rows)
    return folder


def write_safetensors(folder: Path, parts: list[Part], metadata: dict[str, str] | None = None) -> Path:
    folder.mkdir()
    for k, tensors in enumerate(parts):
        (folder / f"part-{k:05}-of-{len(parts):05}.safetensors").write_bytes(to_safetensors(tensors, metadata))
    return folder


def read_npy(folder: Path, dtype: Any, name: str = "") -> list[np.ndarray]:
    files = sorted(folder.glob(f"part-?????-of-?????{name}.npy"))
    return [np.load(file).view(dtype) for file in files]


def read_safetensors(folder: Path, name: str = "table") -> list[np.ndarray]:
    return [from_safetensors(file)[0][name] for file in sorted(folder.glob("*.safetensors"))]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def numbers(rows: int, columns: tuple[int, ...] = (3,), dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(rows).integers(-99, 99, (rows, *columns)).astype(dtype)


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_every_window_of_every_small_table(strategy: str) -> None:
    for rows in range(41):
        for parts in range(1, 8):
            layout = Layout("npy", strategy, parts, rows, {})
            dealt = split_rows(np.arange(rows), parts, strategy)
            for window in (1, 4, 7, 41):
                for begin in range(0, rows, window):
                    end = min(begin + window, rows)
                    found = np.full(end - begin, -1)
                    for part, row, place in runs(layout, begin, end):
                        found[place] = dealt[part][row : row + len(found[place])]
                    assert found.tolist() == list(range(begin, end))


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if available: these tests sync hundreds of targets to disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int64, np.complex128, np.bool_])
def test_round_trips(dtype: Any, fast_folder: Path) -> None:
    """From layout to layout in random order, with windows of one row and more, in both file formats."""
    rng, every = np.random.default_rng(5), [(parts, strategy) for parts in range(1, 8) for strategy in ("div", "mod")]
    kinds = ["npy"] if dtype in (np.complex128, np.bool_) else ["npy", "safetensors"]
    for rows in range(41) if dtype is np.float32 else range(1, 41, 6):
        table = numbers(rows, (2, 1), dtype)
        source = fast_folder / "0.npy"
        np.save(source, table)
        for k in rng.permutation(len(every)):
            (parts, strategy), format = every[k], str(rng.choice(kinds))
            target = fast_folder / f"{rows}-{k}"
            layout = rg.reshard(source, target, parts=parts, strategy=strategy, format=format, memory=128)
            assert (layout.parts, layout.rows, layout.strategy, layout.format) == (parts, rows, strategy, format)
            written = read_npy(target, dtype) if format == "npy" else read_safetensors(target)
            expected = split_rows(table, parts, strategy)
            assert [(w.shape, w.tobytes()) for w in written] == [(e.shape, e.tobytes()) for e in expected]
            source = target
    assert not [p for p in fast_folder.iterdir() if p.name.startswith(".")]


def test_optimizer_state_is_repartitioned_too(tmp_path: Path) -> None:
    table, m = numbers(13, (4,), ml_dtypes.bfloat16), numbers(13, (4,))
    accumulator, step = numbers(13, (), np.float64), np.array(7)
    betas = np.array([0.9, 0.999])
    tensors = [split_rows(t, 5, "mod") for t in (table, accumulator, m)]
    same = {"step": step, "betas": betas}
    parts = [{"table": t, "accumulator": a, "m": s} | same for t, a, s in zip(*tensors, strict=True)]
    source = write_safetensors(tmp_path / "s", parts, {"format": "pt"})
    made = rg.reshard(source, tmp_path / "t", parts=2, strategy="div", from_strategy="mod", memory=200)
    assert {n: t.by_rows for n, t in made.tensors.items()} == {
        "table": True, "accumulator": True, "m": True, "step": False, "betas": False
    }  # fmt: skip
    files = [tmp_path / "t" / f"part-{k:05}-of-00002.safetensors" for k in range(2)]
    for k, (found, metadata) in enumerate(map(from_safetensors, files)):
        assert metadata == {"format": "pt"}
        assert found.keys() == parts[0].keys()
        for name, whole in (("table", table), ("accumulator", accumulator), ("m", m)):
            assert found[name].tobytes() == split_rows(whole, 2, "div")[k].tobytes()
        assert found["step"].shape == ()
        assert (found["step"] == 7, found["betas"].tolist()) == (True, betas.tolist())
    # and as .npy, one file per tensor; the manifest records the rule
    rg.reshard(tmp_path / "t", tmp_path / "n", parts=3, strategy="mod", format="npy")
    assert join(read_npy(tmp_path / "n", np.float64, ".accumulator"), "mod").tolist() == accumulator.tolist()
    assert join(read_npy(tmp_path / "n", ml_dtypes.bfloat16), "mod").tobytes() == table.tobytes()
    chosen = {"w": "table", "step": "step"}
    made = rg.reshard(tmp_path / "n", tmp_path / "w", parts=1, strategy="div", format="safetensors", tensors=chosen)
    assert list(made.tensors) == ["w", "step"]


def test_manifest(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers(5))
    rg.reshard(tmp_path / "a.npy", tmp_path / "t", parts=2, strategy="mod")
    assert json.loads((tmp_path / "t" / "parts.json").read_text()) == {
        "format": "rowgrad.parts", "version": 1, "files": "npy", "strategy": "mod", "parts": 2, "rows": 5,
        "tensors": {"table": {"dtype": "float32", "shape": [5, 3], "by_rows": True}},
    }  # fmt: skip


def test_tensorflow_checkpoints(tmp_path: Path) -> None:
    tensors = {"table": "embedding"}
    rg.reshard(GOLDEN / "partitioned", tmp_path / "p", parts=2, strategy="mod", format="npy", tensors=tensors)
    whole = read_table(GOLDEN / "partitioned", "embedding")
    assert join(read_npy(tmp_path / "p", whole.dtype), "mod").tolist() == whole.tolist()
    shards = Checkpoint(GOLDEN / "shards")
    rg.reshard(shards.prefix, tmp_path / "m", parts=2, tensors={"t": "mod"}, from_strategy="mod", memory=64)
    assert (
        np.concatenate(read_safetensors(tmp_path / "m", "t")).tolist()
        == read_table(shards, "mod", partition_strategy="mod").tolist()
    )
    with pytest.raises(ShardError, match="tensors must name the tensors"):
        rg.reshard(GOLDEN / "shards", tmp_path / "x", parts=2)
    with pytest.raises(ShardError, match="Pass from_strategy="):
        rg.reshard(GOLDEN / "shards", tmp_path / "x", parts=2, tensors={"t": "mod"})


def test_slices_of_a_checkpoint_that_were_looked_up_by_mod(tmp_path: Path) -> None:
    """Four slices of one variable, and three each of a table and its slot."""
    names, expected = {"table": "embedding"}, read_table(GOLDEN / "partitioned", "embedding", partition_strategy="mod")
    for memory in (48, 64 << 20):
        options = {"parts": 3, "from_strategy": "mod", "format": "npy", "memory": memory}
        rg.reshard(GOLDEN / "partitioned", tmp_path / f"m{memory}", tensors=names, **options)
        assert join(read_npy(tmp_path / f"m{memory}", expected.dtype), "div").tolist() == expected.tolist()
    deep = "dnn/input_from_feature_columns/input_layer/item_embedding/embedding_weights"
    both = {"table": deep, "sum": f"{deep}/Adagrad", "step": "global_step"}
    rg.reshard(GOLDEN / "estimator", tmp_path / "e", parts=1, from_strategy="mod", tensors=both)
    for new, old in both.items():
        (found,) = read_safetensors(tmp_path / "e", new)
        assert found.tolist() == read_table(GOLDEN / "estimator", old, partition_strategy="mod").tolist()
    mixed = {"table": deep, "other": "encoder/user_embedding"}  # of 12 rows, not in slices
    with pytest.raises(ShardError, match="number of shards of 'encoder/user_embedding' is 1, but must be 3"):
        rg.reshard(GOLDEN / "estimator", tmp_path / "x", parts=1, from_strategy="mod", tensors=mixed)
    rg.reshard(GOLDEN / "estimator", tmp_path / "d", parts=1, tensors=mixed)
    assert read_safetensors(tmp_path / "d", "table")[0].tolist() == read_table(GOLDEN / "estimator", deep).tolist()


@pytest.mark.parametrize("strategies", [("mod", "div"), ("div", "mod"), ("mod", "mod")])
def test_memory_is_limited_to_a_window(strategies: tuple[str, str], tmp_path: Path) -> None:
    table = np.arange(1 << 22, dtype=np.float32).reshape(-1, 16)  # 16 MiB
    source, done = write_npy(tmp_path / "s", split_rows(table, 3, strategies[0])), []
    tracemalloc.start()
    try:
        rg.reshard(source, tmp_path / "t", parts=5, strategy=strategies[1], from_strategy=strategies[0],
                   memory=1 << 20, progress=lambda *at: done.append(at))  # fmt: skip
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 << 19
    assert done[0] == (0, table.nbytes)
    assert done[-1] == (table.nbytes, table.nbytes)
    assert len(done) == 65
    assert join(read_npy(tmp_path / "t", np.float32), strategies[1]).tobytes() == table.tobytes()


# -- atomicity ---------------------------------------------------------------------------------------------------------

SLOW = """
import sys, time
import rowgrad as rg
def slow(done, total):
    if done > total // 2:
        print("half", flush=True)
        time.sleep(60)
rg.reshard(sys.argv[1], sys.argv[2], parts=3, strategy="mod", memory=4096, overwrite=True, progress=slow)
"""


def test_a_killed_process_keeps_the_old_target(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers(400))
    old = tmp_path / "old"
    rg.reshard(tmp_path / "a.npy", old, parts=2, strategy="div")
    before, source = contents(old), (tmp_path / "a.npy").read_bytes()
    for target in (old, tmp_path / "new"):
        command = [sys.executable, "-c", SLOW, str(tmp_path / "a.npy"), str(target)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"half\n"
            os.kill(process.pid, signal.SIGKILL)
    assert contents(old) == before
    assert (tmp_path / "a.npy").read_bytes() == source
    assert not (tmp_path / "new").exists()
    leftovers = [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    assert len(leftovers) == 2
    assert not [p for folder in leftovers for p in folder.iterdir() if p.name == "parts.json"]
    rg.reshard(tmp_path / "a.npy", old, parts=3, strategy="mod", overwrite=True)  # removes the leftovers
    assert [p.name[:5] for p in tmp_path.iterdir() if p.name.startswith(".")] == [".new."]
    assert len(contents(old)) == 4


def test_systems_without_atomic_exchange(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(fast_folder / "a.npy", numbers(5))
    rg.reshard(fast_folder / "a.npy", fast_folder / "t", parts=2)
    monkeypatch.setattr("rowgrad.sharding.files._exchange", lambda one, other: False)
    rg.reshard(fast_folder / "a.npy", fast_folder / "t", parts=1, overwrite=True)
    assert sorted(os.listdir(fast_folder / "t")) == ["part-00000-of-00001.npy", "parts.json"]
    assert sorted(os.listdir(fast_folder)) == ["a.npy", "t"]


def test_an_error_leaves_no_target(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers(5))
    rg.reshard(tmp_path / "a.npy", tmp_path / "t", parts=2, strategy="div")
    before = contents(tmp_path / "t")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    def touch(done: int, total: int) -> None:
        os.utime(tmp_path / "a.npy", (1, done))

    for progress, kind in ((stop, KeyboardInterrupt), (touch, ShardError)):
        with pytest.raises(kind):
            rg.reshard(tmp_path / "a.npy", tmp_path / "t", parts=3, overwrite=True, progress=progress)
    assert contents(tmp_path / "t") == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "t"]


def test_a_full_disk(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:  # a sparse file of 8 TiB
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 41, 1)})
        file.truncate(file.tell() + (1 << 43))
    with pytest.raises(OSError, match=r"No space left on device: 87960930\d{5} bytes are needed, \d+ are free"):
        rg.reshard(tmp_path / "a.npy", tmp_path / "t", parts=2)
    np.save(tmp_path / "b.npy", numbers(1000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: 12\d{3} bytes are needed, \d+ are free"):
            rg.reshard(tmp_path / "b.npy", tmp_path / "t", parts=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "b.npy"]


def test_existing_and_invalid_targets(tmp_path: Path) -> None:
    source = write_npy(tmp_path / "s", split_rows(numbers(5), 2, "div"))
    options: dict[str, Any] = {"parts": 3, "from_strategy": "div"}
    (tmp_path / "empty").mkdir()
    rg.reshard(source, tmp_path / "empty", **options)
    with pytest.raises(FileExistsError, match="the folder is not empty"):
        rg.reshard(source, tmp_path / "empty", **options)
    (tmp_path / "link").symlink_to("empty")
    rg.reshard(source, tmp_path / "link", overwrite=True, **(options | {"parts": 1}))
    assert sorted(os.listdir(tmp_path / "empty")) == ["part-00000-of-00001.npy", "parts.json"]
    (tmp_path / "empty" / "notes.txt").touch()
    with pytest.raises(FileExistsError, match=r"contains files that are not shards: notes\.txt"):
        rg.reshard(source, tmp_path / "empty", overwrite=True, **options)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="the target is a file"):
        rg.reshard(source, tmp_path / "file", overwrite=True, **options)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        rg.reshard(source, tmp_path / "no" / "t", **options)
    for target in (source, tmp_path, tmp_path / "x" / ".." / "s"):
        with pytest.raises(ShardError, match="target must be outside the source"):
            rg.reshard(source, target, overwrite=True, **options)
    (tmp_path / "links").mkdir()
    for part in source.iterdir():
        (tmp_path / "links" / part.name).symlink_to(part)
    with pytest.raises(ShardError, match="target must be outside the source"):  # links would dangle
        rg.reshard(tmp_path / "links", source, overwrite=True, **options)


@pytest.mark.parametrize("name", ["parts.json", "part-00000-of-00001.npy"])
def test_folders_named_like_shards_are_not_replaced(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers(5))
    inside = tmp_path / "t" / name / "notes.txt"
    inside.parent.mkdir(parents=True)
    inside.write_text("keep")
    with pytest.raises(FileExistsError, match=f"contains files that are not shards: {re.escape(name)}"):
        rg.reshard(tmp_path / "a.npy", tmp_path / "t", parts=2, overwrite=True)
    assert inside.read_text() == "keep"


def test_files_added_to_the_target_meanwhile_are_not_replaced(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers(5))
    rg.reshard(tmp_path / "a.npy", tmp_path / "t", parts=2)
    before = sorted(os.listdir(tmp_path / "t"))

    def progress(done: int, total: int) -> None:
        (tmp_path / "t" / "notes.txt").write_text("keep")

    with pytest.raises(FileExistsError, match=r"contains files that are not shards: notes\.txt"):
        rg.reshard(tmp_path / "a.npy", tmp_path / "t", parts=3, overwrite=True, progress=progress)
    assert sorted(os.listdir(tmp_path / "t")) == sorted(["notes.txt", *before])
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "t"]


def test_a_checkpoint_rewritten_while_it_is_read_raises(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "shards", tmp_path / "c")
    (data,) = (tmp_path / "c").glob("*.data-*")

    def progress(done: int, total: int) -> None:
        if 0 < done < total and not written:
            written.append(done)
            data.write_bytes(bytes(octet ^ 1 for octet in data.read_bytes()))
            os.utime(data, ns=(data.stat().st_mtime_ns + 10**9,) * 2)

    written: list[int] = []
    with pytest.raises(CheckpointError, match="checksum"):
        rg.reshard(tmp_path / "c", tmp_path / "t", parts=2, tensors={"table": "mod/part_0"}, memory=128,
                   progress=progress)  # fmt: skip
    assert written
    assert sorted(os.listdir(tmp_path)) == ["c"]


# -- errors ------------------------------------------------------------------------------------------------------------


def npy(shape: str = "(3, 2)", descr: str = "'<f4'", data: int = 24, fortran: str = "False", version: int = 1) -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(head).to_bytes(2 * version, "little") + head + bytes(data)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (npy(data=23), "number of bytes is .*, but must be "),
        (npy(data=25), "number of bytes is .*, but must be "),
        (npy()[:40], r"not a \.npy file"),
        (b"", r"not a \.npy file"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}", r"not a \.npy file"),
        (npy(version=3), r"not a \.npy file"),
        (npy("(3,"), r"not a \.npy file"),
        (npy("[" * 9000), r"not a \.npy file"),
        (npy("(-3, -2)"), "shape is"),
        (npy("(True, 6)"), "shape is"),
        (npy(f"({2**63 - 1}, 2)"), "number of bytes is"),
        (npy(f"({10**4000}, {10**4000})"), "shape is .*, but must be at most 64 whole numbers"),
        (npy("(2**70, 2)"), r"not a \.npy file"),
        (npy("()", data=4), "there is no tensor with rows"),
        (npy(fortran="True"), "the memory order is Fortran order, but must be C order"),
        (npy(descr="'>f4'"), "has dtype >f4, which"),
        (npy(descr="'|O'"), "has dtype"),
        (npy(descr="[('a', '<f4')]"), "has dtype"),
        (npy(descr="'<V2'", shape="(3, 4)", data=25), "number of bytes is"),
    ],
)
def test_invalid_npy_files_raise(raw: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(raw)
    with pytest.raises(rg.errors.OpError, match=message):
        rg.reshard(tmp_path / "a.npy", tmp_path / "t", parts=2)
    assert os.listdir(tmp_path) == ["a.npy"]


def head(text: str | dict[str, Any], data: int = 24, length: int | None = None) -> bytes:
    raw = text.encode() if isinstance(text, str) else json.dumps(text).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(data)


def entry(dtype: Any = "F32", shape: Any = (3, 2), span: Any = (0, 24), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": span} | more


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"1234567", "length of the header is"),
        (head({"t": entry()}, length=2**63), "length of the header is 9223372036854775808, but must be at most"),
        (head({"t": entry()}, length=10_000), "length of the header is 10000, but must be at most"),
        (head({"t": entry()}, length=5), "the header is not JSON"),
        (head("[" * 100_000), "the header is not JSON"),
        (head("\udc80".encode("utf-8", "surrogatepass").decode("latin-1")), "the header is not JSON"),
        (head('{"t": 1, "t": 2}'), "a name occurs twice"),
        (head("[]"), "not a JSON object"),
        (head({"__metadata__": {"a": 1}}), "__metadata__ is"),
        (head({"t": [1]}), "'t' is .*, but must be dtype, shape and data_offsets"),
        (head({"t": entry(extra=1)}), "'t' is .*, but must be dtype, shape and data_offsets"),
        (head({"t": entry("F8_E4M3")}), "'t' has dtype 'F8_E4M3', which"),
        (head({"t": entry(["F32"])}), "'t' has dtype"),
        (head({"t": entry(shape=(-3, -2))}), "shape of 't' is"),
        (head({"t": entry(shape=(3, 2.0))}), "shape of 't' is"),
        (head({"t": entry(shape=(2**62, 2**62))}), "data_offsets of 't' is"),
        (head({"t": entry(shape=(10**4000, 10**4000))}), "shape of 't' is .*, but must be at most 64 whole numbers"),
        (head({"t": entry(shape=[2**62] * 60_000)}), "shape of 't' is .*, but must be at most 64 whole numbers"),
        (head({"t": entry(span=(0, 25))}, 25), "data_offsets of 't' is"),
        (head({"t": entry(span=(0, 24, 48))}), "data_offsets of 't' is"),
        (head({"t": entry(span=(2**62, 2**62 + 24))}), "beginning of 't' is 4611686018427387904, but must be 0"),
        (head({"t": entry(), "u": entry()}), "beginning of 'u' is 0, but must be 24"),
        (head({"t": entry(), "u": entry(span=(25, 49))}, 49), "beginning of 'u' is 25, but must be 24"),
        (head({"t": entry()}, 23), "number of bytes is"),
        (head({"t": entry()}, 25), "number of bytes is"),
        (head({}, 0), "there is no tensor with rows"),
        (head({"t": entry(shape=(1, 2**40, 0), span=(0, 0))}, 0), None),
        (head({"t": entry(shape=(0, 2**40), span=(0, 0))}, 0), "a row of 't' has 4398046511104 bytes"),
    ],
)
def test_invalid_safetensors_files_raise(raw: bytes, message: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(raw)
    if message is None:
        assert rg.reshard(tmp_path / "a.safetensors", tmp_path / "t", parts=2).rows == 1
        return
    with pytest.raises(rg.errors.OpError, match=message):
        rg.reshard(tmp_path / "a.safetensors", tmp_path / "t", parts=2)
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_inconsistent_shards_and_options_raise(tmp_path: Path) -> None:
    good = split_rows(numbers(7), 3, "div")
    step = np.array(1)

    def rejects(message: str, name: str, source: Path, **options: Any) -> None:
        arguments = {"parts": 2, "from_strategy": "div"} | options
        with pytest.raises(rg.errors.OpError, match=message):
            rg.reshard(source, tmp_path / "t", **arguments)
        assert not (tmp_path / "t").exists(), name

    def npys(name: str, parts: list[np.ndarray]) -> Path:
        return write_npy(tmp_path / name, parts)

    rejects("rows of 'table' in shard 0 is 2, but must be 3", "sizes", npys("a", [good[1], good[0], good[2]]))
    rejects(
        "columns of 'table' must be the same in all shards; got .2. here and .3. elsewhere",
        "columns",
        npys("b", [*good[:2], good[2][:, :2]]),
    )
    rejects(
        "dtype of 'table' must be the same in all shards; got int32 here and float32 elsewhere",
        "dtype",
        npys("c", [*good[:2], good[2].astype(np.int32)]),
    )
    rejects(
        "rank of 'table' must be the same in all shards; got 1 here and 2 elsewhere",
        "rank",
        npys("d", [*good[:2], good[2][:, 0]]),
    )
    missing = npys("e", good)
    rejects("Pass from_strategy=", "rule", missing, from_strategy=None)
    (missing / "part-00001-of-00003.npy").unlink()
    rejects("shard 1 of 3 is missing", "missing", missing)
    rejects("this is shard 0 of 3", "one of many", missing / "part-00000-of-00003.npy")
    two_sets = write_npy(npys("f", good), good[:2])
    rejects("its content is 2 parts in .npy, 3 parts in .npy", "two sets", two_sets)
    write_npy(npys("g", good), good, ".m")
    (tmp_path / "g" / "part-00002-of-00003.m.npy").unlink()
    rejects("part-00002-of-00003.npy: tensor 'm' is not in all shards", "m", tmp_path / "g")
    beyond = npys("h", good)
    os.rename(beyond / "part-00002-of-00003.npy", beyond / "part-00003-of-00003.npy")
    rejects("the shard number is 3, but must be below 3", "beyond", beyond)
    os.mkfifo(tmp_path / "part-00000-of-00001.npy")
    rejects("not a regular file", "pipe", tmp_path)
    names = [{"table": good[0]}, {"table": good[1], "step": step}, {"table": good[2]}]
    rejects("tensor 'step' is not in all shards", "names", write_safetensors(tmp_path / "i", names))
    steps = [{"table": rows, "step": np.array(k)} for k, rows in enumerate(good)]
    rejects(
        "'step' must be the same in all shards; got another value here and",
        "steps",
        write_safetensors(tmp_path / "j", steps),
    )
    sizes = [{"table": rows, "m": np.zeros(k)} for k, rows in enumerate(good)]
    rejects("'m' has 1 rows, the table has 2, and it is not the same", "m", write_safetensors(tmp_path / "k", sizes))
    rejects("there is no tensor 'n' with rows; available: 'table', 'm'", "n", tmp_path / "k", table="n")
    rejects("there is no tensor 'n'; available: 'table', 'm'", "n", tmp_path / "k", tensors=["n"])
    odd = write_safetensors(tmp_path / "l", [{"a/b": good[0]}])
    rejects("name of a tensor is 'a/b'", "npy", odd, format="npy")
    rejects("there is no shard file such as part-00000-of-00001.npy", "nothing", write_npy(tmp_path / "m", []))
    for k, rows in enumerate(good):
        np.save(tmp_path / "m" / f"emb_{k}.npy", rows)
    own = "emb_0.npy is not a valid name; .*, part-00000-of-00003.npy to part-00002-of-00003.npy for 3 files"
    rejects(own, "own", tmp_path / "m")
    np.save(tmp_path / "c.npy", numbers(3, dtype=np.complex128))
    rejects("complex128, which .safetensors files cannot store", "c", tmp_path / "c.npy", format="safetensors")
    rejects("a row of 'table' has 48 bytes, but the memory limit allows 25", "c", tmp_path / "c.npy", memory=100)
    for option, value in (("parts", 0), ("parts", 100_000), ("parts", True), ("format", "h5"), ("memory", 0)):
        rejects(f"{option} must be", option, tmp_path / "c.npy", **{option: value})
    with pytest.raises(FileNotFoundError):
        rg.reshard(tmp_path / "nowhere", tmp_path / "t", parts=1)
    with pytest.raises(ValueError, match="Unrecognized partition strategy: round"):
        rg.reshard(missing, tmp_path / "t", parts=1, strategy="round")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "round"}, "strategy is 'round', but must be div or mod"),
        ({"parts": 3}, "shard 0 of 3 is missing"),
        ({"parts": 1}, "shard 0 of 1 is missing"),
        ({"parts": 10**30}, "parts is"),
        ({"rows": 10**4000}, "rows is 1000.*, but must be a whole number"),
        ({"rows": 6}, "shape of 'table' is"),
        ({"version": 2}, "version is 2, but must be 1"),
        ({"files": "safetensors"}, "shard 0 of 2 is missing"),
        ({"format": "other"}, "not a manifest"),
        ({"tensors": []}, "tensors is"),
        ({"tensors": {"table": {}}}, "'table' is {}, but must be dtype, shape"),
        ({"tensors": {}}, "'table' is present, but must be absent according to the manifest"),
        ({"tensors": {"table": {"dtype": "float16", "shape": [5, 3], "by_rows": True}}}, "must be float16"),
        ({"tensors": {"table": {"dtype": "float32", "shape": [5, 3], "by_rows": False}}}, "'table' has 2 rows"),
        ({"tensors": {"table": {"dtype": "string", "shape": [5, 3], "by_rows": True}}}, "dtype of 'table'"),
    ],
)
def test_invalid_manifests_raise(change: dict[str, Any], message: str, fast_folder: Path) -> None:
    np.save(fast_folder / "a.npy", numbers(5))
    rg.reshard(fast_folder / "a.npy", fast_folder / "s", parts=2, strategy="mod")
    manifest = fast_folder / "s" / "parts.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    with pytest.raises(ShardError, match=message):
        rg.reshard(fast_folder / "s", fast_folder / "t", parts=1)
    manifest.write_text("{")
    with pytest.raises(ShardError, match="not JSON"):
        rg.reshard(fast_folder / "s", fast_folder / "t", parts=1)


def test_a_strategy_that_contradicts_the_manifest_raises(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers(5))
    rg.reshard(tmp_path / "a.npy", tmp_path / "s", parts=2, strategy="mod")
    with pytest.raises(ShardError, match="'from_strategy' is div, but must be mod according to the manifest"):
        rg.reshard(tmp_path / "s", tmp_path / "t", parts=1, from_strategy="div")
    with pytest.raises(rg.errors.TensorNotFoundError, match="no tensor 'other' with rows; available: 'table'"):
        rg.reshard(tmp_path / "s", tmp_path / "t", parts=1, table="other")


# -- the command -------------------------------------------------------------------------------------------------------


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = numbers(9)
    write_safetensors(Path("s"), [{"w": rows, "step": np.array(3)} for rows in split_rows(table, 2, "mod")])
    arguments = ["reshard", "s", "t", "--parts", "4", "--strategy", "div", "--from-strategy", "mod"]
    assert main([*arguments, "--format", "npy", "--tensor", "table=w", "--tensor", "step"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "table  float32[9,3]", "step  int64[], in every part", "9 rows in 4 parts by div, as .npy in t"
    ]  # fmt: skip
    assert shown.err == ""
    assert np.concatenate(read_npy(Path("t"), np.float32)).tolist() == table.tolist()
    assert main(arguments) == 3
    assert re.fullmatch(r"rowgrad reshard: .*/t: the folder is not empty; .*\n", capsys.readouterr().err)
    assert main([*arguments, "--overwrite", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["target"], printed["parts"], printed["files"]) == ("t", 4, "safetensors")
    assert printed == json.loads(Path("t/parts.json").read_text()) | {"target": "t"}
    assert main([*arguments[:-2], "--overwrite"]) == 1
    assert "Pass from_strategy=" in capsys.readouterr().err
    assert main(["reshard", "nowhere", "t", "--parts", "1", "--strategy", "div"]) == 3
    assert main([*arguments, "--tensor", "a=w", "--tensor", "a=step"]) == 2
    assert main(["reshard", "s", "t", "--strategy", "div"]) == 2


def test_a_signal_stops_the_command(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", numbers(1 << 15, (64,)))  # windows of two rows
    message = ["reshard", "a.npy", "t", "--parts", "9", "--strategy", "mod", "--memory", "1"]
    code = (  # pauses after each window, so that the command takes minutes unless stopped
        "import time, rowgrad.cli.reshard as r; r._MIB = 2048; r.Progress.reach = lambda *_: time.sleep(0.05);"
        f"from rowgrad.cli import main; exit(main({message}))"
    )
    with subprocess.Popen(
        restored([sys.executable, "-c", code]), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        while not [p for p in tmp_path.iterdir() if p.name.startswith(".t.")]:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.read() == "rowgrad reshard: ended by a signal; t is unchanged\n"
    assert process.returncode == 143
    assert os.listdir(tmp_path) == ["a.npy"]


def test_counts_of_any_integer_type(tmp_path: Path) -> None:
    np.save(tmp_path / "table.npy", np.arange(6.0).reshape(3, 2))
    made = rg.reshard(tmp_path / "table.npy", tmp_path / "parts", parts=np.int8(2), memory=np.int16(1000))
    assert (made.parts, type(made.parts)) == (2, int)
    assert np.load(tmp_path / "parts" / "part-00001-of-00002.npy").tolist() == [[4, 5]]
