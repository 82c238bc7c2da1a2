"""A session's Variables and counters in one file, and errors in that file."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_samples import array_of, same

from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.graph.io.state_file import State, load_state, save_state
from rowgrad.graph.page import PageError


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(path: Path, content: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, raw in content.items():
            archive.writestr(name, raw)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_state(tmp_path / "s", {"w": array_of("float32", (5, 3)), "t": array_of("string", (4,))}, {"n": 3}, "basic")
    return tmp_path / "s"


def test_a_state_round_trips(tmp_path: Path) -> None:
    shapes: list[tuple[int, ...]] = [(), (0, 3), (7,), (300, 5)]
    variables = {f"{d}/{s}": array_of(d, s, i) for i, d in enumerate(NUMPY_DTYPE) for s in shapes}
    counters = {"steps": 12, "a: b": -1, "large": 2**70}
    save_state(tmp_path / "s", variables, counters, "ünï")
    state = load_state(tmp_path / "s")
    assert (state.page, state.counters, list(state.variables)) == ("ünï", counters, list(variables))
    for name, array in state.variables.items():
        assert same(array, variables[name]), name
        assert array.flags.writeable
    first = (tmp_path / "s").read_bytes()
    save_state(tmp_path / "s", state.variables, state.counters, state.page)
    assert (tmp_path / "s").read_bytes() == first
    assert load_state(tmp_path / "s").counters["large"] == 2**70


def test_an_empty_state_round_trips(tmp_path: Path) -> None:
    save_state(tmp_path / "s", {}, {}, "")
    assert load_state(tmp_path / "s") == State("")


def test_numpy_reads_the_arrays(path: Path) -> None:
    with np.load(path, allow_pickle=False) as file:
        assert same(file["variables/0"], array_of("float32", (5, 3)))


@pytest.mark.parametrize(
    "variables", [{"w": np.array([object()])}, {"w": np.array(["\ud800"])}, {"\ud800": np.zeros(1)}]
)
def test_unsupported_state_raises(variables: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PageError, match="variables"):
        save_state(tmp_path / "s", variables, {}, "p")
    with pytest.raises(PageError, match=r"counters\.n"):
        save_state(tmp_path / "s", {}, {"n": 1.5}, "p")  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())


CHANGES: list[tuple[str, Any, str]] = [
    ("format", "rowgrad-page", "'rowgrad-state'"),
    ("version", 3, "newer rowgrad: version 3"),
    ("colour", 1, "unknown field"),
    ("page", None, "page: must be a string"),
    ("counters", {"n": "x"}, "counters.n: must be an integer"),
    ("counters", {"n": 1.0}, "counters.n: must be an integer"),
    ("variables", [{"name": "w"}], r"variables\[0\].dtype: this field is missing"),
    ("variables", [{"name": "w", "dtype": "int8", "shape": [1], "member": "../x"}], "'variables/0.npy'"),
]


@pytest.mark.parametrize(("key", "value", "message"), CHANGES)
def test_invalid_headers_raise(key: str, value: Any, message: str, path: Path) -> None:
    content = members(path)
    head = json.loads(content["state.json"]) | {key: value}
    write_members(path, content | {"state.json": json.dumps(head).encode()})
    with pytest.raises(PageError, match=message) as caught:
        load_state(path)
    assert caught.value.place == f"{path}: state.json"


@pytest.mark.parametrize(
    ("key", "value"), [("shape", [15]), ("shape", [10**12]), ("dtype", "int32"), ("dtype", "int8")]
)
def test_members_must_match_the_header(key: str, value: Any, path: Path) -> None:
    content = members(path)
    head = json.loads(content["state.json"])
    head["variables"][0][key] = value
    write_members(path, content | {"state.json": json.dumps(head).encode()})
    with pytest.raises(PageError, match="it holds float32 of shape") as caught:
        load_state(path)
    assert caught.value.place == f"{path}: variables/0.npy"


def test_errors_name_the_member(path: Path) -> None:
    content = members(path)
    for name in content:
        write_members(path, {other: raw for other, raw in content.items() if other != name})
        with pytest.raises(PageError, match=f"{name}: this member is missing"):
            load_state(path)
    write_members(path, content | {"more": b""})
    with pytest.raises(PageError, match="more: the header does not name"):
        load_state(path)
    write_members(path, content, zipfile.ZIP_DEFLATED)
    with pytest.raises(PageError, match="compressed"):
        load_state(path)
    write_members(path, content)
    raw = path.read_bytes()
    at = raw.index(content["variables/0.npy"][-20:])
    path.write_bytes(raw[:at] + b"\0\0\0\0" + raw[at + 4 :])
    with pytest.raises(PageError, match=r"variables/0\.npy: damaged.*CRC"):
        load_state(path)


def test_files_of_another_kind_raise(path: Path) -> None:
    for raw in (b"", b"{}", b"PK\5\6" + bytes(18), path.read_bytes()[:-40]):
        path.write_bytes(raw)
        with pytest.raises(PageError, match=str(path)):
            load_state(path)
    with pytest.raises(PageError, match="folder"):
        load_state(path.parent)
    with pytest.raises(FileNotFoundError):
        load_state(path.parent / "none")
    np.savez(path.with_suffix(".npz"), w=np.zeros(3))
    with pytest.raises(PageError, match=r"state\.json: this member is missing"):
        load_state(path.with_suffix(".npz"))


def test_pickled_objects_are_never_read(path: Path) -> None:
    content = members(path)
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in content.items():
            if name == "variables/0.npy":
                with archive.open(name, "w") as member:
                    np.save(member, np.array([[{}] * 3] * 5), allow_pickle=True)
            else:
                archive.writestr(name, raw)
    with pytest.raises(PageError, match="it holds object"):
        load_state(path)


def test_damaged_files_are_read_or_rejected(path: Path) -> None:
    whole, draw = path.read_bytes(), random.Random(0)
    wanted = load_state(path)
    for _ in range(3000):
        raw = bytearray(whole)
        for _ in range(draw.choice((1, 1, 3, 20))):
            raw[draw.randrange(len(raw))] = draw.choice((0, 1, 255, draw.randrange(256)))
        if draw.random() < 0.2:
            del raw[draw.randrange(len(raw)) :]
        path.write_bytes(raw)
        try:
            found = load_state(path)
        except PageError as error:
            place = error.place
            assert place.startswith(str(path))
        else:  # only unused bytes changed
            assert same(list(found.variables.values()), list(wanted.variables.values()))
            assert found.counters == wanted.counters
