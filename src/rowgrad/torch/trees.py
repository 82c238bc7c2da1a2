"""Plan as a pytree of tensors, for torch.compile, torch.export and data loaders."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree

from .._catalog.spec import PLAN
from ..plan import Plan


def _flatten(plan: Plan) -> tuple[list[Any], int]:
    *arrays, num_rows = plan.parts()
    return arrays, num_rows


def _unflatten(arrays: Any, num_rows: int) -> Plan:
    return Plan.of(*arrays, num_rows)


def _flatten_with_keys(plan: Plan) -> tuple[list[Any], int]:
    arrays, num_rows = _flatten(plan)
    return [(_pytree.GetAttrKey(name), a) for name, a in zip(PLAN, arrays, strict=False)], num_rows


_pytree.register_pytree_node(
    Plan, _flatten, _unflatten, serialized_type_name="rowgrad.Plan", flatten_with_keys_fn=_flatten_with_keys
)
