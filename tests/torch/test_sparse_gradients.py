"""Row-sparse gradients between backward and step: every operation either works or raises, never skips them silently."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rowgrad.torch as rgt

FIRST, SECOND = torch.tensor([[1, 2], [4, 4]]), torch.tensor([[2, 3], [4, 0]])
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def backward(module: Any, ids: torch.Tensor = FIRST) -> Any:
    module(ids).square().sum().backward()
    return module.weight


def pair(dtype: torch.dtype) -> tuple[Any, Any]:
    """Return a module with sparse gradients and one with dense gradients, with the same table."""
    rows = rgt.nn.EmbeddingBag(6, 4, combiner="sum", grad="rows", dtype=dtype)
    dense = rgt.nn.EmbeddingBag(6, 4, combiner="sum", dtype=dtype)
    dense.load_state_dict(rows.state_dict())
    return rows, dense


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_changes(dtype: torch.dtype) -> None:
    rows, dense = pair(dtype)
    for module in (rows, dense):
        backward(module).grad.mul_(4).div_(2)
    assert torch.equal(rows.weight.grad.to_dense(), dense.weight.grad)
    optimizers = [rgt.optim.SGD(m.parameters(), lr=0.1) for m in (rows, dense)]
    for module, optimizer in zip((rows, dense), optimizers, strict=True):
        optimizer.zero_grad(set_to_none=False)
        assert module.weight.grad is not None
        backward(module, SECOND)
        optimizer.step()
    assert torch.equal(rows.weight, dense.weight)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_accumulation(dtype: torch.dtype, fused: bool) -> None:
    rows, dense = pair(dtype)
    if fused:
        rows = rgt.nn.EmbeddingBag(6, 4, combiner="sum", fused=True, dtype=dtype)
        rows.load_state_dict(dense.state_dict())
    optimizers = [rgt.optim.Adagrad(m.parameters(), lr=0.1) for m in (rows, dense)]
    for module in (rows, dense):
        backward(module)
        if dtype == torch.float16 and module is rows and not fused:
            with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):  # raised by torch
                backward(module, SECOND)
            return
        backward(module, SECOND)
    for optimizer in optimizers:
        optimizer.step()
    assert torch.equal(rows.weight, dense.weight)


def clipped(how: str, module: Any, head: Any, foreach: bool | None) -> Any:
    """Clip the gradients of a table and of a dense layer; return the norm, if any."""
    params = [head.weight, module.weight, head.bias]
    if how == "norm":
        return torch.nn.utils.clip_grad_norm_(params, 0.1, foreach=foreach)
    if how == "infinite norm":
        return torch.nn.utils.clip_grad_norm_(params, 0.1, float("inf"), foreach=foreach)
    if how == "value":
        return torch.nn.utils.clip_grad_value_(params, 0.1, foreach=foreach)
    total = torch.nn.utils.get_total_norm([p.grad for p in params], foreach=foreach)
    torch.nn.utils.clip_grads_with_norm_(params, 0.1, total, foreach=foreach)
    return total


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("how", ["norm", "infinite norm", "value", "two calls"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_clipping_of_torch(dtype: torch.dtype, how: str, foreach: bool | None) -> None:
    """torch's functions clip row gradients beside dense ones, as if all were dense, and never skip a table."""
    rows, dense = pair(dtype)
    fused = rgt.nn.EmbeddingBag(6, 4, combiner="sum", fused=True, dtype=dtype)
    head = torch.nn.Linear(4, 3, dtype=dtype)
    with torch.no_grad():
        for weight in (dense.weight, head.weight):
            weight.copy_(torch.arange(1.0, 1 + weight.numel()).view_as(weight) / 8)
    optimizer = rgt.optim.SGD(fused.parameters(), lr=1.0)
    found = []
    for module in (dense, rows, fused):
        module.load_state_dict(dense.state_dict())
        head.zero_grad()
        head(module(FIRST)).square().sum().backward()
        before = module.weight.grad.to_dense().clone()
        norm = clipped(how, module, head, foreach)
        assert not torch.equal(module.weight.grad.to_dense(), before)
        assert module.weight.grad.is_sparse == (module is not dense)
        found.append((norm, module.weight.grad, head.weight.grad.clone(), head.bias.grad.clone()))
        assert module is dense or module.weight.grad.is_coalesced()
    for norm, *grads in found[1:]:
        assert norm is None or norm.dtype == found[0][0].dtype
        for ours, expected in zip((norm, *grads), found[0], strict=True):
            if ours is not None:
                torch.testing.assert_close(ours.to_dense(), expected)
    before = fused.weight.detach().clone()
    clipped_grad = fused.weight.grad.to_dense()
    optimizer.step()
    assert torch.equal(fused.weight, before - clipped_grad), "the step uses the clipped gradient"


@pytest.mark.parametrize("foreach", [None, True, False])
def test_clipping_of_torch_equals_that_of_rowgrad(foreach: bool | None) -> None:
    for how, clip in (("norm", rgt.clip.clip_grad_norm_), ("value", rgt.clip.clip_grad_value_)):
        rows, _ = pair(torch.float32)
        head, found = torch.nn.Linear(4, 3), []
        for ours in (False, True):
            rows.zero_grad()
            head.zero_grad()
            head(rows(FIRST)).square().sum().backward()
            params = [head.weight, rows.weight, head.bias]
            norm = clip(params, 0.1) if ours else clipped(how, rows, head, foreach)
            found.append([norm, *(p.grad.to_dense().clone() for p in params)])
        for a, b in zip(*found, strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_clipping_of_rowgrad(dtype: torch.dtype) -> None:
    rows, dense = pair(dtype)
    for clip in (rgt.clip.clip_grad_norm_, rgt.clip.clip_grad_value_):
        norms = []
        for module in (rows, dense):
            module.zero_grad()
            backward(module)
            norms.append(clip(module.parameters(), 0.1))
        if norms[0] is not None:
            torch.testing.assert_close(*norms)
        torch.testing.assert_close(rows.weight.grad.to_dense(), dense.weight.grad)


@pytest.mark.parametrize("sparse", [False, True])
def test_norms_beyond_float16(sparse: bool) -> None:
    """A float16 norm would overflow to infinity and scale all gradients to zero."""
    param = torch.nn.Parameter(torch.zeros(64, 64, dtype=torch.float16))
    grad = torch.full_like(param, 6e4)
    param.grad = grad.to_sparse(1) if sparse else grad
    norm = rgt.clip.clip_grad_norm_([param], 1.0)
    assert norm.item() == pytest.approx(64 * 6e4, rel=1e-3)
    torch.testing.assert_close(param.grad.to_dense(), torch.full_like(grad, 1 / 64), rtol=2e-3, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_grad_scaler(dtype: torch.dtype) -> None:
    rows, dense = pair(dtype)
    for module in (rows, dense):
        optimizer = rgt.optim.SGD(module.parameters(), lr=0.125)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(module(FIRST).square().sum()).backward()
        if dtype == torch.float16:
            with pytest.raises(ValueError, match="unscale FP16"):  # raised by torch, also for dense gradients
                scaler.step(optimizer)
            continue
        scaler.step(optimizer)
    assert torch.equal(rows.weight, dense.weight)
    assert dtype == torch.float16 or not torch.equal(rows.weight[1], torch.zeros(4))


def test_torch_optimizers_step_or_raise() -> None:
    """Compare with the table in docs/reference/torch.md."""
    names = [n for n in dir(torch.optim) if isinstance(getattr(torch.optim, n), type) and n != "Optimizer"]
    works = {"SGD", "Adagrad", "SparseAdam", "LBFGS"}
    assert works <= set(names)
    for name in names:
        for options in ({}, {"foreach": True}, {"fused": True}):
            module = rgt.nn.EmbeddingBag(6, 4, grad="rows")
            before = module.weight.detach().clone()
            try:
                optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.1, **options)
            except TypeError:  # this optimizer does not have the option
                continue

            def closure(module: Any = module, optimizer: Any = optimizer) -> Any:
                optimizer.zero_grad()
                loss = module(FIRST).square().sum()
                loss.backward()
                return loss

            if name in works and "fused" not in options:
                optimizer.step(closure)
                assert (module.weight != before).any(1).tolist() == [False, True, True, False, True, False]
            else:
                with pytest.raises(RuntimeError, match="sparse"):
                    optimizer.step(closure)
                assert torch.equal(module.weight, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_averaged_models(dtype: torch.dtype) -> None:
    module, _ = pair(dtype)
    averaged = torch.optim.swa_utils.AveragedModel(module)
    optimizer = rgt.optim.SGD(module.parameters(), lr=0.1)
    for ids in (FIRST, SECOND):
        optimizer.zero_grad()
        backward(module, ids)
        optimizer.step()
        averaged.update_parameters(module)
    assert not torch.equal(averaged.module.weight, module.weight)
    assert averaged.module.weight.isfinite().all()
