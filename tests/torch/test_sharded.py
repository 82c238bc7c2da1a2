"""Row-sharded tables: rules of placement, and the checks that four processes run (sharded_ranks.py)."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sharded_ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rowgrad as rg
from rowgrad.torch import optim, sharded
from rowgrad.torch.nn import Table
from rowgrad.torch.sharded import liveness
from rowgrad.torch.sharded.liveness import Pulse, Silence
from rowgrad.torch.sharded.placement import Part, Stack

WORLD = sharded_ranks.WORLD


def results(folder: Path, rank: int) -> dict[str, str]:
    """Return what a rank reported for every check."""
    fields = (folder / f"results_{rank}").read_text().split("\0")
    return dict(zip((name.strip() for name in fields[:-1:2]), fields[1::2], strict=True))


def test_checks_of_four_processes_pass(tmp_path: Path) -> None:
    script = str(Path(sharded_ranks.__file__))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script, str(tmp_path)], env=environment, capture_output=True, timeout=150)
    for rank in range(WORLD):
        found = results(tmp_path, rank)
        failures = [f"rank {rank}, {name}:\n{text}" for name, text in found.items() if text != "fine"]
        assert not failures, "\n".join(failures)
        expected = {f"{c.__name__} {n}" for c in sharded_ranks.CHECKS for n in range(rank + 1, WORLD + 1)}
        expected |= {f"{c.__name__} {n}" for c, n in sharded_ranks.FAILURES if rank < n}
        assert set(found) == expected, done.stderr.decode()


@pytest.mark.parametrize("strategy", ["div", "mod", "chunk"])
@pytest.mark.parametrize("ranks", [1, 3, 5])
@pytest.mark.parametrize("rows", [0, 2, 13, 15])
def test_every_row_has_exactly_one_owner(rows: int, ranks: int, strategy: str) -> None:
    part = Part(rows, ranks, strategy)
    owners, places = part.locate(torch.arange(rows))
    for rank in range(ranks):
        assert torch.equal(places[owners == rank], torch.arange(part.sizes[rank]))
        assert torch.equal(torch.arange(rows)[owners == rank], part.ids_of(rank))


def test_div_is_tensorflows_rule() -> None:
    assert [Part(13, 5, "div").ids_of(r).tolist() for r in range(5)] == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10], [11, 12],
    ]  # fmt: skip
    assert torch.tensor_split(torch.arange(13), 5)[3].tolist() == [9, 10]
    assert [len(c) for c in torch.arange(13).chunk(4)] == Part(13, 4, "chunk").sizes  # DTensor's Shard(0)


@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_placement_of_stacked_tables(strategy: str) -> None:
    rows, ranks = [5, 0, 1, 7], 3
    stack = Stack(rows, ranks, strategy)
    places = stack.places(torch.arange(sum(rows)))
    by_hand = [
        torch.cat([part.ids_of(rank) + first for part, first in zip(stack.parts, [0, 5, 5, 6], strict=True)])
        for rank in range(ranks)
    ]
    assert torch.equal(torch.argsort(places), torch.cat(by_hand))
    assert sorted(places.tolist()) == list(range(sum(rows)))


def test_missing_process_group_raises() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        sharded.RowShardedEmbeddingBag(4, 2)


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A process group that contains only this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


IDS, BAGS = torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1])
FLOATS = "torch.float16, torch.bfloat16, torch.float32, torch.float64"
WRONG: list[tuple[dict[str, Any], str, str]] = [
    (
        {"ids": IDS.to("meta"), "segment_ids": BAGS.to("meta"), "num_bags": 2},
        "ids",
        "ids must be on cpu; got a tensor on meta",
    ),
    ({"segment_ids": BAGS[:2]}, "segment_ids", "segment_ids and indices should have same size."),
    ({"ids": IDS + 1}, "ids", "Bad: indices[2] == 4 out of range [0, 4)"),
    ({"segment_ids": BAGS.flip(0)}, "segment_ids", "segment ids are not increasing"),
    (
        {"num_bags": 1},
        "segment_ids",
        "Segment id 1 out of range [0, 1), possibly because 'segment_ids' input is not sorted.",
    ),
    ({"weights": IDS}, "per_sample_weights", f"per_sample_weights must be one of {FLOATS}; got torch.int64"),
    (
        {"weights": torch.ones(3, device="meta")},
        "per_sample_weights",
        "per_sample_weights must be on cpu; got a tensor on meta",
    ),
    ({"weights": torch.ones(2)}, "per_sample_weights", "per_sample_weights must have shape (3,), got (2,)"),
]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("wrong", "argument", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_invalid_bags_raise_before_any_exchange(wrong: dict[str, Any], argument: str, message: str) -> None:
    module = sharded.RowShardedEmbeddingBag(4, 2)
    arguments: dict[str, Any] = {"ids": IDS, "segment_ids": BAGS, "num_bags": None, "weights": None} | wrong
    with pytest.raises(rg.errors.OpError) as raised:
        module(
            arguments["ids"],
            per_sample_weights=arguments["weights"],
            segment_ids=arguments["segment_ids"],
            num_bags=arguments["num_bags"],
        )
    error = raised.value
    assert (error.op, error.argument, error.message) == ("RowShardedEmbeddingBag", argument, message)
    assert module.traffic.total == 0


@pytest.mark.usefixtures("alone")
def test_invalid_groups_and_timeouts_raise() -> None:
    line, plane = dist.init_device_mesh("cpu", (1,)), dist.init_device_mesh("cpu", (1, 1))
    for options, argument, message in (
        ({"device_mesh": line, "process_group": dist.group.WORLD}, "device_mesh",
         "device_mesh: got both, expected either device_mesh or process_group"),
        ({"device_mesh": plane}, "device_mesh", "device_mesh: got 2 dimensions, expected 1"),
        ({"process_group": dist.GroupMember.NON_GROUP_MEMBER}, "process_group",
         "process_group: got a group without it, expected a group that contains this process"),
        ({"timeout": 0.0}, "timeout", "timeout must be 0.1 to 1e9 seconds; got 0.0"),
    ):  # fmt: skip
        with pytest.raises(rg.errors.InvalidArgumentError) as raised:
            sharded.RowShardedEmbeddingBag(4, 2, **options)
        assert (raised.value.argument, raised.value.message) == (argument, message)


@pytest.mark.usefixtures("alone")
def test_sharded_embeddings_output_option_and_repr() -> None:
    tables = [Table("a", 4, 2), Table("wide", 4, 3)]
    bound = "'features', or 'stacked' where all tables have one width and combiner"
    for output in ("stacked", "rows"):
        with pytest.raises(rg.errors.InvalidArgumentError) as raised:
            sharded.RowShardedEmbeddings(tables, output=output)
        assert raised.value.message == f"output: got {output!r}, expected {bound}"
    module = sharded.RowShardedEmbeddings(tables, include_last_offset=False)
    with pytest.raises(rg.errors.InvalidArgumentError) as raised:
        module.weight("x")
    assert raised.value.message == "table: got 'x', expected a, wide"
    expected = "a: 4 × 2, mean\n  wide: 4 × 3, mean\n  strategy='div', mode='exact', grad='rows', rank 0 of 1"
    assert expected in repr(module)
    with pytest.raises(rg.errors.InvalidArgumentError) as raised:
        module({"a": (IDS, BAGS[:1]), "wide": (IDS, BAGS[:2])})
    assert raised.value.message == "feature wide: 2 bags, but other features have 1"


@pytest.mark.usefixtures("alone")
def test_state_dicts_record_which_rows_they_contain(tmp_path: Path) -> None:
    small, large = Table("small", 3, 2), Table("large", 5, 2)
    one = sharded.RowShardedEmbeddings([small, large])
    torch.save(one.state_dict(), tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    like = sharded.RowShardedEmbeddings([small, large], strategy="mod")  # with one rank, both place rows alike
    like.load_state_dict(state)
    assert torch.equal(like.weight("large"), one.weight("large"))
    turned = sharded.RowShardedEmbeddings([large, small])
    before = turned.weight("large").clone()
    model = torch.nn.ModuleDict({"tables": turned})
    with pytest.raises(
        RuntimeError, match=r"tables\.: the state dict holds other rows than this module: .*small.*large.* instead of"
    ):
        model.load_state_dict({f"tables.{name}": value for name, value in state.items()})
    assert torch.equal(turned.weight("large"), before)


@pytest.mark.usefixtures("alone")
def test_state_dicts_without_row_ranges_raise() -> None:
    one, other = sharded.RowShardedEmbeddingBag(4, 2), sharded.RowShardedEmbeddingBag(4, 2)
    before = other.weight.detach().clone()
    bare = {"weight": one.state_dict()["weight"]}
    for strict in (True, False):
        with pytest.raises(RuntimeError, match="the state dict has no _extra_state, which describes the rows it holds"):
            other.load_state_dict(bare, strict=strict)
        with pytest.raises(RuntimeError, match="_extra_state must be JSON bytes in a tensor, got Tensor"):
            other.load_state_dict({**bare, "_extra_state": torch.zeros(3)}, strict=strict)
    assert torch.equal(other.weight, before)
    assert other.load_state_dict({}, strict=False).missing_keys == ["weight", "_extra_state"]
    other.load_state_dict({**bare, "_extra_state": other.get_extra_state()})
    assert torch.equal(other.weight, one.weight)


@pytest.mark.usefixtures("alone")
def test_optimizer_state_records_its_layout(tmp_path: Path) -> None:
    _, optimizer = trained(4, optim.Adam, 1)
    torch.save(optimizer.state_dict(), tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    assert json.loads(state["state"][0]["layout"]) == {
        "strategy": "div", "rank": 0, "ranks": 1, "tables": [["weight", 4]],
    }  # fmt: skip
    assert "layout" not in state["state"][1]
    _, other = trained(4, optim.Adam, 0)
    other.load_state_dict(state)
    assert [s["step"] for s in other.state_dict()["state"].values()] == [1] * 3
    for wrong in ("{", "[]", "{}", torch.zeros(3), 1.5):
        state["state"][0]["layout"] = wrong
        with pytest.raises(rg.errors.InvalidArgumentError, match="state of parameter 0 must be JSON text"):
            other.load_state_dict(state)
    _, sgd = trained(4, optim.SGD, 1)
    assert "layout" not in sgd.state_dict()["state"][0], "no state by rows"


@pytest.mark.usefixtures("alone")
def test_parameters_replaced_by_torch_keep_their_layout() -> None:
    module = sharded.RowShardedEmbeddingBag(4, 2, fused=True)
    layout = module.weight.rowgrad_layout
    first = module.weight
    module.load_state_dict(module.state_dict() | {"weight": torch.zeros(4, 2)}, assign=True)
    assert module.weight is not first
    assert module.weight.rowgrad_layout == layout
    module.to_empty(device="meta")
    assert module.weight.rowgrad_layout == layout
    module.weight = torch.nn.Parameter(torch.zeros(4, 2))
    assert module.weight.rowgrad_layout == layout


@pytest.mark.usefixtures("alone")
def test_optimizer_state_through_torch_distributed_checkpoint(tmp_path: Path) -> None:
    model, optimizer = trained(4, optim.Adagrad, 2)
    state = get_optimizer_state_dict(model, optimizer)
    assert "layout" in state["state"]["bag.weight"]
    dist.checkpoint.save(state, checkpoint_id=tmp_path)
    twin, other = trained(4, optim.Adagrad, 0)
    read = get_optimizer_state_dict(twin, other)
    dist.checkpoint.load(read, checkpoint_id=tmp_path)
    set_optimizer_state_dict(twin, other, read)
    expected = optimizer.state[model["bag"].weight]
    assert torch.equal(other.state[twin["bag"].weight]["sum"], expected["sum"])


def trained(rows: int, optimizer: Any, steps: int) -> tuple[torch.nn.ModuleDict, Any]:
    bag = sharded.RowShardedEmbeddingBag(rows, 2, combiner="sum")
    model = torch.nn.ModuleDict({"bag": bag, "head": torch.nn.Linear(2, 1)})
    stepper = optimizer(model.parameters(), lr=0.5)
    for _ in range(steps):
        train(model, stepper)
    return model, stepper


def train(model: torch.nn.ModuleDict, optimizer: Any) -> None:
    model["head"](model["bag"](torch.tensor([[1, 2]]))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.usefixtures("alone")
def test_loading_a_checkpoint_replaces_optimizer_state(tmp_path: Path) -> None:
    """Parameters without state in the checkpoint start again from step 0."""
    model, optimizer = trained(4, optim.Adagrad, 0)
    sharded.checkpoint.save(tmp_path, model, optimizer)
    weights = []
    for steps in (0, 3):
        model, optimizer = trained(4, optim.Adagrad, steps)
        sharded.checkpoint.load(tmp_path, model, optimizer)
        train(model, optimizer)
        assert optimizer.state[model["bag"].weight]["step"] == 1
        weights.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *weights))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("rows", "optimizer", "message"),
    [
        (5, optim.Adagrad, r"model\.bag\.weight must have shape \(5, 2\), got \(4, 2\)"),
        (4, optim.Adam, r"the checkpoint has no optimizer\.bag\.weight:exp_avg, which Adam needs"),
        (4, lambda p, lr: optim.Adagrad([{"params": [q]} for q in p], lr), "has 1 parameter groups"),
        (4, optim.RowWiseAdagrad, r"weight:sum of the checkpoint has shape \(4, 2\), but RowWiseAdagrad needs \(4,\)"),
        (4, optim.SGD, r"has optimizer\.bag\.weight:sum, which SGD does not have"),
    ],
)
def test_a_rejected_checkpoint_changes_nothing(tmp_path: Path, rows: int, optimizer: Any, message: str) -> None:
    sharded.checkpoint.save(tmp_path, *trained(4, optim.Adagrad, 1))
    model, made = trained(rows, optimizer, 1)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(rg.errors.OpError, match=message):
        sharded.checkpoint.load(tmp_path, model, made)
    assert all(map(torch.equal, before, model.parameters()))
    train(model, made)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("damaged", ["__0_0.distcp", ".metadata"])
def test_a_damaged_checkpoint_changes_nothing(tmp_path: Path, damaged: str) -> None:
    """Other layers are written only after all files were read."""
    sharded.checkpoint.save(tmp_path, *trained(4, optim.Adagrad, 1))
    file = tmp_path / damaged
    file.write_bytes(file.read_bytes()[:-200])
    model, made = trained(4, optim.Adagrad, 2)
    before, state = [p.detach().clone() for p in model.parameters()], copy.deepcopy(made.state_dict())
    with pytest.raises(rg.errors.CheckpointError, match="nothing was loaded"):
        sharded.checkpoint.load(tmp_path, model, made)
    assert all(map(torch.equal, before, model.parameters()))
    assert str(made.state_dict()) == str(state)


@pytest.mark.usefixtures("alone")
def test_unwritable_checkpoint_folder_raises(tmp_path: Path) -> None:
    model, made = trained(4, optim.Adagrad, 1)
    with pytest.raises(rg.errors.CheckpointError, match="was not written completely"):
        sharded.checkpoint.save(tmp_path / "step", model, made, extra={"not to be pickled": (i for i in ())})
    assert sharded.checkpoint.latest(tmp_path) is None


class WithExtraState(torch.nn.Linear):
    """A layer whose extra state is not a tensor."""

    note: Any = None

    def get_extra_state(self) -> Any:
        return {"note": self.note}

    def set_extra_state(self, state: Any) -> None:
        self.note = state["note"]


@pytest.mark.usefixtures("alone")
def test_a_checkpoint_restores_the_extra_state_of_layers(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"bag": sharded.RowShardedEmbeddingBag(4, 2), "head": WithExtraState(2, 1)})
    model["head"].note = 7
    sharded.checkpoint.save(tmp_path, model)
    model["head"].note = 8
    sharded.checkpoint.load(tmp_path, model)
    assert model["head"].note == 7


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore")
def test_transforms_raise_before_any_exchange() -> None:
    module = sharded.RowShardedEmbeddingBag(4, 2)
    for call, message in (
        (lambda: torch.jit.trace(module, (IDS[None],)), r"torch\.jit\.trace is not supported"),
        (lambda: torch.func.vmap(module)(IDS[None, None]), r"must be used without transforms; got torch\.func"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            call()
    assert module(IDS[None]).shape == (1, 2)


@pytest.mark.usefixtures("alone")
def test_sizes_are_validated_before_any_exchange() -> None:
    with pytest.raises(rg.errors.InvalidArgumentError, match="num_embeddings must be an int of 0 or more; got -1"):
        sharded.RowShardedEmbeddingBag(-1, 2)


class Elements(TorchDispatchMode):
    """Count the elements of every result that torch computes."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.count += sum(t.numel() for t in tree_leaves(found) if isinstance(t, torch.Tensor))
        return found


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_initialization_cost_is_proportional_to_local_rows(strategy: str) -> None:
    counts = []
    for blocks in (4, 32):
        module = sharded.RowShardedEmbeddingBag(blocks * 4096 - 5, 1, strategy=strategy)
        with Elements() as elements:
            module.reset_parameters(seed=3)
        counts.append(elements.count)
        last = torch.empty(4096, 1).normal_(generator=torch.Generator().manual_seed(3 + blocks - 1))
        assert torch.equal(module.weight[-4091:], last[:4091])
    assert counts[1] < 9 * counts[0]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"default_id": 1}, {"padding_idx": 0, "default_id": 1}])
def test_errors_name_the_position_of_a_bad_id_in_the_input(options: dict[str, int]) -> None:
    bag = sharded.RowShardedEmbeddingBag(3, 2, **options)  # type: ignore[arg-type]
    with pytest.raises(rg.errors.InvalidArgumentError, match=r"indices\[4\] == 7 out of range \[0, 3\)"):
        bag(torch.tensor([0, 2, 2, 0, 7]), torch.tensor([0, 0, 2]))
    assert bag(torch.tensor([0, 2, 2, 0, 1]), torch.tensor([0, 0, 2])).shape == (3, 2)


# -- lost ranks -------------------------------------------------------------------------------------------------------


def test_silence_counts_observed_time_since_a_heartbeat_changed() -> None:
    now = [100.0]
    silence = Silence([1, 2, 3], longest=4.0, clock=lambda: now[0])
    for count in range(10):  # rank 1 is busy for 30 seconds, rank 2 stopped, rank 3 not started yet
        silence.observe({1: f"a {count}", 2: "b 7"})
        now[0] += 3.0
    assert silence.seconds == {1: 0.0, 2: 27.0, 3: 0.0}
    assert silence.alive == {1}
    now[0] += 1000.0  # this process was suspended: that is not a silence of the others
    silence.observe({1: "a 9", 2: "b 7"})
    assert silence.seconds == {1: 4.0, 2: 31.0, 3: 0.0}
    silence.observe({1: "a 9", 2: "c 1", 3: "d 1"})  # rank 2 started again, rank 3 for the first time
    assert silence.seconds[2] == silence.seconds[3] == 0.0
    assert silence.alive == {1, 2, 3}


class Collective:
    """A collective that the test completes or lets fail, after it was waited for a number of times."""

    def __init__(self, waits: int = 10**9, failure: str = "") -> None:
        self.waits, self.failure = waits, failure

    def is_completed(self) -> bool:
        return self.waits <= 0

    def wait(self, timeout: Any = None) -> None:
        self.waits -= 1
        time.sleep(0.005)  # for the threads of the heartbeats
        if self.waits > 0:
            raise RuntimeError("Operation timed out!")
        if self.failure:
            raise RuntimeError(self.failure)


@pytest.fixture
def pulses(alone: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[list[Pulse]]:
    """The heartbeats of three ranks, here in one process."""
    monkeypatch.setattr(liveness, "GRACE", 1.0)
    monkeypatch.setattr(liveness, "INTERVAL", 0.05)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", request.node.name)  # keys of its own
    started = [Pulse(liveness.default_store(), rank) for rank in range(3)]
    for pulse in started:
        pulse.join("g", [0, 1, 2], timeout=1e6)
    yield started
    for pulse in started:
        pulse.stop("ended")


END = [
    (lambda pulse: pulse.stop("ended with KeyError: 'user'"), "rank 1 ended with KeyError: 'user'"),
    (lambda pulse: pulse.fail("g", "backward", MemoryError("12 GB")), "rank 1 failed in backward: MemoryError: 12 GB"),
]


@pytest.mark.parametrize(("end", "message"), END, ids=["ended", "failed"])
def test_a_waiting_call_raises_what_a_failed_rank_reported(pulses: list[Pulse], end: Any, message: str) -> None:
    pulses[0].wait(Collective(waits=20), "g", "ids", 1e6)  # all are alive: the first rank waits
    end(pulses[1])
    for pulse in (pulses[0], pulses[2]):
        with pytest.raises(sharded.RankLostError) as raised:
            pulse.wait(Collective(), "g", "rows", 1e6)
        assert str(raised.value) == f"exchange of rows failed: {message}"
        assert (raised.value.ranks, raised.value.phase) == ((1,), "rows")
        assert pulse.broken("g") == ((1,), message)


class CompleteIf(Collective):
    """A collective that completes when a condition holds."""

    def __init__(self, condition: Any) -> None:
        super().__init__()
        self.condition = condition

    def is_completed(self) -> bool:
        if self.condition():
            self.waits = 0
        return super().is_completed()


def test_a_call_that_waits_long_logs_for_whom(
    pulses: list[Pulse], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 2 waits too; rank 1 does something else."""
    group = pulses[0]._groups["g"]
    with pulses[2]._watching("g"):
        pulses[0].wait(CompleteIf(lambda: group.waits_in.get(2) == ["g"]), "g", "sizes", 1e6)
        monkeypatch.setattr(liveness, "NOTICE", 0.0)
        for _ in range(2):  # logs once
            pulses[0].wait(CompleteIf(lambda: group.noticed), "g", "sizes", 1e6)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["rank 0 waits in the exchange of sizes: rank 1 did not join yet"]


def test_a_rank_that_ends_after_its_share_does_not_fail_the_others(pulses: list[Pulse]) -> None:
    pulses[1].stop("ended")
    group = pulses[0]._groups["g"]
    pulses[0].wait(CompleteIf(lambda: group.reports), "g", "gradients", 1e6)
    assert len(group.reports) == 1
    assert group.broken is None


def test_running_ranks_are_blamed_only_if_no_rank_is_lost(pulses: list[Pulse]) -> None:
    broken = Collective(waits=1, failure="[gloo/buffer.cc:129] Timed out waiting 1800000ms\n")
    with pytest.raises(sharded.RankLostError) as raised:
        pulses[0].wait(broken, "g", "sizes", 1e6)
    assert raised.value.ranks == (1, 2)
    message = "ranks 1, 2 are running, but did not join this call; Timed out waiting 1800000ms"
    assert str(raised.value) == f"exchange of sizes failed: {message}"
    pulses[1]._stopping = True  # its heartbeat ends without a report, as if it was killed
    pulses[1]._thread.join()
    with pytest.raises(
        sharded.RankLostError, match=r"sizes failed: rank 1 does not answer; Connection closed"
    ) as raised:
        pulses[2].wait(Collective(waits=1, failure="Connection closed by peer"), "g", "sizes", 1e6)
    assert raised.value.ranks == (1,)  # the first rank reported that it lost one


def test_a_store_that_does_not_answer_is_named(pulses: list[Pulse]) -> None:
    pulses[0]._stopping = True  # its requests end, as if the store's process was stopped
    pulses[0]._thread.join()
    for work in (Collective(), Collective(waits=1, failure="Connection closed by peer")):
        with pytest.raises(sharded.RankLostError, match="the store of the process group does not answer") as raised:
            pulses[0].wait(work, "g", "sizes", 0.1)
        assert raised.value.ranks == ()


def test_reports_of_an_earlier_process_are_ignored(pulses: list[Pulse]) -> None:
    """torchrun has one store for all restarts."""
    pulses[1].stop("ended with KeyError: 'user'")
    again = [Pulse(liveness.default_store(), rank) for rank in (0, 1)]
    for pulse in again:
        pulse.join("g", [0, 1], timeout=1e6)
    again[0].wait(Collective(waits=20), "g", "ids", 1e6)
    with pytest.raises(sharded.RankLostError, match="rank 1 is running, but did not join"):
        again[0].wait(Collective(waits=1, failure="Connection closed by peer"), "g", "sizes", 1e6)
    for pulse in again:
        pulse.stop("ended")


@pytest.mark.parametrize("agent", [False, True])
def test_heartbeats_end_with_the_process_group(
    pulses: list[Pulse], agent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests to a store that was destroyed with the group would print warnings; torchrun's store still exists."""
    store, key = liveness.default_store(), f"{pulses[1]._prefix}/alive/1"
    monkeypatch.setattr(liveness, "_AGENT_STORE", agent)
    store.wait([f"{pulses[1]._prefix}/alive/{rank}" for rank in range(3)])
    with monkeypatch.context() as destroyed:
        destroyed.setattr(liveness, "default_store", lambda: None)
        for pulse in pulses:
            pulse._wake.set()
            pulse._thread.join(60)
            assert not pulse._thread.is_alive()
    last = store.get(key)
    pulses[1].stop("ended")
    assert store.get(key) == last
    assert store.check([f"{pulses[1]._prefix}/g/report/3"]) == agent


@pytest.mark.usefixtures("alone")
def test_profiles_name_the_sharded_lookup() -> None:
    module = sharded.RowShardedEmbeddingBag(4, 2)
    with torch.profiler.profile() as profile:
        out = module(IDS[None])
        out.sum().backward()
    assert type(out.grad_fn).__name__ == "rowgrad::ShardedLookupBackward"
    names = {event.key for event in profile.key_averages()}
    assert names >= {"rowgrad::ShardedLookup", "rowgrad::ShardedLookupBackward"}
