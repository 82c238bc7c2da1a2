"""Row-sparse optimizers, a class for each rule: a step costs only the rows that have a gradient.

They are `torch.optim.Optimizer`s: parameter groups, schedulers, closures and `state_dict` work as in torch. Gradients
may be sparse (`nn.Embedding(sparse=True)`) or dense, for any parameter. docs/reference/optimizers.md describes the
rules; `optim.pyi` lists the classes, which are made here.
"""

from __future__ import annotations

from .._catalog.rules import RULES
from .row_optimizer import RowOptimizer as RowOptimizer
from .row_optimizer import make_class

__all__ = ["RowOptimizer", *(_spec.class_name for _spec in RULES.values())]

for _spec in RULES.values():
    globals()[_spec.class_name] = make_class(_spec, __name__)
