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
        patch.setattr(gpu_calls, "row_step", lambda *args: None)
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


def test_bad_ids_raise_and_change_nothing() -> None:
    for change in (lambda i, o: i.__setitem__(4, ROWS), lambda i, o: o.__setitem__(1, 200)):
        ids, offsets = batch(few=True)
        change(ids, offsets)
        module = module_of()
        optimizer = rgt.optim.Adam(module.parameters(), lr=0.1)
        before = module.weight.detach().clone()
        with on_gpu() as device, pytest.MonkeyPatch.context() as patch:
            out = module(ids, offsets)
            with pytest.raises(InvalidArgumentError):
                rgt.synchronize()
            patch.setattr(type(device.ledger), "raise_reported", lambda self, own=0: self.slots.reported())
            out.backward(torch.ones_like(out))  # as if it were queued before
            device.ledger.slots.reported()
            assert "pad_row_gradient" in device.launched[-1]
            optimizer.step()
            assert device.launched[-1].startswith(("step_rows", "fade_rows"))
            if module.weight.grad is not None:
                assert int(module.weight.grad.count) == 0
        if "fade_rows" not in device.launched[-1]:
            assert same_bits(module.weight.detach(), before)


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
