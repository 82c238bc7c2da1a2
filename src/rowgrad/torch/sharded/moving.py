"""Rows taken from one way of splitting a table to another."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import OpError, refuse
from ..tensors import check_storage
from .agreement import call_number, meet
from .layout import Part
from .parcels import Parcel, Section
from .ranks import Ranks


def moved(ranks: Ranks, rows: Tensor, have: Part, want: Part) -> Tensor:
    """This rank's rows by the rule `want`, where all ranks hold theirs by `have`. All ranks call it together."""
    if have.is_like(want):
        return rows
    _meet(ranks, "to_dtensor or a checkpoint", rows, have, want)
    mine = have.ids_of(ranks.rank, rows.device)
    goes, _ = want.locate(mine)
    order = torch.argsort(goes, stable=True)
    wanted = want.ids_of(ranks.rank, rows.device)
    comes, _ = have.locate(wanted)
    place = torch.argsort(comes, stable=True)  # from each rank they come in the order of their ids
    out, back = (torch.bincount(x, minlength=ranks.size).tolist() for x in (goes, comes))
    (found,) = Parcel(ranks, "rows", [Section(rows[order], out, back)]).arrived()
    result = torch.empty_like(found)
    result[place] = found
    return result


def gathered(ranks: Ranks, rows: Tensor, have: Part) -> Tensor:
    """All rows, on every rank. All ranks call it together."""
    _meet(ranks, "full_weight", rows, have, have)
    out = [rows.shape[0]] * ranks.size
    (found,) = Parcel(ranks, "rows", [Section(torch.cat([rows] * ranks.size), out, have.sizes)]).arrived()
    result = torch.empty_like(found)
    result[torch.cat([have.ids_of(r, rows.device) for r in range(ranks.size)])] = found
    return result


def take_rows(mine: Tensor, table: Tensor, ids: Tensor, num_rows: int) -> None:
    """Copy rows out of a whole table, which has to be that: copy_ would repeat what is too small."""
    wanted = (num_rows, *mine.shape[1:])
    if tuple(table.shape) != wanted:
        raise refuse("same_shape", argument="table", value=tuple(table.shape), bound=wanted)
    check_storage(table, "table")
    check_storage(mine, "weight")
    mine.copy_(table[ids.to(table.device)])


def _meet(ranks: Ranks, what: str, rows: Tensor, have: Part, want: Part) -> None:
    kind = str(rows.dtype), *rows.shape[1:]
    refusal: Exception | None = None
    try:
        check_storage(rows, "weight")
    except OpError as error:  # all ranks have to know
        refusal = error
    meet(ranks, what, call_number(what, ranks.number, have.rows, have.strategy, want.strategy, kind), refusal)
