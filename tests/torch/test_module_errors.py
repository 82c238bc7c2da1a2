"""Exact error messages of modules, clipping and optimizer steps, and their rarely used options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import rowgrad as rg
import rowgrad.torch as rgt
from rowgrad import SparseTensor
from rowgrad.torch import clip, optim

T = torch.tensor
IDS, STARTS = T([0, 1, 2]), T([0, 1])
NONE = T([], dtype=torch.int64)


def jagged(*bags: Any) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.as_tensor(b) for b in bags], layout=torch.jagged)


def sparse(values: Any, rows: tuple[int, ...] = (0, 2)) -> SparseTensor:
    return SparseTensor(np.array([[r, 0] for r in rows]), values, np.array([3, 1]))


def error_of(call: Callable[[], Any]) -> tuple[type[Exception], str | None, str]:
    """Return an error's type, the argument it names, and its message."""
    with pytest.raises((rg.errors.OpError, TypeError)) as raised:
        call()
    error: Any = raised.value
    return type(error), getattr(error, "argument", None), getattr(error, "message", str(error))


ALONE = "{0} must be None, because {1} defines its own bags. Drop {0}, or pass a vector of ids."
NEITHER = (
    "a vector of ids needs offsets or segment_ids, got neither. Pass offsets (where each bag begins) or segment_ids"
    " (the bag of each id), or a matrix of ids with one bag in each row."
)
BOTH = "offsets and segment_ids both say where bags begin. Pass one of them."
BAGS: list[tuple[tuple[Any, ...], dict[str, Any], str, str]] = [
    ((T(1),), {}, "ids", "ids must have 1 or 2 dimensions, got 0"),
    ((IDS,), {}, "offsets", NEITHER),
    ((IDS, STARTS), {"segment_ids": IDS}, "offsets", BOTH),
    ((IDS, T(0)), {}, "offsets", "offsets: got 0 dimensions, expected 1"),
    ((IDS, T([0.0])), {}, "offsets", "offsets must be one of int32, int64; got torch.float32"),
    ((IDS, STARTS), {"num_bags": 5}, "num_bags", "num_bags: got 5, expected 2, as offsets say"),
    ((IDS,), {"segment_ids": T(0)}, "segment_ids", "segment_ids: got 0 dimensions, expected 1"),
    ((IDS,), {"segment_ids": T([[0, 0, 1]])}, "segment_ids", "segment_ids: got 2 dimensions, expected 1"),
    ((IDS[None],), {"num_bags": 3}, "num_bags", "num_bags: got 3, expected 1, the rows of ids"),
    ((IDS[None],), {"segment_ids": IDS}, "segment_ids", ALONE.format("segment_ids", "a matrix of ids")),
    (
        (IDS[None],),
        {"per_sample_weights": torch.ones(3)},
        "per_sample_weights",
        "per_sample_weights must have shape (1, 3), got (3,)",
    ),
    ((jagged([1], [2]), STARTS), {}, "offsets", ALONE.format("offsets", "a nested tensor")),
    ((jagged([1], [2]),), {"num_bags": 7}, "num_bags", "num_bags: got 7, expected 2, as offsets say"),
    ((jagged([1.0], [2.0]),), {}, "ids", "ids must be one of int32, int64; got torch.float32"),
    (
        (jagged([[1, 2]], [[2, 1]]),),
        {},
        "ids",
        "ids: got another nested tensor, expected a nested tensor of bags without holes",
    ),
    ((sparse(IDS[:2].numpy()), STARTS), {}, "offsets", ALONE.format("offsets", "a SparseTensor")),
    ((sparse(IDS[:2].numpy()),), {"num_bags": 9}, "num_bags", "num_bags: got 9, expected 3, as dense_shape says"),
    ((sparse(np.ones(2)),), {}, "ids", "ids must be one of int32, int64; got torch.float64"),
    ((SparseTensor(np.zeros((1, 0), int), [1], []),), {}, "dense_shape", "Dense shape cannot be empty."),
    (
        (IDS, STARTS),
        {"per_sample_weights": object()},
        "per_sample_weights",
        "per_sample_weights must be an array; got object",
    ),
]


@pytest.mark.parametrize(("args", "options", "argument", "message"), BAGS, ids=[message for *_, message in BAGS])
def test_inconsistent_bags_raise(args: tuple[Any, ...], options: dict[str, Any], argument: str, message: str) -> None:
    module = rgt.nn.EmbeddingBag(5, 3)
    kind, *found = error_of(lambda: module(*args, **options))
    assert issubclass(kind, rg.errors.InvalidArgumentError)
    assert issubclass(kind, RuntimeError) == message.startswith(("ids must be one of", "offsets must be one of"))
    assert found == [argument, message]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_nested_tensors_raise() -> None:
    old = torch.nested.nested_tensor([T([1, 2]), T([3])])
    message = "ids: got a nested tensor of layout torch.strided, expected torch.jagged"
    assert error_of(lambda: rgt.nn.EmbeddingBag(5, 3)(old))[1:] == ("ids", message)


def test_objects_that_are_not_tensors_raise() -> None:
    module = rgt.nn.EmbeddingBag(5, 3)
    message = "ids must be a tensor or a SparseTensor, got list. Convert it: torch.tensor(ids)."
    assert error_of(lambda: module([1])) == (TypeError, None, message)
    assert error_of(lambda: module(IDS, [0])) == (
        TypeError,
        None,
        "offsets must be a tensor, got list. Convert it: torch.tensor(offsets).",
    )
    many = rgt.nn.Embeddings([rgt.nn.Table("a", 5, 3)])
    assert (
        error_of(lambda: many({"a": (IDS, STARTS, None, None)}))[2] == f"feature a: {message.replace('list', 'tuple')}"
    )


def test_num_bags_defaults_to_the_last_segment_id() -> None:
    module = rgt.nn.EmbeddingBag(5, 3)
    assert torch.equal(module(IDS, segment_ids=T([0, 0, 2])), module(IDS, T([0, 2, 2])))
    assert module(NONE, segment_ids=NONE).shape == (0, 3)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"default_id": 1}], ids=str)
def test_weights_in_any_format(options: dict[str, int]) -> None:
    """Lists, arrays, sparse and jagged tensors of weights equal a plain tensor, for ids of every format."""
    module = rgt.nn.EmbeddingBag(5, 3, **options)
    w = [0.5, 2.0, 3.0]
    expected = module(IDS, STARTS, T(w))
    sparse_weights = SparseTensor([[0, 0], [1, 0], [1, 1]], np.array(w, np.float32), [2, 2])
    for weights in (w, np.array(w), np.array(w, ml_dtypes.bfloat16), sparse_weights):
        assert torch.equal(module(IDS, STARTS, weights), expected)
    for weights in (w, jagged(w[:1], w[1:]), T(w)):
        assert torch.equal(module(jagged([0], [1, 2]), None, weights), expected)
    assert torch.equal(module(IDS[None], None, [w]), module(IDS, STARTS[:1], T(w)))
    ids = sparse(IDS.numpy(), (0, 1, 1))
    assert torch.equal(module(ids, None, w)[:2], expected)


W = [0.5, 2.0, 3.0]
OTHER_BAGS = "per_sample_weights: got {}, expected the same bags as ids"
SPARSE = SparseTensor([[0, 0], [1, 0], [1, 1]], IDS.numpy(), [2, 2])


def placed(rows: Any, shape: Any = (2, 2)) -> SparseTensor:
    return SparseTensor(rows, np.array(W), shape)


@pytest.mark.parametrize(
    ("ids", "weights", "message"),
    [
        ((jagged([0], [1, 2]),), jagged(W[:2], W[2:]), OTHER_BAGS.format("2 weights in bag 0, but ids have 1")),
        ((jagged([0], [1, 2]),), jagged(W[:1], W[1:2], W[2:]), OTHER_BAGS.format("3 bags, but ids have 2")),
        ((jagged([0], [1, 2]),), jagged([W[:1]], [W[1:2], W[2:]]), OTHER_BAGS.format("another nested tensor")),
        ((IDS, STARTS), placed([[0, 0], [0, 1], [1, 0]]), OTHER_BAGS.format("a SparseTensor of other rows")),
        ((IDS, STARTS), placed([[0, 0], [1, 0], [1, 1]], (3, 2)), OTHER_BAGS.format("a SparseTensor of other rows")),
        ((jagged([0], [1, 2]),), placed([[0, 0], [0, 1], [1, 0]]), OTHER_BAGS.format("a SparseTensor of other rows")),
        *(
            (
                (SPARSE,),
                other,
                "per_sample_weights: got a SparseTensor of other indices, expected the indices of ids",
            )
            for other in (placed([[0, 0], [0, 1], [1, 0]]), placed([[0, 0], [1, 0], [1, 1]], (2, 3)))
        ),
    ],
)
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"padding_idx": 1}], ids=str)
def test_weights_with_other_bags_raise(ids: Any, weights: Any, message: str, options: dict[str, Any]) -> None:
    module = rgt.nn.EmbeddingBag(5, 3, **options)
    assert error_of(lambda: module(*ids, per_sample_weights=weights))[1:] == ("per_sample_weights", message)
    many = rgt.nn.Embeddings([A], include_last_offset=False)
    feature_ids = ids if len(ids) == 2 else ids[0]
    assert error_of(lambda: many({"a": feature_ids}, per_sample_weights={"a": weights}))[2] == f"feature a: {message}"


A, B, WIDE = rgt.nn.Table("a", 5, 3), rgt.nn.Table("b", 5, 3), rgt.nn.Table("wide", 5, 4)
PAIR = (IDS, T([0]))
FEATURES: list[tuple[list[rgt.nn.Table], tuple[Any, ...], str, str]] = [
    ([A, WIDE], (IDS, T(0)), "offsets", "offsets: got 0 dimensions, expected 1"),
    ([A, WIDE], (T(1), STARTS), "ids", "ids: got 0 dimensions, expected 1"),
    ([A, WIDE], (IDS, T([0, 1, 1])), "offsets", "the length of offsets must be a multiple of the 2 features, got 3"),
    *(
        (
            tables,
            (IDS, T([0, 1]), torch.ones(2)),
            "per_sample_weights",
            "per_sample_weights must have shape (3,), got (2,)",
        )
        for tables in ([A], [A, WIDE])
    ),
    ([A], ({"a": IDS},), "offsets", f"feature a: {NEITHER}"),
    *(
        ([A, t], ({"a": PAIR, t.name: (IDS, STARTS)},), t.name, f"feature {t.name}: 2 bags, but other features have 1")
        for t in (B, WIDE)
    ),
    (
        [A],
        ({"a": PAIR}, T([0])),
        "offsets",
        "offsets: got a value, expected None, because every feature defines its own bags",
    ),
    ([A], ({"a": PAIR}, None, [1.0]), "per_sample_weights", "per_sample_weights: got list, expected features 'a'"),
    (
        [A],
        ({"a": PAIR}, None, {"a": torch.ones(2)}),
        "per_sample_weights",
        "feature a: per_sample_weights must have shape (3,), got (2,)",
    ),
    (
        [rgt.nn.Table("ab", 5, 3, features=("a", "b"))],
        ({"a": PAIR, "b": PAIR}, None, {"a": torch.ones(3), "b": None}),
        "b",
        "feature b: no weights, but other features of its table have weights",
    ),
]


@pytest.mark.parametrize(("tables", "args", "argument", "message"), FEATURES)
def test_inconsistent_features_raise(
    tables: list[rgt.nn.Table], args: tuple[Any, ...], argument: str, message: str
) -> None:
    module = rgt.nn.Embeddings(tables, include_last_offset=False)
    assert error_of(lambda: module(*args)) == (rg.errors.InvalidArgumentError, argument, message)


@pytest.mark.parametrize("widths", [(4, 4), (4, 5)])  # in one call of the ops, and in one for each table
def test_bad_ids_name_their_feature_and_table(widths: tuple[int, int]) -> None:
    tables = [rgt.nn.Table("t", 10, widths[0]), rgt.nn.Table("u", 20, widths[1], features=("a", "b"))]
    module = rgt.nn.Embeddings(tables, include_last_offset=True)
    ends = T([0, 2, 3])
    by_name = {"t": (T([1, 2, 3]), ends), "a": (T([1, 2, 3]), ends), "b": (T([1, 19, 20]), ends)}
    vector = T([1, 2, 3, 1, 2, 3, 1, -2, 3]), T([0, 2, 3, 5, 6, 8, 9])
    empty_bags = T([1, 2, 10]), T([0, 0, 3, 3, 3, 3, 3])
    for args, feature, table, position, value, bound in (
        ((by_name,), "b", "u", 2, 20, 20),
        (({**by_name, "t": (T([10, 2, 3]), ends)},), "t", "t", 0, 10, 10),
        (vector, "b", "u", 7, -2, 20),
        (empty_bags, "t", "t", 2, 10, 10),
    ):
        with pytest.raises(rg.errors.InvalidArgumentError) as caught:
            module(*args)
        error = caught.value
        assert str(error) == (
            f"feature {feature}: indices[{position}] = {value} is not in [0, {bound}), the rows of table {table!r}"
        )
        assert (error.argument, error.position, error.value, error.bound) == ("indices", position, value, bound)


def test_errors_of_a_feature_have_the_facts_and_the_advice() -> None:
    module = rgt.nn.Embeddings([A], include_last_offset=True)
    with pytest.raises(rg.errors.InvalidArgumentError) as caught:
        module({"a": (T([1, 2, 3]), T([0, 3, 2]))})
    error = caught.value
    assert (error.argument, error.position, error.value, error.bound) == ("offsets", 2, 2, 3)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"construct the module with include_last_offset=False\.$"):
        module({"a": (T([1, 2, 3]), T([0, 2]))})


def test_lists_of_a_data_loader_raise() -> None:
    module = rgt.nn.Embeddings([A], include_last_offset=True)
    with pytest.raises(TypeError, match=r"^feature a: got a list, expected a tuple \(ids, offsets\) or"):
        module({"a": [T([1, 2]), T([0, 2])]})


def test_features_that_are_missing_or_unknown_are_named() -> None:
    module = rgt.nn.Embeddings([rgt.nn.Table(f"f{i}", 3, 2) for i in range(12)], include_last_offset=True)
    ids = {name: (T([0]), T([0, 1])) for name in module.features}
    assert len(module(ids)) == 12
    features = "expected features 'f0', 'f1', 'f2', 'f3', 'f4', … (12 in all)"
    for changed, found in (
        ({k: v for k, v in ids.items() if k != "f7"}, "no 'f7'"),
        ({**ids, "x": ids["f1"]}, "unknown 'x'"),
        ({("f70" if k == "f7" else k): v for k, v in ids.items()}, "no 'f7' and unknown 'f70'"),
    ):
        advice = ". Did you mean 'f7'?" if "f70" in changed else ""
        assert error_of(lambda ids=changed: module(ids))[2].removesuffix(advice) == f"ids: got {found}, {features}"
        with pytest.raises(rg.errors.InvalidArgumentError) as caught:
            module(changed)
        assert str(caught.value) == f"ids: got {found}, {features}{advice}"


def test_a_bare_vector_of_ids_raises() -> None:
    message = (
        "ids must be a dict {feature: ids}, or a vector with the offsets of all bags; got a tensor of 1 dimensions"
    )
    message += " without offsets"
    assert error_of(lambda: rgt.nn.Embeddings([A])(IDS)) == (TypeError, None, message)


def test_features_in_every_format() -> None:
    module = rgt.nn.Embeddings([A], include_last_offset=False)
    expected = module({"a": (IDS, T([0, 1, 1]))})["a"]
    assert torch.equal(module({"a": jagged(IDS[:1], NONE, IDS[1:])})["a"], expected)
    assert torch.equal(module({"a": sparse(IDS.numpy(), (0, 2, 2))})["a"], expected)
    assert torch.equal(module({"a": IDS[:, None]})["a"], module.weight("a")[:3])


def test_invalid_tables_and_repr() -> None:
    assert error_of(lambda: rgt.nn.Embeddings([]))[1:] == ("tables", "tables: got an empty list, expected at least one")
    message = "output must be one of 'features', 'stacked'; got 'rows'"
    assert error_of(lambda: rgt.nn.Embeddings([A], output="rows"))[1:] == ("output", message)
    for what, table in (("num_embeddings", rgt.nn.Table("a", -5, 3)), ("embedding_dim", rgt.nn.Table("a", 5, -3))):
        size = getattr(table, what)
        argument = f"{what} of table 'a'"
        message = f"{argument}: got {size}, expected 0 or more"
        assert error_of(lambda t=table: rgt.nn.Embeddings([t]))[1:] == (argument, message)
    module = rgt.nn.Embeddings([A, WIDE])
    with pytest.raises(KeyError, match=r"no table named 'x'\. There are a, wide"):
        module.weight("x")
    rows = "  (a): TableParameter(5, 3, combiner='mean')\n  (wide): TableParameter(5, 4, combiner='mean')\n"
    expected = f"Embeddings(\n  grad='rows', fused=False\n{rows})"
    assert repr(module) == expected


def test_embeddings_on_the_meta_device() -> None:
    module = rgt.nn.Embeddings([A, B], device="meta", include_last_offset=False)
    found = module({name: (IDS.to("meta"), STARTS.to("meta")) for name in "ab"})
    assert {name: (rows.device.type, tuple(rows.shape)) for name, rows in found.items()} == {
        "a": ("meta", (2, 3)),
        "b": ("meta", (2, 3)),
    }


def test_contradicting_options_raise() -> None:
    message = "_weight must have shape (2, 3), got (3, 2)"
    assert error_of(lambda: rgt.nn.EmbeddingBag(2, 3, _weight=torch.zeros(3, 2)))[1:] == ("_weight", message)
    message = "combiner: got 'mean', but mode='sum', expected the same value as mode"
    assert error_of(lambda: rgt.nn.EmbeddingBag(2, 3, mode="sum", combiner="mean"))[1:] == ("combiner", message)
    message = "grad: got 'dense', but sparse=True, expected 'rows' or sparse=False"
    assert error_of(lambda: rgt.nn.EmbeddingBag(2, 3, sparse=True, grad="dense"))[1:] == ("grad", message)
    message = "embeddings: got 1 dimensions, expected 2"
    assert error_of(lambda: rgt.nn.EmbeddingBag.from_pretrained(torch.ones(3)))[1:] == ("embeddings", message)


def parameter(grad: torch.Tensor | None) -> torch.nn.Parameter:
    param = torch.nn.Parameter(torch.zeros(3, 2))
    param.grad = grad
    return param


def test_clipping() -> None:
    assert clip.clip_grad_norm_([parameter(None)], 1.0) == 0
    twice = torch.sparse_coo_tensor([[0, 0]], [[1.0, 2.0], [2.0, 2.0]], (3, 2), check_invariants=True)
    rows, dense = parameter(twice), parameter(torch.full((3, 2), -9.0))
    clip.clip_grad_value_([rows, dense, parameter(None)], 3.5)
    assert rows.grad is not None
    assert dense.grad is not None
    assert rows.grad.to_dense().tolist() == [[3.0, 3.5], [0.0, 0.0], [0.0, 0.0]]
    assert dense.grad.tolist() == [[-3.5, -3.5]] * 3
    clip.clip_grad_value_(dense, 1.0)
    assert dense.grad.tolist() == [[-1.0, -1.0]] * 3


@pytest.mark.parametrize("norm", [2.0, "inf", 0.0, -1.0, -torch.inf])
def test_norm_of_a_sparse_gradient_equals_the_dense_one(norm: Any) -> None:
    """Rows missing from a sparse gradient count as zeros; "inf" means what it means in torch."""
    rows = torch.sparse_coo_tensor([[2]], [[4.0, 3.0]], (3, 2), check_invariants=True)
    sparse, dense = parameter(rows), parameter(rows.to_dense())
    norms = clip.clip_grad_norm_(sparse, 1.0, norm), torch.nn.utils.clip_grad_norm_(dense, 1.0, norm)
    assert torch.equal(*norms)
    assert sparse.grad is not None
    assert dense.grad is not None
    assert torch.equal(sparse.grad.to_dense(), dense.grad)


@pytest.mark.parametrize("wrong", [torch.nan, -1.0, "x", None, T([1.0, 2.0])])
def test_invalid_clipping_bounds_raise(wrong: Any) -> None:
    dense = parameter(torch.ones(3, 2))
    for call, argument in ((clip.clip_grad_norm_, "max_norm"), (clip.clip_grad_value_, "clip_value")):
        with pytest.raises(rg.errors.InvalidArgumentError, match=f"^{argument} must be a number of at least 0; got"):
            call(dense, wrong)
    with pytest.raises(rg.errors.InvalidArgumentError, match="norm_type must be a number; got nan"):
        clip.clip_grad_norm_(dense, 1.0, torch.nan)
    assert dense.grad is not None
    assert dense.grad.tolist() == [[1.0, 1.0]] * 3


def test_nonfinite_norm_raises_on_request() -> None:
    bad = parameter(torch.tensor([[1.0, torch.inf]] * 3))
    with pytest.raises(RuntimeError, match=r"^the gradients' norm of order 2.0 is inf, so they cannot be clipped$"):
        clip.clip_grad_norm_(bad, 1.0, error_if_nonfinite=True)
    assert bad.grad is not None
    assert bad.grad.tolist() == [[1.0, torch.inf]] * 3


def test_sparse_parameters_raise() -> None:
    param = torch.nn.Parameter(torch.ones(3, 2).to_sparse())
    message = "param must be dense; got a tensor of layout torch.sparse_coo"
    assert error_of(lambda: optim.SGD([param], 0.1)) == (rg.errors.UnimplementedError, "param", message)


KINDS = "float16, bfloat16, float32, float64, int32, int64"
STEPS: list[tuple[dict[str, Any], str, str]] = [
    ({"grad": torch.ones(1, 2, device="meta")}, "grad", "grad must be on the CPU; got a tensor on meta"),
    ({"indices": T([0], device="meta")}, "indices", "indices must be on the CPU; got a tensor on meta"),
    ({"indices": T([0], dtype=torch.int16)}, "indices", f"indices must be one of {KINDS}; got torch.int16"),
    ({"weights": T([1j])}, "weights", f"weights must be one of {KINDS}; got torch.complex64"),
]


@pytest.mark.parametrize(("wrong", "argument", "message"), STEPS)
def test_update_from_bags_rejects_bad_arguments(wrong: dict[str, Any], argument: str, message: str) -> None:
    param = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = optim.Adagrad([param], 0.1)
    arguments = {"grad": torch.ones(1, 2), "indices": T([0]), "segment_ids": T([0]), "combiner": "sum"} | wrong
    assert error_of(lambda: optimizer.update_from_bags(param, **arguments))[1:] == (argument, message)
    assert param.tolist() == [[1.0, 1.0]] * 3
    assert optimizer.state[param]["sum"].count_nonzero() == 0


def test_steps_on_freed_or_meta_memory_raise() -> None:
    param = parameter(torch.ones(3, 2))
    optimizer = optim.Adagrad([param], 0.1)
    optimizer.state[param] = {"step": 0, "sum": torch.zeros(3, 2, device="meta")}
    assert error_of(optimizer.step)[1:] == ("sum", "sum must be on the CPU; got a tensor on meta")
    assert param.tolist() == [[0.0, 0.0]] * 3
    optimizer.state[param] = {"step": 0, "sum": torch.zeros(3, 2)}
    param.data.untyped_storage().resize_(0)
    assert error_of(optimizer.step)[1:] == ("param", "param has no memory: its storage was freed or donated")


def test_out_with_tensors_raises() -> None:
    message = "out for output must be absent for torch tensors; got an array"
    out = np.zeros((1, 2), np.float32)
    assert error_of(lambda: rg.raw_ops.SparseSegmentSum(torch.ones(3, 2), T([0]), T([0]), out=out))[1:] == (
        "output",
        message,
    )
    assert out.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((1, 0, 1), "segment ids are not increasing"),
        ((0, 1, 5), "Segment id 5 out of range [0, 3)"),
        ((-1, 0, 1), "Segment id -1 out of range [0, 3)"),
    ],
)
def test_unsorted_sparse_ids_of_features_raise(rows: tuple[int, ...], message: str) -> None:
    """Sparse ids are grouped by row; unsorted rows would land in the wrong bags."""
    embeddings = rgt.nn.Embeddings([rgt.nn.Table("a", 4, 2)])
    found = error_of(lambda: embeddings({"a": sparse(T([1, 2, 3]), rows)}))
    assert found[2].startswith(f"feature a: {message}")


def test_tables_without_columns() -> None:
    embeddings = rgt.nn.Embeddings([rgt.nn.Table("a", 4, 0, features=("x", "y"))])
    out = embeddings({"x": T([[1, 2]]), "y": T([[3, 3]])})
    assert out["y"].shape == (1, 0)


def test_padding_with_too_few_segment_ids_raises() -> None:
    table = torch.ones(3, 2)
    found = error_of(lambda: rgt.functional.embedding_bag(IDS, table, segment_ids=T([0, 1]), num_bags=2, padding_idx=0))
    assert found[1:] == ("segment_ids", "segment_ids and indices should have same size.")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rgt.nn.EmbeddingBag(-1, 2), "num_embeddings must be an int of 0 or more; got -1"),
        (lambda: rgt.nn.EmbeddingBag(3, 2.5), "embedding_dim must be an int of 0 or more; got 2.5"),  # type: ignore[arg-type]
        (lambda: rgt.nn.EmbeddingBag("3", 2), "num_embeddings must be an int of 0 or more; got '3'"),  # type: ignore[arg-type]
        (lambda: rgt.nn.EmbeddingBag(2**62, 2**62), "Encountered overflow when multiplying"),
        (lambda: rgt.nn.EmbeddingBag(3, 2, dtype=torch.int64), "dtype must be one of torch.float16, torch.bfloat16"),
        (lambda: rgt.nn.EmbeddingBag(3, 2, padding_idx=1.5), "padding_idx must be an int; got 1.5"),  # type: ignore[arg-type]
        (
            lambda: rgt.nn.EmbeddingBag.from_pretrained(np.ones((3, 2))),
            "embeddings must be a tensor, got numpy.ndarray. Convert it",
        ),  # type: ignore[arg-type]
        (lambda: rgt.nn.EmbeddingBag.from_pretrained(IDS[None]), "embeddings must be one of float16"),
        (lambda: rgt.functional.embedding_bag(IDS, T(1.0), STARTS), "weight: got 0 dimensions, expected 1 or more"),
        (
            lambda: rgt.functional.embedding_bag(IDS, np.ones((3, 2)), STARTS, grad="rows"),  # type: ignore[arg-type]
            "weight must be a tensor, got numpy.ndarray. Convert it",
        ),
    ],
)
def test_invalid_table_arguments_raise(make: Callable[[], Any], message: str) -> None:
    assert error_of(make)[2].startswith(message)


def test_table_sizes_may_be_numpy_integers() -> None:
    assert rgt.nn.EmbeddingBag(np.int64(3), np.int32(2)).weight.shape == (3, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", [float("inf"), 2.0, 1.0])
def test_clipping_gradients_of_empty_batches(norm: float) -> None:
    bag = rgt.nn.EmbeddingBag(3, 2, grad="rows")
    bag(NONE, T([0])).sum().backward()
    assert clip.clip_grad_norm_(bag.parameters(), 1.0, norm).item() == 0.0


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("fused", [False, True])
def test_torch_sparse_tensors_as_ids_or_weights_raise(fused: bool) -> None:
    bag, eye = rgt.nn.EmbeddingBag(3, 2, fused=fused), torch.eye(2, dtype=torch.int64)
    for call, argument in (
        (lambda: bag(eye.to_sparse()), "ids"),
        (lambda: bag(eye.to_sparse_csr()), "ids"),
        (lambda: bag(eye, None, torch.eye(2).to_sparse()), "per_sample_weights"),
    ):
        kind, named, message = error_of(call)
        assert (kind, named) == (rg.errors.InvalidArgumentError, argument)
        assert message.startswith(f"{argument} must be an array; got a torch.sparse_c")


def test_ids_beyond_available_memory_raise() -> None:
    with pytest.raises(rg.errors.ResourceExhaustedError):
        rgt.nn.EmbeddingBag(3, 2)(T([[1]]).expand(2**20, 2**30))
    many = SparseTensor(np.zeros((0, 2), np.int64), NONE, [2**50, 1])
    with pytest.raises(rg.errors.OpError):
        rgt.nn.Embeddings([rgt.nn.Table("a", 3, 2)])({"a": many})


def test_weights_of_features_must_be_floats() -> None:
    tables = rgt.nn.Embeddings([rgt.nn.Table("a", 3, 2), rgt.nn.Table("b", 3, 2)])
    weights = {"a": torch.ones(1, 2), "b": torch.ones(1, 2, dtype=torch.int64)}
    with pytest.raises(rg.errors.InvalidArgumentError, match="feature b: per_sample_weights must be one of float16"):
        tables({"a": IDS[None, :2], "b": IDS[None, :2]}, per_sample_weights=weights)


@pytest.mark.parametrize(
    "wrong", [[[1.0, 2.0]] * 3, None, np.ones((3, 2)), torch.ones(3, 2).to_sparse(), torch.ones(3, 2, device="meta")]
)
def test_invalid_state_dict_entries_raise(wrong: Any) -> None:
    """torch names the bad entry and still loads all other tables, as for its own modules."""
    tables = rgt.nn.Embeddings([rgt.nn.Table("a", 3, 2), rgt.nn.Table("b", 3, 2)])
    with pytest.raises(
        RuntimeError, match=r"loading state_dict for Embeddings:\s+While copying the parameter named \"a\.weight\""
    ):
        tables.load_state_dict({"a.weight": wrong, "b.weight": torch.full((3, 2), 7.0)})
    assert bool((tables.weight("b") == 7.0).all())


def test_tables_must_be_table_records() -> None:
    with pytest.raises(
        TypeError, match=r"tables must contain rowgrad.torch.nn.Table, got tuple. Write Table\('a', 3, 2\)."
    ):
        rgt.nn.Embeddings([("a", 3, 2)])  # type: ignore[list-item]
    with pytest.raises(
        rg.errors.InvalidArgumentError, match="features of table 'a': got 'bc', expected a tuple of names"
    ):
        rgt.nn.Embeddings([rgt.nn.Table("a", 3, 2, features="bc")])  # type: ignore[arg-type]
    sized = rgt.nn.Table("a", np.int64(3), np.int32(2))  # type: ignore[arg-type]
    assert rgt.nn.Embeddings([sized]).weight("a").shape == (3, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"padding_idx": 0},
        {"default_id": 1},
        {"padding_idx": 0, "default_id": 1, "fused": True},
        {"max_norm": 1.0},
        {"padding_idx": 0, "max_norm": 1.0},
        {"lookup_max_norm": 1.0},
        {"padding_idx": 0, "lookup_max_norm": 1.0},
        {"padding_idx": 0, "mode": "max"},
        {"scale_grad_by_freq": True},
    ],
)
def test_errors_name_the_position_of_a_bad_id_in_the_input(options: dict[str, Any]) -> None:
    bag = rgt.nn.EmbeddingBag(3, 2, **options)
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"indices\[4\] == 7 out of range \[0, 3\)") as raised:
        bag(T([0, 2, 2, 0, 7]), T([0, 0, 2]))
    assert raised.value.position == 4
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"indices\[3\] == -1 out of range"):
        bag(T([[0, 2], [0, -1]]))
