"""A Plan as JAX's tree of arrays: it passes through jit and scan as they do. Its number of rows is static."""

from __future__ import annotations

from typing import Any

from jax import tree_util

from ..plan import Plan
from ..spec import PLAN
from .arrays import register_for_export


def _flatten_with_keys(plan: Plan) -> tuple[list[Any], int]:
    *arrays, num_rows = plan.parts()
    return [(tree_util.GetAttrKey(name), a) for name, a in zip(PLAN, arrays, strict=False)], num_rows


def _unflatten(num_rows: int, arrays: Any) -> Plan:
    return Plan.of(*arrays, num_rows)


tree_util.register_pytree_with_keys(Plan, _flatten_with_keys, _unflatten)
register_for_export(Plan)
