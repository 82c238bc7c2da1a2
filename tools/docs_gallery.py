"""Generate the list on docs/reference/gallery.md: every page of examples/pages, its subject, and pictures of some."""

from __future__ import annotations

from pathlib import Path

from curated_pages import CURATED

from rowgrad.graph import load
from rowgrad.graph.export import to_svg

ROOT = Path(__file__).resolve().parent.parent
SHOWS = {
    "guide_matmul": "the first program of TensorFlow's C++ guide: two constants, a product, a session",
    "train_embedding": "64 bags of ids, a table, a linear layer, a loss; gradients by one block, steps of Adagrad",
    "01_sparse_segment_mean": "the mean of rows by segment",
    "02_sparse_segment_mean_grad": "its gradient: one upstream row, shared by three rows of the table",
    "03_sparse_segment_sqrt_n": "the sum of rows divided by √n",
    "04_sparse_segment_sqrt_n_grad": "its gradient",
    "05_sparse_segment_sum": "the sum of rows by segment",
    "06_sparse_fill_empty_rows": "rows without an entry get a default one",
    "07_sparse_fill_empty_rows": "the same, on other entries",
    "08_sparse_fill_empty_rows_grad": "its gradient: what goes back to the values, and what to the default",
    "09_sparse_slice": "a box cut out of a sparse tensor",
    "10_sparse_add": "two sparse tensors added",
    "11_sparse_add_int_thresh_refused": "the same with a `thresh` of the wrong dtype: an error with the reason",
    "12_sparse_add_grad": "the gradient of `SparseAdd` for both operands",
    "13_symbolic_gradients": "a net of three layers, its gradients by one block, steps of gradient descent",
    "14_symbolic_gradients_trained": "the same net, from other first values",
    "15_sparse_segment_sum": "another call of `SparseSegmentSum`",
    "16_sparse_segment_sum": "another call of `SparseSegmentSum`",
    "17_sparse_segment_sum": "another call of `SparseSegmentSum`",
    "18_sparse_slice": "another box",
    "19_sparse_slice": "another box",
    "20_fed_add": "a placeholder fed by blocks",
    "21_fed_add": "the same, with other values",
    "22_literal_feed_add": "a placeholder fed by a typed value",
    "23_input_add": "values from `Input` blocks",
    "24_input_add": "the same, with other values",
    "25_output_add": "a value passed on by an `Output` block",
    "26_add": "a sum",
    "27_matmul_transpose_b": "a product with an attribute: the second matrix is transposed",
    "28_assign": "a Variable that is given a value",
    "29_assign_feedback": "a Variable that grows from run to run",
    "30_gradient_step": "a step of gradient descent drawn by hand",
    "31_linear_regression": "a linear regression with several Variables",
}
DRAWN = ("guide_matmul", "06_sparse_fill_empty_rows", "12_sparse_add_grad", "29_assign_feedback", "30_gradient_step",
         "31_linear_regression", "train_embedding")  # fmt: skip


def pages() -> list[str]:
    names = sorted(path.stem for path in (ROOT / "examples/pages").glob("*.json"))
    if sorted(SHOWS) != names:
        raise ValueError(f"tools/docs_gallery.py and examples/pages differ in {sorted(set(SHOWS) ^ set(names))}")
    return list(SHOWS)


def parts() -> dict[str, str]:
    """Return the generated parts of docs/reference/gallery.md by name."""
    lines = ["| page | what it shows | blocks |", "|---|---|---|"]
    for name in pages():
        blocks = load(ROOT / f"examples/pages/{name}.json").blocks
        lines.append(f"| [`{name}`](../../examples/pages/{name}.json) | {SHOWS[name]} | {len(blocks)} |")
    start = ["| page | what to try | blocks |", "|---|---|---|"]
    for number, (name, page) in enumerate(CURATED.items(), 1):
        file = f"examples/pages/start/{number:02}_{name}.json"
        count = len(load(ROOT / file).blocks)
        start.append(f"| [{page.title}](../../{file}) | {page.see} {page.change} | {count} |")
    pictures = [f"![{name}: {SHOWS[name]}](../images/pages/{name}.svg)\n\n`{name}`: {SHOWS[name]}.\n" for name in DRAWN]
    return {"start": "\n".join(start) + "\n", "all pages": "\n".join(lines) + "\n", "drawings": "\n".join(pictures)}


def drawings() -> dict[str, str]:
    """Return path and text of the pictures, as `rowgrad export --svg` writes them."""
    return {f"docs/images/pages/{name}.svg": to_svg(load(ROOT / f"examples/pages/{name}.json")) for name in DRAWN}
