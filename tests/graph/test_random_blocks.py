"""Random blocks: TensorFlow's streams, reproducible on every engine, with the right distribution."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from golden_cases import FOLDER
from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.errors import InvalidArgumentError
from rowgrad.graph import ClientSession, PageError, Scope, ops
from rowgrad.graph.io.state_file import save_state
from rowgrad.graph.state import identity_of
from rowgrad.graph.variables import logarithm, philox, sine_and_cosine

with np.load(FOLDER / "random.npz") as _members:
    RECORDED = dict(_members)
STREAMS = sorted({key.rpartition("/")[0] for key in RECORDED})
ULPS = {"float16": 0, "bfloat16": 0, "float32": 8, "float64": 8}


@pytest.mark.parametrize("stream", STREAMS)
def test_streams_match_tensorflow(stream: str) -> None:
    kind, dtype, seed, seed2 = stream.split("/")
    root = Scope.new_root_scope()
    numbers = getattr(ops, kind)(root, [3, 7], dtype=dtype, seed=int(seed), seed2=int(seed2))
    session = ClientSession(root)
    for run in range(3):
        got, wanted = session.run(numbers), RECORDED[f"{stream}/{run}"]
        assert got.dtype == NUMPY_DTYPE[dtype]
        if kind == "RandomUniform" or ULPS[dtype] == 0:
            assert got.tobytes() == wanted.tobytes()
        else:
            np.testing.assert_allclose(
                got, wanted, rtol=ULPS[dtype] * np.finfo(dtype).eps, atol=8 * np.finfo(dtype).eps
            )


def test_philox_known_answers() -> None:
    """The authors' test vectors: counter and key all zeros, and all ones."""
    assert philox(0, 0, 0, 1)[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = (1 << 64) - 1
    assert philox(ones, ones, ones, 1)[0].tolist() == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_the_stream_does_not_depend_on_its_start() -> None:
    whole = philox(3, 4, 0, 50)
    assert philox(3, 4, 17, 20).tolist() == whole[17:37].tolist()
    edge = philox(3, 4, (1 << 64) - 1, 2)  # the counter carries into seed2's half
    assert edge[1].tolist() == philox(3, 5, 0, 1)[0].tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_distributions_have_the_right_moments(dtype: str) -> None:
    root = Scope.new_root_scope()
    fetches = [
        ops.RandomUniform(root, [40000], dtype=dtype, seed=8),
        ops.RandomNormal(root, [40001], dtype=dtype, seed=8),
    ]
    uniform, normal = (v.astype(np.float64) for v in ClientSession(root).run(fetches))
    assert 0.0 <= uniform.min() < uniform.max() < 1.0
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(uniform.std() - math.sqrt(1 / 12)) < 0.01
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1.0) < 0.02
    assert abs((normal**4).mean() - 3.0) < 0.15


def test_logarithm_sine_and_cosine_are_accurate() -> None:
    x = np.concatenate([np.linspace(1e-7, 1.0, 20001), [2.0**-24, 0.5, math.sqrt(0.5)]])
    np.testing.assert_allclose(logarithm(x), [math.log(v) for v in x], rtol=4e-16, atol=1e-16)
    turns = np.linspace(0.0, 1.0, 20001)[:-1]
    sine, cosine = sine_and_cosine(turns)
    np.testing.assert_allclose(sine, np.sin(2 * np.pi * turns), atol=1e-15)
    np.testing.assert_allclose(cosine, np.cos(2 * np.pi * turns), atol=1e-15)


def test_equal_seeds_draw_equal_numbers_for_constant_and_computed_shapes() -> None:
    root = Scope.new_root_scope()
    size = ops.Placeholder(root, dtype="int32", shape=[2])
    a, b = (ops.RandomUniform(root, size, seed=5, seed2=6) for _ in range(2))
    session = ClientSession(root)
    first = session.run([a, b], {size: [2, 3]})
    assert first[0].tobytes() == first[1].tobytes()
    assert session.run(a, {size: [2, 3]}).tobytes() != first[0].tobytes()
    assert session.run(a, {size: [0, 3]}).shape == (0, 3)
    with pytest.raises(InvalidArgumentError, match="non-negative, got -1"):
        ops.RandomNormal(root, [-1])
    with pytest.raises(InvalidArgumentError, match="seed must contain values of int64"):
        ops.RandomNormal(root, [1], seed=1 << 65)


@pytest.mark.parametrize("count", [-1, 2**128])
def test_a_state_with_an_invalid_counter_raises(count: int, tmp_path: Path) -> None:
    root = Scope.new_root_scope("page")
    noise = ops.RandomUniform(root.with_op_name("noise"), [2], seed=1)
    session = ClientSession(root)
    expected = ClientSession(root).run(noise).tolist()
    save_state(tmp_path / "state", {}, {"noise": count}, "page", identity_of(root.graph))
    with pytest.raises(PageError, match=r"counter of noise must be from 0 to 2\*\*128 - 1"):
        session.restore(tmp_path / "state")
    assert session.run(noise).tolist() == expected
    save_state(tmp_path / "state", {}, {"noise": 2**128 - 1}, "page", identity_of(root.graph))
    session.restore(tmp_path / "state")
