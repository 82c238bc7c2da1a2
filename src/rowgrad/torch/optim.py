"""Optimizers whose step costs what its gradient's rows cost: one class for every rule of the records.

They are `torch.optim.Optimizer`s: parameter groups, schedulers, closures and `state_dict` work as in torch. Gradients
may be sparse (`nn.Embedding(sparse=True)`) or dense, for tables and for all other parameters. docs/optimizers.md has
the rules. The classes are made here; `optim.pyi` lists them.
"""

from __future__ import annotations

from .._catalog.rules import RULES
from .row_optimizer import RowOptimizer as RowOptimizer
from .row_optimizer import make_class

__all__ = ["RowOptimizer", *(_spec.class_name for _spec in RULES.values())]

for _spec in RULES.values():
    globals()[_spec.class_name] = make_class(_spec, __name__)
