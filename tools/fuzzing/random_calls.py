"""Compare random calls of every kernel op bit for bit with tests/reference.

    python tools/fuzzing/random_calls.py --calls 1000000 --seed 1 [--op SparseAdd] [--processes 2] [--only 4711]

Call number k of a seed is always the same call, for any number of processes. About half of the calls are corrupted;
then the class and message of the error are compared. Child processes make the calls, so a crash or a hang is reported
like any other failure: the report names the call, and `--only` repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from golden_cases import same_bits
from reference import ExpectedError, NotModelled, reference
from reference.plan import plan_of
from rowgrad import set_num_threads
from rowgrad._catalog.spec import CATALOG, Arg, Derived, Op
from rowgrad._runtime.arrays import NUMPY_DTYPE
from rowgrad.errors import OpError
from rowgrad.raw_ops import OPS

Array = np.ndarray[Any, Any]
KERNEL_OPS = [op for op in CATALOG.values() if op.layer == "kernel"]
HANG_SECONDS = 120

# -- values: arguments are slices of one long array per dtype --------------------------------------------------------

POOL, STRETCH = 1 << 16, 512
TEXTS = ["", "a", "row", "übergroß", "\0", b"", b"\xff\x00", b"bytes", "x" * 70]


@cache
def pool(name: str) -> Array:
    """Return values of one dtype: runs of normal, special and nearly subnormal numbers, and of random bits."""
    rng = np.random.default_rng(sum(name.encode()))
    dtype = NUMPY_DTYPE[name]
    if name == "string":
        texts = np.empty(POOL, object)
        texts[:] = [TEXTS[i] for i in rng.integers(len(TEXTS), size=POOL)]
        return texts
    if dtype.names:
        return pool(dtype[0].name).astype(dtype)
    if dtype.kind == "c":
        parts = pool("float32" if name == "complex64" else "float64")
        return np.concatenate([parts, parts[::-1]]).view(dtype)
    if dtype.kind == "b":
        return rng.integers(2, size=POOL).astype(bool)
    makers = _integers(dtype) if dtype.kind in "iu" else _floats(name, dtype)
    with np.errstate(all="ignore"):
        return np.concatenate([makers[rng.integers(len(makers))](rng, STRETCH) for _ in range(POOL // STRETCH)])


def _bits(dtype: np.dtype[Any]) -> Callable[..., Array]:
    return lambda rng, n: np.frombuffer(rng.bytes(n * dtype.itemsize), f"u{dtype.itemsize}").view(dtype)


def _integers(dtype: np.dtype[Any]) -> list[Callable[..., Array]]:
    info = np.iinfo(dtype)
    edges = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2], dtype)
    return [
        lambda rng, n: rng.integers(0 if dtype.kind == "u" else -4, 9, n).astype(dtype),
        lambda rng, n: rng.choice(edges, n),
        _bits(dtype),
    ]


def _floats(name: str, dtype: np.dtype[Any]) -> list[Callable[..., Array]]:
    # bfloat16 and float32 have the same exponents; float16's subnormals are normal in float32
    tiny = 2.0**-1022 if name == "float64" else 2.0**-126
    huge = {"float16": 65504.0, "float64": 1.7976931348623157e308}.get(name, 3.3e38)
    least = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}[name]
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, np.inf, -np.inf, np.nan, huge, -huge, huge / 2, tiny, -tiny, tiny / 2,
             tiny * 1.5, -tiny / 2, least, -least, 1 / huge, 65504.0, 6e-5, 6e-8, 2.0**-12, 1e-3]  # fmt: skip
    return [
        lambda rng, n: rng.integers(-8, 9, n).astype(dtype),
        lambda rng, n: rng.standard_normal(n).astype(dtype),
        lambda rng, n: (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 7, n)).astype(dtype),
        lambda rng, n: rng.choice(np.array(edges), n).astype(dtype),
        lambda rng, n: np.where(rng.random(n) < 0.15, rng.choice(np.array(edges), n), rng.random(n)).astype(dtype),
        lambda rng, n: (tiny * rng.choice([-1, 1], n) * (1 + rng.integers(-3, 4, n) * rng.random(n))).astype(dtype),
        lambda rng, n: (np.sqrt(tiny) * rng.standard_normal(n)).astype(dtype),  # products near the least normal
        lambda rng, n: (huge * rng.uniform(-1, 1, n)).astype(dtype),
        _bits(dtype),
    ]


# -- calls -----------------------------------------------------------------------------------------------------------

# Other ways to pass a plain array x; all must return the same result.
DISGUISES = {
    "strided": "np.repeat(x, 2, axis=-1)[..., ::2]",
    "fortran": "np.asfortranarray(x)",
    "reversed": "x[::-1].copy()[::-1]",
    "read-only": "np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape)",
    "unaligned": "np.frombuffer(b'?' + x.tobytes(), x.dtype, offset=1).reshape(x.shape)",
    "byte-swapped": "x.astype(x.dtype.newbyteorder())",
    "scalar": "x[()]",
    "python": "x.tolist()",
    "narrow": "x.astype(np.int32)",
}
_DISGUISE = {name: eval(f"lambda x: {text}") for name, text in DISGUISES.items()}


@dataclass
class Case:
    """One call: plain inputs for the reference, and the variants that the library gets."""

    op: Op
    command: str  # repeats this call
    attrs: dict[str, Any]
    inputs: dict[str, Array]
    threads: int
    reuse: bool  # whether to call again with out=
    disguises: dict[str, str] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the inputs in their variants."""
        return {k: _DISGUISE[self.disguises[k]](x) if k in self.disguises else x for k, x in self.inputs.items()}


class Maker:
    """Makes the inputs of calls; one method per kernel."""

    def __init__(self, rng: random.Random, op: Op) -> None:
        self.rng, self.op = rng, op
        self.types = {k: rng.choice(v) for k, v in op.types.items() if not isinstance(v, Derived)}
        for name, derived in op.types.items():
            if isinstance(derived, Derived):
                self.types[name] = derived[self.types[derived.of]]
        self.wide = rng.random() < 1 / 400  # rows of many columns, so that threads share them
        self.long = rng.random() < 1 / 30000  # many ids

    # pieces

    def below(self, n: int) -> int:
        return int(self.rng.random() * n)

    def odds(self, p: float) -> bool:
        return self.rng.random() < p

    def count(self) -> int:
        """Draw a number of ids or entries."""
        if self.long:
            return self.rng.choice((40000, 140000)) + self.below(3000)
        if self.wide:
            return 4 + self.below(7)
        r = self.rng.random()
        return self.below(7 if r < 0.75 else 20 if r < 0.95 else 70 if r < 0.995 else 600)

    def rows(self) -> int:
        return self.below(6) + (0 if self.odds(0.1) else 1)

    def rank(self) -> int:
        return 1 + self.below(3) if self.odds(0.97) else 0

    def inner(self) -> tuple[int, ...]:
        if self.wide:
            return (8000 + self.below(8000),)
        if self.long:
            return ()
        if self.odds(0.1):
            return (self.below(40),)
        return tuple(1 + self.below(4) if self.odds(0.95) else 0 for _ in range(self.below(4)))

    def values(self, shape: tuple[int, ...], type_name: str = "T") -> Array:
        source = pool(self.types[type_name])
        n = 1
        for d in shape:
            n *= d
        if n > len(source) // 2:
            return np.resize(source, n).reshape(shape)
        start = self.below(len(source) - n)
        return source[start : start + n].reshape(shape).copy()

    def ids(self, n: int, bound: int, type_name: str, ordered: bool = False) -> Array:
        """Draw n ids below bound, which is at least 1 if n is."""
        drawn = [int(self.rng.random() * bound) for _ in range(n)]
        return np.array(sorted(drawn) if ordered else drawn, self.types.get(type_name, type_name))

    def size(self, value: int, name: str) -> Array:
        dtype = next(a.type for a in self.op.inputs if a.name == name)
        return np.array(value, self.types.get(dtype, dtype))

    # bags

    def sparse_segment(self) -> dict[str, Array]:
        n, rows, segments = self.count(), self.rows(), 1 + self.below(5)
        n = n if rows else 0
        free = self.op.name.endswith("GradGrad") or (self.op.name.startswith("Weighted") and "With" in self.op.name)
        free = free and self.odds(0.7)
        x = {
            "data": self.values((rows, *self.inner())),
            "indices": self.ids(n, rows, "Tidx"),
            "segment_ids": self.ids(n, segments, "Tsegmentids", ordered=not free),
        }
        if "weights" in self.op.input_names:
            x["weights"] = self.values((n,), "Tweights")
        if "num_segments" in self.op.input_names:
            x["num_segments"] = self.size(segments + self.below(3), "num_segments")
        if "starts" in self.op.input_names:
            plan = plan_of(x["indices"].tolist(), x["segment_ids"].tolist(), int(x["num_segments"]))
            types = {"rows": self.types["Tidx"], "segments": self.types["Tsegmentids"]}
            x |= {k: np.array(v, types.get(k, "int64")) for k, v in plan.items()}
            x["num_rows"] = self.size(rows, "num_rows")
        return x

    sparse_segment_grad_grad = weighted_segment = sparse_segment

    def sparse_segment_grad(self) -> dict[str, Array]:
        n, rows, segments = self.count(), self.rows(), self.rows()
        n = n if segments else 0
        x = {"grad": self.values((segments, *self.inner()))}
        if "indices" in self.op.input_names:
            x["indices"] = self.ids(n, rows, "Tidx")
        x["segment_ids"] = self.ids(n, segments, "Tsegmentids", ordered=self.odds(0.5))
        if "weights" in self.op.input_names:
            x["weights"] = self.values((n,), "Tweights")
        size = self.op.inputs[-1].name
        if size.endswith("output_dim0"):
            x[size] = self.size(rows, size)
        return x

    weighted_segment_grad = weighted_segment_grad_rows = sparse_segment_grad

    def sparse_segment_grad_padded(self) -> dict[str, Array]:
        x = self.sparse_segment_grad()
        rows, unique = self.rows(), len(np.unique(x["indices"]))
        rows = max(rows, 1 + int(x["indices"].max(initial=0)))
        x["dense_output_dim0"] = self.size(rows, "dense_output_dim0")
        x["size"] = self.size(max(0, unique + self.below(4) - self.odds(0.1)), "size")
        x["fill_id"] = self.size(rows + self.below(3), "fill_id")
        return x

    # plans

    def row_plan(self) -> dict[str, Array]:
        rows, segments = self.rows(), self.rows()
        n = self.count() if rows and segments else 0
        x = {"indices": self.ids(n, rows, "Tidx"), "segment_ids": self.ids(n, segments, "Tsegmentids")}
        return {**x, "num_rows": self.size(rows, "num_rows"), "num_segments": self.size(segments, "num_segments")}

    def planned_segment_grad(self) -> dict[str, Array]:
        rows, segments = self.rows(), self.rows()
        n = min(self.count(), 3000) if rows and segments else 0
        made = plan_of([self.below(rows) for _ in range(n)], [self.below(segments) for _ in range(n)], segments)
        types = {"rows": self.types["Tidx"], "segments": self.types["Tsegmentids"]}
        x = {k: np.array(v, types.get(k, "int64")) for k, v in made.items()}
        if "grad" in self.op.input_names:
            x["grad"] = self.values((segments + self.below(2), *self.inner()))
        if "weights" in self.op.input_names:
            x["weights"] = self.values((n,), "Tweights")
        return {**x, "num_rows": self.size(rows, "num_rows")}

    planned_ids = planned_weighted_grad = planned_segment_grad

    # bags by offsets

    def offsets(self, bags: int, n: int, closed: bool) -> Array:
        """Draw the starts of `bags` bags of n ids, and the end of the last one."""
        inner = sorted(self.below(n + 1) for _ in range(bags - 1))
        listed = [0, *inner][:bags] + ([n] if closed else [])
        return np.array(listed, self.types.get("Toffsets", self.types["Tidx"]))

    def segment_ids_from_offsets(self) -> dict[str, Array]:
        n = self.count()
        bags = self.below(9) + (1 if n else 0)
        closed = self.odds(0.5)  # without include_last_offset, the end starts an empty last bag
        return {"offsets": self.offsets(max(bags, int(closed)), n, closed), "num_ids": self.size(n, "num_ids")}

    def stack_bags(self) -> dict[str, Array]:
        features, examples = 1 + self.below(4), self.below(5)
        rows = [1 + self.below(6) for _ in range(features)]
        n = self.count() if examples else 0
        offsets = self.offsets(features * examples, n, True)
        if not examples:
            offsets = offsets[-1:]
        starts = offsets.tolist()
        ids = [
            self.below(rows[s // examples]) for s in range(features * examples) for _ in range(starts[s], starts[s + 1])
        ]
        return {
            "indices": np.array(ids, self.types["Tidx"]),
            "offsets": offsets,
            "feature_rows": np.array(rows),
            "feature_first": np.array([self.below(30) for _ in rows]),
        }

    # rows

    def segment_sum(self) -> dict[str, Array]:
        n = self.count()
        segments = self.ids(n, 1 + self.below(5), "Tsegmentids", ordered=True)
        return {"data": self.values((n, *self.inner())), "segment_ids": segments}

    def gather_rows(self) -> dict[str, Array]:
        rows = self.rows()
        indices = self.ids(self.count() if rows else 0, rows, "Tidx")
        return {"params": self.values((rows, *self.inner())), "indices": indices}

    def scatter_rows(self) -> dict[str, Array]:
        rows = self.rows()
        n = self.count() if rows else 0
        grad, indices = self.values((n, *self.inner())), self.ids(n, rows, "Tidx")
        return {"grad": grad, "indices": indices, "num_rows": self.size(rows, "num_rows")}

    def row_positions(self) -> dict[str, Array]:
        listed = sorted({self.below(30) for _ in range(self.below(9))})
        ids = [self.rng.choice(listed) for _ in range(self.count())] if listed else []
        return {"sorted_ids": np.array(listed, self.types["Tidx"]), "ids": np.array(ids, self.types["T"])}

    def sparse_segment_dot(self) -> dict[str, Array]:
        rows, segments, inner = self.rows(), self.rows(), self.inner()
        n = self.count() if rows and segments else 0
        x = {"grad": self.values((segments, *inner)), "data": self.values((rows, *inner))}
        return {**x, "indices": self.ids(n, rows, "Tidx"), "segment_ids": self.ids(n, segments, "Tsegmentids")}

    def row_dot(self) -> dict[str, Array]:
        shape = (self.rows(), *self.inner())
        return {"x": self.values(shape), "y": self.values(shape)}

    # empty rows

    def fill_empty_rows(self) -> dict[str, Array]:
        rows, columns = self.rows(), self.rank()
        n = self.count() if rows else 0
        ids = self.ids(n * columns, max(rows, 1), "int64").reshape(n, columns)
        x = {"values": self.values((n,)), "default_value": self.values(())}
        if "nrows" in self.op.input_names:
            return {"value_rowids": self.ids(n, rows, "int64"), "nrows": np.array(rows), **x}
        return {"indices": ids, "dense_shape": np.array([rows, 5, 5][:columns], np.int64), **x}

    def fill_empty_rows_grad(self) -> dict[str, Array]:
        entries = self.count()
        n = min(self.count(), entries) if self.odds(0.8) else self.count() if entries else 0
        named = self.rng.sample(range(entries), n) if n <= entries and self.odds(0.6) else None
        reverse = self.ids(n, entries, "int64") if named is None else np.array(named, np.int64)
        x = {"reverse_index_map": reverse, "grad_values": self.values((entries,))}
        if "dd_values" in self.op.input_names:
            x |= {"dd_values": self.values((n,)), "dd_default_value": self.values(())}
        return x

    fill_empty_rows_grad_grad = fill_empty_rows_grad

    # coordinates

    def entries(self, n: int, rank: int, ordered: bool = True) -> Array:
        rows = [tuple(int(self.rng.random() * 4) for _ in range(rank)) for _ in range(n)]
        return np.array(sorted(rows) if ordered else rows, np.int64).reshape(n, rank)

    def sparse_slice(self) -> dict[str, Array]:
        n, rank = self.count(), self.below(4)
        box = [[1 + self.below(5), self.below(5) - 1, self.below(5)] for _ in range(rank)]
        shape, start, size = np.array(box, np.int64).reshape(rank, 3).T.copy()
        x = {"indices": self.entries(n, rank, self.odds(0.6)), "values": self.values((n,))}
        return {**x, "shape": shape, "start": start, "size": size}

    def sparse_slice_grad(self) -> dict[str, Array]:
        n, rank = self.count(), self.below(4)
        indices = self.entries(n, rank, self.odds(0.6))
        start = np.array([self.below(4) - 1 for _ in range(rank)], np.int64)
        chosen = indices[[self.odds(0.5) for _ in range(n)]] - start
        values, length = ("grad", n) if "grad" in self.op.input_names else ("backprop_val_grad", len(chosen))
        x = {values: self.values((length,)), "input_indices": indices}
        return {**x, "input_start": start, "output_indices": chosen}

    sparse_slice_grad_grad = sparse_slice_grad

    def sparse_add(self) -> dict[str, Array]:
        n, m, rank = self.count(), self.count(), self.rank()
        x = {}
        for side, length in (("a", n), ("b", m)):
            x[f"{side}_indices"] = self.entries(length, rank, self.odds(0.8))
            x[f"{side}_values"] = self.values((length,))
            x[f"{side}_shape"] = np.array([4] * rank, np.int64)
        x["thresh"] = self.values((), "Treal") if self.odds(0.7) else np.zeros((), NUMPY_DTYPE[self.types["Treal"]])
        return x

    def sparse_add_grad(self) -> dict[str, Array]:
        n, m, rank = self.count(), self.count(), self.rank()
        a, b = self.entries(n, rank, self.odds(0.8)), self.entries(m, rank, self.odds(0.8))
        merged = sorted({tuple(row) for row in (*a.tolist(), *b.tolist()) if self.odds(0.8)})
        total = np.array(merged, np.int64).reshape(len(merged), rank)
        if self.odds(0.2):
            total = self.entries(self.count(), rank, self.odds(0.5))
        x = {"a_indices": a, "b_indices": b, "sum_indices": total}
        if "da" in self.op.input_names:
            return {"da": self.values((n,)), "db": self.values((m,)), **x}
        return {"backprop_val_grad": self.values((len(total),)), **x}

    sparse_add_grad_grad = sparse_add_grad

    # corruptions

    def corrupt(self, x: dict[str, Array]) -> None:
        """Make one input invalid or unusual."""
        arg = self.rng.choice(self.op.inputs)
        array = x[arg.name]
        integers = array.dtype.kind == "i" and (arg.host or arg.role == "ids")
        r = self.rng.random()
        if integers and array.size and (r < 0.6 or self.long):
            flat = array.copy().reshape(-1)
            flat[self.below(flat.size)] = self.unusual_integer(array.dtype, x)
            x[arg.name] = flat.reshape(array.shape)
        elif arg.name == "thresh" and r < 0.3:
            reals = [d for d in self.op.types["Treal"].declared if d != self.types["Treal"]]  # type: ignore[union-attr]
            x["thresh"] = np.zeros(array.shape, NUMPY_DTYPE[self.rng.choice(reals)])
        elif not integers and array.ndim and r < 0.1:
            inner = self.rng.choice([(0, 1 << 40), (1 << 40, 0), (1 << 33, 0), (3, 0, 1 << 40), (0, 1 << 30, 1 << 25)])
            x[arg.name] = np.zeros(inner, array.dtype)
        elif r < 0.75:
            x[arg.name] = self.other_rank(array)
        else:
            x[arg.name] = self.other_length(array)

    def unusual_integer(self, dtype: np.dtype[Any], x: dict[str, Array]) -> int:
        """Draw an integer just outside of the valid range, or far from it."""
        info, r = np.iinfo(dtype), self.rng.random()
        if r < 0.3:
            lengths = [len(a) for a in x.values() if a.ndim]
            return min((self.rng.choice(lengths) if lengths else 0) + self.below(3) - 1, info.max)
        if r < 0.5:
            return -1 - self.below(2)
        if r < 0.6:
            return self.below(12)
        edges = [info.min, info.min + 1, info.max, info.max - 1, 1 << 31, (1 << 31) - 1, (1 << 32) + self.below(4),
                 -(1 << 31), 1 << 40, 1 << 62, -(1 << 62), 1 << 20 if self.odds(0.02) else 55109]  # fmt: skip
        return self.rng.choice([e for e in edges if info.min <= e <= info.max])

    def other_rank(self, array: Array) -> Array:
        if array.ndim and self.odds(0.4):
            return array[:1].reshape(()).copy() if array.ndim == 1 and array.size else array.reshape(-1)
        return array[np.newaxis] if self.odds(0.5) else array[..., np.newaxis]

    def other_length(self, array: Array) -> Array:
        if array.ndim == 0:
            return array.reshape(1).repeat(self.below(3))
        axis = self.below(array.ndim)
        if array.shape[axis] and self.odds(0.5):
            return array[(slice(None),) * axis + (slice(-1),)].copy()
        return np.concatenate([array, array.take([0], axis) if array.shape[axis] else np.zeros_like(array)], axis)

    def disguise(self, x: dict[str, Array]) -> dict[str, str]:
        """Convert one or two inputs to another type or layout."""
        chosen = {}
        for _ in range(1 + self.below(2)):
            arg = self.rng.choice(self.op.inputs)
            array, fixed = x[arg.name], arg.type not in self.op.types
            chosen.pop(arg.name, None)
            variants = ["scalar"] if array.ndim == 0 else ["strided", "fortran", "reversed"]
            if array.dtype.kind != "O":
                variants += ["read-only", "unaligned"]
            if (array.dtype.kind in "iufc" and array.dtype.itemsize > 1) or array.dtype.names:
                variants.append("byte-swapped")
            if fixed and array.dtype.kind == "i":
                variants.append("python")
                variants += ["narrow"] if array.size < 100 and (array == array.astype(np.int32)).all() else []
            elif array.dtype.kind in "iuf" and "python" not in chosen.values() and self.follows(arg, array.dtype):
                variants.append("python")
            if array.size:
                chosen[arg.name] = self.rng.choice(variants)
        return chosen

    def follows(self, arg: Arg, dtype: np.dtype[Any]) -> bool:
        """Return whether a Python number for this argument takes its dtype from another argument."""
        shared = sum(a.type == arg.type for a in self.op.inputs) > 1 or arg.type == "Treal"
        return shared and dtype == NUMPY_DTYPE[self.types[arg.type]]


def make_case(seed: int, number: int, op_name: str | None = None) -> tuple[Case, Any]:
    """Return call `number` of a seed, and the reference's result: outputs or an ExpectedError."""
    rng = random.Random((seed << 48) + number)
    while True:
        op = CATALOG[op_name] if op_name else rng.choice(KERNEL_OPS)
        maker = Maker(rng, op)
        made = getattr(maker, str(op.kernel))()
        inputs = {name: made[name] for name in op.input_names}
        if rng.random() < 0.5:
            for _ in range(1 if rng.random() < 0.75 else 2):
                maker.corrupt(inputs)
        attrs = {name: rng.choice(op.choices[name]) for name in op.attrs}
        try:
            expected: Any = reference(op.name, inputs, attrs)
        except ExpectedError as error:
            expected = error
        except NotModelled:
            continue
        only_op = f" --op {op_name}" if op_name else ""
        command = f"tools/fuzzing/random_calls.py --seed {seed} --only {number}{only_op}"
        case = Case(op, command, attrs, inputs, rng.choice((1, 2, 3, 8)), rng.random() < 0.1)
        if rng.random() < 0.5:
            case.disguises = maker.disguise(inputs)
        return case, expected


# -- comparison ------------------------------------------------------------------------------------------------------


def call(case: Case, arguments: dict[str, Any], **more: Any) -> tuple[Array, ...]:
    """Return the library's result."""
    outputs = OPS[case.op.name](**arguments, **case.attrs, **more)
    return outputs if len(case.op.outputs) > 1 else (outputs,)


def snapshot(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray | np.generic) else repr(value)


def same(a: Any, b: Array) -> bool:
    if not isinstance(a, np.ndarray) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind == "O":
        return bool(a.tolist() == b.tolist())
    with np.errstate(invalid="ignore"):
        return a.tobytes() == b.tobytes() or (a.dtype.kind in "fcV" and not a.dtype.names and same_bits(a, b))


def difference(case: Case, expected: Any) -> str | None:
    """Return the difference between the library's result and the reference's, or None."""
    arguments = case.arguments()
    before = [snapshot(a) for a in arguments.values()]
    set_num_threads(case.threads)
    try:
        got: Any = call(case, arguments)
        wrong = _compare_outputs(case, arguments, got, expected)
        if not wrong and case.reuse:
            given = tuple(map(_filled_like, got))
            got = call(case, arguments, out=given)
            changed = not all(a is b for a, b in zip(got, given, strict=True))
            wrong = "out= was not used" if changed else _compare_outputs(case, arguments, got, expected)
    except OpError as error:
        wrong = _compare_error(error, expected)
    except Exception:
        wrong = f"an exception that is not an OpError\n{traceback.format_exc()}"
    changed = [name for name, old in zip(arguments, before, strict=True) if snapshot(arguments[name]) != old]
    return wrong or (f"the call changed {', '.join(changed)}" if changed else None)


def _compare_outputs(case: Case, arguments: dict[str, Any], got: tuple[Array, ...], expected: Any) -> str | None:
    if isinstance(expected, ExpectedError):
        return f"did not raise\n  library:   {', '.join(map(_show, got))}\n  reference: {expected}"
    for output, a, b in zip(case.op.outputs, got, expected, strict=True):
        if not same(a, b):
            return f"{output.name} differs\n  library:   {_show(a)}\n  reference: {_show(b)}"
        for name, x in arguments.items():
            if isinstance(x, np.ndarray) and np.may_share_memory(a, x) and np.shares_memory(a, x):
                return f"{output.name} shares memory with {name}"
    return None


def _compare_error(error: OpError, expected: Any) -> str | None:
    raised = f"{type(error).__name__}: {error.message}"
    if not isinstance(expected, ExpectedError):
        return f"raised\n  library:   {raised}\n  reference: {', '.join(map(_show, expected))}"
    return None if raised == str(expected) else f"raised another error\n  library:   {raised}\n  reference: {expected}"


def _show(array: Any) -> str:
    return f"{array.dtype} {array.shape} {array.tolist()!r}"[:2000] if isinstance(array, np.ndarray) else repr(array)


def _filled_like(like: Array) -> Array:
    """Return an array of the same shape and dtype without zeros."""
    if like.dtype.kind == "O" or like.nbytes == 0:
        return np.empty_like(like)
    return np.frombuffer(bytearray(b"\x5a" * like.nbytes), like.dtype).reshape(like.shape)


def first_failure(
    numbers: Iterable[int], seed: int, op_name: str | None = None, notes: Any = None, at: int = 0
) -> str | None:
    """Run calls until one fails. notes[at:] receives the next call, the number done, and the number of errors."""
    notes = notes or [0, 0, 0]
    for number in numbers:
        notes[at] = number
        case, expected = make_case(seed, number, op_name)
        wrong = difference(case, expected)
        if wrong:
            return f"{case.op.name}: {wrong}\n{recipe(case)}"
        notes[at + 2] += isinstance(expected, ExpectedError)
        notes[at + 1] += 1
    return None


# -- a call as a program ---------------------------------------------------------------------------------------------

HEAD = """import ml_dtypes, numpy as np, rowgrad
from numpy import inf, nan
"""


def recipe(case: Case) -> str:
    """Return the call as a standalone program."""
    lines = [f"# {case.command}"]
    if any(a.size > 5000 for a in case.inputs.values()):
        return f"{lines[0]}  (its inputs are too large to print)"
    lines += [f"{HEAD}rowgrad.set_num_threads({case.threads})", f"rowgrad.raw_ops.{case.op.name}("]
    for name, array in case.inputs.items():
        variant = case.disguises.get(name)
        lines.append(
            f"    {name}={f'(lambda x: {DISGUISES[variant]})({literal(array)})' if variant else literal(array)},"
        )
    lines += [f"    {k}={v!r}," for k, v in case.attrs.items()]
    return "\n".join([*lines, ")" + ("  # and again, with out=" if case.reuse else "")])


def literal(array: Array) -> str:
    """Return an expression for this array."""
    name = array.dtype.name
    dtype = {"object": "object", "bfloat16": "ml_dtypes.bfloat16"}.get(name, f"np.dtype({name!r})")
    dtype = f"np.{array.dtype!r}" if array.dtype.names else dtype
    if array.size == 0:
        return f"np.zeros({array.shape}, {dtype})"
    if array.dtype.kind == "c":
        values = ", ".join(f"complex({v.real!r}, {v.imag!r})" for v in array.reshape(-1).tolist())
        return f"np.array([{values}], {dtype}).reshape({array.shape})"
    plain = array.astype(np.float64) if name == "bfloat16" else array
    return f"np.array({plain.tolist()!r}, {dtype})"


# -- processes -------------------------------------------------------------------------------------------------------


def work(part: int, parts: int, options: argparse.Namespace, notes: Any, channel: Connection) -> None:
    """Run every parts-th call in a child process."""
    channel.send(first_failure(range(part, options.calls, parts), options.seed, options.op, notes, 3 * part))


def run(options: argparse.Namespace, target: Callable[..., None] = work) -> int:
    """Run all calls in child processes; return 0 if all passed."""
    context = multiprocessing.get_context("spawn")
    parts = max(1, min(options.processes, options.calls))
    notes = context.RawArray("q", 3 * parts)
    children: dict[Connection, Any] = {}
    for part in range(parts):
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=target, args=(part, parts, options, notes, send), daemon=True)
        child.start()
        send.close()
        children[receive] = child
    try:
        failure = _watch(options, notes, children)
    finally:
        for child in children.values():
            child.kill()
    if failure:
        print(f"\n{failure}\n")
    print(f"{sum(notes[1::3])} passed, {1 if failure else 0} failed")
    return 1 if failure else 0


def _watch(options: argparse.Namespace, notes: Any, children: dict[Connection, Any]) -> str | None:
    """Show the progress of the children until all have finished or one has failed, died or hung."""
    part_of = {channel: part for part, channel in enumerate(children)}
    begin, live = time.monotonic(), sys.stdout.isatty()
    moved = [(begin, -1)] * len(children)
    waiting, shown = set(children), begin
    while waiting:
        for channel in wait(list(waiting), timeout=1.0):
            waiting.discard(channel)  # type: ignore[arg-type]
            child = children[channel]  # type: ignore[index]
            try:
                failure = channel.recv()  # type: ignore[union-attr]
            except EOFError:
                child.join()
                failure = f"a process died with exit code {child.exitcode}\n{_recipe(options, notes, part_of[channel])}"
            if failure:
                return str(failure)
        now, done = time.monotonic(), sum(notes[1::3])
        for part in (part_of[channel] for channel in waiting):
            if notes[3 * part + 1] != moved[part][1]:
                moved[part] = (now, notes[3 * part + 1])
            elif now - moved[part][0] > HANG_SECONDS:
                return f"a call does not end\n{_recipe(options, notes, part)}"
        if now - shown >= (1 if live else 10) or not waiting:
            shown = now
            line = f"{done} of {options.calls} calls, {sum(notes[2::3])} errors, {done / (now - begin):.0f} calls/s"
            print(f"\r{line:70}" if live else line, end="" if live and waiting else "\n", flush=True)
    return None


def _recipe(options: argparse.Namespace, notes: Any, part: int) -> str:
    return recipe(make_case(options.seed, notes[3 * part], options.op)[0])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--op", choices=[op.name for op in KERNEL_OPS], help="calls of this op only")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run one call of this seed, in this process")
    options = parser.parse_args(argv)
    if options.only is None:
        return run(options)
    print(recipe(make_case(options.seed, options.only, options.op)[0]), flush=True)
    failure = first_failure([options.only], options.seed, options.op)
    print(f"\n{failure}" if failure else "passed")
    return 1 if failure else 0


if __name__ == "__main__":
    raise SystemExit(main())
