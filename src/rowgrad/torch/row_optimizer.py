"""`RowOptimizer`: what the optimizers of `rowgrad.torch.optim` share, whatever their rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import Parameter, Signature
from typing import Any, ClassVar

import torch

from .._catalog.rules import RULES, RuleSpec, Step, check_count, check_hyperparameter, slot_shapes
from ..errors import OpError, make_error
from .devices import default_order
from .fused import LAYOUT, FusedWeight, hold, is_only_optimizer, updated_from_pending
from .row_state import adopted, check_param, check_row_ids, new_slots, step_with_bags, step_with_grad

Tensor = Any
_STATE = "initial_accumulator_value"
# Options that are numbers, and may be tensors of one.
_NUMBERS = frozenset(
    name
    for spec in RULES.values()
    for name, value in {**spec.defaults, **spec.state_defaults}.items()
    if type(value) is float
)
_UNSUPPORTED = ("amsgrad", "dampening", "lr_decay", "maximize", "momentum", "nesterov")  # of torch's optimizers


class RowOptimizer(torch.optim.Optimizer):
    """What the optimizers here share. Rows are along a parameter's first dimension.

    A fused table (`fused=True` of the modules) is updated by `step()` like all others, in one pass over the gradient of
    its bags. The step uses that gradient up, unless a second optimizer holds the table.
    """

    rule: ClassVar[str]

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        for name, value in defaults.items():
            _check(name, value)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with numbers of their own."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict with 'params', got {type(param_group).__name__}")
        for name, value in param_group.items():
            if name in self.defaults:
                _check(name, value)
        super().add_param_group(param_group)
        try:
            with self._call("add_param_group"):
                for param in self.param_groups[-1]["params"]:
                    check_param(param)
        except OpError:
            self.param_groups.pop()
            raise
        self._claim()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._claim()

    def state_dict(self) -> dict[str, Any]:
        """The state of all parameters; that of a sharded or stacked table has `layout`, the rows it belongs to."""

        def add_layouts(_: Any, found: dict[str, Any]) -> None:
            for index, param in enumerate(self._params()):
                if index in found["state"] and RULES[self.rule].slots and hasattr(param, LAYOUT):
                    found["state"][index] = {**found["state"][index], "layout": getattr(param, LAYOUT)}

        handle = self.register_state_dict_post_hook(add_layouts, prepend=True)
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state, bit for bit: slots keep their own type, which is not always the parameter's.

        The state of a sharded table must be of the rows that it holds: `layout` says so, and may be missing only where
        one rank holds all rows.
        """
        taken: dict[str, Any] = {}

        def take(_: Any, given: dict[str, Any]) -> dict[str, Any]:
            self._check_state(given)
            taken.update(given)
            return {**given, "state": {i: _without_layout(state) for i, state in given["state"].items()}}

        handle = self.register_load_state_dict_pre_hook(take)  # after all others
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        for group in self.param_groups:
            for name, value in self.defaults.items():
                if name != "differentiable":  # which torch adds by itself, to some states and not to others
                    group.setdefault(name, value)  # of a state another optimizer saved
        for _, state, param in self._saved(taken):
            for slot in RULES[self.rule].slots:
                self.state[param][slot.name] = adopted(state[slot.name], param)

    def _saved(self, given: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any], Tensor]]:
        """The number, the saved state and the parameter, of those that have a state."""
        saved = (i for group in given["param_groups"] for i in group["params"])
        for index, param in zip(saved, self._params(), strict=True):
            if state := given["state"].get(index):
                yield index, state, param

    def _check_state(self, given: dict[str, Any]) -> None:
        """Reject a saved state that does not fit, before anything is taken over."""
        where = f"{type(self).__name__}.load_state_dict"
        if "param_groups" not in given or "state" not in given:
            raise ValueError(f"{where}: state_dict must have 'state' and 'param_groups', got {sorted(map(str, given))}")
        groups = given["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            return  # torch says so
        with self._call("load_state_dict"):
            for group in groups:
                for name in self.defaults:
                    if name in group:
                        _check(name, group[name])
                unknown = next((n for n in _UNSUPPORTED if n not in self.defaults and group.get(n)), None)
                if unknown is not None:
                    raise ValueError(
                        f"{where}: the state was saved with {unknown}={group[unknown]}, not supported here"
                    )
        slots = RULES[self.rule].slots
        for index, state, param in self._saved(given):
            if not isinstance(state, dict):
                raise ValueError(f"{where}: the state of parameter {index} must be a dict, got {type(state).__name__}")
            if slots or "step" in state:
                _check_count_of_steps(state.get("step"), f"{where}: 'step' of parameter {index}")
            if not slots:
                continue
            with self._call("load_state_dict"):
                _check_layout(index, state.get("layout"), getattr(param, LAYOUT, None))
            for slot, shape in zip(slots, slot_shapes(self.rule, tuple(param.shape) or (1,)), strict=True):
                found = state.get(slot.name)
                if not isinstance(found, torch.Tensor):
                    raise ValueError(f"{where}: parameter {index} has no {slot.name!r}")
                if found.layout != torch.strided or found.is_meta or not found.dtype.is_floating_point:
                    raise ValueError(
                        f"{where}: {slot.name!r} of parameter {index} must be a dense tensor of floats, got one of"
                        f" layout {found.layout} and dtype {found.dtype} on {found.device}"
                    )
                if tuple(found.shape) != tuple(shape):
                    raise ValueError(
                        f"{where}: {slot.name!r} of parameter {index} has shape {tuple(found.shape)},"
                        f" wanted {tuple(shape)}"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for param in self._params():
            if isinstance(param, FusedWeight):
                with self._call("step", param=param):
                    for pending in param.rowgrad_pending:
                        pending.check()
        steps = [self._stepped(index, *place) for index, place in enumerate(self._places())]
        for step in steps:  # all checks of all parameters, before any of them changes
            next(step, None)
        for step in steps:
            next(step, None)
        return loss

    def _stepped(self, index: int, group: dict[str, Any], param: Tensor) -> Iterator[None]:
        """The step of one parameter, which stops before it writes."""
        fused = isinstance(param, FusedWeight)
        if fused and (update := updated_from_pending(param, self)) is not None:
            yield from update
            return
        grad = param.grad
        if grad is None:
            return
        try:
            step = self._next(group, param, index)
            if grad.is_sparse and (index or len(group["params"]) > 1 or len(self.param_groups) > 1):
                check_row_ids(grad)
            yield from step_with_grad(self.rule, param, self.state[param], grad, step)
            self.state[param]["step"] = step.step
        except OpError as error:
            raise self._named(error, "step", param=param, grad=grad) from None
        if fused and is_only_optimizer(param):
            param.grad = None

    @torch.no_grad()
    def update_from_bags(
        self,
        param: Tensor,
        grad: Tensor,
        indices: Tensor | None,
        segment_ids: Tensor | None,
        combiner: str,
        weights: Tensor | None = None,
        plan: Any = None,
        *,
        accumulate: str = "float32",
        order: str | None = None,
    ) -> None:
        """One step of `param` with the gradient of bags of its rows, which are `combiner`: sum, mean or sqrtn.

        `grad` has a row for every bag; `indices` and `segment_ids` name the rows and bags, or both are None and `plan`,
        a `rowgrad.Plan`, does in their place. The result has the bits of `SparseSegment*GradV2` (with `weights`,
        `WeightedSparseSegment*Grad`) and a step with that sparse gradient, which here is never stored. `order` is
        "sequential" or "blocked"; without it, what those ops take on the parameter's device.
        """
        if plan is not None and (indices is not None or segment_ids is not None):
            with self._call("update_from_bags", param=param, grad=grad, indices=indices, segment_ids=segment_ids):
                raise make_error("plan_beside_ids")
        update = self._updated_from_bags(
            param, grad, indices, segment_ids, combiner, weights, plan, accumulate=accumulate, order=order
        )
        for _ in update:
            pass

    def _updated_from_bags(
        self,
        param: Tensor,
        grad: Tensor,
        indices: Tensor | None,
        segment_ids: Tensor | None,
        combiner: str,
        weights: Tensor | None = None,
        plan: Any = None,
        *,
        accumulate: str = "float32",
        order: str | None = None,
    ) -> Iterator[None]:
        """The step of `update_from_bags`, which stops before it writes."""
        with self._call("update_from_bags", param=param, grad=grad, indices=indices, segment_ids=segment_ids):
            group, index = self._place_of(param)
            for name, given in (
                ("grad", grad), ("indices", indices), ("segment_ids", segment_ids), ("weights", weights)
            ):  # fmt: skip
                if not isinstance(given, torch.Tensor) and (given is not None or name == "grad"):
                    raise make_error("not_a_tensor", argument=name, value=type(given).__name__)
            if plan is None and (indices is None or segment_ids is None):
                raise make_error("not_an_array", argument="indices", value="None, and no plan")
            step = self._next(group, param, index)
            ids = (indices, segment_ids) if plan is None else plan
            slots, order = self.state[param], order or default_order(param)
            how = {"combiner": combiner, "accumulate": accumulate, "order": order}
            yield from step_with_bags(self.rule, param, slots, grad, ids, step, weights, **how)
            slots["step"] = step.step

    def _params(self) -> Iterator[Tensor]:
        return (param for _, param in self._places())

    def _places(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        return ((group, param) for group in self.param_groups for param in group["params"])

    def _place_of(self, param: Tensor) -> tuple[dict[str, Any], int]:
        for index, (group, own) in enumerate(self._places()):
            if own is param:
                return group, index
        raise make_error(
            "number_unfit", argument="param", value="another tensor", bound="a parameter of this optimizer"
        )

    def _claim(self) -> None:
        for param in self._params():
            if isinstance(param, FusedWeight):
                hold(param, self)

    def _next(self, group: dict[str, Any], param: Tensor, index: int) -> Step:
        """The numbers of a parameter's next step; its state, where this is the first."""
        state = self.state[param]
        if "step" not in state:
            check_param(param)
            state.update(step=0, **new_slots(self.rule, param, float(group.get(_STATE, 0.0))))
        spec = RULES[self.rule]
        numbers: dict[str, Any] = {k: _float(k, group[k]) if k in _NUMBERS else group[k] for k in spec.defaults}
        if spec.fades:
            numbers["lazy"] = group["lazy"]
        check_count("seed", group["seed"])
        return Step(
            stochastic_rounding=group["stochastic_rounding"],
            seed=(group["seed"] + index) % 2**63,  # parameters of one shape are not rounded alike
            step=int(state["step"]) + 1,
            **numbers,
        )

    @contextmanager
    def _call(self, method: str, **tensors: Tensor) -> Iterator[None]:
        """Refusals say in which call of which optimizer."""
        try:
            yield
        except OpError as error:
            raise self._named(error, method, **tensors) from None

    def _named(self, error: OpError, method: str, **tensors: Tensor) -> OpError:
        parts = (f"{k}={v.dtype}{list(v.shape)}" for k, v in tensors.items() if isinstance(v, torch.Tensor))
        error.in_call(f"{type(self).__name__}.{method}", None, ", ".join(parts))
        return error


def _without_layout(state: Any) -> Any:
    return {k: v for k, v in state.items() if k != "layout"} if isinstance(state, dict) else state


def _check_layout(index: Any, saved: Any, own: str | None) -> None:
    """Reject the state of other rows than those of the parameter. One rank that holds a table needs no layout."""
    try:
        given, held = (None if text is None else json.loads(text) for text in (saved, own))
        whole = [layout is None or layout["ranks"] == 1 for layout in (given, held)]
    except (KeyError, TypeError, ValueError):
        raise make_error("optimizer_layout_unreadable", argument=f"parameter {index}", value=repr(saved)) from None
    if given is None or held is None:
        if whole == [True, True]:
            return
        if given is None:
            raise make_error("optimizer_layout_missing", argument=f"parameter {index}", bound=own)
    if given != held:
        raise make_error(
            "optimizer_layout_differs", argument=f"parameter {index}", value=saved, bound=own or "a whole table"
        )


def _check(name: str, value: Any) -> None:
    check_hyperparameter(name, _float(name, value) if name in _NUMBERS else value)


def _check_count_of_steps(value: Any, what: str) -> None:
    """Reject all but a whole number of steps, which torch's optimizers hold in a tensor."""
    if value is None:
        raise ValueError(f"{what} is missing")
    try:
        number = value.item() if isinstance(value, torch.Tensor) else value
        good = type(number) in (int, float) and int(number) == number and 0 <= number < 2**63 - 1
    except (RuntimeError, ValueError, OverflowError):  # several numbers, or none; NaN; infinity
        good = False
    if not good:
        raise ValueError(f"{what} must be a whole number of at least 0, got {value!r}")


def _float(name: str, value: Any) -> float:
    """A number, or a tensor of one."""
    if type(value) is float:
        return value
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise make_error("number_unfit", argument=name, value=repr(value), bound="a finite number") from None


def options_of(spec: RuleSpec) -> dict[str, Any]:
    """The options of a rule's optimizer with their defaults, in the order of its signature."""
    lazy = {"lazy": True} if spec.fades else {}
    return {**spec.defaults, **spec.state_defaults, **lazy, "stochastic_rounding": False, "seed": 0}


def make_class(spec: RuleSpec, module: str) -> type[RowOptimizer]:
    """The optimizer class of a rule, as a class of `module`."""
    options = options_of(spec)
    named = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD if name == "lr" else Parameter.KEYWORD_ONLY,
            default=default,
            annotation=spec.annotation(name) if name in spec.defaults else type(default).__name__,
        )
        for name, default in options.items()
    ]
    first = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "params")]
    signature = Signature([*first, *named], return_annotation=None)

    def init(self: RowOptimizer, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        RowOptimizer.__init__(self, bound.arguments["params"], {name: bound.arguments[name] for name in options})

    init.__signature__ = signature  # type: ignore[attr-defined]
    fields = {"__init__": init, "__doc__": spec.doc, "__module__": module, "rule": spec.name}
    return type(spec.class_name, (RowOptimizer,), fields)
