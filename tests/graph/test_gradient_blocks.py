"""Gradients as blocks of a page: the bits of AddSymbolicGradients, unused ids, free positions."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_samples import same, same_blocks

from dense_op_calls import CALLS, inputs_of
from rowgrad._catalog.spec import CATALOG, Op, find_op
from rowgrad.errors import OpError
from rowgrad.graph import (
    AddSymbolicGradients,
    Block,
    ClientSession,
    Const,
    End,
    Page,
    PageError,
    Scope,
    build,
    check,
    dumps,
    load,
    loads,
    ops,
    page_of,
)
from rowgrad.graph.nodes import Output
from rowgrad.graph.wiring import gradient_blocks

PAGES = sorted((Path(__file__).parents[2] / "examples" / "pages").glob("*.json"))
KERNEL_CALLS = [
    pytest.param(op, {}, id=op.name) for op in CATALOG.values() if op.layer == "kernel" and op.adjoint is not None
]
RNG = np.random.default_rng(5)


def ends(*texts: str) -> list[End]:
    return [End.parse(t) for t in texts]


def with_gradients(page: Page, outputs: list[End], inputs: list[End]) -> tuple[Page, list[End]]:
    """Return the page with its gradient blocks, after every check that needs no run."""
    before = copy.deepcopy(page)
    blocks, found = gradient_blocks(page, outputs, inputs)
    assert same_blocks(page, before)
    assert len(found) == len(inputs)
    larger = loads(dumps(merged(page, blocks)))
    assert isinstance(larger, Page)
    assert set(check(larger).errors) == set(check(page).errors)
    assert len({b.id for b in larger.blocks}) == len(larger.blocks)
    check_no_overlap(page, blocks)
    check_one_source(page, blocks)
    return larger, found


def merged(page: Page, blocks: list[Block]) -> Page:
    """Return the page with these blocks in the place of those with the same ids, and the others added."""
    changed = {b.id: b for b in blocks}
    kept = [changed.pop(b.id, b) for b in page.blocks]
    return Page(page.name, [*kept, *changed.values()], page.notes)


def check_one_source(page: Page, blocks: list[Block]) -> None:
    """Check that no new block but a Const has an array of its own: it would stay when the page's changes."""
    known = {b.id for b in page.blocks}
    for block in blocks:
        if block.id not in known and block.op != "Const":
            assert not [pin for pin, value in block.values.items() if np.size(value) > 1], block


def check_no_overlap(page: Page, blocks: list[Block]) -> None:
    """Check that no new block overlaps another, at the size an editor draws them."""
    boxes = []
    placed = [b for b in page.blocks if b.at is not None]
    known = {b.id for b in page.blocks}
    for block in [*placed, *(b for b in blocks if b.id not in known)]:
        assert block.at is not None
        op = find_op(block.op)
        assert op is not None
        height = 40 + 22 * max(len(op.inputs), len(op.outputs))
        boxes.append((*block.at, block.at[0] + 200, block.at[1] + height, block))
    for k, (left, top, right, bottom, block) in enumerate(boxes):
        for left_, top_, right_, bottom_, other in boxes[max(k + 1, len(placed)) :]:
            assert right <= left_ or right_ <= left or bottom <= top_ or bottom_ <= top, (block.id, other.id)


def values(page: Page, outputs: list[End], inputs: list[End], found: list[End], feeds: Any = None) -> tuple[Any, Any]:
    """Return the gradients from AddSymbolicGradients and from the blocks, in one run."""
    scope = check(page).scope
    pins = [[_pin(scope, e) for e in some] for some in (outputs, inputs)]
    expected = AddSymbolicGradients(scope, *pins).pins["grad_outputs"]
    input_ = dict(feeds or {})
    for block in scope.graph.sessions.values():
        input_ |= {f.placeholder: f.value for f in block.feeds}
    result = ClientSession(scope).run([expected, [_pin(scope, e) for e in found]], input_)
    return result[0], result[1]


def _pin(scope: Scope, end: End) -> Any:
    value = scope.graph.blocks[end.block].pins[end.pin]
    return value if end.index is None else value[end.index]


def check_gradients(page: Page, outputs: list[End], inputs: list[End], feeds: Any = None) -> tuple[Page, list[End]]:
    larger, found = with_gradients(page, outputs, inputs)
    assert all(b.op != "AddSymbolicGradients" for b in larger.blocks[len(page.blocks) :])
    sources = [larger[e.block].wires[e.pin][0] if e.pin in page[e.block].values else e for e in inputs]
    by_block, by_blocks = values(larger, outputs, sources, found, feeds)
    assert len(by_block) == len(inputs)
    assert same(by_block, by_blocks)
    return larger, found


def has_gradients(scope: Scope, outputs: list[Output], inputs: list[Output]) -> bool:
    try:
        AddSymbolicGradients(Scope(scope.graph), outputs, inputs)
    except OpError as error:
        if "no gradient flows" not in error.message:
            raise
        return False
    return True


def paths(page: Page) -> Iterator[tuple[End, End]]:
    """Yield every pair of pins of the page with a gradient."""
    scope = check(page).scope
    floats = [
        (end, value)
        for value, end in scope.graph.ends.items()
        if isinstance(value, Output) and value.dtype.startswith(("float", "complex", "bfloat"))
    ]
    for end, output in floats:
        for start, source in floats:
            if end != start and has_gradients(scope, [output], [source]):
                yield end, start


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_gradients_of_the_example_pages(path: Path) -> None:
    page = load(path)
    assert isinstance(page, Page)
    for end, found in itertools.groupby(paths(page), lambda path: path[0]):
        starts = [start for _, start in found]
        check_gradients(page, [end], starts)
        check_gradients(page, [end], starts[:1])


def test_the_examples_have_enough_gradient_paths() -> None:
    pages = [load(p) for p in PAGES]
    assert sum(any(paths(page)) for page in pages if isinstance(page, Page)) > 15


def make_page(build_it: Any) -> Page:
    root = Scope.new_root_scope("made")
    build_it(root)
    return page_of(root)


def floats(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
@pytest.mark.parametrize("rows", [False, True])
def test_gradients_of_segment_ops_to_second_order(kind: str, rows: bool) -> None:
    def graph(root: Scope) -> None:
        table = ops.Variable(root.with_op_name("table"), floats(5, 3))
        op = getattr(ops, f"SparseSegment{kind}")
        bags = op(root.with_op_name("bags"), table, [4, 0, 4, 2], [0, 0, 1, 3], sparse_gradient=rows)
        ops.L2Loss(root.with_op_name("loss"), bags)

    page = make_page(graph)
    larger, found = check_gradients(page, ends("loss.output"), ends("table.ref"))
    assert found[0].block == "d_table_ref"
    # The gradient of the gradient blocks.
    check_gradients(larger, found, ends("table.ref"))


@pytest.mark.parametrize(("op", "call"), [*CALLS, *KERNEL_CALLS])
@pytest.mark.parametrize("is_open", [False, True])
def test_gradients_of_every_op_to_second_order(op: Op, call: dict[str, Any], is_open: bool) -> None:
    """With known sizes, and with sizes that are known only at run time."""
    if is_open and op.name == "Squeeze" and call:
        pytest.skip("the caller has to say which sizes are 1")
    root = Scope.new_root_scope("made")
    feeds: dict[str, Any] = {}
    inputs: list[End] = []

    def source(name: str, value: Any) -> Any:
        inputs.append(End(name, "output"))
        if not is_open:
            return Const(root.with_op_name(name), value)
        feeds[name] = value
        shape = [-1] * np.ndim(value)
        return ops.Placeholder(root.with_op_name(name), dtype=str(np.asarray(value).dtype), shape=shape)

    input_ = inputs_of(op, call)
    for name in op.differentiable:
        value = input_[name]
        items = [source(f"{name}{k}", v) for k, v in enumerate(value)] if isinstance(value, list) else None
        input_[name] = source(f"in_{name}", value) if items is None else items
    it = ops.function_of(op.name)(root.with_op_name("it"), **input_)
    outputs = []
    for pin, value in it.pins.items():
        if value.dtype == "float64":
            ops.Sin(root.with_op_name(f"sin_{pin}"), value)
            outputs.append(End(f"sin_{pin}", "y"))
    page = page_of(root)
    larger, found = check_gradients(page, outputs, inputs, feeds)
    scope = build(larger)
    if has_gradients(scope, [_pin(scope, e) for e in found], [_pin(scope, e) for e in inputs]):
        check_gradients(larger, found, inputs, feeds)


def test_gradients_of_sparse_slices_fills_and_sums() -> None:
    def graph(root: Scope) -> None:
        a = Const(root.with_op_name("a"), floats(3, dtype="float64"))
        b = Const(root.with_op_name("b"), floats(2, dtype="float64"))
        default = Const(root.with_op_name("default"), np.float64(7))
        filled = ops.SparseFillEmptyRows(root.with_op_name("filled"), [[0, 0], [2, 1], [2, 2]], a, [4, 3], default)
        part = ops.SparseSlice(
            root.with_op_name("part"), filled.output_indices, filled.output_values, [4, 3], [1, 0], [3, 2]
        )
        total = ops.SparseAdd(
            root.with_op_name("total"),
            part.output_indices, part.output_values, part.output_shape, [[0, 0], [1, 1]], b, [3, 2], 0.0,
        )  # fmt: skip
        ops.L2Loss(root.with_op_name("loss"), total.sum_values)

    page = make_page(graph)
    larger, found = check_gradients(page, ends("loss.output"), ends("a.output", "b.output", "default.output"))
    check_gradients(larger, found[:1], ends("a.output", "b.output"))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("max_norm", [0.0, 1.5])
def test_gradients_of_lookups(weighted: bool, safe: bool, combiner: str, max_norm: float) -> None:
    """Intermediate values of a lookup have no pins; blocks compute them again."""

    def graph(root: Scope) -> None:
        table = ops.Variable(root.with_op_name("table"), floats(5, 3))
        weights = Const(root.with_op_name("weights"), np.abs(floats(3)))
        ids = ops.SparseTensor(root.with_op_name("ids"), [[0, 0], [0, 1], [2, 0]], np.array([4, 1, 4]), [3, 2])
        op = ops.SafeEmbeddingLookupSparse if safe else ops.EmbeddingLookupSparse
        more = {"weights": weights} if weighted else {}
        found = op(root.with_op_name("found"), table, ids.tensor, combiner=combiner, max_norm=max_norm, **more)
        ops.L2Loss(root.with_op_name("loss"), ops.Exp(root.with_op_name("exp"), found))

    page = make_page(graph)
    check_gradients(page, ends("loss.output"), ends("table.ref", *(["weights.output"] if weighted else [])))


def test_second_order_gradients_of_a_net_with_unknown_sizes() -> None:
    def graph(root: Scope) -> None:
        x = ops.Placeholder(root.with_op_name("x"), dtype="float32", shape=[-1, 4])
        w = ops.Variable(root.with_op_name("w"), floats(4, 3))
        b = ops.Variable(root.with_op_name("b"), floats(3))
        h = ops.Tanh(root.with_op_name("h"), ops.Add(root.with_op_name("sum"), ops.MatMul(root, x, w), b))
        ops.Mean(root.with_op_name("loss"), ops.Square(root.with_op_name("square"), h), [0, 1])

    page = make_page(graph)
    feeds = {"x": floats(6, 4)}
    larger, found = check_gradients(page, ends("loss.output"), ends("w.ref", "b.ref", "x.output"), feeds)
    assert [e.block for e in found] == ["d_w_ref", "d_b_ref", "d_x_output"]
    largest, second = check_gradients(larger, found[:2], ends("w.ref", "x.output"), feeds)
    assert [e.block for e in second] == ["d_w_ref_2", "d_x_output_2"]
    check_gradients(largest, second[:1], ends("w.ref"), feeds)


def test_gradients_with_unknown_rank() -> None:
    def graph(root: Scope) -> None:
        x = ops.Placeholder(root.with_op_name("x"), dtype="float64")
        ops.Mul(root.with_op_name("y"), ops.Sin(root.with_op_name("sin"), x), x)

    page = make_page(graph)
    larger, found = check_gradients(page, ends("y.z"), ends("x.output"), {"x": floats(2, 3, dtype="float64")})
    check_gradients(larger, found, ends("x.output"), {"x": floats(5, dtype="float64")})


def test_several_outputs_and_a_repeated_input() -> None:
    def graph(root: Scope) -> None:
        w = ops.Variable(root.with_op_name("w"), floats(3))
        ops.Square(root.with_op_name("a"), w)
        ops.Exp(root.with_op_name("b"), w)

    page = make_page(graph)
    check_gradients(page, ends("a.y", "b.y"), ends("w.ref", "w.ref", "a.y"))
    check_gradients(page, ends("a.y"), ends("a.y"))


def test_gradients_of_gradient_blocks_on_the_page() -> None:
    """An AddSymbolicGradients block of the page is expanded into blocks as well."""

    def graph(root: Scope) -> None:
        w = ops.Variable(root.with_op_name("w"), floats(3, 2))
        y = ops.MatMul(root.with_op_name("y"), w, w, transpose_b=True)
        cube = ops.Mul(root.with_op_name("cube"), y, ops.Sigmoid(root.with_op_name("s"), y))
        AddSymbolicGradients(root.with_op_name("G"), [cube], [w, y])

    check_gradients(make_page(graph), ends("G.grad_outputs[0]"), ends("w.ref", "G.grad_outputs[1]"))


def test_gradients_through_lists_of_wires_and_arrays() -> None:
    def graph(root: Scope) -> None:
        w = ops.Variable(root.with_op_name("w"), floats(2, 2))
        many = ops.Concat(root.with_op_name("many"), [w, floats(1, 2), w], 0)
        ops.Mul(root.with_op_name("y"), many, many)

    page = make_page(graph)
    larger, found = check_gradients(page, ends("y.z"), ends("w.ref"))
    check_gradients(larger, found, ends("w.ref"))


def test_random_numbers_are_not_drawn_again() -> None:
    def graph(root: Scope) -> None:
        noise = ops.RandomNormal(root.with_op_name("noise"), [3], seed=1)
        w = ops.Variable(root.with_op_name("w"), floats(3))
        ops.Mul(root.with_op_name("y"), ops.Mul(root.with_op_name("wn"), w, noise), w)

    larger, _ = check_gradients(make_page(graph), ends("y.z"), ends("w.ref"))
    assert sum(b.op == "RandomNormal" for b in larger.blocks) == 1


def test_new_blocks_have_unused_ids() -> None:
    def graph(root: Scope) -> None:
        w = ops.Variable(root.with_op_name("w"), floats(3))
        ops.Square(root.with_op_name("d_w_ref"), w)
        ops.Exp(root.with_op_name("full_like"), w)
        ops.Exp(root.with_op_name("gradients"), w)

    page = make_page(graph)
    _, found = check_gradients(page, ends("d_w_ref.y"), ends("w.ref"))
    assert found[0].block == "d_w_ref_2"


def test_a_block_with_two_gradients_is_named_after_its_op() -> None:
    page = load(PAGES[0].parent / "10_sparse_add.json")
    assert isinstance(page, Page)
    scope = build(page)
    (add,) = [n for n in scope.graph.nodes if n.op.name == "SparseAdd"]
    both = [scope.graph.ends.get(add.inputs[k]) for k in (1, 4)]
    assert None not in both
    _, found = gradient_blocks(page, ends(f"{add.name}.sum_values"), both)  # type: ignore[arg-type]
    assert [e.pin for e in found] == ["a_val_grad", "b_val_grad"]
    assert found[0].block == found[1].block == "sparse_add_grad"


@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_a_gradient_follows_values_that_were_typed_into_the_lookup(kind: str, rows: bool, placed: bool) -> None:
    typed = {"data": floats(4, 2), "indices": [0, 2, 2], "segment_ids": [0, 0, 1]}
    attrs = {"sparse_gradient": True} if rows else {}
    page = Page(
        "p", [Block("op", f"SparseSegment{kind}", dict(typed), attrs=attrs, at=(500.0, 60.0) if placed else None)]
    )
    larger, found = check_gradients(page, ends("op.output"), ends("op.data"))
    moved = [b for b in larger.blocks if b.op == "Const"]
    assert [b.id for b in moved] == ["op_data", "op_indices", "op_segment_ids"]
    assert larger["op"].values == {}
    for pin, source in zip(typed, moved, strict=True):
        assert same(np.asarray(source.values["val"]), np.asarray(typed[pin], np.asarray(source.values["val"]).dtype))
        readers = {(b.id, at) for b in larger.blocks for at, e in b.wires.items() if End(source.id, "output") in e}
        assert ("op", pin) in readers
        assert len(readers) > 1
    # Another table, and other ids: the gradient is that of the new ones.
    larger["op_data"].values["val"] = floats(6, 2)
    larger["op_indices"].values["val"] = [5, 1, 3, 3]
    larger["op_segment_ids"].values["val"] = [0, 1, 1, 1]
    by_block, by_blocks = values(larger, ends("op.output"), ends("op_data.output"), found)
    assert by_blocks[0].shape == (6, 2)
    assert same(by_block, by_blocks)


def test_a_gradient_follows_values_that_were_typed_into_a_weighted_lookup() -> None:
    def graph(root: Scope) -> None:
        table = ops.Variable(root.with_op_name("table"), floats(5, 3))
        ids = ops.SparseTensor(root.with_op_name("ids"), [[0, 0], [0, 1], [2, 0]], np.array([4, 1, 4]), [3, 2])
        weights = np.abs(floats(3))
        ops.SafeEmbeddingLookupSparse(root.with_op_name("found"), table, ids.tensor, weights, combiner="mean")

    page = make_page(graph)
    larger, found = check_gradients(page, ends("found.output"), ends("table.ref"))
    larger["found_weights"].values["val"] = np.abs(floats(3))
    larger["ids"].values["values"] = np.array([0, 3, 2])
    by_block, by_blocks = values(larger, ends("found.output"), ends("table.ref"), found)
    assert same(by_block, by_blocks)


def test_a_value_that_the_gradient_does_not_read_stays_where_it_was_typed() -> None:
    page = Page("p", [Block("op", "Add", {"x": floats(3), "y": floats(3)}, at=(0.0, 0.0))])
    larger, _ = check_gradients(page, ends("op.z"), ends("op.x"))
    assert list(larger["op"].values) == ["y"]
    assert [b.id for b in larger.blocks if b.op == "Const"] == ["op_x"]


def test_a_seed_typed_into_symbolic_gradients_is_shared() -> None:
    def graph(root: Scope) -> None:
        w = ops.Variable(root.with_op_name("w"), floats(3, dtype="float64"))
        ops.Square(root.with_op_name("y"), w)

    page = make_page(graph)
    wires = {"outputs": ends("y.y"), "inputs": ends("w.ref")}
    page.blocks.append(Block("G", "AddSymbolicGradients", {"grad_inputs": [[1.0, 2.0, 3.0]]}, wires))
    larger, _ = check_gradients(page, ends("G.grad_outputs[0]"), ends("w.ref"))
    (source,) = (b for b in larger.blocks if b.op == "Const")
    assert larger["G"].wires["grad_inputs"] == [End(source.id, "output")]


def test_new_blocks_are_placed_right_of_the_page() -> None:
    def graph(root: Scope) -> None:
        w = ops.Variable(root.with_op_name("w"), floats(3))
        ops.Square(root.with_op_name("y"), w)

    page = make_page(graph)
    page["w"].at, page["y"].at = (-900.0, 40.0), (1200.0, -300.0)
    blocks, _ = gradient_blocks(page, ends("y.y"), ends("w.ref"))
    assert all(b.at is not None and b.at[0] >= 1400.0 and b.at[1] >= -300.0 for b in blocks)
    columns = {b.id: b.at for b in blocks}
    for block in blocks:
        for end in block.wires.values():
            if end[0].block in columns:
                assert columns[end[0].block][0] < columns[block.id][0]  # type: ignore[index]


@pytest.fixture
def small() -> Page:
    def graph(root: Scope) -> None:
        w = ops.Variable(root.with_op_name("w"), floats(3))
        ops.Square(root.with_op_name("y"), w)
        ops.Variable(root.with_op_name("n"), np.arange(3))
        ops.Variable(root.with_op_name("alone"), floats(3))
        ops.InputList(root.with_op_name("list"), [w, w])

    page = make_page(graph)
    page.blocks.append(Block("wrong", "MatMul", wires={"a": [End("w", "ref")], "b": [End("w", "ref")]}))
    page.blocks.append(Block("after", "Square", wires={"x": [End("wrong", "product")]}))
    return page


@pytest.mark.parametrize(
    ("output", "input_", "message"),
    [
        ("y.y", "alone.ref", "alone.ref: no gradient flows to it from y.y"),
        ("y.y", "n.ref", "int64"),
        ("n.ref", "w.ref", "int64"),
        ("z.y", "w.ref", "z.y: there is no block 'z'"),
        ("yy.y", "w.ref", "did you mean 'y'"),
        ("y.x", "w.ref", "y (Square) has no output 'x'; it has y"),
        ("y.y", "list.output", "list of 2; name one entry"),
        ("y.y", "list.output[2]", "has 2 entries"),
        ("y.y[0]", "w.ref", "is not a list"),
        ("wrong.product", "w.ref", "a must"),
        ("after.y", "w.ref", "after: it depends on"),
    ],
)
def test_invalid_requests_raise(small: Page, output: str, input_: str, message: str) -> None:
    with pytest.raises(OpError) as error:
        gradient_blocks(small, ends(output), ends(input_))
    assert message in str(error.value)


def test_an_invalid_block_elsewhere_is_ignored(small: Page) -> None:
    blocks, found = gradient_blocks(small, ends("y.y"), ends("w.ref"))
    assert "wrong" in check(Page("p", [*small.blocks, *blocks])).errors
    scope = check(Page("p", [*small.blocks, *blocks])).scope
    session = ClientSession(scope)
    assert same(session.run(f"{found[0]}"), 2 * session.variables["w"])


def test_no_outputs_or_no_inputs_raise(small: Page) -> None:
    for outputs, inputs in (([], ends("w.ref")), (ends("y.y"), [])):
        with pytest.raises(OpError):
            gradient_blocks(small, outputs, inputs)


def test_gradients_that_need_inner_state_stay_one_block(small: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """No existing adjoint needs inner state, so the test simulates one."""
    from rowgrad.graph import wiring as flipping

    def fail(self: Any, node: Any) -> None:
        raise flipping._NoBlock(node.name)

    monkeypatch.setattr(flipping._Blocks, "_make", fail)
    blocks, found = gradient_blocks(small, ends("y.y"), ends("w.ref", "y.y"))
    assert [b.op for b in blocks] == ["AddSymbolicGradients"]
    assert [str(e) for e in found] == ["gradients.grad_outputs[0]", "gradients.grad_outputs[1]"]
    larger = Page("p", [*small.blocks, *blocks])
    by_block, by_blocks = values(larger, ends("y.y"), ends("w.ref", "y.y"), found)
    assert same(by_block, by_blocks)


def test_page_errors_name_the_place(small: Page) -> None:
    with pytest.raises(PageError) as error:
        gradient_blocks(small, ends("y.y"), ends("nothing.ref"))
    assert error.value.place == "nothing.ref"
