"""The torch runner on a GPU: CPU tensors are treated as GPU tensors, and the CUDA kernels run on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from emulated_call import same_bits
from emulated_device import HostDevice
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import rowgrad as rg
import rowgrad.torch as rgt
from conformance.test_golden import RANK_ONE, by_op
from golden_cases import Case
from golden_cases import same_bits as same_arrays
from rowgrad._catalog.spec import CATALOG
from rowgrad.cuda.call import RUNNERS
from rowgrad.cuda.updates import UPDATES
from rowgrad.errors import InvalidArgumentError, OpError, ResourceExhaustedError, UnimplementedError
from rowgrad.torch import autograd, devices, launch
from torch_arrays import to_numpy, to_torch

WEIGHTED = {"weighted_segment_grad", "row_plan", "planned_weighted_grad", "scatter_rows"}
PLANNED, FUSED = {"row_plan", "planned_segment_grad"}, {"apply_bags", "apply_planned"}
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@contextmanager
def on_gpu(device: HostDevice | None = None, mode: str = "async") -> Iterator[HostDevice]:
    """Treat every CPU tensor as being on the device; raise pending faults at the end."""
    host = device or HostDevice()
    before = rgt.validate(mode)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "device_for", lambda tensor: host if tensor.is_cpu else None)
        patch.setattr(devices, "is_on_gpu", lambda tensor: True)
        patch.setattr(devices, "_DEVICES", {0: host})
        patch.setattr(devices, "_wait", lambda index: None)
        try:
            yield host
            rgt.synchronize()
        finally:
            rgt.validate(before)
            launch._DEVICE_CALLS.clear()


@contextmanager
def on_cpu_as_gpu() -> Iterator[None]:
    """Run CPU kernels with the defaults of a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "is_on_gpu", lambda tensor: True)
        yield


def batch(seed: int, dtype: torch.dtype = torch.float32, ids: int = 300, rows: int = 7) -> tuple[Tensor, ...]:
    """Return a table, ids most of which name one row, and segment ids."""
    draw = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, 5, generator=draw).to(dtype)
    indices = torch.randint(0, rows, (ids,), generator=draw)
    indices[ids // 4 :] = 3
    segments = torch.sort(torch.randint(0, 40, (ids,), generator=draw)).values
    return table, indices, segments


# -- golden cases -----------------------------------------------------------------------------------------------------


def through_raw_ops(case: Case, inputs: dict[str, Any], attrs: dict[str, Any]) -> Any:
    return getattr(rg.raw_ops, case.op)(**inputs, **attrs)


def through_torch_ops(case: Case, inputs: dict[str, Any], attrs: dict[str, Any]) -> Any:
    host = {a.name for a in CATALOG[case.op].inputs if a.host}
    numbers = {k: v.tolist() if k in host and not v.is_floating_point() else v for k, v in inputs.items()}
    return getattr(torch.ops.rowgrad, case.op)(**numbers, **attrs)


WAYS = (through_raw_ops, through_torch_ops)


def golden(kind: str, every: int) -> list[Any]:
    """Return some cases of every op with CUDA kernels."""
    return [
        pytest.param(p.values[0][::every], id=p.id) for p in by_op(kind) if CATALOG[p.values[0][0].op].kernel in RUNNERS
    ]


def arguments(case: Case) -> tuple[dict[str, Any], dict[str, Any]] | None:
    inputs = {name: to_torch(array) for name, array in case.inputs.items()}
    if any(v is None for v in inputs.values()):
        return None
    # On a GPU, TensorFlow's order is not the default.
    return inputs, {**({"order": "sequential"} if "order" in CATALOG[case.op].attrs else {}), **case.attrs}


@pytest.mark.parametrize("found", golden("valid", 4))
def test_golden_bits(found: list[Case]) -> None:
    with on_gpu() as device:
        for turn, case in enumerate(found):
            call = arguments(case)
            if call is None:
                continue
            result = WAYS[turn % 2](case, *call)
            for expected, got in zip(
                case.outputs.values(), result if isinstance(result, tuple) else (result,), strict=True
            ):
                if case.op == RANK_ONE and expected.shape == (0, 1):
                    expected = expected.reshape(0)
                assert same_arrays(to_numpy(got), expected), f"{case}\n{got}\n{expected}"
        assert device.launched


@pytest.mark.parametrize("found", golden("error", 1))
def test_golden_errors(found: list[Case]) -> None:
    with on_gpu(mode="sync"):
        for case in found:
            call = arguments(case)
            if call is None or "dtype" in case.tag:
                continue
            with pytest.raises(OpError) as raised:
                through_raw_ops(case, *call)
            assert type(raised.value).__name__ == case.error["class"], f"{case}: {raised.value!r}"
            assert raised.value.message == case.error["message"], f"{case}: {raised.value}"
            assert raised.value.op == case.op


# -- calls ------------------------------------------------------------------------------------------------------------


def test_repeated_calls_use_their_own_data() -> None:
    _, indices, segments = batch(0)
    grads = [torch.randn(40, 5) for _ in range(3)]
    on_cpu = [rg.raw_ops.SparseSegmentMeanGrad(g, indices, segments, 7, order="blocked") for g in grads]
    with on_gpu():
        for _ in range(2):
            for grad, expected in zip(grads, on_cpu, strict=True):
                assert same_bits(rg.raw_ops.SparseSegmentMeanGrad(grad, indices, segments, 7), expected)
        assert len(launch._DEVICE_CALLS) == 1
        bad = rg.raw_ops.SparseSegmentMeanGrad  # another number of rows takes another cache entry
        assert bad(grads[0], indices, segments, 9).shape == (9, 5)
        with pytest.raises(InvalidArgumentError):
            bad(grads[0], indices[1:], segments, 9)


def test_inputs_need_not_be_contiguous() -> None:
    table, indices, segments = batch(1, torch.complex64)
    views = (
        table.t().contiguous().t(),
        table.conj(),
        table[:, ::2],
        table.imag,
        table[:1].expand(7, 5),
        table.conj().imag,
    )
    for view in views:
        expected = rg.raw_ops.GatherRows(view, indices)
        with on_gpu():
            assert same_bits(rg.raw_ops.GatherRows(view, indices), expected)
    expected = rg.raw_ops.SparseSegmentSum(table.real, indices[::3], segments[::3])
    with on_gpu():
        assert same_bits(rg.raw_ops.SparseSegmentSum(table.real, indices[::3], segments[::3]), expected)


def test_lists_numbers_and_arrays_mixed_with_tensors() -> None:
    table = torch.arange(12.0).reshape(4, 3)
    calls: list[Callable[[], Tensor]] = [
        lambda: rg.raw_ops.SparseSegmentSumWithNumSegments(table, [3, 1], [0, 2], 4),
        lambda: rg.raw_ops.SparseSegmentSumWithNumSegments(table, np.array([3, 1]), (0, 2), np.int32(4)),
        lambda: rg.raw_ops.SparseSegmentSumWithNumSegments(table, torch.tensor([3, 1]), [0, 2], torch.tensor(4)),
        lambda: rg.raw_ops.SparseFillEmptyRows([[0, 0]], torch.tensor([2.5]), [3, 1], 1.5).output_values,
    ]  # fmt: skip
    on_cpu = [call() for call in calls]
    with on_gpu() as device:
        for call, expected in zip(calls, on_cpu, strict=True):
            device.launched.clear()
            assert same_bits(call(), expected)
            assert device.launched


def test_tensors_on_two_devices_are_rejected() -> None:
    table, indices, segments = batch(2)
    for odd, name in ((indices, "indices"), (segments, "segment_ids")):
        with on_gpu() as device, pytest.MonkeyPatch.context() as patch:
            patch.setattr(devices, "device_for", lambda t, odd=odd, device=device: None if t is odd else device)
            with pytest.raises(InvalidArgumentError, match=r"but (data|grad) is on") as raised:
                rg.raw_ops.SparseSegmentSum(table, indices, segments)
            assert raised.value.argument == name
    with on_gpu() as device, pytest.MonkeyPatch.context() as patch:  # only the first is on the CPU
        patch.setattr(devices, "device_for", lambda t: None if t is table else device)
        with pytest.raises(InvalidArgumentError) as raised:
            rg.raw_ops.SparseSegmentSum(table, indices, segments)
        assert raised.value.argument == "indices"


def test_failed_allocation_raises_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    table, indices, _ = batch(3)
    with on_gpu() as device:

        def full(shape: Any, dtype: Any) -> Tensor:
            raise torch.OutOfMemoryError("out of memory")

        usual = device.empty
        monkeypatch.setattr(device, "memory", 1 << 30, raising=False)
        monkeypatch.setattr(device, "empty", full)
        with pytest.raises(ResourceExhaustedError, match="OOM when allocating tensor with shape"):
            rg.raw_ops.GatherRows(table, indices)
        outputs = [torch.float32]
        monkeypatch.setattr(device, "empty", lambda s, d: (usual if d in outputs else full)(s, d))
        with pytest.raises(ResourceExhaustedError, match="OOM when allocating workspace for"):
            rg.raw_ops.SparseSegmentMeanGrad(torch.ones(40, 5), indices, indices, 7)


def test_a_fake_call_returns_tensors_on_the_device_of_its_inputs() -> None:
    with FakeTensorMode():
        grad, ids = torch.empty(4, 3, device="cuda"), torch.empty(9, dtype=torch.int64, device="cuda")
        result = rg.raw_ops.SparseSegmentSumGrad(grad, ids, ids, 7)
        assert result.device == grad.device
        with pytest.raises(InvalidArgumentError, match=r"but (data|grad) is on"):
            rg.raw_ops.SparseSegmentSumGrad(grad, ids.cpu(), ids, 7)


# -- the default order ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_blocked_by_default(dtype: torch.dtype) -> None:
    _, indices, segments = batch(4)
    grad = torch.randn(40, 5).to(dtype)
    arguments = (grad, indices, segments, 7)
    op, by_torch = rg.raw_ops.SparseSegmentSqrtNGrad, torch.ops.rowgrad.SparseSegmentSqrtNGrad
    blocked, sequential = (op(*arguments, order=order) for order in ("blocked", "sequential"))
    if dtype.itemsize > 2:  # two bytes are too coarse to show the difference
        assert not same_bits(blocked, sequential)
    assert same_bits(op(*arguments), sequential)
    with on_gpu():
        assert same_bits(op(*arguments), blocked)
        assert same_bits(op(grad=grad, indices=indices, segment_ids=segments, output_dim0=7, name="n"), blocked)
        assert same_bits(op(*arguments, order="blocked"), blocked)
        assert same_bits(op(*arguments, order="sequential"), sequential)
        assert same_bits(by_torch(*arguments), sequential)  # the default of a torch operator is that of its schema
        assert same_bits(by_torch(*arguments, order="blocked"), blocked)


class RecordedOps(TorchDispatchMode):
    """Record which operators of rowgrad were called with which attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "rowgrad":
            name = func.__name__.partition(".")[0]
            self.calls.append((name, tuple(args[len(CATALOG[name].inputs) :])))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("place", "attrs"), [("cuda", ("blocked",)), ("cpu", ())])
def test_traced_calls_use_the_order_of_the_device(place: str, attrs: tuple[str, ...]) -> None:
    with FakeTensorMode(), RecordedOps() as recorded:
        grad, ids = torch.empty(4, 3, device=place), torch.empty(9, dtype=torch.int64, device=place)
        rg.raw_ops.SparseSegmentSumGrad(grad, ids, ids, 7)
        for table in (autograd.TABLE, autograd.LIBRARY_TABLE):  # the tables that backward passes call
            table["SparseSegmentSumGrad"](grad, ids, ids, 7)
            table["WeightedSparseSegmentSumGrad"](grad, ids, ids, grad.new_empty(9), 7, accumulate="T")
    orders = [attributes[-1:] for name, attributes in recorded.calls if name == "SparseSegmentSumGrad"]
    assert orders == [attrs] * 3
    orders = [attributes[1:] for name, attributes in recorded.calls if name == "WeightedSparseSegmentSumGrad"]
    assert orders == [attrs] * 2


# -- autograd and modules ---------------------------------------------------------------------------------------------


def results_on_both(make: Callable[[], tuple[Tensor, list[Tensor]]]) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs and all gradients, dense or by rows, from the CPU and from the device."""
    results = []
    for where in (on_cpu_as_gpu, on_gpu):
        with where():
            out, leaves = make()
            upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=out.dtype)
            found = [out.detach()]
            for grad in torch.autograd.grad(out, leaves, upstream):
                if grad.is_sparse:
                    assert grad.is_coalesced()
                    found += [grad.indices(), grad.values()]
                else:
                    found.append(grad)
        results.append(found)
    return results[0], results[1]


def check_training(make: Callable[[], tuple[Tensor, list[Tensor]]]) -> None:
    expected, got = results_on_both(make)
    assert len(expected) == len(got)
    assert all(map(same_bits, got, expected)), (expected, got)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
@pytest.mark.parametrize("rows", [False, True])
def test_autograd_of_lookups(kind: str, rows: bool, dtype: torch.dtype) -> None:
    table, indices, segments = batch(5, dtype)

    def make() -> tuple[Tensor, list[Tensor]]:
        leaf = table.clone().requires_grad_()
        op = getattr(rg.raw_ops, f"SparseSegment{kind}WithNumSegments")
        return op(leaf, indices, segments, 41, sparse_gradient=rows), [leaf]

    check_training(make)


@pytest.mark.parametrize("grad", ["dense", "rows"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_embedding_bag(combiner: str, grad: str) -> None:
    table, indices, _ = batch(6)
    offsets = torch.tensor([0, 5, 5, 90, 300])

    def make() -> tuple[Tensor, list[Tensor]]:
        bag = rgt.nn.EmbeddingBag(7, 5, combiner=combiner, grad=grad, default_id=2, _weight=table.clone())
        return bag(indices, offsets), [bag.weight]

    check_training(make)


@pytest.mark.parametrize("grad", ["dense", "rows"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "max"},
        {"mode": "max", "padding_idx": 3},
        {"max_norm": 0.5},
        {"max_norm": 0.5, "norm_type": 1.0, "mode": "max"},
        {"lookup_max_norm": 0.5},
    ],
    ids=str,
)
def test_options_of_torch(options: dict[str, Any], dtype: torch.dtype, grad: str) -> None:
    table, indices, _ = batch(6, dtype)
    offsets = torch.tensor([0, 5, 5, 90, 300])

    def make() -> tuple[Tensor, list[Tensor]]:
        bag = rgt.nn.EmbeddingBag(7, 5, grad=grad, _weight=table.clone(), **options)
        return bag(indices, offsets), [bag.weight]

    check_training(make)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}, {"max_norm": 0.5}], ids=str)
@pytest.mark.parametrize("grad", ["dense", "rows"])
def test_embedding(options: dict[str, Any], grad: str) -> None:
    table, indices, _ = batch(6)

    def make() -> tuple[Tensor, list[Tensor]]:
        module = rgt.nn.Embedding(7, 5, grad=grad, _weight=table.clone(), **options)
        return module(indices.view(20, 15)), [module.weight]

    check_training(make)


@pytest.mark.parametrize("kind", ["bags", "max", "rows"])
@pytest.mark.parametrize("mode", ["async", "sync", "off"])
def test_bad_ids_do_not_change_the_table(kind: str, mode: str) -> None:
    """`max_norm` waits for the validation of ids before it writes; with validation off, it skips bad ids."""
    table, ids = torch.full((7, 5), 9.0), torch.tensor([[1, 700], [-4, 2]])
    options = {"mode": "max"} if kind == "max" else {}
    make: Any = rgt.nn.Embedding if kind == "rows" else rgt.nn.EmbeddingBag
    module = make(7, 5, max_norm=1.0, _weight=table, **options)
    if mode == "off":
        with on_gpu(mode=mode):
            module(ids)
        assert (table != 9.0).any(1).nonzero().ravel().tolist() == [1, 2]
        return
    with on_gpu(mode=mode), pytest.raises(InvalidArgumentError, match="700"):
        module(ids)
    assert bool((table == 9.0).all())


def test_bad_ids_of_maxima_raise_later() -> None:
    bag = rgt.nn.EmbeddingBag(7, 5, mode="max")
    with pytest.raises(InvalidArgumentError, match="700"), on_gpu():
        assert bag(torch.tensor([[1, 700], [-4, 2]])).shape == (2, 5)


def test_embeddings() -> None:
    tables = [rgt.nn.Table("user", 20, 4), rgt.nn.Table("item", 10, 4, features=("seen", "bought"))]
    torch.manual_seed(0)
    module = rgt.nn.Embeddings(tables, output="stacked", include_last_offset=False)
    ids, offsets = torch.tensor([3, 1, 4, 1, 5]), torch.tensor([0, 2, 2])

    def make() -> tuple[Tensor, list[Tensor]]:
        return module(dict.fromkeys(("user", "seen", "bought"), (ids, offsets))), list(module.parameters())

    check_training(make)


@pytest.mark.skipif(not RUNNERS.keys() >= WEIGHTED, reason="needs kernels of weighted gradients")
@pytest.mark.parametrize("grad", ["dense", "rows"])
def test_gradients_of_weights(grad: str) -> None:
    table, indices, segments = batch(7)
    weights = torch.rand(300)

    def make() -> tuple[Tensor, list[Tensor]]:
        leaf = weights.clone().requires_grad_()
        bag = rgt.nn.EmbeddingBag(7, 5, combiner="mean", grad=grad, _weight=table.clone())
        return bag(indices, per_sample_weights=leaf, segment_ids=segments, num_bags=40), [bag.weight, leaf]

    check_training(make)


def test_a_lookup_with_numpy_ids() -> None:
    table, indices, segments = batch(8)
    places = np.stack([segments.numpy(), np.arange(300)], 1)
    ids = rg.SparseTensor(places, indices.numpy(), (40, 300))

    def make() -> tuple[Tensor, list[Tensor]]:
        leaf = table.clone().requires_grad_()
        return rg.embedding_lookup_sparse(leaf, ids, None, combiner="sum", allow_fast_lookup=True), [leaf]

    check_training(make)


def test_vmap_is_one_call_on_the_device() -> None:
    tables, indices, segments = torch.randn(3, 7, 5), torch.randint(0, 7, (3, 20)), torch.arange(20) // 4

    def loss(table: Tensor, ids: Tensor) -> Tensor:
        return rg.raw_ops.SparseSegmentMeanWithNumSegments(table, ids, segments, 5).square().sum()

    grads = torch.func.vmap(torch.func.grad(loss))
    expected = grads(tables, indices)
    with on_gpu() as device:
        assert same_bits(grads(tables, indices), expected)
        assert device.launched


@pytest.mark.skipif(not RUNNERS.keys() >= PLANNED, reason="needs kernels of plans")
def test_a_plan_is_built_and_used_on_the_device() -> None:
    _, indices, segments = batch(12)
    grad = torch.randn(40, 5)
    expected = rg.raw_ops.SparseSegmentMeanGradV2(grad, indices, segments, 7, order="blocked")
    with on_gpu() as device:
        plan = rg.Plan(indices, segments, 7)
        device.launched.clear()
        got = rg.raw_ops.SparseSegmentMeanGradV2(grad, plan=plan)
        assert device.launched
    assert all(map(same_bits, got, expected))


def test_an_optimizer_steps_on_the_device() -> None:
    table, indices, segments = batch(9)

    def make() -> list[Tensor]:
        bag = rgt.nn.EmbeddingBag(7, 5, combiner="sum", grad="rows", _weight=table.clone())
        optimizer = rgt.optim.RowWiseAdagrad(bag.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            bag(indices, segment_ids=segments, num_bags=40).square().sum().backward()
            optimizer.step()
        state = optimizer.state[bag.weight].values()
        return [bag.weight.detach(), *(v for v in state if isinstance(v, Tensor))]

    with on_cpu_as_gpu():
        expected = make()
    with on_gpu() as device:
        got = make()
    assert any("step_rows" in name for name in device.launched)
    assert len(got) == 2
    assert all(map(same_bits, got, expected))


@pytest.mark.skipif(
    not (UPDATES.keys() >= FUSED and RUNNERS.keys() >= PLANNED), reason="needs kernels of fused updates"
)
@pytest.mark.parametrize("planned", [False, True])
def test_a_fused_update_has_the_bits_of_two_steps(planned: bool) -> None:
    table, indices, segments = batch(10)
    found = []
    for fused in (False, True):
        with on_gpu():
            bag = rgt.nn.EmbeddingBag(7, 5, combiner="mean", grad="rows", fused=fused, _weight=table.clone())
            optimizer = rgt.optim.Adagrad(bag.parameters(), lr=0.1)
            plan = rg.Plan(indices, segments, 7, 40) if planned else None
            bag(indices, segment_ids=segments, num_bags=40, plan=plan).square().sum().backward()
            optimizer.step()
            found.append(bag.weight.detach())
    assert same_bits(*found)


# -- faults -----------------------------------------------------------------------------------------------------------

BAD = torch.tensor([0, 9, 8])


def error_of(run: Callable[[], Any]) -> OpError:
    with pytest.raises(OpError) as raised:
        run()
    return raised.value


def facts(error: OpError) -> tuple[Any, ...]:
    return type(error), error.message, error.op, error.argument, error.position, error.value, error.bound


@pytest.fixture
def table() -> Tensor:
    return torch.ones(4, 2)


def test_async_mode_raises_in_the_next_call(table: Tensor) -> None:
    expected = error_of(lambda: rg.raw_ops.GatherRows(table, BAD))
    with on_gpu():
        rg.raw_ops.GatherRows(table, BAD)
        error = error_of(lambda: rg.raw_ops.SparseSegmentSumWithNumSegments(table, [0], [0], 1))
        assert facts(error) == facts(expected)
        assert "an earlier call on a CUDA device" in str(error)
        rg.raw_ops.GatherRows(table, BAD)
        error = error_of(rgt.synchronize)
        assert facts(error) == facts(expected)
        rgt.synchronize()  # an error is raised once
        assert rg.raw_ops.GatherRows(table, [3]).tolist() == [[1.0, 1.0]]


def test_sync_mode_raises_in_the_call(table: Tensor) -> None:
    expected = error_of(lambda: rg.raw_ops.GatherRows(table, BAD, name="mine"))
    with on_gpu(mode="sync"):
        error = error_of(lambda: rg.raw_ops.GatherRows(table, BAD, name="mine"))
        assert facts(error) == facts(expected)
        assert str(error) == str(expected)
        rg.raw_ops.GatherRows(table, [3])


def test_off_mode_raises_nothing(table: Tensor) -> None:
    with on_gpu(mode="off"):
        rg.raw_ops.GatherRows(table, BAD)
        rg.raw_ops.GatherRows(table, [3])
        rgt.synchronize()


def test_shape_errors_are_raised_immediately(table: Tensor) -> None:
    for mode in ("sync", "async", "off"):
        with on_gpu(mode=mode):
            assert isinstance(error_of(lambda: rg.raw_ops.SparseSegmentSum(table, BAD, BAD[1:])), InvalidArgumentError)


def test_modes_are_returned_and_validated() -> None:
    assert rgt.validate("sync") == "async"
    assert rgt.validate("async") == "sync"
    with pytest.raises(ValueError, match="mode must be 'sync', 'async' or 'off'; got 'never'"):
        rgt.validate("never")


def test_the_oldest_of_two_faults_is_raised(table: Tensor) -> None:
    with on_gpu() as device:
        with pytest.MonkeyPatch.context() as patch:  # as if both calls were queued before either ran
            patch.setattr(device.ledger, "raise_reported", lambda own=0: None)
            rg.raw_ops.SparseSegmentSumWithNumSegments(table, [7], [0], 1)
            rg.raw_ops.GatherRows(table, BAD)
        error = error_of(lambda: rg.raw_ops.GatherRows(table, [0]))
        assert (error.op, error.value) == ("SparseSegmentSumWithNumSegments", 7)
        rgt.synchronize()  # the other one was dropped


def test_second_order_gradients() -> None:
    _, indices, segments = batch(11)

    def make() -> tuple[Tensor, list[Tensor]]:
        leaf = torch.linspace(-1, 1, 200).reshape(40, 5).requires_grad_()
        return rg.raw_ops.SparseSegmentMeanGrad(leaf, indices, segments, 7), [leaf]

    check_training(make)


def test_a_captured_call_keeps_its_fault_slot(table: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_gpu() as device:
        rg.raw_ops.GatherRows(table, [1])
        assert not device.ledger.slots.captured
        monkeypatch.setattr(devices, "is_captured", lambda: True)
        monkeypatch.setattr(device.driver, "capturing", True)
        rg.raw_ops.GatherRows(table, torch.tensor([1]))
        rg.raw_ops.GatherRows(table, torch.tensor([2]))
        assert device.ledger.slots.captured == 2
        with pytest.raises(UnimplementedError, match="cannot capture this call"):
            rg.raw_ops.SparseSegmentSumGradV2(table, torch.tensor([1]), torch.tensor([0]), 4)
        monkeypatch.undo()
        rg.raw_ops.GatherRows(table, [1])
        assert device.ledger.slots.captured == 3
