"""The same calls on torch's embedding modules and functions and on rowgrad's: results, gradients, tables and errors.

torch is the oracle: every check runs one function on both libraries. docs/reference/torch.md lists the intended
differences.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rowgrad as rg
import rowgrad.torch as rgt

T = torch.tensor
TORCH = SimpleNamespace(
    name="torch",
    Embedding=torch.nn.Embedding,
    EmbeddingBag=torch.nn.EmbeddingBag,
    embedding=torch.nn.functional.embedding,
    embedding_bag=torch.nn.functional.embedding_bag,
)
ROWGRAD = SimpleNamespace(
    name="rowgrad",
    Embedding=rgt.nn.Embedding,
    EmbeddingBag=rgt.nn.EmbeddingBag,
    embedding=rgt.functional.embedding,
    embedding_bag=rgt.functional.embedding_bag,
)
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
FLOATS = tuple(TOLERANCE)
INTEGERS = (torch.int32, torch.int64)
PAIRS = list(itertools.product(INTEGERS, INTEGERS))
Action = Callable[[Any], Any]


def outcome(library: Any, action: Action) -> Any:
    """Return what an action returns, or the error it raises. Both libraries draw the same random numbers."""
    torch.manual_seed(7)
    try:
        return action(library)
    except Exception as error:
        return error


def check(action: Action) -> None:
    """Compare the results of an action, or the classes of its errors."""
    expected, got = outcome(TORCH, action), outcome(ROWGRAD, action)
    if isinstance(expected, Exception):
        assert isinstance(got, type(expected)), f"torch raises {expected!r}; rowgrad: {got!r}"
        return
    if isinstance(got, Exception):
        raise got
    same(expected, got)


def same(expected: Any, got: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(got, torch.Tensor)
        assert (expected.shape, expected.dtype, expected.layout) == (got.shape, got.dtype, got.layout)
        assert expected.requires_grad == got.requires_grad
        expected, got = expected.detach().to_dense(), got.detach().to_dense()
        if not expected.is_floating_point():
            assert torch.equal(expected, got)
            return
        tolerance = TOLERANCE[expected.dtype]
        assert torch.allclose(expected, got, rtol=tolerance, atol=tolerance, equal_nan=True)
    elif isinstance(expected, list | tuple):
        assert len(expected) == len(got)
        for pair in zip(expected, got, strict=True):
            same(*pair)
    else:
        assert expected == got


def trained(module: Any, *args: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    """Return the output for some input, the table and its gradient for random upstream gradients."""
    module.zero_grad()
    out = module(*args, **options)
    if out.requires_grad:
        out.backward(torch.rand_like(out))
    return out, module.weight, module.weight.grad


IDS = T([3, 1, 1, 1, 4, 0])
STARTS = T([0, 0, 3, 3, 6])  # empty bags at the start, in the middle and at the end
NOTHING = T([], dtype=torch.int64)


# -- Signatures, attributes, initial values ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Embedding", "EmbeddingBag", "embedding", "embedding_bag"])
def test_arguments_are_those_of_torch_in_their_order(name: str) -> None:
    theirs, ours = (inspect.signature(getattr(library, name)).parameters for library in (TORCH, ROWGRAD))
    added = list(ours.values())[len(theirs) :]
    assert [(p.name, p.default, p.kind) for p in list(ours.values())[: len(theirs)]] == [
        (p.name, p.default, p.kind) for p in theirs.values()
    ]
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in added)


@pytest.mark.parametrize("name", ["Embedding", "EmbeddingBag"])
@pytest.mark.parametrize("method", ["forward", "from_pretrained"])
def test_methods_have_the_arguments_of_torch(name: str, method: str) -> None:
    theirs, ours = (inspect.signature(getattr(getattr(lib, name), method)).parameters for lib in (TORCH, ROWGRAD))
    assert [(p.name, p.default) for p in list(ours.values())[: len(theirs)]] == [
        (p.name, p.default) for p in theirs.values()
    ]


MODULES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Embedding", (10, 3), {}),
    ("Embedding", (10, 3, 2, 1.5, 1.0, True), {}),
    ("Embedding", (10, 3, -1), {"sparse": True}),
    ("Embedding", (10, 3), {"dtype": torch.float64, "_freeze": True}),
    ("EmbeddingBag", (10, 3), {}),
    ("EmbeddingBag", (10, 3, 1.5, 1.0, True, "sum"), {}),
    ("EmbeddingBag", (10, 3, None, 2.0, False, "max", False, None, True, -2), {}),
    ("EmbeddingBag", (10, 3), {"mode": "sum", "sparse": True, "dtype": torch.bfloat16}),
]


@pytest.mark.parametrize(("name", "args", "options"), MODULES)
def test_modules_are_those_of_torch(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Attributes, repr, state dict, and the same initial values after the same seed."""
    theirs, ours = (outcome(lib, lambda lib: getattr(lib, name)(*args, **options)) for lib in (TORCH, ROWGRAD))
    assert isinstance(ours, type(theirs))
    assert repr(ours).removesuffix(")") in repr(theirs) or repr(ours).startswith(repr(theirs).removesuffix(")"))
    for attribute in (key for key in vars(theirs) if not key.startswith("_")):
        assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    assert torch.equal(ours.weight, theirs.weight)
    assert ours.weight.requires_grad == theirs.weight.requires_grad
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight"]
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert repr(copied) == repr(ours)
        assert torch.equal(copied.weight, ours.weight)


def test_initial_values_of_large_tables_are_those_of_torch() -> None:
    check(lambda lib: lib.EmbeddingBag(3000, 129).weight)
    check(lambda lib: lib.Embedding(3000, 129, padding_idx=7).weight)


def test_attributes_may_be_changed_as_in_torch() -> None:
    def action(lib: Any) -> Any:
        bag = lib.EmbeddingBag(5, 2)
        results = [bag(IDS, STARTS)]
        bag.mode = "sum"
        results.append(bag(IDS, STARTS))
        bag.padding_idx = 1
        results.append(bag(IDS, STARTS))
        bag.sparse = True
        results += trained(bag, IDS, STARTS)
        bag.max_norm = 0.5
        results += trained(bag, IDS, STARTS)
        bag.sparse, bag.mode = False, "max"
        return [*results, *trained(bag, IDS, STARTS)]

    check(action)


# -- Embedding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ids_dtype", INTEGERS)
@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"padding_idx": -2}, {"max_norm": 1.0}], ids=str)
@pytest.mark.parametrize("sparse", [False, True])
def test_embedding(dtype: torch.dtype, ids_dtype: torch.dtype, options: dict[str, Any], sparse: bool) -> None:
    for shape in ((6,), (2, 3), (1, 3, 2), (6, 1)):
        ids = IDS.to(ids_dtype).reshape(shape)
        check(lambda lib, ids=ids: trained(lib.Embedding(5, 3, sparse=sparse, dtype=dtype, **options), ids))
    check(lambda lib: trained(lib.Embedding(5, 3, dtype=dtype, **options), T(3, dtype=ids_dtype)))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("rows", [0, 10])
@pytest.mark.parametrize("columns", [0, 3])
@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_embedding_without_ids_rows_or_columns(sparse: bool, rows: int, columns: int, shape: tuple[int, ...]) -> None:
    ids = torch.zeros(shape, dtype=torch.int64)
    check(lambda lib: trained(lib.Embedding(rows, columns, sparse=sparse), ids))
    if rows and not columns:
        check(lambda lib: trained(lib.Embedding(rows, columns, sparse=sparse), T([[0, 2, 4], [4, 3, 9]])))


def test_embedding_moves_to_another_dtype() -> None:
    def action(lib: Any) -> Any:
        table = lib.Embedding(10, 3, sparse=True).to(torch.float16)
        return table.weight, table.embedding_dim, table.num_embeddings, table(IDS)

    check(action)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 0.5, 3, float("inf")])
@pytest.mark.parametrize("dtype", FLOATS)
def test_max_norm_changes_the_same_rows(norm_type: float, dtype: torch.dtype) -> None:
    """Looked-up rows that exceed the norm are changed in place; the gradient does not pass through it."""

    def rows(lib: Any) -> Any:
        table = lib.Embedding(22, 5, None, 1.0, norm_type, dtype=dtype)
        before = table.weight.detach().clone()
        out = trained(table, T([2, 8, 8, 6]))
        return *out, (before != table.weight).any(1)

    def bags(lib: Any) -> Any:
        results = []
        for mode in ("sum", "mean", "max"):
            bag = lib.EmbeddingBag(22, 5, 1.0, norm_type, mode=mode, padding_idx=6, dtype=dtype)
            before = bag.weight.detach().clone()
            results += [*trained(bag, T([[2, 8], [8, 6]])), (before != bag.weight).any(1)]
        return results

    check(rows)
    check(bags)


def test_max_norm_is_applied_before_backward_in_a_chain() -> None:
    def action(lib: Any) -> Any:
        weight = (torch.randn(4, 4) * 2).requires_grad_()
        lib.embedding(T([0, 1, 2, 2]), weight, max_norm=1.0).sum().backward()
        lib.embedding_bag(T([[3, 3]]), weight, max_norm=1.0).sum().backward()
        return weight, weight.grad

    check(action)


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, *FLOATS],
    ids=str,
)
def test_embedding_from_pretrained_tables_of_any_dtype(dtype: torch.dtype) -> None:
    table = T([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).to(dtype)
    for lib in (TORCH, ROWGRAD):
        module = lib.Embedding.from_pretrained(table)
        assert module.weight.data_ptr() == table.data_ptr()
        assert not module.weight.requires_grad
        assert torch.equal(module(T([[1, 0]])), table[T([[1, 0]])])


def test_from_pretrained_with_padding_and_options() -> None:
    """`from_pretrained` shares memory, leaves the padding row, and renormalizes the tensor it was given."""

    def padding(lib: Any) -> Any:
        table = torch.rand(4, 3, requires_grad=True)
        with torch.no_grad():
            table[2] = 7.0
        modules = [kind.from_pretrained(table, padding_idx=2) for kind in (lib.Embedding, lib.EmbeddingBag)]
        return [module.weight for module in modules]

    def renormalized(lib: Any) -> Any:
        results = []
        for options in ({"norm_type": 0.5, "sparse": True}, {"norm_type": 0.5, "freeze": False}):
            table = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3)
            out = lib.Embedding.from_pretrained(table, max_norm=2.0, **options)(T([0, 1]))
            assert torch.equal(out, table)
            results.append(table)
        table = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3)
        bag = lib.EmbeddingBag.from_pretrained(table, max_norm=2.0, norm_type=0.5, mode="max")
        return [*results, bag(T([[0, 1]])), table]

    check(padding)
    check(renormalized)
    check(lambda lib: lib.EmbeddingBag.from_pretrained(torch.rand(2, 3))(T([0, 1]), torch.arange(2)))
    check(lambda lib: lib.EmbeddingBag.from_pretrained(torch.rand(2, 3), False, None, 2.0, False, "sum")(T([[0, 1]])))


def test_weights_are_replaced_as_in_torch() -> None:
    def action(lib: Any) -> Any:
        ids, rows = T([[1, 3, 2], [0, 2, 1]]), torch.rand(4, 3, requires_grad=True)
        table, bag = lib.Embedding(4, 3), lib.EmbeddingBag(4, 3)
        table.weight.data = rows.data
        bag.weight = torch.nn.Parameter(rows)
        results = [*trained(table, ids), *trained(bag, ids), lib.embedding(ids, rows), lib.embedding_bag(ids, rows)]
        table, bag = table.from_pretrained(rows, padding_idx=2), bag.from_pretrained(rows, padding_idx=2)
        return [*results, table(ids), bag(ids), lib.embedding_bag(ids, rows, padding_idx=2)]

    check(action)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}], ids=str)
def test_gradients_of_gradients_of_embeddings(options: dict[str, Any]) -> None:
    ids = T([[0, 1, 1, 2], [3, 5, 7, 4]])

    def second(lib: Any) -> Any:
        table = torch.rand(8, 3, dtype=torch.float64, requires_grad=True)
        out = (lib.embedding(ids, table, **options) ** 3).sum()
        (first,) = torch.autograd.grad(out, table, create_graph=True)
        return first.detach(), torch.autograd.grad(first.pow(2).sum(), table)[0]

    check(second)
    if not options:  # the gradient of a padding row is not that of its value
        weight = torch.rand(8, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda w: rgt.functional.embedding(ids, w) ** 3, (weight,))
        assert torch.autograd.gradgradcheck(lambda w: rgt.functional.embedding(ids, w) ** 3, (weight,))


@pytest.mark.parametrize("count", [1, 2, 1000])
@pytest.mark.parametrize("others", [[], [1, 3], [2]], ids=str)
def test_padding_gets_no_gradient(count: int, others: list[int]) -> None:
    ids = T([*others, *[0] * count])

    def action(lib: Any) -> Any:
        table = lib.Embedding(5, 2, padding_idx=0)
        with torch.no_grad():
            table.weight[0] = 1.0  # the padding row may be any constant
        results = [*trained(table, ids)]
        assert not results[2][0].any()
        total = table(ids).sum()
        (grad,) = torch.autograd.grad(total, table.weight, retain_graph=True)
        table.zero_grad()
        (grad.sum() + total).backward()
        return [*results, table.weight.grad]

    check(action)


def test_sparse_gradients_have_no_padding_row() -> None:
    for lib in (TORCH, ROWGRAD):
        table = lib.Embedding(5, 2, padding_idx=0, sparse=True)
        table(T([0, 3, 0, 1])).sum().backward()
        assert table.weight.grad.coalesce().indices().tolist() == [[1, 3]]


def test_sparse_gradients_accumulate() -> None:
    """The sum is torch's; rowgrad's rows are sorted and unique per backward pass, torch's are in the order of ids."""

    def action(lib: Any) -> Any:
        table = lib.Embedding(10, 3, sparse=True, dtype=torch.float64)
        ids = T([7, 1, 3])
        table(ids).sum().backward()
        ids = T([8, 1, 3])
        table(ids).sum().backward()
        return table.weight.grad.coalesce()

    check(action)
    table = rgt.nn.Embedding(10, 3, sparse=True)
    table(T([7, 1, 3, 1])).sum().backward()
    assert table.weight.grad.is_coalesced()
    assert table.weight.grad.indices().tolist() == [[1, 3, 7]]


def test_jagged_ids() -> None:
    def action(lib: Any) -> Any:
        ids = torch.nested.nested_tensor([T([1, 2]), T([4]), NOTHING], layout=torch.jagged)
        table = lib.Embedding(5, 3)
        rows = table(ids)
        assert rows.is_nested
        rows.values().backward(torch.rand(3, 3))
        bag = lib.EmbeddingBag(5, 3, mode="sum")
        return rows.values(), rows.offsets(), table.weight.grad, bag(ids)

    check(action)


# -- EmbeddingBag -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("ids_dtype", "offsets_dtype"), PAIRS)
@pytest.mark.parametrize(
    ("mode", "sparse"), [("sum", False), ("sum", True), ("mean", False), ("mean", True), ("max", False)]
)
def test_bags(dtype: torch.dtype, ids_dtype: torch.dtype, offsets_dtype: torch.dtype, mode: str, sparse: bool) -> None:
    ids, starts = IDS.to(ids_dtype), STARTS.to(offsets_dtype)

    def action(lib: Any) -> Any:
        bag = lib.EmbeddingBag(5, 2, mode=mode, sparse=sparse, dtype=dtype)
        results = [*trained(bag, ids, starts), *trained(bag, ids.view(2, 3)), *trained(bag, ids.view(6, 1))]
        results += trained(bag, ids[:0], starts[:4] * 0)
        results += trained(bag, input=ids[:0], offsets=starts[:1])
        return [*results, bag(torch.zeros(0, 3, dtype=ids_dtype)), bag(ids[:0], starts[:0])]

    check(action)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_known_example(dtype: torch.dtype) -> None:
    """Results computed by hand, for both libraries."""
    upstream = T([[99.0, 99], [1, 2], [99, 99], [3, 4], [99, 99]]).to(dtype)
    largest = T([[0.0, 0], [7, 8], [0, 0], [9, 10], [0, 0]]), T([[0.0, 0], [0, 0], [0, 0], [1, 2], [3, 4]])
    total = T([[0.0, 0], [13, 16], [0, 0], [13, 16], [0, 0]]), T([[3.0, 4], [5, 8], [0, 0], [1, 2], [3, 4]])
    for lib, mode in itertools.product((TORCH, ROWGRAD), ("sum", "max")):
        bag = lib.EmbeddingBag(5, 2, mode=mode, dtype=dtype)
        bag.weight.data.copy_(torch.arange(1, 11).view(5, 2))
        out = bag(IDS, STARTS)
        out.backward(upstream)
        expected = total if mode == "sum" else largest
        assert torch.equal(out, expected[0].to(dtype))
        assert torch.equal(bag.weight.grad, expected[1].to(dtype))


def random_bags(seed: int, include_last_offset: bool, is_padding: bool) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 9, (10,), generator=g)
    lengths[seed % 10] = 0
    ends = lengths.cumsum(0)
    starts = torch.cat([T([0]), ends if include_last_offset else ends[:-1]])
    n = int(ends[-1])
    return torch.ones(n, dtype=torch.int64) if is_padding else torch.randint(0, 30, (n,), generator=g), starts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("include_last_offset", [False, True])
@pytest.mark.parametrize("is_padding", [False, True])
@pytest.mark.parametrize(
    ("mode", "sparse"), [("sum", False), ("sum", True), ("mean", False), ("mean", True), ("max", False)]
)
def test_padding_in_bags(
    dtype: torch.dtype, include_last_offset: bool, is_padding: bool, mode: str, sparse: bool
) -> None:
    ids, starts = random_bags(3, include_last_offset, is_padding)
    for padding_idx in (None, 1, int(ids[0]), int(ids[-1]), -30):
        options = {"mode": mode, "sparse": sparse, "padding_idx": padding_idx}

        def action(lib: Any, options: dict[str, Any] = options) -> Any:
            weight = torch.randn(30, 3, dtype=dtype, requires_grad=True)
            out = lib.embedding_bag(ids, weight, starts, include_last_offset=include_last_offset, **options)
            matrix = lib.embedding_bag(ids[: len(ids) // 5 * 5].view(-1, 5), weight, **options)
            (out.sum() + matrix.pow(2).sum()).backward()
            return out, matrix, weight.grad

        check(action)


@pytest.mark.parametrize(
    ("rows", "columns", "bags", "length"),
    [(2, 3, 5, 7), (2, 5, 53, 23), (101, 5, 3, 7), (2, 101, 3, 7), (1, 1, 1, 1), (2, 1, 1, 2), (1, 2, 2, 1)],
)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("max_norm", [None, 1.5])
def test_bags_equal_reduced_rows(
    rows: int, columns: int, bags: int, length: int, mode: str, max_norm: float | None
) -> None:
    """EmbeddingBag equals Embedding and a reduction, in each library and between them."""

    def action(lib: Any) -> Any:
        bag = lib.EmbeddingBag(rows, columns, max_norm, mode=mode, dtype=torch.float64)
        table = lib.Embedding(rows, columns, max_norm=max_norm, _weight=bag.weight.detach().clone())
        ids, y = torch.randint(rows, (bags, length)), torch.rand(bags, columns, dtype=torch.float64)
        one, all_rows = bag(ids.view(-1), torch.arange(bags) * length), table(ids)
        two = {"sum": all_rows.sum(1), "mean": all_rows.mean(1), "max": all_rows.max(1)[0]}[mode]
        one.backward(y)
        two.backward(y)
        same(one, two)
        same(bag.weight.grad, table.weight.grad)
        return one, bag.weight, bag.weight.grad

    check(action)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("ids_dtype", "offsets_dtype"), PAIRS)
@pytest.mark.parametrize("include_last_offset", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_weighted_bags(
    dtype: torch.dtype, ids_dtype: torch.dtype, offsets_dtype: torch.dtype, include_last_offset: bool, sparse: bool
) -> None:
    ids, starts = IDS.to(ids_dtype), STARTS.to(offsets_dtype)
    starts = torch.cat([starts, T([6], dtype=offsets_dtype)]) if include_last_offset else starts

    def action(lib: Any) -> Any:
        results = []
        for trainable, table_trains in itertools.product((True, False), (True, False)):
            bag = lib.EmbeddingBag(
                5, 2, mode="sum", include_last_offset=include_last_offset, sparse=sparse, dtype=dtype
            )
            bag.requires_grad_(table_trains)
            weights = torch.rand(6, dtype=dtype, requires_grad=trainable)
            results += [*trained(bag, ids, starts, weights), weights.grad]
            matrix = torch.rand(2, 3, dtype=dtype, requires_grad=trainable)
            results += [*trained(bag, ids.view(2, 3), None, matrix.softmax(-1)), matrix.grad]
            nothing = torch.rand(0, dtype=dtype, requires_grad=trainable)
            results += [*trained(bag, ids[:0], starts * 0, nothing), nothing.grad]
        return results

    check(action)


@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False)])
@pytest.mark.parametrize("padding_idx", [None, 1])
def test_scale_grad_by_freq(mode: str, weighted: bool, padding_idx: int | None) -> None:
    """The gradient of a row is divided by the number of its ids; that of weights is not.

    torch's EmbeddingBag on a CPU divides by counts of other rows if counts differ (pytorch/pytorch#190063), so ids
    occur twice each here; the reductions of an Embedding below have ids of different counts.
    """
    twice = T([3, 1, 4, 4, 3, 1])

    def bags(lib: Any) -> Any:
        bag = lib.EmbeddingBag(5, 2, scale_grad_by_freq=True, mode=mode, padding_idx=padding_idx)
        weights = torch.rand(6, requires_grad=True) if weighted else None
        return *trained(bag, twice, STARTS, weights), None if weights is None else weights.grad

    def rows(lib: Any) -> Any:
        return trained(lib.Embedding(5, 2, padding_idx, scale_grad_by_freq=True), IDS.view(2, 3))

    check(bags)
    check(rows)
    table = torch.nn.Embedding(5, 2, padding_idx, scale_grad_by_freq=True, dtype=torch.float64)
    bag = rgt.nn.EmbeddingBag(
        5, 2, None, 2.0, True, mode, padding_idx=padding_idx, _weight=table.weight.detach().clone()
    )
    weights = torch.rand(2, 3, dtype=torch.float64) if weighted else None
    out, found = table(IDS.view(2, 3)), bag(IDS.view(2, 3), None, weights)
    kept = (IDS.view(2, 3) != (-1 if padding_idx is None else padding_idx)).double()
    factors = kept * (1 if weights is None else weights)
    expected = (out * factors[:, :, None]).sum(1) / (kept.sum(1, keepdim=True) if mode == "mean" else 1)
    same(expected, found)
    y = torch.rand_like(expected)
    expected.backward(y)
    found.backward(y)
    same(table.weight.grad, bag.weight.grad)
    plain = rgt.nn.EmbeddingBag(5, 2, mode=mode, padding_idx=padding_idx, _weight=bag.weight)
    assert torch.equal(plain(IDS, STARTS), bag(IDS, STARTS))


@pytest.mark.parametrize("dtype", FLOATS)
def test_tables_that_are_not_contiguous(dtype: torch.dtype) -> None:
    def action(lib: Any) -> Any:
        results = []
        for mode in ("sum", "mean", "max"):
            wide = torch.randn(3, 4, dtype=dtype, requires_grad=True)
            lib.embedding_bag(T([0, 1, 2]), wide[:, :3], T([0, 2]), mode=mode).sum().backward()
            results.append(wide.grad)
        return [
            *results,
            lib.embedding(T([2, 0]), torch.randn(3, 4)[:, :3]),
            lib.embedding(T([1]), torch.randn(3, 4).T),
        ]

    check(action)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("grad", ["dense", "rows"])
def test_max_chooses_the_row_that_torch_chooses(dtype: torch.dtype, grad: str) -> None:
    """Ties, NaN and infinities, whose gradient must go to the same row; empty bags and rows of padding."""
    table = torch.randint(-2, 3, (12, 5)).to(dtype)
    table[3, 1], table[5], table[7, 2] = float("nan"), float("-inf"), float("inf")
    ids, starts = torch.randint(0, 12, (90,)), torch.sort(torch.randint(0, 90, (20,))).values
    starts[0] = 0
    results = []
    for kind, options in ((torch.nn.EmbeddingBag, {}), (rgt.nn.EmbeddingBag, {"grad": grad})):
        for padding_idx in (None, 4):
            bag = kind(12, 5, mode="max", padding_idx=padding_idx, _weight=table.clone(), **options)
            out = bag(ids, starts)
            out.backward(torch.ones_like(out))
            assert bag.weight.grad.is_sparse == (options == {"grad": "rows"})
            results.append((out, bag.weight.grad.to_dense()))
    for expected, got in zip(results[:2], results[2:], strict=True):
        same(expected, got)
    bag = rgt.nn.EmbeddingBag(12, 5, mode="max", grad=grad, _weight=table.clone())
    segments = torch.arange(20).repeat_interleave(torch.diff(starts, append=T([90])))
    same(bag(ids, segment_ids=segments, num_bags=20), bag(ids, starts))
    filled = rgt.nn.EmbeddingBag(12, 5, mode="max", grad=grad, default_id=2, _weight=table.clone())
    assert torch.equal(filled(ids[:0], T([0, 0])), table[[2, 2]])


def test_gradients_of_gradients_of_maxima() -> None:
    weight = torch.rand(8, 3, dtype=torch.float64, requires_grad=True)

    def cubes(weight: torch.Tensor, grad: str = "dense") -> torch.Tensor:
        return rgt.functional.embedding_bag(IDS, weight, STARTS, mode="max", grad=grad) ** 3

    assert torch.autograd.gradcheck(cubes, (weight,))
    assert torch.autograd.gradgradcheck(cubes, (weight,))
    found = []
    for grad in ("dense", "rows"):
        (first,) = torch.autograd.grad(cubes(weight, grad).sum(), weight, create_graph=True)
        assert first.is_sparse == (grad == "rows")
        (second,) = torch.autograd.grad(first.to_dense().pow(2).sum(), weight)
        found.append((first.detach().to_dense(), second.to_dense()))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_offsets_that_end_before_the_ids(mode: str) -> None:
    """With padding_idx, and for max, torch's last bag contains the rest of the ids.

    Elsewhere torch's result ignores them, but its gradient does not, so rowgrad raises.
    """

    def action(lib: Any) -> Any:
        bag = lib.EmbeddingBag(100, 3, mode=mode, include_last_offset=True, padding_idx=61)
        return *trained(bag, T([0, 1, 2, 3]), T([0, 3, 3])), *trained(bag, T([0, 1, 2, 3]), T([0, 3, 4]))

    check(action)
    with pytest.raises(rg.errors.InvalidArgumentError, match="offsets must not decrease"):
        rgt.functional.embedding_bag(IDS, TABLE, T([0, 3, 1]), mode=mode, include_last_offset=True, padding_idx=2)
    freed = T([0, 2, 4])
    freed.untyped_storage().resize_(0)
    with pytest.raises(rg.errors.InvalidArgumentError, match="offsets has no memory"):
        rgt.functional.embedding_bag(IDS, TABLE, freed, mode=mode, include_last_offset=True, padding_idx=2)
    if mode == "max":
        check(lambda lib: lib.embedding_bag(IDS, torch.rand(5, 2), T([0, 2, 4]), mode=mode, include_last_offset=True))
        return
    with pytest.raises(rg.errors.InvalidArgumentError, match="offsets must end with the number of ids, 6, got 4"):
        rgt.functional.embedding_bag(IDS, torch.rand(5, 2), T([0, 2, 4]), mode=mode, include_last_offset=True)


# -- Errors -----------------------------------------------------------------------------------------------------------

TABLE = torch.arange(1.0, 11.0).view(5, 2)
BAG_ERRORS: dict[str, Action] = {
    "id beyond the table": lambda lib: lib.embedding_bag(T([7]), TABLE, T([0])),
    "negative id": lambda lib: lib.embedding_bag(T([-1]), TABLE, T([0])),
    "float ids": lambda lib: lib.embedding_bag(T([1.0]), TABLE, T([0])),
    "float offsets": lambda lib: lib.embedding_bag(T([1]), TABLE, T([0.0])),
    "int16 ids and offsets": lambda lib: lib.embedding_bag(T([1]).short(), TABLE, T([0]).short()),
    "no offsets": lambda lib: lib.embedding_bag(T([1]), TABLE),
    "offsets of 2 dimensions": lambda lib: lib.embedding_bag(T([1]), TABLE, T([[0]])),
    "first offset": lambda lib: lib.embedding_bag(IDS, TABLE, T([1, 2])),
    "decreasing offsets": lambda lib: lib.embedding_bag(IDS, TABLE, T([0, 4, 2, 5])),
    "offset beyond the ids": lambda lib: lib.embedding_bag(IDS, TABLE, T([0, 100])),
    "last offset beyond the ids": lambda lib: lib.embedding_bag(IDS, TABLE, T([0, 9]), include_last_offset=True),
    "no last offset": lambda lib: lib.embedding_bag(IDS, TABLE, NOTHING, include_last_offset=True),
    "matrix with offsets": lambda lib: lib.embedding_bag(IDS.view(2, 3), TABLE, T([0])),
    "ids of 3 dimensions": lambda lib: lib.embedding_bag(IDS.view(1, 2, 3), TABLE),
    "ids of 0 dimensions": lambda lib: lib.embedding_bag(T(1), TABLE),
    "table of 0 dimensions": lambda lib: lib.embedding_bag(IDS, T(1.0), T([0])),
    "integer table": lambda lib: lib.embedding_bag(IDS, TABLE.long(), T([0])),
    "integer table, max": lambda lib: lib.embedding_bag(IDS, TABLE.long(), T([0]), mode="max"),
    "unknown mode": lambda lib: lib.embedding_bag(IDS, TABLE, T([0]), mode="median"),
    "padding beyond the table": lambda lib: lib.embedding_bag(IDS, TABLE, T([0]), padding_idx=5),
    "padding before the table": lambda lib: lib.embedding_bag(IDS, TABLE, T([0]), padding_idx=-6),
    "max, sparse": lambda lib: lib.embedding_bag(IDS, TABLE, T([0]), mode="max", sparse=True),
    "max, sparse module": lambda lib: lib.EmbeddingBag(5, 2, mode="max", sparse=True)(IDS, T([0])),
    "max, frequency": lambda lib: lib.embedding_bag(IDS, TABLE, T([0]), mode="max", scale_grad_by_freq=True),
    "max, weights": lambda lib: lib.EmbeddingBag(5, 2, mode="max")(IDS, T([0]), torch.ones(6)),
    "max, weights of a matrix": lambda lib: lib.EmbeddingBag(5, 2, mode="max")(IDS.view(2, 3), None, torch.ones(2, 3)),
    "weights of another length": lambda lib: lib.EmbeddingBag(5, 2, mode="sum")(IDS, T([0]), torch.ones(5)),
    "weights of another shape": lambda lib: lib.EmbeddingBag(5, 2, mode="sum")(IDS.view(2, 3), None, torch.ones(6)),
    "float64 weights": lambda lib: lib.EmbeddingBag(5, 2, mode="sum")(IDS, T([0]), torch.ones(6).double()),
    "integer weights": lambda lib: lib.EmbeddingBag(5, 2, mode="sum")(IDS, T([0]), torch.ones(6).long()),
    "max_norm, id beyond the table": lambda lib: lib.EmbeddingBag(5, 2, 1.0)(T([1, 9]), T([0])),
    "max_norm, negative id": lambda lib: lib.EmbeddingBag(5, 2, 1.0)(T([1, -1]), T([0])),
    "frequency, sparse": lambda lib: trained(lib.EmbeddingBag(5, 2, None, 2.0, True, "sum", True), IDS, T([0])),
}
EMBEDDING_ERRORS: dict[str, Action] = {
    "id beyond the table": lambda lib: lib.embedding(T([7]), TABLE),
    "negative id": lambda lib: lib.embedding(T([[0, -1]]), TABLE),
    "id in a module": lambda lib: lib.Embedding(5, 2)(T([5])),
    "id with a sparse gradient": lambda lib: lib.Embedding(5, 2, 1, sparse=True)(T([5])),
    "max_norm, id beyond the table": lambda lib: lib.Embedding(5, 2, max_norm=1.0)(T([5])),
    "max_norm, negative id": lambda lib: lib.Embedding(5, 2, max_norm=1.0)(T([-1])),
    "float ids": lambda lib: lib.embedding(T([1.0]), TABLE),
    "int16 ids": lambda lib: lib.embedding(T([1]).short(), TABLE),
    "list of ids": lambda lib: lib.embedding([1], TABLE),
    "table of 0 dimensions": lambda lib: lib.embedding(T([0]), T(1.0)),
    "table of 3 dimensions": lambda lib: lib.embedding(T([0]), T([[[1.0]]])),
    "padding beyond the table": lambda lib: lib.embedding(T([0]), TABLE, padding_idx=5),
    "padding before the table": lambda lib: lib.embedding(T([0]), TABLE, padding_idx=-6),
    "frequency, sparse": lambda lib: trained(lib.Embedding(5, 2, scale_grad_by_freq=True, sparse=True), IDS),
}
OPTION_ERRORS: dict[str, Action] = {
    f"{name}, {what}": lambda lib, name=name, make=make: make(getattr(lib, name))
    for name in ("Embedding", "EmbeddingBag")
    for what, make in {
        "padding beyond the table": lambda kind: kind(5, 2, padding_idx=5),
        "padding before the table": lambda kind: kind(5, 2, padding_idx=-6),
        "negative size": lambda kind: kind(-5, 2),
        "float size": lambda kind: kind(5.5, 2),
        "text as size": lambda kind: kind(5, "2"),
        "integer dtype": lambda kind: kind(5, 2, dtype=torch.int64),
        "other shape": lambda kind: kind(5, 2, _weight=torch.ones(2, 5)),
        "pretrained vector": lambda kind: kind.from_pretrained(torch.ones(3)),
        "pretrained integers": lambda kind: kind.from_pretrained(torch.ones(3, 2).long(), freeze=False),
        "unknown option": lambda kind: kind(5, 2, median=True),
    }.items()
}
ERRORS = {
    **{f"bags, {what}": action for what, action in BAG_ERRORS.items()},
    **{f"rows, {what}": action for what, action in EMBEDDING_ERRORS.items()},
    **OPTION_ERRORS,
}


@pytest.mark.parametrize("what", ERRORS)
def test_errors_have_the_classes_of_torch(what: str) -> None:
    """`except` clauses written for torch catch rowgrad's errors; these are also rowgrad's, and can be pickled."""
    expected, got = outcome(TORCH, ERRORS[what]), outcome(ROWGRAD, ERRORS[what])
    assert isinstance(expected, Exception)
    assert isinstance(got, type(expected)), f"torch raises {expected!r}; rowgrad: {got!r}"
    if type(expected) is not TypeError:
        assert isinstance(got, rg.errors.OpError)
        copied = pickle.loads(pickle.dumps(got))
        assert (type(copied), str(copied)) == (type(got), str(got))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ids_dtype", INTEGERS)
@pytest.mark.parametrize("padding_idx", [None, 0])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_ids_out_of_range(dtype: torch.dtype, ids_dtype: torch.dtype, padding_idx: int | None, mode: str) -> None:
    weight = torch.randn(10, 2, dtype=dtype)
    for row, weighted in itertools.product(([-1, 1], [11, 8]), (False, mode == "sum")):
        ids = T([row], dtype=ids_dtype)
        options = {"per_sample_weights": torch.rand(1, 2, dtype=dtype)} if weighted else {}
        for lib in (TORCH, ROWGRAD):
            with pytest.raises(RuntimeError):
                lib.embedding_bag(ids, weight, padding_idx=padding_idx, mode=mode, **options)


def test_bad_ids_leave_the_table_unchanged() -> None:
    """torch renormalizes rows before it finds the bad id; rowgrad checks all arguments first."""
    for kind, args in (
        (rgt.nn.Embedding, (T([1, 2, 9]),)),
        (rgt.nn.Embedding, (T([1, -1]),)),
        (rgt.nn.EmbeddingBag, (T([1, 2, 9]), T([0]))),
        (rgt.nn.EmbeddingBag, (T([1, 2]), T([0, 5]))),
        (rgt.nn.EmbeddingBag, (T([1, 2]), T([0]), torch.ones(3))),
    ):
        module = kind(5, 2, max_norm=0.01)
        before = module.weight.detach().clone()
        with pytest.raises(rg.errors.InvalidArgumentError):
            module(*args)
        assert torch.equal(module.weight, before)
    bag = rgt.nn.EmbeddingBag(5, 2, max_norm=0.01)
    before = bag.weight.detach().clone()
    with pytest.raises(rg.errors.InvalidArgumentError, match="not increasing"):
        bag(T([1, 2]), segment_ids=T([1, 0]))
    assert torch.equal(bag.weight, before)


# -- Intended differences, which docs/reference/torch.md lists ---------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's, on its first dual tensor
def test_intended_differences() -> None:
    """What torch rejects and rowgrad accepts, and the reverse."""
    bag = rgt.nn.EmbeddingBag(5, 2, mode="mean")
    weights = torch.rand(6)
    expected = (bag.weight[IDS] * weights[:, None]).sum(0) / weights.sum()
    assert torch.allclose(bag(IDS, T([0]), weights)[0], expected)  # torch: NotImplementedError
    assert not bag(torch.zeros(3, 0, dtype=torch.int64)).any()  # torch: RuntimeError
    assert rgt.functional.embedding_bag(IDS, torch.rand(5, 2, 3), STARTS).shape == (5, 2, 3)  # torch: ValueError
    integers = torch.arange(10, dtype=torch.int32).view(5, 2)
    assert rgt.functional.embedding_bag(IDS, integers, T([0]), mode="sum").tolist() == [[20, 26]]  # torch: RuntimeError
    half = rgt.nn.EmbeddingBag(5, 2, mode="sum", dtype=torch.bfloat16)
    assert half(IDS, STARTS, weights).dtype == torch.bfloat16  # torch: RuntimeError
    with pytest.raises(ValueError, match="mode must be one of"):  # torch: when it is called
        rgt.nn.EmbeddingBag(5, 2, mode="median")
    with pytest.raises(ValueError, match="max_norm must be a number of at least 0"):  # torch turns the rows around
        rgt.nn.EmbeddingBag(5, 2, max_norm=-1.0)(IDS, STARTS)
    with pytest.raises(rg.errors.InvalidArgumentError, match="offsets must end"):  # torch ignores ids without a bag
        bag(IDS, NOTHING)
    with pytest.raises(rg.errors.InvalidArgumentError, match="ids must be one of"):  # torch: works with int64 offsets
        bag(IDS.short(), STARTS)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode() -> None:
    table, tangent = torch.rand(5, 2), torch.rand(5, 2)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(table, tangent)
        rows = torch.autograd.forward_ad.unpack_dual(rgt.functional.embedding(IDS, dual)).tangent
        bags = torch.autograd.forward_ad.unpack_dual(rgt.functional.embedding_bag(IDS, dual, STARTS)).tangent
    assert torch.equal(rows, rgt.functional.embedding(IDS, tangent))
    assert torch.equal(bags, rgt.functional.embedding_bag(IDS, tangent, STARTS))
