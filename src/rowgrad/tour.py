"""The tour: a lookup, its gradient and an error, on the data of a small recommender; at length, every operator."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TextIO

import numpy as np

from ._hints import install_command
from .autodiff import densify, vjp
from .errors import OpError
from .lookup import safe_embedding_lookup_sparse
from .raw_ops import OPS
from .sparse import SparseTensor

# Four visitors and the films they watched; visitor 2 is new and has not watched any.
FILMS = ["Alien", "Brazil", "Casablanca", "Dune", "Eraserhead"]
WATCHED = SparseTensor([[0, 0], [0, 1], [1, 0], [3, 0], [3, 1], [3, 2]], np.array([0, 3, 2, 3, 3, 4]), [4, 3])
MINUTES = np.array([1.0, 3.0, 2.0, 1.0, 1.0, 2.0], np.float32)
TABLE = np.array([[1, 2], [3, 5], [8, 13], [21, 34], [55, 89]], np.float32)


# What the short tour types, and why. Each line runs as it is printed.
_STEPS = (
    ("A table of five films, two numbers each.",
     "import numpy as np, rowgrad as rg",
     "table = np.array([[1, 2], [3, 5], [8, 13], [21, 34], [55, 89]], np.float32)"),
    ("What four visitors watched: 0 two films, 1 one, 2 nothing yet, 3 three.",
     "places, films = [[0, 0], [0, 1], [1, 0], [3, 0], [3, 1], [3, 2]], np.array([0, 3, 2, 3, 3, 0])",
     "watched = rg.SparseTensor(places, films, [4, 3])"),
    ("One row per visitor, the mean of the films; who watched nothing gets film 2. The same bits as TensorFlow's.",
     "rg.safe_embedding_lookup_sparse(table, watched, combiner='mean', default_id=2)"),
    ("Its gradient has only the rows that were used; films 1 and 4 are not among them.",
     "grad, _ = rg.vjp(rg.safe_embedding_lookup_sparse, (table, watched), np.ones((4, 2), np.float32), default_id=2)",
     "grad.indices",
     "grad.values"),
    ("4096 gradients of 1 for one row add up to 4096, in bfloat16 too. Sums in 16 bits would stop at 256.",
     "import ml_dtypes",
     "ones, row, bags = np.ones((4096, 1), ml_dtypes.bfloat16), [0] * 4096, np.arange(4096)",
     "rg.raw_ops.SparseSegmentSumGrad(ones, row, bags, output_dim0=1)"),
    ("A mistake is an error with advice, raised before anything is written.",
     "rg.raw_ops.SparseSegmentMean(table, [0, 1, 2], [0, 1, 0])"),
)  # fmt: skip
_MISTAKE = _STEPS[-1][-1]
_DIM, _BOLD, _GREEN, _RED = "2", "1", "32", "31"


def run_tour(out: TextIO, colour: bool = False) -> None:
    """Print the short tour: a few calls with their results, and what to do next."""

    def paint(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if colour else text

    names: dict[str, Any] = {}
    for comment, *lines in _STEPS:
        print(paint(f"# {comment}", _DIM), file=out)
        for line in lines:
            print(paint(">>> ", _GREEN) + paint(line, _BOLD), file=out)
            try:
                shown = _result(line, names)
            except OpError as error:
                if line != _MISTAKE:
                    raise
                shown = paint(f"{type(error).__name__}: {error}", _RED)
            if shown:
                print(shown, file=out)
        print(file=out)
    print(paint("Next", _BOLD), file=out)
    for command, purpose in _next_steps(find_spec):
        print(f"  {paint(f'{command:34}', _GREEN)} {purpose}", file=out)


def _result(line: str, names: dict[str, Any]) -> str:
    """Run a line of the tour; return the text of its value, if it is an expression."""
    try:
        code = compile(line, "tour", "eval")
    except SyntaxError:
        exec(line, names)
        return ""
    return repr(eval(code, names))


def _next_steps(find: Callable[[str], Any]) -> list[tuple[str, str]]:
    """Return commands to try next, and what they do, for the libraries that are installed."""
    steps = [
        ("rowgrad tour --all", "every operator and its gradient"),
        ("rowgrad ops SparseSegmentMean", "one operator: arguments, dtypes, gradients, an example"),
    ]
    for module, extra, purpose in (
        ("torch", "torch", "modules and optimizers for PyTorch"),
        ("jax", "jax", "lookups and tables for JAX"),
    ):
        steps.append((f"import rowgrad.{module} in Python" if find(module) else install_command(extra), purpose))
    is_ready = all(map(find, ("starlette", "uvicorn", "h11")))
    studio = "rowgrad studio --gallery" if is_ready else install_command("studio")
    return [*steps, (studio, "draw gradients in the browser")]


def run_all(out: TextIO) -> None:
    """Print every operator's result and gradient."""
    print("A table of five films, two numbers each, and what four visitors watched (visitor 2: nothing yet).", file=out)
    _print(out, "table", TABLE, FILMS)
    _print(out, "watched: visitor, place", WATCHED.indices, [FILMS[i] for i in WATCHED.values])
    _segments(out)
    _weighted(out)
    _empty_rows(out)
    _slice_and_add(out)
    _lookup(out)


def _section(out: TextIO, title: str) -> None:
    print(f"\n== {title} " + "=" * max(0, 100 - len(title)), file=out)


def _print(out: TextIO, title: str, array: Any, labels: list[str] | None = None) -> None:
    array = densify(array)
    print(f"\n{title}  {array.dtype}{list(array.shape)}", file=out)
    rows = array.reshape(array.shape[0], -1) if array.ndim else array.reshape(1, 1)
    names = labels or [f"[{i}]" for i in range(len(rows))]
    width = max(map(len, names), default=0)
    for name, row in zip(names, rows, strict=True):
        print(f"  {name:{width}}  " + "  ".join(_number(v) for v in row), file=out)


def _number(value: Any) -> str:
    if isinstance(value, str | bytes | bool | np.bool_):
        return f"{value!s:>9}"
    return f"{int(value):>9}" if np.dtype(type(value)).kind in "iu" else f"{float(value):>9.4f}"


def _segments(out: TextIO) -> None:
    visitors, films = WATCHED.indices[:, 0], WATCHED.values
    upstream = np.array([[1, 1], [1, 1], [1, 1], [1, 1]], np.float32)
    for kind in ("Sum", "Mean", "SqrtN"):
        _section(out, f"SparseSegment{kind} and its gradient")
        x = {"data": TABLE, "indices": films, "segment_ids": visitors}
        _print(out, f"SparseSegment{kind}: one row per visitor", OPS[f"SparseSegment{kind}"](**x))
        known = OPS[f"SparseSegment{kind}WithNumSegments"](**x, num_segments=5)
        _print(out, f"SparseSegment{kind}WithNumSegments: with a row for a fifth visitor", known)
        grad = OPS[f"SparseSegment{kind}Grad"](upstream, films, visitors, output_dim0=len(TABLE))
        _print(out, f"SparseSegment{kind}Grad: the whole table", grad, FILMS)
        rows, ids = OPS[f"SparseSegment{kind}GradV2"](upstream, films, visitors, dense_output_dim0=len(TABLE))
        _print(out, f"SparseSegment{kind}GradV2: only films that were watched", rows, [FILMS[i] for i in ids])
        again = vjp(f"SparseSegment{kind}Grad", (upstream, films, visitors, len(TABLE)), TABLE)[0]
        _print(out, "… and the gradient of that gradient, which TensorFlow does not have", again)


def _weighted(out: TextIO) -> None:
    _section(out, "Weighted by minutes watched: Σwx, Σwx/Σw, Σwx/√Σw²")
    visitors, films = WATCHED.indices[:, 0], WATCHED.values
    for kind in ("Sum", "Mean", "SqrtN"):
        name, x = f"WeightedSparseSegment{kind}", (TABLE, films, visitors, MINUTES)
        result = OPS[name](*x)
        to_table, _, _, to_weights = vjp(name, x, np.ones_like(result))
        _print(out, name, result)
        _print(out, f"{name}: gradient for the table", to_table, FILMS)
        _print(out, f"{name}: gradient for the minutes", to_weights, [FILMS[i] for i in films])
    _print(out, "SegmentSum: minutes per visitor", OPS["SegmentSum"](MINUTES, visitors))


def _empty_rows(out: TextIO) -> None:
    _section(out, "Visitors without films")
    titles = np.array([FILMS[i] for i in WATCHED.values], object)
    filled = OPS["SparseFillEmptyRows"](WATCHED.indices, titles, WATCHED.dense_shape, "(none)")
    _print(out, "SparseFillEmptyRows: values", filled.output_values, [str(i.tolist()) for i in filled.output_indices])
    _print(out, "empty_row_indicator", filled.empty_row_indicator)
    upstream = np.arange(1, len(filled.output_values) + 1, dtype=np.float32)
    d_values, d_default = OPS["SparseFillEmptyRowsGrad"](filled.reverse_index_map, upstream)
    _print(out, "SparseFillEmptyRowsGrad: d_values", d_values, list(titles))
    _print(out, "SparseFillEmptyRowsGrad: d_default_value", d_default)
    ragged = OPS["RaggedFillEmptyRows"](WATCHED.indices[:, 0], MINUTES, 4, 0.0)
    _print(out, "RaggedFillEmptyRows: minutes", ragged.output_values, [f"row {r}" for r in ragged.output_value_rowids])
    d_values, _ = OPS["RaggedFillEmptyRowsGrad"](ragged.reverse_index_map, upstream)
    _print(out, "RaggedFillEmptyRowsGrad: d_values", d_values)


def _slice_and_add(out: TextIO) -> None:
    _section(out, "Slices and sums of sparse tensors")
    x = (WATCHED.indices, MINUTES, WATCHED.dense_shape)
    cut = OPS["SparseSlice"](*x, start=[1, 0], size=[3, 2])
    _print(out, "SparseSlice: visitors 1 to 3, first two places", cut.output_values, _places(cut.output_indices))
    upstream = np.array([10, 20, 30], np.float32)
    back = OPS["SparseSliceGrad"](upstream, WATCHED.indices, [1, 0], cut.output_indices)
    _print(out, "SparseSliceGrad: zero outside the slice", back, _places(WATCHED.indices))
    more = (np.array([[0, 1], [2, 0]]), np.array([-3, 5], np.float32), WATCHED.dense_shape)
    total = OPS["SparseAdd"](*x, *more, thresh=0.5)
    _print(out, "SparseAdd: sums below 0.5 are dropped", total.sum_values, _places(total.sum_indices))
    ones = np.ones_like(total.sum_values)
    for side, gradient in zip("ab", OPS["SparseAddGrad"](ones, x[0], more[0], total.sum_indices), strict=True):
        _print(out, f"SparseAddGrad: for {side}", gradient, _places(x[0] if side == "a" else more[0]))


def _places(indices: Any) -> list[str]:
    return [str(i.tolist()) for i in indices]


def _lookup(out: TextIO) -> None:
    _section(out, "safe_embedding_lookup_sparse, forward and backward")
    weights = SparseTensor(WATCHED.indices, MINUTES, WATCHED.dense_shape)
    result = safe_embedding_lookup_sparse(TABLE, WATCHED, weights, combiner="mean", default_id=1)
    _print(out, "Σwx/Σw; the new visitor gets film 1", result)
    gradient = vjp(safe_embedding_lookup_sparse, (TABLE, WATCHED, weights), np.ones_like(result), default_id=1)[0]
    _print(out, "its gradient, only the rows it touches", gradient.values, [FILMS[i] for i in gradient.indices])
    _print(out, "the same as a dense table", gradient, FILMS)
