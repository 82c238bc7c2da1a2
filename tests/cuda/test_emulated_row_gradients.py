"""Row-sparse gradients whose number of rows stays on the device, through the stand-in driver."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from emulated_call import same_bits
from test_emulated_torch import on_cpu_as_gpu, on_gpu
from torch import Tensor

import rowgrad as rg
import rowgrad.torch as rgt
from rowgrad.cuda.call import Call
from rowgrad.errors import InvalidArgumentError
from rowgrad.torch import clip, devices, gpu_calls, gpu_gradients, row_optimizer, saved_call

ROWS, COLUMNS = 40, 8
RULES = ["SGD", "Adagrad", "RowWiseAdagrad", "Adam", "AdamW", "Momentum", "Lion", "Ftrl"]


def batch(seed: int = 0, few: bool = False) -> tuple[Tensor, Tensor]:
    """Return ids and offsets; `few`: fewer ids than the table has rows."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([3, 0, 7, 1]) if few else torch.tensor([3, 0, 200, 41])
    ids = torch.randint(0, ROWS, (int(lengths.sum()),), generator=draw)
    ids[len(ids) // 2 :] = 5
    return ids, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])


def module_of(**options: Any) -> Any:
    torch.manual_seed(1)
    return rgt.nn.EmbeddingBag(
        ROWS, COLUMNS, **{"mode": "mean", "include_last_offset": True, "grad": "rows", **options}
    )


def backward(module: Any, inputs: tuple[Tensor, Tensor]) -> None:
    out = module(*inputs)
    out.backward(torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype))


@contextmanager
def on_the_ops() -> Iterator[None]:
    """Run the CPU's ops with the order of a GPU."""
    with on_cpu_as_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_calls, "look_up", lambda *args: None)
        patch.setattr(gpu_calls, "grad_step", lambda *args: None)
        patch.setattr(saved_call, "row_gradient", lambda *args: None)
        yield


@contextmanager
def without_reads() -> Iterator[None]:
    """Fail if the host reads a number off a tensor."""

    def fail(*_: Any) -> Any:
        raise AssertionError("the host waits for the device")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("item", "__bool__", "__int__", "__index__", "tolist", "coalesce", "nonzero"):
            patch.setattr(Tensor, name, fail)
        patch.setattr(Call, "number", fail)
        yield


def trained(rule: str, inputs: tuple[Tensor, Tensor], step: Callable[[Any, Any], None], **options: Any) -> list[Tensor]:
    module = module_of(**options)
    optimizer = getattr(rgt.optim, rule)(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        step(module, optimizer)
    slots = [v for v in optimizer.state[module.weight].values() if isinstance(v, Tensor)]
    return [module.weight.detach(), *slots]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("few", [False, True])
def test_steps_have_the_bits_of_a_cpu_and_read_nothing(rule: str, few: bool) -> None:
    inputs = batch(few=few)

    def step(module: Any, optimizer: Any) -> None:
        backward(module, inputs)
        optimizer.step()

    with on_the_ops():
        expected = trained(rule, inputs, step)
    with on_gpu() as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_optimizer, "check_row_ids", lambda grad: None)  # reads ids of a CPU only
        with without_reads():
            got = trained(rule, inputs, step)
    assert all(map(same_bits, got, expected))
    names = [name.split("<")[0] for name in device.launched]
    assert names.count("pad_row_gradient") == names.count("check_row_ids") == names.count("step_rows") == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_clipped_and_scaled_gradients(dtype: torch.dtype) -> None:
    inputs = batch(few=True)

    def step(module: Any, optimizer: Any) -> None:
        backward(module, inputs)
        module.weight.grad.mul_(0.5)
        clip.clip_grad_norm_(module.parameters(), 0.75)
        clip.clip_grad_value_(module.parameters(), 0.2)
        optimizer.step()

    with on_the_ops():
        expected = trained("Adagrad", inputs, step, dtype=dtype)
    with on_gpu():
        got = trained("Adagrad", inputs, step, dtype=dtype)
    assert all(
        torch.allclose(a, b, rtol=1e-2 if dtype.itemsize == 2 else 1e-6) for a, b in zip(got, expected, strict=True)
    )


def test_norms_and_clipping_read_nothing() -> None:
    inputs = batch(few=True)
    with on_gpu():
        module = module_of()
        backward(module, inputs)
        with without_reads():
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.75)
            clip.clip_grad_value_(module.parameters(), 0.2)
        assert isinstance(module.weight.grad.count, Tensor)


READS: list[Callable[[Any], Any]] = [
    lambda g: g.is_coalesced() and g.values(),
    lambda g: g._values(),
    lambda g: g.indices(),
    lambda g: torch.tensor(g._nnz()),
    lambda g: g.ids(),
    lambda g: g.rows(),
    lambda g: g.coalesce().indices(),
    lambda g: copy.deepcopy(g).values(),
    lambda g: g.cpu().values(),
    lambda g: (g + g).values(),
    lambda g: torch.cat([g, g]).coalesce().values(),
    lambda g: g.clone().values(),
    lambda g: saved(g).values(),
]


def saved(grad: Tensor) -> Tensor:
    buffer = io.BytesIO()
    torch.save(grad, buffer)
    buffer.seek(0)
    found: Tensor = torch.load(buffer, weights_only=True)
    return found


@pytest.mark.parametrize("number", range(len(READS)))
def test_whoever_reads_a_gradient_sees_no_padding(number: int) -> None:
    inputs, found = batch(few=True), []
    for where in (on_the_ops, on_gpu):
        with where():
            module = module_of()
            backward(module, inputs)
            grad = module.weight.grad
            if where is on_gpu:
                assert isinstance(grad.count, Tensor)
            found.append(READS[number](grad))
            assert type(grad) is rgt.RowGradient
    assert same_bits(*found)
    assert len(found[0].shape) == 0 or found[0].numel() > 0


def test_a_gradient_that_was_read_is_stepped_too() -> None:
    inputs, found = batch(few=True), []
    for where in (on_the_ops, on_gpu):
        with where():
            module = module_of()
            optimizer = rgt.optim.Adagrad(module.parameters(), lr=0.1)
            backward(module, inputs)
            module.weight.grad.rows().mul_(2.0)
            optimizer.step()
            found.append(module.weight.detach())
    assert same_bits(*found)


def test_accumulated_gradients() -> None:
    found = []
    for where in (on_the_ops, on_gpu):
        with where():
            module = module_of()
            optimizer = rgt.optim.Adagrad(module.parameters(), lr=0.1)
            for seed in (1, 2):
                backward(module, batch(seed, few=True))
            found.append(module.weight.grad.to_dense())
            optimizer.step()
            found.append(module.weight.detach())
    assert torch.allclose(found[0], found[2])
    assert torch.allclose(found[1], found[3])


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
def test_optimizers_of_torch(make: Any) -> None:
    found = []
    for where in (on_the_ops, on_gpu):
        with where():
            module = module_of()
            optimizer = make(module.parameters(), lr=0.1)
            backward(module, batch(few=True))
            optimizer.step()
            found.append(module.weight.detach())
    assert same_bits(*found)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("rule", ["SGD", "Adam"])
def test_bad_ids_raise_and_change_nothing(rule: str, fused: bool) -> None:
    for change in (lambda i, o: i.__setitem__(4, ROWS), lambda i, o: o.__setitem__(1, 200)):
        good, (ids, offsets) = batch(few=True), batch(few=True)
        change(ids, offsets)
        with on_gpu() as device, pytest.MonkeyPatch.context() as patch:
            # Memory that has plausible contents: zeros are valid ids and segments.
            patch.setattr(device, "empty", lambda shape, dtype: torch.zeros(tuple(shape), dtype=dtype))
            module = module_of(fused=fused)
            optimizer = getattr(rgt.optim, rule)(module.parameters(), lr=0.1)
            backward(module, good)
            optimizer.step()  # so that Adam's moments are not zero
            optimizer.zero_grad()
            slots = [v for v in optimizer.state[module.weight].values() if isinstance(v, Tensor)]
            before = [t.detach().clone() for t in (module.weight, *slots)]
            out = module(ids, offsets)
            with pytest.raises(InvalidArgumentError):
                rgt.synchronize()
            device.ledger.slots.reported()
            out.backward(torch.ones_like(out))  # as if all this were queued before
            if not fused:
                assert "pad_row_gradient" in device.launched[-1]
                device.ledger.slots.reported()
                assert int(module.weight.grad.count) == -1
            optimizer.step()
            device.ledger.slots.reported()
            assert device.launched[-1].startswith(("step_rows", "fade_rows"))
            assert all(map(same_bits, [t.detach() for t in (module.weight, *slots)], before))


def test_calls_with_a_graph_or_in_sync_mode_go_to_the_ops() -> None:
    inputs = batch(few=True)
    with on_gpu(mode="sync") as device:
        module = module_of()
        backward(module, inputs)
        assert module.weight.grad.is_coalesced()
    assert not any("pad_row" in name for name in device.launched)


def test_padding_stays_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_gpu():
        module = module_of()
        backward(module, batch(few=True))
        monkeypatch.setattr(devices, "is_captured", lambda: True)
        assert not module.weight.grad.is_coalesced()
        expected = module.weight.grad.to_dense()
        monkeypatch.undo()
    assert gpu_gradients is not None
    assert expected.any()


@pytest.mark.parametrize("kind", ["Sum", "Mean", "SqrtN"])
@pytest.mark.parametrize("order", ["blocked", "sequential"])
def test_unique_rows_wait_once(kind: str, order: str) -> None:
    """The op itself returns no padding, in memory of its own size or, if most of it is used, a little more."""
    op = getattr(rg.raw_ops, f"SparseSegment{kind}GradV2")
    for few in (False, True):
        ids, offsets = batch(few=few)
        segments = torch.repeat_interleave(torch.arange(4), offsets.diff())
        grad = torch.randn(4, COLUMNS, generator=torch.Generator().manual_seed(3))
        for wide in (torch.int32, torch.int64):
            expected = op(grad, ids.to(wide), segments, ROWS, order=order)
            with on_gpu() as device, without_reads():
                got = op(grad, ids.to(wide), segments, ROWS, order=order)
            assert all(map(same_bits, got, expected))
            assert got[1].dtype == wide
            assert device.launched[-1].startswith(("sum_rows", "join_runs"))  # nothing but the gradient
            assert got[0].untyped_storage().nbytes() <= 2 * got[0].nbytes


def late_gradient(work: bool) -> tuple[Tensor, ...]:
    """Return a gradient whose kernels run, if at all, when the host has stopped looking for the number of rows."""
    ids, offsets = batch(few=True)
    segments = torch.repeat_interleave(torch.arange(4), offsets.diff())
    with on_gpu() as device:
        driver, run = device.driver, device.driver.run
        queued = driver.graph = []

        def on_wait() -> None:
            driver.run, driver.graph = run, None
            for launch in queued if work else ():
                launch()

        driver.run, driver.on_wait = lambda *_: None, on_wait
        grad = torch.randn(4, COLUMNS, generator=torch.Generator().manual_seed(3))
        found: tuple[Tensor, ...] = rg.raw_ops.SparseSegmentMeanGradV2(grad, ids, segments, ROWS, order="blocked")
    expected = rg.raw_ops.SparseSegmentMeanGradV2(grad, ids, segments, ROWS, order="blocked")
    assert all(map(same_bits, found, expected))
    return found


def test_the_host_sleeps_until_late_kernels_have_found_the_number_of_rows() -> None:
    assert late_gradient(work=True)[0].shape[0] > 1


def test_kernels_that_end_without_the_number_of_rows_raise() -> None:
    with pytest.raises(RuntimeError, match="ended without the number"):
        late_gradient(work=False)


def test_bad_ids_of_unique_rows_raise_in_the_call() -> None:
    ids, offsets = batch(few=True)
    segments = torch.repeat_interleave(torch.arange(4), offsets.diff())
    ids[3] = ROWS
    arguments = torch.ones(4, COLUMNS), ids, segments, ROWS
    with pytest.raises(InvalidArgumentError) as expected:
        rg.raw_ops.SparseSegmentSumGradV2(*arguments, order="blocked")
    with on_gpu(), pytest.raises(InvalidArgumentError) as raised:
        rg.raw_ops.SparseSegmentSumGradV2(*arguments, order="blocked")
    assert str(raised.value) == str(expected.value)
