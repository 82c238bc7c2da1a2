"""Tables split by rows among processes: four of them check each other, see sharded_ranks.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sharded_ranks
import torch

from rowgrad.torch import sharded
from rowgrad.torch.sharded.layout import Part, Stack

WORLD = sharded_ranks.WORLD


def results(folder: Path, rank: int) -> dict[str, str]:
    """What a rank has said of every check."""
    fields = (folder / f"results_{rank}").read_text().split("\0")
    return dict(zip((name.strip() for name in fields[:-1:2]), fields[1::2], strict=True))


def test_four_processes(tmp_path: Path) -> None:
    script = str(Path(sharded_ranks.__file__))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script, str(tmp_path)], env=environment, capture_output=True, timeout=150)
    for rank in range(WORLD):
        found = results(tmp_path, rank)
        wrong = [f"rank {rank}, {name}:\n{text}" for name, text in found.items() if text != "fine"]
        assert not wrong, "\n".join(wrong)
        expected = {f"{c.__name__} {n}" for c in sharded_ranks.CHECKS for n in range(rank + 1, WORLD + 1)}
        expected |= {f"{name} {WORLD}" for name in ("hanging_rank", "killed_rank")}
        assert set(found) == expected, done.stderr.decode()


@pytest.mark.parametrize("strategy", ["div", "mod", "chunk"])
@pytest.mark.parametrize("ranks", [1, 3, 5])
@pytest.mark.parametrize("rows", [0, 2, 13, 15])
def test_every_row_has_one_place(rows: int, ranks: int, strategy: str) -> None:
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
def test_places_of_stacked_tables(strategy: str) -> None:
    rows, ranks = [5, 0, 1, 7], 3
    stack = Stack(rows, ranks, strategy)
    places = stack.places(torch.arange(sum(rows)))
    by_hand = [
        torch.cat([part.ids_of(rank) + first for part, first in zip(stack.parts, [0, 5, 5, 6], strict=True)])
        for rank in range(ranks)
    ]
    assert torch.equal(torch.argsort(places), torch.cat(by_hand))
    assert sorted(places.tolist()) == list(range(sum(rows)))


def test_a_process_group_is_needed() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        sharded.RowShardedEmbeddingBag(4, 2)
