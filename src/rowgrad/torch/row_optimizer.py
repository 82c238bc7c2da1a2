"""`RowOptimizer`, the base of the optimizers in `rowgrad.torch.optim`, and the function that makes their classes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, Signature
from typing import Any, ClassVar

import torch
from torch.optim import optimizer as optimizer_hooks

from .._catalog.rules import RULES, RuleSpec, Step, check_count, check_hyperparameter, slot_shapes
from .._hints import check_option_names
from ..errors import OpError, make_error
from . import devices, gpu_calls
from .device_numbers import ON_HOST, DeviceStep, count_tensor, numbers_on_device
from .devices import default_order, is_captured
from .feature_lookup import joint_steps
from .fused import LAYOUT, FusedWeight, clear_grads, consume_stored_grad, fused_step, register_optimizer
from .row_state import (
    check_param,
    check_row_ids,
    is_dtensor,
    load_slot,
    new_slots,
    shard_index,
    step_with_bags,
    step_with_grad,
)

Tensor = Any
_STATE = "initial_accumulator_value"
# Options that are numbers, or tensors of one element.
_NUMBERS = frozenset(
    name
    for spec in RULES.values()
    for name, value in {**spec.defaults, **spec.state_defaults}.items()
    if type(value) is float
)
_UNSUPPORTED = ("amsgrad", "dampening", "lr_decay", "momentum", "nesterov")  # options of torch's optimizers


class RowOptimizer(torch.optim.Optimizer):
    """The base of row-sparse optimizers. Rows are along a parameter's first dimension.

    `step()` updates a fused table (`fused=True` of the modules) in one pass over the gradient of its bags, and consumes
    that gradient unless the table has a second optimizer.
    """

    rule: ClassVar[str]

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, torch.nn.Module):
            kind = type(params).__name__
            raise TypeError(f"params must be parameters, got the module {kind}. Pass its parameters().")
        for name, value in defaults.items():
            _check_option(name, value)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with their own options.

        Raises:
            InvalidArgumentError: If an option is out of range.
            UnimplementedError: If a parameter cannot be updated in place.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict with 'params', got {type(param_group).__name__}")
        for name, value in param_group.items():
            if name in self.defaults:
                _check_option(name, value)
        _check_capturable(self.rule, {**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            with self._error_context("add_param_group"):
                for param in self.param_groups[-1]["params"]:
                    check_param(self.rule, param)
        except OpError:
            self.param_groups.pop()
            raise
        self._register_fused_tables()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in RULES[self.rule].torch_options.items():
                group.setdefault(name, value)  # an earlier version may have pickled it
        self._register_fused_tables()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parameters; `layout` names the rows of a sharded or stacked table."""

        def add_layouts(_: Any, state_dict: dict[str, Any]) -> None:
            states = state_dict["state"]
            for index, param in enumerate(self._params()):
                if index in states and RULES[self.rule].slots and hasattr(param, LAYOUT):
                    states[index] = {**states[index], "layout": getattr(param, LAYOUT)}

        handle = self.register_state_dict_post_hook(add_layouts, prepend=True)
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, bit for bit: slots keep their dtype, which may differ from the parameter's.

        The state of a sharded table must belong to the rows that this rank stores. `layout` names them, and may be
        missing only if one rank stores all rows.

        Raises:
            ValueError: If the state does not fit; then nothing is changed.
        """
        loaded: dict[str, Any] = {}

        def check_and_keep(_: Any, saved: dict[str, Any]) -> dict[str, Any]:
            self._check_state(saved)
            loaded.update(saved)
            return {**saved, "state": {i: _without_layout(state) for i, state in saved["state"].items()}}

        handle = self.register_load_state_dict_pre_hook(check_and_keep)  # runs after all other hooks
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)  # states of other optimizers, or of earlier versions, may lack it
        capturable = {param for group, param in self._grouped_params() if group["capturable"]}
        for _, state, param in self._saved_states(loaded):
            if param in capturable and "step" in state:  # torch has rounded it to float32
                self.state[param]["step"] = _new_count(state["step"], param)
            for slot in RULES[self.rule].slots:
                self.state[param][slot.name] = load_slot(state[slot.name], param)

    def _saved_states(self, saved: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any], Tensor]]:
        """Yield the number (and name, if known), the saved state and the parameter of each that has a state."""
        indices = (i for group in saved["param_groups"] for i in group["params"])
        names = (n for group in self.param_groups for n in group.get("param_names", [None] * len(group["params"])))
        for index, name, param in zip(indices, names, self._params(), strict=True):
            if state := saved["state"].get(index):
                yield index if name is None else f"{index} ({name})", state, param

    def _check_state(self, saved: dict[str, Any]) -> None:
        """Raise if a saved state does not fit, before anything is changed."""
        where = f"{type(self).__name__}.load_state_dict"
        if "param_groups" not in saved or "state" not in saved:
            raise ValueError(f"{where}: state_dict must have 'state' and 'param_groups', got {sorted(map(str, saved))}")
        groups = saved["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            return  # torch raises
        with self._error_context("load_state_dict"):
            for group in groups:
                for name in self.defaults:
                    if name in group:
                        _check_option(name, group[name])
                _check_capturable(self.rule, {**self.defaults, **group})
                unknown = next((n for n in _UNSUPPORTED if n not in self.defaults and group.get(n)), None)
                if unknown is not None:
                    raise ValueError(
                        f"{where}: the state was saved with {unknown}={group[unknown]}, not supported here"
                    )
        slots = RULES[self.rule].slots
        for index, state, param in self._saved_states(saved):
            if not isinstance(state, dict):
                raise ValueError(f"{where}: the state of parameter {index} must be a dict, got {type(state).__name__}")
            if slots or "step" in state:
                _check_step_count(state.get("step"), f"{where}: 'step' of parameter {index}")
            if not slots:
                continue
            with self._error_context("load_state_dict"):
                _check_layout(index, state.get("layout"), getattr(param, LAYOUT, None))
            for slot, shape in zip(slots, slot_shapes(self.rule, tuple(param.shape) or (1,)), strict=True):
                value = state.get(slot.name)
                if not isinstance(value, torch.Tensor):
                    needed = " and ".join(["'step'", *(repr(slot.name) for slot in slots)])
                    raise ValueError(f"{where}: parameter {index} has no {slot.name!r}. Its state needs {needed}.")
                if is_dtensor(value) != is_dtensor(param):
                    raise ValueError(
                        f"{where}: {slot.name!r} of parameter {index} is a {type(value).__name__}, but the parameter"
                        f" is a {type(param).__name__}; load it by"
                        " torch.distributed.checkpoint.state_dict.set_optimizer_state_dict"
                    )
                if value.layout != torch.strided or value.is_meta or not value.dtype.is_floating_point:
                    raise ValueError(
                        f"{where}: {slot.name!r} of parameter {index} must be a dense tensor of floats, got one of"
                        f" layout {value.layout} and dtype {value.dtype} on {value.device}"
                    )
                if tuple(value.shape) != tuple(shape):
                    raise ValueError(
                        f"{where}: {slot.name!r} of parameter {index} must have shape {tuple(shape)},"
                        f" got {tuple(value.shape)}. States have the numbers of the parameters in the order in which"
                        " the optimizer got them."
                    )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients of all parameters, or set them to zero.

        Args:
            set_to_none: Whether to remove them.
        """
        if not set_to_none or torch.compiler.is_compiling() or torch.autograd._profiler_enabled():
            super().zero_grad(set_to_none)  # names itself in profiles, which takes longer than the work
            return
        for group in self.param_groups:
            clear_grads(group["params"])

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; all gradients are validated before any parameter changes.

        Args:
            closure: A function that computes the loss again.

        Returns:
            The result of `closure`.

        Raises:
            InvalidArgumentError: If a gradient does not fit its parameter.
        """
        if torch.compiler.is_compiling():  # as `optimizer.step` inside of a compiled function
            return self._step_between_graphs(closure)
        if (
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or optimizer_hooks._global_optimizer_pre_hooks
            or optimizer_hooks._global_optimizer_post_hooks
            or torch.autograd._profiler_enabled()
        ):
            return self._step_with_hooks() if closure is None else self._step_with_hooks(closure)
        return self._step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # tells torch not to wrap `step`, which runs hooks itself

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        with_gradients = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # as torch.no_grad does, in a tenth of the time
        try:
            return self._update(closure)
        finally:
            torch._C._set_grad_enabled(with_gradients)

    _step_with_hooks = torch.optim.Optimizer.profile_hook_step(_step)

    @torch._disable_dynamo  # torch's own, because `torch.compiler.disable` imports the compiler
    def _step_between_graphs(self, closure: Callable[[], Any] | None) -> Any:
        return self.step(closure)

    def _update(self, closure: Callable[[], Any] | None) -> Any:
        if not self.state and _is_state_requested():
            self._init_states()
            return None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            joint, done = joint_steps(self, self.__dict__.setdefault("_joint_cache", {}))
        except OpError as error:
            raise self._add_context(error, "step") from None
        rest: list[Any] = []
        if len(done) < sum([len(group["params"]) for group in self.param_groups]):
            rest = [x for x in enumerate(self._grouped_params()) if id(x[1][1]) not in done]
        for _, (_, param) in rest:
            if isinstance(param, FusedWeight):
                try:
                    for pending in param.rowgrad_pending:
                        pending.check()
                except OpError as error:
                    raise self._add_context(error, "step", param=param) from None
        prepared: list[Any] = joint
        others = []
        for index, (group, param) in rest:  # validates
            step = self._step_on_gpu(index, group, param) if devices.is_on_gpu(param) else None
            if step is not None:
                prepared.append(step)
                continue
            other = self._iter_step(index, group, param)
            next(other, None)
            others.append(other)
        for step in prepared:
            step.run()
        for other in others:
            next(other, None)
        return loss

    def _step_on_gpu(self, index: int, group: dict[str, Any], param: Tensor) -> Any:
        """Return the validated step of a parameter on a GPU; None if it has to be prepared by the ops."""
        grad = None
        try:
            if isinstance(param, FusedWeight):
                return gpu_calls.fused_step(self, group, param, index)
            grad = param.grad
            return None if grad is None else gpu_calls.grad_step(self, group, param, index, grad)
        except OpError as error:
            raise self._add_context(error, "step", param=param, grad=grad) from None

    def _iter_step(self, index: int, group: dict[str, Any], param: Tensor) -> Iterator[None]:
        """Step one parameter; yield before it is written."""
        fused = isinstance(param, FusedWeight)
        if fused and (update := fused_step(param, self)) is not None:
            yield from update
            return
        grad = param.grad
        if grad is None:
            return
        try:
            step = self._next_step(group, param, index)
            if index or len(group["params"]) > 1 or len(self.param_groups) > 1:
                check_row_ids(grad)
            yield from step_with_grad(self.rule, param, self.state[param], grad, step, negate=group["maximize"])
            self._count_step(group, param, step)
        except OpError as error:
            raise self._add_context(error, "step", param=param, grad=grad) from None
        if fused:
            consume_stored_grad(param)

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
        """Step `param` with the gradient of bags of its rows, without storing the row-sparse gradient.

        The result has the bits of `SparseSegment*GradV2` (with `weights`, `WeightedSparseSegment*Grad`) followed by a
        step with that gradient.

        Args:
            param: A parameter of this optimizer.
            grad: The gradient of the bags, a row for each.
            indices: The row of each id; None with a plan.
            segment_ids: The bag of each id; None with a plan.
            combiner: How the bags were combined: "sum", "mean" or "sqrtn".
            weights: A weight for each id.
            plan: A `rowgrad.Plan` that replaces `indices` and `segment_ids`.
            accumulate: How weighted 16-bit floats are summed: in "float32" with one rounding, or in "T", their dtype.
            order: The order of additions, "sequential" or "blocked"; by default that of the ops on the parameter's
                device.

        Raises:
            InvalidArgumentError: If ids are out of range, or arguments do not fit together.
        """
        if plan is not None and (indices is not None or segment_ids is not None):
            with self._error_context(
                "update_from_bags", param=param, grad=grad, indices=indices, segment_ids=segment_ids
            ):
                raise make_error("plan_beside_ids")
        update = self._iter_update_from_bags(
            param, grad, indices, segment_ids, combiner, weights, plan, accumulate=accumulate, order=order
        )
        for _ in update:
            pass

    def _iter_update_from_bags(
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
        """Do what `update_from_bags` does; yield before `param` is written."""
        with self._error_context("update_from_bags", param=param, grad=grad, indices=indices, segment_ids=segment_ids):
            group, index = self._group_and_index(param)
            for name, value in (
                ("grad", grad), ("indices", indices), ("segment_ids", segment_ids), ("weights", weights)
            ):  # fmt: skip
                if not isinstance(value, torch.Tensor) and (value is not None or name == "grad"):
                    raise make_error("not_a_tensor", argument=name, value=type(value).__name__)
            if plan is None and (indices is None or segment_ids is None):
                raise make_error("not_an_array", argument="indices", value="None, and no plan")
            step = self._next_step(group, param, index)
            ids = (indices, segment_ids) if plan is None else plan
            slots, order = self.state[param], order or default_order(param)
            options = {"combiner": combiner, "accumulate": accumulate, "order": order, "negate": group["maximize"]}
            yield from step_with_bags(self.rule, param, slots, grad, ids, step, weights, **options)
            self._count_step(group, param, step)

    def _iter_update_from_grad(self, param: Tensor, grad: Tensor) -> Iterator[None]:
        """Step `param` with a gradient that is not stored in it; yield before it is written."""
        with self._error_context("step", param=param, grad=grad):
            group, index = self._group_and_index(param)
            step = self._next_step(group, param, index)
            yield from step_with_grad(self.rule, param, self.state[param], grad, step, negate=group["maximize"])
            self._count_step(group, param, step)

    def _params(self) -> Iterator[Tensor]:
        return (param for _, param in self._grouped_params())

    def _grouped_params(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        return ((group, param) for group in self.param_groups for param in group["params"])

    def _group_and_index(self, param: Tensor) -> tuple[dict[str, Any], int]:
        for index, (group, other) in enumerate(self._grouped_params()):
            if other is param:
                return group, index
        raise make_error(
            "number_unfit", argument="param", value="another tensor", bound="a parameter of this optimizer"
        )

    def _register_fused_tables(self) -> None:
        for param in self._params():
            if isinstance(param, FusedWeight):
                register_optimizer(param, self)

    def _next_step(self, group: dict[str, Any], param: Tensor, index: int) -> Step:
        """Return the numbers of a parameter's next step; before the first, create its state."""
        state = self.state[param]
        spec = RULES[self.rule]
        for name in ("maximize", "differentiable"):
            _check_option(name, group[name])
        _check_capturable(self.rule, group)
        if "step" not in state:
            self._init_state(group, param)
        tensors = numbers_on_device(group, state, param)
        host = {**group, "lr": 1.0} if tensors.lr is not None else group
        numbers: dict[str, Any] = {k: _float(k, host[k]) if k in _NUMBERS else host[k] for k in spec.defaults}
        if spec.fades:
            numbers["lazy"] = group["lazy"]
        check_count("seed", group["seed"])
        numbers.update(
            stochastic_rounding=group["stochastic_rounding"],
            # so that parameters of one shape, and shards of one parameter, are rounded differently
            seed=(group["seed"] + index + (shard_index(param) << 32)) % 2**63,
            step=1 if tensors.steps is not None else int(state["step"]) + 1,
        )
        return Step(**numbers) if tensors is ON_HOST else DeviceStep(**numbers, rate=1.0, tensors=tensors)

    def _init_state(self, group: dict[str, Any], param: Tensor) -> None:
        """Create the state of a parameter before its first step."""
        check_param(self.rule, param)
        if is_captured() and (RULES[self.rule].slots or group["capturable"]):
            raise make_error("step_first_captured")
        self.state[param].update(step=0, **new_slots(self.rule, param, float(group.get(_STATE, 0.0))))

    def _init_states(self) -> None:
        """Create the state of every parameter that has a gradient; change nothing else."""
        with self._error_context("step"):
            for group, param in self._grouped_params():
                if param.grad is not None:
                    self._init_state(group, param)

    def _count_step(self, group: dict[str, Any], param: Tensor, step: Step) -> None:
        if isinstance(step, DeviceStep) and step.tensors.steps is not None:
            return  # the kernels have counted it
        self.state[param]["step"] = _new_count(step.step, param) if group["capturable"] else step.step

    @contextmanager
    def _error_context(self, method: str, **tensors: Tensor) -> Iterator[None]:
        """Make errors name the method and the optimizer."""
        try:
            yield
        except OpError as error:
            raise self._add_context(error, method, **tensors) from None

    def _add_context(self, error: OpError, method: str, **tensors: Tensor) -> OpError:
        parts = (f"{k}={v.dtype}{list(v.shape)}" for k, v in tensors.items() if isinstance(v, torch.Tensor))
        error.in_call(f"{type(self).__name__}.{method}", None, ", ".join(parts))
        return error


def _without_layout(state: Any) -> Any:
    return {k: v for k, v in state.items() if k != "layout"} if isinstance(state, dict) else state


def _check_layout(index: Any, saved: Any, own: str | None) -> None:
    """Raise if a saved state belongs to other rows than the parameter. Unsharded tables need no layout."""
    try:
        theirs, ours = (None if text is None else json.loads(text) for text in (saved, own))
        is_whole = [layout is None or layout["ranks"] == 1 for layout in (theirs, ours)]
    except (KeyError, TypeError, ValueError):
        raise make_error("optimizer_layout_unreadable", argument=f"parameter {index}", value=repr(saved)) from None
    if theirs is None or ours is None:
        if all(is_whole):
            return
        if theirs is None:
            raise make_error("optimizer_layout_missing", argument=f"parameter {index}", bound=own)
    if theirs != ours:
        raise make_error(
            "optimizer_layout_differs", argument=f"parameter {index}", value=saved, bound=own or "a whole table"
        )


def _is_state_requested() -> bool:
    """Return whether `get_state_dict` of torch.distributed.checkpoint calls `step`, to make it create the state.

    It sets all gradients and learning rates to zero and expects that the weights do not change. That does not hold for
    every rule, and the step would be counted.
    """
    module = sys.modules.get("torch.distributed.checkpoint.state_dict")
    caller = getattr(module, "_init_optim_state", None)  # a private function, which other versions of torch may lack
    frame: Any = sys._getframe(1)
    while caller is not None and frame is not None:
        if frame.f_code is caller.__code__:
            return True
        frame = frame.f_back
    return False


def _check_option(name: str, value: Any) -> None:
    if name in ("foreach", "fused"):  # a step is one kernel anyway
        if value is not None and not isinstance(value, bool):
            raise make_error("number_unfit", argument=name, value=repr(value), bound="True, False or None")
        return
    check_hyperparameter(name, _float(name, value) if name in _NUMBERS else value)
    if name == "differentiable" and value:
        bound = "a step updates parameters in place, outside of autograd"
        raise make_error("option_unfit", argument=name, value=value, bound=bound)


def _check_capturable(rule: str, group: Mapping[str, Any]) -> None:
    """Raise if the steps of a group are captured but depend on their number, which would be a constant in a graph."""
    _check_option("capturable", group["capturable"])
    if group["capturable"] or not is_captured():
        return
    if RULES[rule].fades or group["stochastic_rounding"]:
        cause = "the bias correction" if RULES[rule].fades else "stochastic_rounding"
        raise make_error("step_captured", value="a CUDA graph", bound=cause)


def _new_count(count: Any, param: Tensor) -> Tensor:
    """Return a tensor with a parameter's count of steps, on its device."""
    return count_tensor(count, param.to_local().device if is_dtensor(param) else param.device)


def _check_step_count(value: Any, what: str) -> None:
    """Raise unless the step count is a whole number; torch's optimizers store it in a tensor."""
    if value is None:
        raise ValueError(f"{what} is missing. Pass the number of steps that the state has seen.")
    try:
        number = value.item() if isinstance(value, torch.Tensor) else value
        good = type(number) in (int, float) and int(number) == number and 0 <= number < 2**63 - 1
    except (RuntimeError, ValueError, OverflowError):  # not one element; NaN; infinity
        good = False
    if not good:
        raise ValueError(f"{what} must be a whole number of at least 0, got {value!r}")


def _float(name: str, value: Any) -> float:
    """Return a number, or the element of a tensor, as a float."""
    if type(value) is float:
        return value
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise make_error("number_unfit", argument=name, value=repr(value), bound="a finite number") from None


def make_class(spec: RuleSpec, module: str) -> type[RowOptimizer]:
    """Create the optimizer class of a rule, as a class of `module`."""
    options = spec.torch_options
    parameters = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD if name == "lr" else Parameter.KEYWORD_ONLY,
            default=default,
            annotation=spec.annotation(name),
        )
        for name, default in options.items()
    ]
    first = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "params")]
    signature = Signature([*first, *parameters], return_annotation=None)

    def init(self: RowOptimizer, *args: Any, **kwargs: Any) -> None:
        check_option_names(spec.class_name, kwargs.keys() - {"params"}, options)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        RowOptimizer.__init__(self, bound.arguments["params"], {name: bound.arguments[name] for name in options})

    init.__signature__ = signature  # type: ignore[attr-defined]
    fields = {"__init__": init, "__doc__": spec.doc, "__module__": module, "rule": spec.name}
    return type(spec.class_name, (RowOptimizer,), fields)
