"""Optimizers for tables with row-sparse gradients, in optax's protocol: one for each rule in `_catalog/rules.py`.

Each is a pair of functions, `init` and `update`, and works in `optax.chain` and `optax.multi_transform`.
docs/reference/optimizers.md describes the rules. The functions are created from the records; `optim.pyi` declares them.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from .._catalog.rules import RULES, RuleSpec
from .._hints import check_option_names
from .row_optimizer import Rate as Rate
from .row_optimizer import RowState as RowState
from .row_optimizer import RowTransformation as RowTransformation
from .row_optimizer import apply_updates as apply_updates
from .row_optimizer import make_optimizer
from .row_optimizer import unique_rows as unique_rows

__all__ = [
    "Rate", "RowState", "RowTransformation", "apply_updates", "unique_rows", *RULES
]  # fmt: skip


def _factory(spec: RuleSpec) -> Callable[..., RowTransformation]:
    options = {**spec.defaults, **spec.state_defaults}
    signature = Signature(
        [
            Parameter(
                name,
                Parameter.POSITIONAL_OR_KEYWORD if name == "lr" else Parameter.KEYWORD_ONLY,
                default=default,
                annotation="Rate" if name == "lr" else spec.annotation(name),
            )
            for name, default in options.items()
        ],
        return_annotation="RowTransformation",
    )

    def factory(*args: Any, **kwargs: Any) -> RowTransformation:
        check_option_names(spec.name, kwargs, options)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return make_optimizer(spec.name, **bound.arguments)

    factory.__name__ = factory.__qualname__ = spec.name
    factory.__doc__ = spec.doc
    factory.__signature__ = signature  # type: ignore[attr-defined]
    return factory


for _spec in RULES.values():
    globals()[_spec.name] = _factory(_spec)
