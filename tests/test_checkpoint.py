"""Checkpoints: files that TensorFlow wrote are read, damaged ones are rejected."""

from __future__ import annotations

import os
import re
import shutil
import time
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from checkpoint_files import block, entry, header, index_of, part, varint, write_index, write_tensors
from rowgrad.checkpoint import Checkpoint, read_table
from rowgrad.checkpoint.bundle import read_bytes
from rowgrad.checkpoint.crc32c import crc32c
from rowgrad.checkpoint.snappy import decompress
from rowgrad.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    OpError,
    ResourceExhaustedError,
    TensorNotFoundError,
    UnimplementedError,
)
from rowgrad.sharding.div_mod import locate

GOLDEN = Path(__file__).parent / "golden/checkpoints"
PREFIXES = {path.parent.name: path.with_suffix("") for path in sorted(GOLDEN.glob("*/*.index"))}
PAGE = Path(__file__).parents[1] / "docs/how-to/checkpoints.md"
TABLE = np.arange(33, dtype=np.float32).reshape(11, 3)


def expected() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "expected.npz") as archive:
        return {name: archive[name] for name in archive.files}


EXPECTED = expected()


def comparable(array: np.ndarray) -> np.ndarray:
    if array.dtype == object:
        return array.astype("S")
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def same(found: np.ndarray, reference: np.ndarray) -> bool:
    found = comparable(found)
    kinds = found.dtype == reference.dtype or found.dtype.kind == reference.dtype.kind == "S"
    return kinds and found.shape == reference.shape and found.tobytes() == reference.astype(found.dtype).tobytes()


# -- checkpoints that TensorFlow wrote -------------------------------------------------------------------------------


def test_golden_checkpoints_exist() -> None:
    assert len(PREFIXES) == 10
    assert len(EXPECTED) > 35


@pytest.mark.parametrize("case", EXPECTED)
def test_values(case: str) -> None:
    folder, _, name = case.partition(":")
    checkpoint = Checkpoint(PREFIXES[folder])
    array = checkpoint.read(name)
    assert same(array, EXPECTED[case])
    assert array.flags.writeable
    assert array.flags.aligned
    assert checkpoint.shape(name) == array.shape
    assert checkpoint.dtype(name) == array.dtype


def test_dtypes() -> None:
    checkpoint = Checkpoint(PREFIXES["dtypes"])
    for name in checkpoint:
        if name not in ("scalar", "empty", "empty_string", "string", "string_scalar"):
            assert checkpoint.dtype(name).name == name
    assert checkpoint["string"][2, 0] == b"x" * 200
    assert checkpoint["string_scalar"][()] == b"one"


def test_many_names() -> None:
    checkpoint = Checkpoint(PREFIXES["many_names"])
    assert checkpoint.names() == [f"tower/layer_{k:03}/kernel" for k in range(60)]
    assert [int(array[0]) for array in checkpoint.values()] == list(range(60))


def test_slices_beyond_int32() -> None:
    checkpoint = Checkpoint(PREFIXES["far_slices"])
    assert checkpoint["far"].shape == (2**57 + 5, 0)
    assert checkpoint.read("far", slice(60, 2**57)).shape == (2**57 - 60, 0)


def test_quantized_tensors_raise() -> None:
    checkpoint = Checkpoint(PREFIXES["refused"])
    assert checkpoint.shape("quantized") == (2,)
    for call in (checkpoint.dtype, checkpoint.read):
        with pytest.raises(UnimplementedError, match="'quantized': dtype quint8 is not supported"):
            call("quantized")


# -- names -----------------------------------------------------------------------------------------------------------


def test_mapping() -> None:
    checkpoint = Checkpoint(PREFIXES["partitioned"])
    assert list(checkpoint) == checkpoint.names() == ["embedding", "global_step", "wide"]
    assert len(checkpoint) == 3
    assert "wide" in checkpoint
    assert "tall" not in checkpoint
    assert 3 not in checkpoint
    assert checkpoint["global_step"] == 7
    assert checkpoint.get("tall") is None
    assert checkpoint == checkpoint != Checkpoint(PREFIXES["partitioned"])
    assert hash(checkpoint) is not None
    assert repr(checkpoint) == f"Checkpoint({str(PREFIXES['partitioned'])!r}, tensors=3, data_files=1)"
    assert repr(Checkpoint(PREFIXES["several_files"])).endswith("merged', tensors=4, data_files=3)")


def test_names_of_objects() -> None:
    checkpoint = Checkpoint(PREFIXES["objects"])
    assert "model/embedding" in checkpoint
    assert checkpoint.shape("model/embedding") == (5, 4)
    assert checkpoint["model/bias"].tolist() == [0, 1, 2, 3]
    assert read_table(checkpoint, "model/embedding").shape == (5, 4)


@pytest.mark.parametrize("name", ["model/embeding", "embedding", "model"])
def test_errors_suggest_similar_names(name: str) -> None:
    checkpoint = Checkpoint(PREFIXES["objects"])
    with pytest.raises(
        TensorNotFoundError, match=f"no '{name}' among 5 tensors; similar names: .*'model/embedding'"
    ) as caught:
        checkpoint[name]
    assert isinstance(caught.value, KeyError)
    assert "ckpt-1.index" in str(caught.value)


def test_names_must_be_strings() -> None:
    with pytest.raises(TypeError, match="name must be a str"):
        Checkpoint(PREFIXES["objects"]).read(3)  # type: ignore[arg-type]


# -- paths -----------------------------------------------------------------------------------------------------------


def test_paths_of_a_checkpoint() -> None:
    prefix = PREFIXES["partitioned"]
    for path in (prefix, str(prefix), f"{prefix}.index", prefix.parent, f"{prefix.parent}/"):
        assert Checkpoint(path).prefix == prefix


@pytest.mark.parametrize(
    "line", ['model_checkpoint_path: "/no/such/place/model.ckpt-7"', '  model_checkpoint_path : "m\\157del.ckpt-7"\n']
)
def test_state_files(tmp_path: Path, line: str) -> None:
    shutil.copytree(PREFIXES["partitioned"].parent, tmp_path, dirs_exist_ok=True)
    (tmp_path / "checkpoint").write_text(line)
    assert Checkpoint(tmp_path).prefix == tmp_path / "model.ckpt-7"


def test_a_state_file_of_empty_lines(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"\n" * (1 << 20))
    with pytest.raises(CheckpointError, match="no line model_checkpoint_path"):
        Checkpoint(tmp_path)


def test_missing_files_raise(tmp_path: Path) -> None:
    for path in (tmp_path / "model", tmp_path / "model.index", tmp_path):
        with pytest.raises(CheckpointNotFoundError, match="no such file") as caught:
            Checkpoint(path)
        assert isinstance(caught.value, FileNotFoundError)
    (tmp_path / "checkpoint").write_text("all_model_checkpoint_paths: 'x'")
    with pytest.raises(CheckpointError, match="checkpoint: there is no line model_checkpoint_path"):
        Checkpoint(tmp_path)
    for impossible in ("a\\000b", "a" * 9999):
        (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{impossible}"')
        with pytest.raises(CheckpointNotFoundError):
            Checkpoint(tmp_path)


def test_missing_data_file(tmp_path: Path) -> None:
    shutil.copytree(PREFIXES["several_files"].parent, tmp_path, dirs_exist_ok=True)
    (tmp_path / "merged.data-00001-of-00003").unlink()
    checkpoint = Checkpoint(tmp_path / "merged")
    assert checkpoint["b0"].tolist() == [0]
    for name in ("b1", "table"):
        with pytest.raises(CheckpointNotFoundError, match="data-00001-of-00003: no such file"):
            checkpoint[name]


# -- row ranges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "name"),
    [("partitioned", "embedding"), ("partitioned", "wide"), ("several_files", "table"), ("shards", "mod/part_1"),
     ("dtypes", "bool"), ("dtypes", "bfloat16"), ("dtypes", "string"), ("dtypes", "empty")],
)  # fmt: skip
@pytest.mark.parametrize("verify", [True, False])
def test_rows(folder: str, name: str, verify: bool) -> None:
    checkpoint = Checkpoint(PREFIXES[folder], verify=verify)
    whole = checkpoint[name]
    ends = [None, *range(-12, 13)]
    for rows in (slice(a, b) for a in ends for b in ends):
        rows_read = checkpoint.read(name, rows)
        assert rows_read.dtype == whole.dtype
        assert rows_read.shape == whole[rows].shape
        assert rows_read.tolist() == whole[rows].tolist()


def test_rows_must_be_contiguous_ranges() -> None:
    checkpoint = Checkpoint(PREFIXES["partitioned"])
    for name, rows in (
        ("embedding", slice(0, 5, 2)),
        ("embedding", slice(5, 0, -1)),
        ("embedding", 3),
        ("global_step", slice(0, 1)),
    ):
        with pytest.raises(InvalidArgumentError, match="rows must be a slice with step 1"):
            checkpoint.read(name, rows)


def overwrite(path: Path, change: int) -> None:
    """Write the same number of other bytes a second later, as a program that saves again does."""
    written = path.stat().st_mtime_ns
    path.write_bytes(bytes(octet ^ change for octet in path.read_bytes()))
    os.utime(path, ns=(written + 10**9, written + 10**9))


@pytest.mark.parametrize(("folder", "name"), [("partitioned", "embedding"), ("shards", "mod/part_1")])
def test_checksums_are_verified_again_after_a_file_was_rewritten(folder: str, name: str, tmp_path: Path) -> None:
    shutil.copytree(PREFIXES[folder].parent, tmp_path / "c")
    checkpoint = Checkpoint(tmp_path / "c" / PREFIXES[folder].name)
    first = checkpoint.read(name, slice(0, 2))
    for file in (tmp_path / "c").glob("*.data-*"):
        overwrite(file, 1)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="checksum"):
            checkpoint.read(name, slice(0, 2))
    for file in (tmp_path / "c").glob("*.data-*"):
        overwrite(file, 1)
    assert same(checkpoint.read(name, slice(0, 2)), first)


def test_reading_a_file_that_is_rewritten_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(PREFIXES["shards"].parent, tmp_path / "c")
    checkpoint = Checkpoint(tmp_path / "c" / PREFIXES["shards"].name)

    def read_late(path: Path, begin: int, size: int) -> np.ndarray:
        overwrite(path, 1)
        return read_bytes(path, begin, size)

    monkeypatch.setattr("rowgrad.checkpoint.bundle.read_bytes", read_late)
    with pytest.raises(CheckpointError, match="the file changed while it was read"):
        checkpoint.read("mod/part_1", slice(0, 2))


# -- tables ----------------------------------------------------------------------------------------------------------


def test_table_from_slices() -> None:
    assert same(read_table(PREFIXES["partitioned"], "embedding"), EXPECTED["partitioned:embedding"])


def test_slices_that_were_looked_up_by_mod() -> None:
    """Four slices of 3, 3, 2 and 2 rows: id i is row i // 4 of slice i % 4."""
    saved = EXPECTED["partitioned:embedding"]
    starts = [0, 3, 6, 8]
    by_id = np.stack([saved[starts[i % 4] + i // 4] for i in range(10)])
    assert same(read_table(PREFIXES["partitioned"], "embedding", partition_strategy="mod"), by_id)
    split_columns = read_table(PREFIXES["partitioned"], "wide", partition_strategy="mod")
    assert same(split_columns, EXPECTED["partitioned:wide"])


def test_slices_of_other_sizes_are_rejected_under_mod(tmp_path: Path) -> None:
    write_tensors(tmp_path / "m", {"t@0,4": TABLE[:4], "t@4,7": TABLE[4:]})
    assert same(read_table(tmp_path / "m", "t"), TABLE)
    with pytest.raises(CheckpointError, match=r"rows of the shards is \[4, 7\], but must be \[6, 5\]"):
        read_table(tmp_path / "m", "t", partition_strategy="mod")


def test_table_from_shards() -> None:
    checkpoint = Checkpoint(PREFIXES["shards"])
    table = (np.arange(22).reshape(11, 2) / 8 - 3).tolist()
    for name in ("mod", "mod/part_{}", [f"mod/part_{k}" for k in range(3)]):
        assert read_table(checkpoint, name, partition_strategy="mod").tolist() == table
    for names in ("div/shard_{}/weights", [f"div/shard_{k}/weights" for k in range(3)]):
        assert read_table(checkpoint, names).tolist() == table


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize(("rows", "shards"), [(11, 3), (12, 3), (3, 3), (2, 5), (0, 2), (7, 1), (20, 12)])
def test_rows_of_a_table_match_lookups(tmp_path: Path, strategy: str, rows: int, shards: int) -> None:
    sizes = [rows // shards + (k < rows % shards) for k in range(shards)]
    arrays = [np.array([[100 * k + r] for r in range(n)], np.int32).reshape(n, 1) for k, n in enumerate(sizes)]
    write_tensors(tmp_path / "m", {f"t/part_{k}": array for k, array in enumerate(arrays)})
    table = read_table(tmp_path / "m", "t", partition_strategy=strategy)
    assert table.shape == (rows, 1)
    if rows >= shards:  # with fewer rows, TensorFlow divides by zero
        shard, row = locate(np.arange(rows), rows, len(sizes), strategy)
        assert table[:, 0].tolist() == (100 * shard + row).tolist()


def test_shards_of_object_checkpoints_and_strings(tmp_path: Path) -> None:
    texts = np.array([b"a", b"bc", b""], object)
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    write_tensors(tmp_path / "m", {f"w/part_0{end}": texts[0::2], f"w/part_1{end}": texts[1::2]})
    assert read_table(tmp_path / "m", "w", partition_strategy="mod").tolist() == texts.tolist()


@pytest.mark.parametrize(
    ("arrays", "name", "kind", "message"),
    [
        ({"t/part_0": TABLE[:4], "t/part_2": TABLE[4:]}, "t", TensorNotFoundError, "no 't/part_1' among 2"),
        ({"t/part_1": TABLE}, "t/part_{}", TensorNotFoundError, "no 't/part_0' among 1"),
        ({"t/part_00": TABLE}, "t", TensorNotFoundError, "no 't' among 1 tensors; similar names: 't/part_00'"),
        (
            {"a": TABLE[:4], "b": TABLE[4:]},
            ["a", "b"],
            CheckpointError,
            r"rows of the shards is \[4, 7\], but must be \[6, 5\]",
        ),
        ({"a": TABLE[:5], "b": TABLE[5:]}, ["a", "b"], CheckpointError, r"is \[5, 6\], but must be \[6, 5\]"),
        (
            {"a": TABLE, "b": TABLE[:, 1:]},
            ["a", "b"],
            CheckpointError,
            r"shard 'b' is float32\[11,2\], but must be rows as in",
        ),
        ({"a": TABLE, "b": TABLE.astype(np.int32)}, ["a", "b"], CheckpointError, r"shard 'b' is int32\[11,3\]"),
        ({"a": TABLE[0, 0], "b": TABLE}, ["a", "b"], CheckpointError, r"shard 'a' is float32\[\]"),
        ({"a": TABLE}, [], CheckpointError, "number of shards is 0"),
    ],
)
def test_inconsistent_shards_raise(tmp_path: Path, arrays: Any, name: Any, kind: type[Exception], message: str) -> None:
    write_tensors(tmp_path / "m", {key: np.asarray(array) for key, array in arrays.items()})
    with pytest.raises(kind, match=message):
        read_table(tmp_path / "m", name)


def test_unknown_strategy_raises() -> None:
    with pytest.raises(ValueError, match="Unrecognized partition strategy: hash"):
        read_table(PREFIXES["shards"], "mod", partition_strategy="hash")


# -- files that TensorFlow does not write on this machine ------------------------------------------------------------


def test_big_endian(tmp_path: Path) -> None:
    tensors = {"f": TABLE, "c": TABLE.astype(np.complex64) * 1j, "b": TABLE > 4, "s": np.array([b"x", b""], object)}
    tensors["h"] = TABLE.astype(ml_dtypes.bfloat16)
    write_tensors(tmp_path / "m", tensors, big_endian=True)
    checkpoint = Checkpoint(tmp_path / "m")
    for name, array in tensors.items():
        assert checkpoint[name].dtype == array.dtype
        assert checkpoint[name].tolist() == array.tolist()
        assert checkpoint.read(name, slice(1, 2)).tolist() == array[1:2].tolist()


def test_snappy() -> None:
    literal, near, far = bytes([4 << 2]) + b"abcde", bytes([(8 - 4) << 2 | 1, 3]), bytes([(6 - 1) << 2 | 2, 13, 0])
    assert decompress(varint(19) + literal + near + far, "x") == b"abcdecdecdecdabcdec"
    assert decompress(varint(70) + bytes([60 << 2, 69]) + b"z" * 70, "x") == b"z" * 70
    assert decompress(varint(3) + bytes([0]) + b"a" + bytes([1 << 2 | 3, 1, 0, 0, 0]), "x") == b"aaa"
    for bad in (varint(5), varint(1) + literal, b"", varint(3) + b"\0a" + bytes([1 << 2 | 2, 2, 0]), varint(1 << 40),
                varint(3) + b"\0a" + bytes([1 << 2 | 2, 0, 0]), varint(9) + literal[:-1]):  # fmt: skip
        with pytest.raises(CheckpointError, match="x: malformed"):
            decompress(bad, "x")


def test_compressed_index(tmp_path: Path) -> None:
    write_tensors(tmp_path / "m", {"t": TABLE})
    plain = block([(b"", header()), (b"t", Checkpoint(tmp_path / "m")._bundle.values[b"t"])])
    squeezed = varint(len(plain)) + bytes([60 << 2, len(plain) - 1]) + plain
    (tmp_path / "m.index").write_bytes(index_of([(squeezed, 1)]))
    assert same(Checkpoint(tmp_path / "m")["t"], TABLE)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    write_index(tmp_path / "m", {b"": header(), b"\xff\xfe": entry(shape=(2,), size=8)})
    (name,) = Checkpoint(tmp_path / "m", verify=False)
    assert Checkpoint(tmp_path / "m", verify=False)[name].tolist() == [0, 0]


def test_bool_bytes_other_than_0_and_1_raise(tmp_path: Path) -> None:
    (tmp_path / "m.data-00000-of-00001").write_bytes(b"\0\1\2")
    write_index(tmp_path / "m", {b"": header(), b"t": entry(10, (3,), size=3)})
    assert Checkpoint(tmp_path / "m", verify=False)["t"].view(np.uint8).tolist() == [0, 1, 1]


# -- checksums -------------------------------------------------------------------------------------------------------


def naive_crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ 0x82F63B78 * (state & 1)
    return state ^ 0xFFFFFFFF


def test_crc32c() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    octets = np.random.default_rng(0).bytes(200_000)
    for size in (1, 2, 3, 4, 5, 63, 64, 65, 1000, 65_535, 65_536, 65_537, 131_073, 200_000):
        assert crc32c(octets[:size]) == naive_crc32c(octets[:size])
    assert crc32c(octets[777:], crc32c(octets[:777])) == crc32c(octets)


def test_crc32c_of_long_data_combines_its_pieces() -> None:
    octets = np.random.default_rng(1).integers(0, 256, (1 << 22) + 12_345, np.uint8)
    assert crc32c(octets) == crc32c(octets[-99:], crc32c(octets[:-99]))


def test_damaged_data_raises(tmp_path: Path) -> None:
    shutil.copytree(PREFIXES["dtypes"].parent, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "all.data-00000-of-00001"
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    checkpoint = Checkpoint(tmp_path / "all")
    for name in checkpoint:
        if "empty" not in name:
            with pytest.raises(CheckpointError, match=f"{path.name}: .*'{name}'"):
                checkpoint[name]
            if checkpoint.shape(name):
                with pytest.raises(CheckpointError, match=f"{path.name}: .*'{name}'"):
                    checkpoint.read(name, slice(0, 1))
    assert Checkpoint(tmp_path / "all", verify=False)["uint8"].tolist() == [[1, 18, 39], [56, 77, 94]]


# -- damaged and hostile files ---------------------------------------------------------------------------------------


def cut(*spans: tuple[int, int | None], shape: tuple[int, ...] = (4,)) -> bytes:
    return entry(shape=shape, slices=[(span,) for span in spans])


ENTRIES: dict[str, tuple[bytes, str]] = {
    "after the end": (
        entry(shape=(2,), offset=996, size=8),
        r"'t' is at bytes \[996, 1004\), which is not in \[0, 1000\)",
    ),
    "before the start": (entry(shape=(2,), offset=-8, size=8), r"'t' is at bytes \[-8, 0\)"),
    "negative size": (entry(size=-4), "number of bytes is -4, but must be 4"),
    "negative string": (entry(7, (1,), size=-4), r"'t' is at bytes \[0, -4\)"),
    "wrong size": (entry(shape=(3,), size=8), "number of bytes is 8, but must be 12"),
    "negative dimension": (entry(shape=(2, -1), size=8), r"shape is \[2,-1\], but must be fully known"),
    "absurd shape": (entry(shape=(2**62, 2**62)), "must be below"),
    "absurd and empty": (entry(shape=(0, 2**62)), "must be below"),
    "absurd rank": (entry(shape=(1,) * 65, size=4), "rank is 65 or more, but must be at most 64"),
    "large": (entry(shape=(2**40,), size=2**42), "is not in"),
    "many strings": (
        entry(7, (2**40,), size=1000),
        "number of strings in 't' is 1099511627776, but must be at most 1000",
    ),
    "no place for lengths": (entry(7, (4,), size=6), "needed, but only 2 are left"),
    "strings too short": (entry(7, (1,), size=1000), "length of all strings in 't' is 0, but must be 995"),
    "file 1 of 1": (entry(file=1, size=4), r"number of the data file is 1, but must be in \[0, 1\)"),
    "file -1": (entry(file=-1, size=4), "number of the data file is -1"),
    "unknown rank": (part(2, b"\x18\x01"), "rank is unknown"),
    "cut off": (entry()[:-2], "bytes are needed, but only"),
    "a group": (b"\x0b", "the wire type 3 of a field is unknown"),
    "a long number": (b"\x08" + b"\xff" * 11, "more than 64 bits"),
    "no slice": (cut((0, 2), (2, 2)), r"slice \[0:2\] of 't' is missing"),
    "a gap": (cut((0, 1), (2, 2)), r"slices leave out 1 part of the tensor of shape \[4\]"),
    "overlap": (cut((0, 3), (2, 2)), "slices overlap"),
    "twice": (cut((0, None), (0, None)), "slices overlap"),
    "slice outside": (cut((0, 5)), r"slice \(start, length\) \(\(0, 5\),\) is not in shape \[4\]"),
    "slice before": (cut((-1, 5)), "is not in shape"),
    "slice of negative length": (cut((2, -1)), "is not in shape"),
    "slice of rank 0": (entry(slices=[()]), "is not in shape"),
    "slice of other rank": (cut((0, 4), shape=(4, 1)), "is not in shape"),
    "absurd and sliced": (cut((0, 2**50), shape=(2**50,)), "of 't' is missing"),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_inconsistent_entries_raise(tmp_path: Path, case: str) -> None:
    data, message = ENTRIES[case]
    write_index(tmp_path / "m", {b"": header(), b"t": data})
    checkpoint = Checkpoint(tmp_path / "m", verify=False)
    with pytest.raises(CheckpointError, match=message) as caught:
        checkpoint["t"]
    assert str(tmp_path / "m") in caught.value.message


def test_rank_is_bounded(tmp_path: Path) -> None:
    dimensions = part(2, part(2, b"\x08\x01")) * 1000
    write_index(tmp_path / "a", {b"": header(), b"t": entry() + dimensions})
    with pytest.raises(CheckpointError, match="rank is 65 or more"):
        Checkpoint(tmp_path / "a").shape("t")


def test_number_of_fields_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowgrad.checkpoint.encoding._MAX_FIELDS", 100)
    write_index(tmp_path / "a", {b"": header(), b"t": entry() + part(9, b"") * 101})
    with pytest.raises(CheckpointError, match="more than 100 fields"):
        Checkpoint(tmp_path / "a").shape("t")


def test_many_small_cells(tmp_path: Path) -> None:
    """Slices whose edges form a grid of more than a million cells."""
    extents = [((k, 1), (k, 1), (k, 1)) for k in range(200)]
    write_index(tmp_path / "m", {b"": header(), b"t": entry(shape=(200,) * 3, slices=extents)})
    with pytest.raises(CheckpointError, match=r"cells between slices is \[200, 200, 200\], but must be at most"):
        Checkpoint(tmp_path / "m")["t"]


def test_slices_that_contradict_their_tensor(tmp_path: Path) -> None:
    write_tensors(tmp_path / "m", {"t@0,4": TABLE[:4], "t@4,7": TABLE[4:]})
    good = Checkpoint(tmp_path / "m")
    assert same(good["t"], TABLE)
    assert same(good.read("t", slice(3, 6)), TABLE[3:6])
    values = good._bundle.values
    first = next(key for key in values if key.startswith(b"\0"))
    for wrong, message in (
        (entry(shape=(3, 3), size=36), r"slice \[0:4, 0:3\] of 't': shape is \[3,3\], but must be \[4,3\]"),
        (entry(3, (4, 3), size=48), "dtype is int32, but must be float32"),
        (entry(shape=(4, 3), slices=[((0, None), (0, None))]), "shape is sliced again"),
    ):
        write_index(tmp_path / "m", {b"": header(), **values, first: wrong})
        with pytest.raises(CheckpointError, match=message):
            Checkpoint(tmp_path / "m", verify=False)["t"]


def test_slices_that_share_bytes(tmp_path: Path) -> None:
    names = {f"t@{100 * k},100": np.zeros(100, np.float32) for k in range(20)}
    write_tensors(tmp_path / "m", names)
    assert Checkpoint(tmp_path / "m")["t"].shape == (2000,)
    values = Checkpoint(tmp_path / "m")._bundle.values
    again = {k: entry(shape=(100,), size=400) if k.startswith(b"\0") else v for k, v in values.items()}
    write_index(tmp_path / "m", {b"": header(), **again})
    (tmp_path / "m.data-00000-of-00001").write_bytes(bytes(400))
    with pytest.raises(CheckpointError, match="number of bytes in all slices is 8000, but must be at most 400"):
        Checkpoint(tmp_path / "m", verify=False)["t"]


def test_tensors_beyond_available_memory(tmp_path: Path) -> None:
    write_index(tmp_path / "m", {b"": header(), b"t": entry(shape=(2**40,), size=2**42)})
    with (tmp_path / "m.data-00000-of-00001").open("wb") as file:
        try:
            file.truncate(2**42)  # sparse file
        except OSError:
            pytest.skip("no files of this size here")
    with pytest.raises(ResourceExhaustedError, match="reading it needs 4398046511104 bytes, but this machine has"):
        Checkpoint(tmp_path / "m", verify=False)["t"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "number of data files is 0"),
        (header(files=-1), "number of data files is -1"),
        (header(order=2), "byte order is 2, but must be 0 or 1"),
        (b"\x07", "the wire type 7"),
    ],
)
def test_inconsistent_headers_raise(tmp_path: Path, data: bytes, message: str) -> None:
    write_index(tmp_path / "m", {b"": data})
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(tmp_path / "m")


def test_later_format_versions_raise(tmp_path: Path) -> None:
    write_index(tmp_path / "m", {b"": header(version=2)})
    with pytest.raises(UnimplementedError, match="needs a reader of version 2"):
        Checkpoint(tmp_path / "m")


def bomb() -> bytes:
    """Return fifty thousand bytes that expand to ten thousand keys of ten thousand bytes."""
    keys = b"".join(varint(9_998) + varint(2) + varint(0) + k.to_bytes(2, "big") for k in range(10_000))
    return varint(0) + varint(10_000) + varint(0) + b"k" * 9_998 + b"\0\0" + keys + bytes(4) + b"\1\0\0\0"


ONE = block([(b"", header())])
INDICES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "size is 0, but must be at least 48"),
    "text": (b"hello " * 20, "magic number is 0x"),
    "no header": (index_of([(block([(b"t", b"")]), 0)]), "first key is a name, but must be empty"),
    "same block twice": (index_of([(ONE, 0)], [(0, len(ONE))] * 2), "start of a block is 0, but must be at least"),
    "block outside": (index_of([(ONE, 0)], [(2**40, 8)]), r"is at bytes \[1099511627776, 1099511627784\), which is"),
    "huge block": (index_of([(ONE, 0)], [(0, 2**63)]), "a block is at bytes"),
    "half a block": (index_of([(ONE, 0)], [(0, len(ONE) - 1)]), "checksum of the block at byte 0 is 0x"),
    "no block": (index_of([]), "first key"),
    "tiny block": (index_of([(b"\0", 0)]), "a block must have at least 4 bytes, got 1"),
    "restarts": (index_of([(b"\xff" * 4, 0)]), "4294967295 restart points do not fit into 4 bytes"),
    "keys in disorder": (index_of([(block([(b"", header()), (b"b", b""), (b"a", b"")]), 0)]), "key is b'a', but must"),
    "a key twice": (index_of([(ONE, 0), (ONE, 0)]), "key is b'', but must be more than b''"),
    "shares too much": (index_of([(b"\5\1\0x" + bytes(8), 0)]), "a key shares 5 bytes with the key before it, which"),
    "a bomb": (index_of([(bomb(), 0)]), "the keys have more than 32 times the bytes of their block"),
    "compression 7": (index_of([(ONE, 7)]), "compression of a block is 7, but must be 0"),
    "not snappy": (index_of([(ONE, 1)]), "malformed"),
}  # fmt: skip


@pytest.mark.parametrize("case", INDICES)
def test_inconsistent_indices_raise(tmp_path: Path, case: str) -> None:
    data, message = INDICES[case]
    (tmp_path / "m.index").write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        Checkpoint(tmp_path / "m")
    assert str(tmp_path / "m.index") in caught.value.message


# -- compressed indices that expand too much -------------------------------------------------------------------------


def copies(size: int) -> bytes:
    """Return Snappy's densest encoding: one byte, then copies of 64 bytes of it."""
    times, rest = divmod(size - 1, 64)
    return varint(size) + b"\0a" + bytes([63 << 2 | 2, 1, 0]) * times + bytes([0, 97]) * rest


@pytest.mark.usefixtures("_limit_memory")
def test_compressed_indices_are_bounded_before_decompression(tmp_path: Path) -> None:
    tracemalloc.reset_peak()
    (tmp_path / "m.index").write_bytes(index_of([(copies((1 << 25) + 65), 1)]))
    with pytest.raises(CheckpointError, match="the decompressed size is 33554497 bytes, but 33554432 are left"):
        Checkpoint(tmp_path / "m")
    assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY / 4
    with pytest.raises(CheckpointError, match="44 compressed bytes are more than Snappy produces for 9"):
        decompress(varint(9) + b"\0a" * 9 + b"\0" * 25, "x")


def test_size_limit_covers_all_blocks_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowgrad.checkpoint.index_file._MAX_DECOMPRESSED_BYTES", 100)
    plain = [block([(b"", header())]), block([(b"t", b"x" * 60)])]
    squeezed = [varint(len(p)) + bytes([60 << 2, len(p) - 1]) + p for p in plain]
    (tmp_path / "m.index").write_bytes(index_of([(s, 1) for s in squeezed]))
    assert len(Checkpoint(tmp_path / "m")) == 1
    monkeypatch.setattr("rowgrad.checkpoint.index_file._MAX_DECOMPRESSED_BYTES", 80)
    with pytest.raises(CheckpointError, match="are left for all blocks of the index"):
        Checkpoint(tmp_path / "m")


def test_cost_of_copies_does_not_depend_on_their_distance() -> None:
    """A copy of 64 bytes from a megabyte back does not copy the megabyte."""
    size = 1 << 20
    literal = bytes([62 << 2]) + (size - 1).to_bytes(3, "little") + bytes(size)
    many = 2000
    tail = (bytes([63 << 2 | 3]) + (size).to_bytes(4, "little")) * many
    began = time.process_time()
    assert len(decompress(varint(size + 64 * many) + literal + tail, "x")) == size + 64 * many
    elapsed = time.process_time() - began
    began = time.process_time()
    for _ in range(200):  # a tenth of the copies, each of a megabyte
        bytes(bytearray(size))
    assert elapsed < 10 * (time.process_time() - began) + 0.1


def test_memory_for_keys_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowgrad.checkpoint.index_file._MAX_TABLE_BYTES", 50_000)
    names = [(b"", header()), *((f"{k:05}".encode(), b"") for k in range(300))]
    (tmp_path / "m.index").write_bytes(index_of([(block(names), 0)]))
    with pytest.raises(CheckpointError, match="size of all keys and values in memory is more than 50000 bytes"):
        Checkpoint(tmp_path / "m")


# -- random damage ---------------------------------------------------------------------------------------------------

MOST_MEMORY = 64 << 20


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    octets = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(octets) + 1))
        match int(rng.integers(5)):
            case 0:
                del octets[at:]
            case 1:
                octets[at:at] = rng.bytes(int(rng.integers(1, 9)))
            case 2:
                del octets[at : at + int(rng.integers(1, 9))]
            case 3:
                octets[at : at + 1] = rng.choice([b"\0", b"\x7f", b"\x80", b"\xff"])
            case _:
                octets[at : at + 1] = rng.bytes(1)
    return bytes(octets)


def read_all(prefix: Path, verify: bool) -> dict[str, np.ndarray]:
    """Read everything that can be read; the rest must raise, without using much memory."""
    found: dict[str, np.ndarray] = {}
    tracemalloc.reset_peak()
    try:
        checkpoint = Checkpoint(prefix, verify=verify)
    except OpError:
        return found
    for name in checkpoint:
        try:
            found[name] = checkpoint.read(name)
            if found[name].ndim:
                assert len(checkpoint.read(name, slice(1, 3))) <= 2
        except OpError:
            found.pop(name, None)
    assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    return found


@pytest.fixture
def _limit_memory() -> Any:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("folder", [name for name in PREFIXES if name != "far_slices"])
@pytest.mark.usefixtures("_limit_memory")
def test_damaged_files_are_rejected_or_read_correctly(tmp_path: Path, folder: str) -> None:
    """One changed byte anywhere in any file: the checksums detect it, or it does not matter."""
    rng = np.random.default_rng(sum(folder.encode()))
    shutil.copytree(PREFIXES[folder].parent, tmp_path, dirs_exist_ok=True)
    prefix = tmp_path / PREFIXES[folder].name
    right = {name: comparable(array).tobytes() for name, array in read_all(prefix, verify=True).items()}
    files = [path for path in sorted(tmp_path.iterdir()) if path.name != "checkpoint"]
    for _ in range(60):
        path = files[int(rng.integers(len(files)))]
        before = path.read_bytes()
        path.write_bytes(damaged(before, rng))
        for name, array in read_all(prefix, verify=True).items():
            assert comparable(array).tobytes() == right[name]
        path.write_bytes(before)


@pytest.mark.parametrize("folder", PREFIXES)
@pytest.mark.usefixtures("_limit_memory")
def test_inconsistent_files_with_valid_checksums_are_harmless(tmp_path: Path, folder: str) -> None:
    """Damage with valid checksums: in the entries of the index, and in the bytes of its block."""
    rng = np.random.default_rng(len(folder))
    shutil.copytree(PREFIXES[folder].parent, tmp_path, dirs_exist_ok=True)
    prefix = tmp_path / PREFIXES[folder].name
    good = Checkpoint(prefix)
    values = {b"": header(files=good._bundle.header.data_files), **good._bundle.values}
    plain = block(sorted(values.items()))
    keys = list(values)
    for turn in range(120):
        if turn % 2:
            (tmp_path / f"{prefix.name}.index").write_bytes(index_of([(damaged(plain, rng), int(turn % 8 == 7))]))
        else:
            key = keys[int(rng.integers(len(keys)))]
            write_index(prefix, values | {key: damaged(values[key], rng)})
        read_all(prefix, verify=bool(turn & 2))


# -- docs ------------------------------------------------------------------------------------------------------------


def test_code_of_the_docs_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its paths are those of the golden checkpoints."""
    monkeypatch.chdir(GOLDEN)
    blocks = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for source in blocks:
        exec(source, names)
