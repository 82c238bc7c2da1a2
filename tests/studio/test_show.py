"""`rowgrad.show`: calls of ops, graphs and pages as widgets; and what it says outside of notebooks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rowgrad as rg
from rowgrad.graph import Const, Page, Scope
from rowgrad.studio import Widget, verbs

GRAD = np.array([[1, 2], [6, 8]], np.float32)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An IPython whose shell has a kernel."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    yield
    for widget in [w for w in vars(Widget).get("widgets", {}).values() if isinstance(w, Widget)]:
        widget.close()


def explain(widget: Widget, **arguments: Any) -> Any:
    return verbs.answer(widget._studio, "explain", {"name": widget.page_name, "block": "call", **arguments})


@pytest.mark.usefixtures("notebook")
def test_a_call_is_run_and_its_trace_is_shown() -> None:
    widget = rg.show(rg.raw_ops.SparseSegmentMeanGrad, GRAD, [0, 2, 2], [0, 0, 1], 4)
    assert (widget.panel, widget.shown) == ("trace", ["call", "output"])
    assert [(block.id, block.op) for block in widget.page] == [
        ("grad", "Const"),
        ("call", "SparseSegmentMeanGrad"),
        ("session", "ClientSession"),
    ]
    found = explain(widget, row=2)
    assert [(t["row"], t["factor"]) for t in found["terms"]] == [(0, "1/2"), (1, "1")]
    assert (found["result"], found["differing"]) == (["6.5", "9.0"], 0)
    widget.close()


@pytest.mark.usefixtures("notebook")
def test_names_attributes_tensors_and_long_ids_are_accepted() -> None:
    torch = pytest.importorskip("torch")
    grad = torch.tensor(GRAD, dtype=torch.bfloat16, requires_grad=True)
    ids = np.zeros(100, np.int64)
    widget = rg.show("SparseSegmentSumGrad", grad, ids, np.arange(100) % 2, output_dim0=1, order="blocked", height=300)
    assert {block.id for block in widget.page} == {"grad", "indices", "segment_ids", "call", "session"}
    found = explain(widget, row=0)
    assert (found["dtype"], found["order"], found["total_terms"], found["differing"]) == ("bfloat16", "blocked", 100, 0)
    assert widget.height == 300
    widget.close()
    filled = rg.show(rg.raw_ops.SparseFillEmptyRowsGrad, [0, 1, 3], np.array([1.0, 2, 4, 8]))
    assert explain(filled, pin="d_default_value", row=0)["result"] == ["4.0"]
    filled.close()


@pytest.mark.usefixtures("notebook")
def test_graphs_and_pages_are_shown(tmp_path: Path) -> None:
    root = Scope.new_root_scope("model")
    Const(root.with_op_name("x"), [1.0])
    for what in (root, Page("empty")):
        widget = rg.show(what)
        assert widget.panel == ""
        assert widget.page.name in ("model", "empty")
        widget.close()


@pytest.mark.usefixtures("notebook")
def test_invalid_calls_raise() -> None:
    with pytest.raises(rg.errors.OpError, match=r"indices\[2\]|index"):
        rg.show(rg.raw_ops.SparseSegmentMeanGrad, GRAD, [0, 2, 9], [0, 0, 1], 4)
    with pytest.raises(TypeError, match="has no argument 'colour'"):
        rg.show(rg.raw_ops.GatherRows, GRAD, [0], colour=1)
    with pytest.raises(TypeError, match=r"show takes a Scope, a Page, the path of a page, or an op .*; got int"):
        rg.show(3)
    with pytest.raises(TypeError, match="takes arguments for an op only; got Page"):
        rg.show(Page("p"), 3)


def test_outside_of_notebooks_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RuntimeError, match=r"draws in a notebook: JupyterLab, VS Code or Colab. Elsewhere .*rowgrad studio"
    ):
        rg.show(rg.raw_ops.GatherRows, GRAD, [0])
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.delitem(sys.modules, "rowgrad.studio.widget", raising=False)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ImportError, match=r"needs anywidget: pip install 'rowgrad\[notebook\]'"):
        rg.show(rg.raw_ops.GatherRows, GRAD, [0])
