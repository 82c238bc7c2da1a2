"""Features of torch that work on any module, one test each, on `EmbeddingBag` and `Embeddings`."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import rowgrad.torch as rgt

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),  # torch.func.jvp
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning"),
]

IDS = torch.tensor([1, 2, 4, 4, 0, 3])
OFFSETS = torch.tensor([0, 2, 2, 5])
WEIGHTS = torch.tensor([0.5, 2.0, 1.5, 1.0, 3.0, 0.25])


class Case(NamedTuple):
    """A module, and the arguments of a call."""

    make: Callable[[], nn.Module]
    inputs: tuple[Any, ...]
    parameters: tuple[str, ...]  # the keys of its state dict

    def call(self, module: nn.Module) -> Tensor:
        """Return the result as one tensor."""
        return joined(module(*self.inputs))

    def loss(self, module: nn.Module) -> Tensor:
        return self.call(module).pow(3).sum()


def joined(out: Any) -> Tensor:
    return torch.cat(list(out.values()), dim=1) if isinstance(out, dict) else out


def embeddings(grad: str = "rows") -> nn.Module:
    tables = [
        rgt.nn.Table("user", 6, 4),
        rgt.nn.Table("item", 5, 4, features=("seen", "bought")),
        rgt.nn.Table("shop", 7, 3, combiner="sum"),
    ]
    return rgt.nn.Embeddings(tables, grad=grad, include_last_offset=False)


FEATURES = dict.fromkeys(("user", "seen", "bought", "shop"), (IDS, OFFSETS))
TABLES = ("user.weight", "item.weight", "shop.weight")
CASES = {
    "bag-dense": Case(partial(rgt.nn.EmbeddingBag, 6, 4), (IDS, OFFSETS), ("weight",)),
    "bag-rows": Case(partial(rgt.nn.EmbeddingBag, 6, 4, grad="rows"), (IDS, OFFSETS), ("weight",)),
    "bag-weighted": Case(
        partial(rgt.nn.EmbeddingBag, 6, 4, grad="rows", combiner="sqrtn"), (IDS, OFFSETS, WEIGHTS), ("weight",)
    ),
    "embeddings": Case(embeddings, (FEATURES,), TABLES),
}
BAGS = [name for name in CASES if name.startswith("bag")]
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_bag = pytest.mark.parametrize("case", [CASES[name] for name in BAGS], ids=BAGS)
# Embeddings stores tables of one width in one parameter, whose name is not that of a table.


@pytest.fixture
def compiler() -> Iterator[None]:
    """Forget compiled code afterwards, and which functions torch gave up on: all ops share one."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return list(mine) == list(theirs) and all(torch.equal(mine[key], theirs[key]) for key in mine)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.to_dense() for name, p in module.named_parameters() if p.grad is not None}


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected)


# -- state -------------------------------------------------------------------------------------------------------------


@every_case
def test_state_dict(case: Case) -> None:
    module, other = case.make(), case.make()
    assert tuple(module.state_dict()) == case.parameters
    assert not same_weights(module, other)
    other.load_state_dict(module.state_dict())
    assert same_weights(module, other)


@every_case
def test_parameters_are_named_like_the_state_dict(case: Case) -> None:
    """Wrappers and tools that look up a parameter by its key in the state dict rely on it."""
    module = case.make()
    assert tuple(name for name, _ in module.named_parameters()) == case.parameters
    assert all(module.get_parameter(name) is p for name, p in module.named_parameters())


@pytest.mark.filterwarnings("ignore::UserWarning:torch.distributed")  # one process, no process group
@every_case
def test_distributed_checkpoint(case: Case, tmp_path: Path) -> None:
    module, other = case.make(), case.make()
    dcp.save({"model": module.state_dict()}, checkpoint_id=tmp_path)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path)
    other.load_state_dict(state["model"])
    assert same_weights(module, other)


@pytest.mark.filterwarnings("ignore::UserWarning:torch.distributed")
@every_case
def test_distributed_checkpoint_of_model_and_optimizer(case: Case, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        module = case.make()
        optimizer = rgt.optim.Adagrad(module.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            case.loss(module).backward()
            optimizer.step()
        return module, optimizer

    module, optimizer = trained(2)
    model_state, optimizer_state = get_state_dict(module, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=tmp_path)
    other, second = trained(1)
    model_state, optimizer_state = get_state_dict(other, second)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=tmp_path)
    set_state_dict(other, second, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert same_weights(module, other)
    for trained_module, trained_optimizer in ((module, optimizer), (other, second)):
        trained_optimizer.zero_grad()
        case.loss(trained_module).backward()
        trained_optimizer.step()
    assert same_weights(module, other)


@every_case
def test_deepcopy(case: Case) -> None:
    module = case.make()
    case.loss(module).backward()
    other = copy.deepcopy(module)
    assert same_weights(module, other)
    assert torch.equal(case.call(module), case.call(other))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    assert not same_weights(module, other)


@every_case
def test_pickle(case: Case) -> None:
    module = case.make()
    other = pickle.loads(pickle.dumps(module))
    assert same_weights(module, other)
    assert torch.equal(case.call(module), case.call(other))


@every_case
def test_save_and_load_whole_modules(case: Case) -> None:
    module, file = case.make(), io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    assert same_weights(module, other)
    case.loss(other).backward()
    assert gradients(other)


@every_case
def test_load_weights_only(case: Case) -> None:
    module, other, file = case.make(), case.make(), io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert same_weights(module, other)


@every_case
def test_load_memory_mapped_by_assignment(case: Case, tmp_path: Path) -> None:
    module, other = case.make(), case.make()
    torch.save(module.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", mmap=True, weights_only=True), assign=True)
    assert same_weights(module, other)
    assert torch.equal(case.call(module), case.call(other))


# -- processes ---------------------------------------------------------------------------------------------------------


def read_and_write(module: nn.Module, inputs: tuple[Any, ...], results: Any) -> None:
    """Send back the result of a lookup, then change the shared table."""
    with torch.no_grad():
        results.put(joined(module(*inputs)).tolist())
        for parameter in module.parameters():
            parameter.fill_(2.0)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("case", [CASES["bag-rows"], CASES["embeddings"]], ids=["bag-rows", "embeddings"])
def test_share_memory(case: Case, start: str) -> None:
    module = case.make().share_memory()
    assert all(p.is_shared() for p in module.parameters())
    expected = case.call(module).tolist()
    context = mp.get_context(start)
    results = context.SimpleQueue()
    process = context.Process(target=read_and_write, args=(module, case.inputs, results))
    process.start()
    found = results.get()
    process.join()
    assert process.exitcode == 0
    assert found == expected
    assert all(p.eq(2.0).all() for p in module.parameters())


SAMPLES = [{"ids": [3, 1], "label": 1.0}, {"ids": [], "label": 0.0}, {"ids": [3], "label": 1.0}]


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_data_loader(start: str) -> None:
    collate = rgt.data.Collate({"ids": 6})
    loader = DataLoader(SAMPLES, batch_size=3, collate_fn=collate, num_workers=1, multiprocessing_context=start)
    (batch,) = loader
    bag = CASES["bag-rows"].make()
    out = bag(**batch["ids"].arguments())
    assert torch.equal(out, bag(torch.tensor([3, 1, 3]), torch.tensor([0, 2, 2])))
    out.sum().backward()
    assert bag.weight.grad.coalesce().indices().tolist() == [[1, 3]]
    assert batch["label"].tolist() == [1.0, 0.0, 1.0]


# -- compilers ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiler")
@every_case
def test_compile_full_graph(case: Case) -> None:
    module = case.make()
    expected = case.call(module)
    case.loss(module).backward()
    grads = gradients(module)
    module.zero_grad()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    out = joined(compiled(*case.inputs))
    assert torch.equal(out, expected)
    out.pow(3).sum().backward()
    close(gradients(module), grads)


@pytest.mark.usefixtures("compiler")
@every_case
def test_export(case: Case) -> None:
    module = case.make()
    program = torch.export.export(module, case.inputs)
    assert torch.equal(joined(program.module()(*case.inputs)), case.call(module))


@pytest.mark.usefixtures("compiler")
@pytest.mark.slow
@every_case
def test_compile_with_inductor(case: Case) -> None:
    module = case.make()
    compiled = torch.compile(module, fullgraph=True)
    assert torch.equal(joined(compiled(*case.inputs)), case.call(module))


@pytest.mark.usefixtures("compiler")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # raised inside torch
def test_aot_inductor_package_with_symbolic_sizes(tmp_path: Path) -> None:
    bag = rgt.nn.EmbeddingBag(6, 4, grad="rows")
    n, b = torch.export.Dim("n", min=2), torch.export.Dim("b", min=2)
    program = torch.export.export(bag, (IDS, OFFSETS), dynamic_shapes={"input": {0: n}, "offsets": {0: b}})
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    for ids, offsets in ((IDS, OFFSETS), (IDS.repeat(3), torch.tensor([0, 3, 3, 8, 9, 18]))):
        assert torch.equal(loaded(ids, offsets), bag(ids, offsets))
    with pytest.raises(RuntimeError, match="99"):
        loaded(torch.tensor([1, 99]), torch.tensor([0, 1]))


@pytest.mark.usefixtures("compiler")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("name", ["bag-weighted", "embeddings"])
def test_aot_inductor_package(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    module = case.make()
    program = torch.export.export(module, case.inputs)
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    assert torch.equal(joined(loaded(*case.inputs)), case.call(module))


# -- torch.func --------------------------------------------------------------------------------------------------------


def as_function(case: Case) -> tuple[Callable[[dict[str, Tensor]], Tensor], dict[str, Tensor]]:
    """Return the module's loss as a function of its parameters in float64, and their values."""
    module = case.make().double()
    inputs = tuple(v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in case.inputs)
    values = {name: p.detach() for name, p in module.named_parameters()}
    return lambda values: joined(functional_call(module, values, inputs)).pow(3).sum(), values


@every_case
def test_functional_call(case: Case) -> None:
    loss, values = as_function(case)
    found = grad(loss)(values)
    step = 1e-6
    for name, value in values.items():
        direction = torch.ones_like(value)
        slope = loss({**values, name: value + step * direction}) - loss({**values, name: value - step * direction})
        torch.testing.assert_close((found[name].to_dense() * direction).sum(), slope / (2 * step), rtol=1e-5, atol=1e-5)


@every_case
def test_functional_call_by_keys_of_the_state_dict(case: Case) -> None:
    module = case.make()
    zeros = {key: torch.zeros_like(value) for key, value in module.state_dict().items()}
    assert joined(functional_call(module, zeros, case.inputs)).abs().sum() == 0
    assert case.call(module).abs().sum() > 0


@every_case
def test_jvp(case: Case) -> None:
    loss, values = as_function(case)
    tangents = {name: torch.randn_like(v) for name, v in values.items()}
    _, slope = jvp(loss, (values,), (tangents,))
    found = grad(loss)(values)
    close(slope, sum((found[name].to_dense() * tangents[name]).sum() for name in values))


@every_case
def test_hessian(case: Case) -> None:
    loss, values = as_function(case)
    close(hessian(loss)(values), jacrev(jacrev(loss))(values))


@every_bag
def test_ensemble_by_vmap(case: Case) -> None:
    modules = [case.make() for _ in range(3)]
    parameters, buffers = stack_module_state(modules)  # type: ignore[arg-type]

    def call(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(modules[0], (parameters, buffers), case.inputs)

    out = vmap(call)(parameters, buffers)
    assert torch.equal(out, torch.stack([case.call(module) for module in modules]))


# -- training ----------------------------------------------------------------------------------------------------------


@every_case
def test_grad_scaler(case: Case) -> None:
    module, other = case.make(), case.make()
    other.load_state_dict(module.state_dict())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for model, scaled in ((module, True), (other, False)):
        optimizer = rgt.optim.SGD(model.parameters(), lr=0.1)
        loss = case.loss(model)
        if scaled:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
    assert same_weights(module, other)  # a power of two changes no bit


@every_case
def test_grad_scaler_skips_steps_that_overflow(case: Case) -> None:
    module = case.make()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    optimizer = rgt.optim.SGD(module.parameters(), lr=0.1)
    scaler.scale(case.call(module).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**7
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


@every_case
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(case: Case, use_reentrant: bool) -> None:
    module = case.make()
    anchor = torch.zeros((), requires_grad=True)  # the reentrant kind needs an input with a gradient

    def run(anchor: Tensor) -> Tensor:
        return case.call(module) + anchor

    run(anchor).pow(3).sum().backward()
    expected = gradients(module)
    module.zero_grad()
    checkpoint(run, anchor, use_reentrant=use_reentrant).pow(3).sum().backward()
    assert expected
    assert all(torch.equal(g, expected[name]) for name, g in gradients(module).items())


class Doubled(nn.Module):
    """A parametrization whose value is twice its parameter."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x

    def right_inverse(self, x: Tensor) -> Tensor:
        return x / 2


@every_bag
def test_parametrize(case: Case) -> None:
    module = case.make()
    before = module.weight.detach().clone()
    parametrize.register_parametrization(module, "weight", Doubled())
    close(module.weight, before)
    case.loss(module).backward()
    plain = case.make()
    plain.load_state_dict({"weight": before})
    case.loss(plain).backward()
    close(module.parametrizations.weight.original.grad.to_dense(), 2 * plain.weight.grad.to_dense())
    parametrize.remove_parametrizations(module, "weight")
    assert isinstance(module.weight, nn.Parameter)
    close(case.call(module), case.call(plain))


@pytest.mark.parametrize(
    ("name", "takes_rows"), [("weight_norm", False), ("spectral_norm", True), ("orthogonal", False)]
)
def test_parametrizations_of_torch(name: str, takes_rows: bool) -> None:
    """They compute the table from other parameters; not all of torch's operations take a sparse gradient."""
    normalize = getattr(nn.utils.parametrizations, name)
    module = normalize(rgt.nn.EmbeddingBag(6, 4, grad="dense"))
    CASES["bag-dense"].loss(module).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    with nullcontext() if takes_rows else pytest.raises(RuntimeError):
        CASES["bag-rows"].loss(normalize(rgt.nn.EmbeddingBag(6, 4, grad="rows"))).backward()


@every_case
def test_averaged_model(case: Case) -> None:
    module = case.make()
    average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    average.update_parameters(module)
    first = {key: value.clone() for key, value in module.state_dict().items()}
    optimizer = rgt.optim.Adagrad(module.parameters(), lr=0.5)
    case.loss(module).backward()
    optimizer.step()
    average.update_parameters(module)
    for key, value in module.state_dict().items():
        close(average.module.state_dict()[key], (first[key] + value) / 2)
    assert not torch.equal(case.call(average.module), case.call(module))


@every_case
def test_hooks_of_modules_and_parameters(case: Case) -> None:
    module, seen = case.make(), []
    module.register_forward_hook(lambda *_: seen.append("forward"))
    for parameter in module.parameters():
        parameter.register_hook(lambda _: seen.append("gradient"))
        parameter.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))
    case.loss(module).backward()
    count = len(list(module.parameters()))
    assert seen[0] == "forward"
    assert (seen.count("gradient"), seen.count("accumulated")) == (count, count)
