"""Parse the examples of the catalogue: the names they assign, the call at their end, and its arguments."""

from __future__ import annotations

import ast
from typing import Any

from rowgrad._catalog.spec import PLAN, Op
from rowgrad._runtime.dispatch import bind


def run_example(source: str) -> tuple[dict[str, Any], ast.Call]:
    """Execute all but the last line; return the assigned names and the remaining call."""
    tree = ast.parse(source)
    last = tree.body.pop()
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        raise ValueError(f"an example must end with a call, not:\n{source}")
    names: dict[str, Any] = {}
    exec(compile(tree, "<example>", "exec"), names)
    return names, last.value


def value_of(node: ast.expr, names: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "<example>", "eval"), names)


def bound_example(op: Op, **changed: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments and attributes of the example's call by name, a plan as its arrays; `changed` replaces some."""
    names, call = run_example(op.example)
    args = tuple(value_of(a, names) for a in call.args)
    kwargs = {k.arg: value_of(k.value, names) for k in call.keywords if k.arg}
    if "plan" in kwargs:
        plan = kwargs.pop("plan")
        kwargs |= {part: getattr(plan, part) for part in PLAN}
    arguments, attrs = bind(op, args, {**kwargs, **changed})
    return dict(arguments), dict(attrs)
