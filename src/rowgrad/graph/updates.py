"""Blocks that change Variables. Each works out the new value with dense ops; `Assign` is the one node that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..arrays import aval_of
from ..check import infer
from ..errors import refuse
from ..spec import CATALOG, Aval
from .admission import admit_inputs, judge
from .given import kind_of, one_value
from .nodes import Check, Node, Output, is_open
from .placing import Placing, expands

Pins = dict[str, Any]


def variable_of(value: Any) -> Node | None:
    """The Variable behind a wire: its own output, or what an update of it will leave there."""
    while isinstance(value, Output):
        if value.node.op.name == "Variable":
            return value.node
        value = value.node.inputs[0] if value.node.op.name == "Assign" else None
    return None


def _keep(p: Placing, target: Any, value: Any, inputs: Mapping[str, Any] | None = None) -> Output:
    """The node by which a Variable takes a value when the run ends; the block's own, where it has all its `inputs`."""
    name = p.name if inputs is not None else p.graph.inner(p.name, "Assign")
    dtype, shape = target.dtype, target.shape
    node = Node(name, p.name, CATALOG["Assign"], (target, value), {})
    node.steady = False
    if inputs is not None and any(isinstance(v, Output) and is_open(v) for v in inputs.values()):
        # Dense ops would broadcast what has another shape than the Variable.
        node.check = Check(p.op, inputs, lambda shapes: infer(p.op, _avals(inputs, shapes), {}, p.attrs))
    return p.graph.add(node, [(dtype, shape)]).outputs[0]


def _avals(inputs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Aval]:
    return {
        name: Aval(v.dtype if isinstance(v, Output) else aval_of(v).dtype, shapes[name]) for name, v in inputs.items()
    }


def _arguments(p: Placing) -> dict[str, Any]:
    """Inputs that were judged by the record; those that are changed lead to Variables."""
    for arg in p.op.inputs:
        if arg.ref and variable_of(one_value(p.given[arg.name], arg.name)) is None:
            raise refuse("not_a_variable", argument=arg.name, value=kind_of(one_value(p.given[arg.name], arg.name)))
    known = admit_inputs(p.op, p.given)
    judge(p.op, known, p.attrs)
    return known.inputs


def _simple(rule: Callable[[Any, Any, Any], Any]) -> Callable[[Placing], Pins]:
    def expansion(p: Placing) -> Pins:
        x = _arguments(p)
        return {"output_ref": _keep(p, x["ref"], rule(p.ops, x["ref"], x["value"]), x)}

    return expansion


expands("Assign")(_simple(lambda ops, old, value: value))
expands("AssignAdd")(_simple(lambda ops, old, value: ops["Add"](old, value)))
expands("AssignSub")(_simple(lambda ops, old, value: ops["Sub"](old, value)))


@expands("ApplyGradientDescent")
def _descend(p: Placing) -> Pins:
    x, ops = _arguments(p), p.ops
    return {"out": _keep(p, x["var"], ops["Sub"](x["var"], ops["Mul"](x["alpha"], x["delta"])), x)}


@expands("ApplyMomentum")
def _momentum(p: Placing) -> Pins:
    x, ops = _arguments(p), p.ops
    accum = ops["Add"](ops["Mul"](x["accum"], x["momentum"]), x["grad"])
    step = ops["Mul"](accum, x["lr"])
    if p.attrs["use_nesterov"]:
        ahead = ops["Mul"](ops["Mul"](accum, x["momentum"]), x["lr"])
        step = ops["Add"](ops["Mul"](x["grad"], x["lr"]), ahead)
    _keep(p, x["accum"], accum)
    return {"out": _keep(p, x["var"], ops["Sub"](x["var"], step), x)}


@expands("ApplyAdagrad")
def _adagrad(p: Placing) -> Pins:
    x, ops = _arguments(p), p.ops
    accum = x["accum"]
    if p.attrs["update_slots"]:
        accum = ops["Add"](accum, ops["Mul"](x["grad"], x["grad"]))
        _keep(p, x["accum"], accum)
    step = ops["Div"](ops["Mul"](x["grad"], x["lr"]), ops["Sqrt"](accum))
    return {"out": _keep(p, x["var"], ops["Sub"](x["var"], step), x)}


@expands("ApplyAdam")
def _adam(p: Placing) -> Pins:
    x, ops = _arguments(p), p.ops

    def rest(value: Any) -> Any:
        """1 − value."""
        return ops["Sub"](ops["FullLike"](value, value=1.0), value)

    grad, m, v = x["grad"], x["m"], x["v"]
    m = ops["Add"](m, ops["Mul"](ops["Sub"](grad, m), rest(x["beta1"])))
    v = ops["Add"](v, ops["Mul"](ops["Sub"](ops["Mul"](grad, grad), v), rest(x["beta2"])))
    rate = ops["Div"](ops["Mul"](x["lr"], ops["Sqrt"](rest(x["beta2_power"]))), rest(x["beta1_power"]))
    ahead = ops["Add"](ops["Mul"](m, x["beta1"]), ops["Mul"](grad, rest(x["beta1"]))) if p.attrs["use_nesterov"] else m
    step = ops["Div"](ops["Mul"](rate, ahead), ops["Add"](ops["Sqrt"](v), x["epsilon"]))
    _keep(p, x["m"], m)
    _keep(p, x["v"], v)
    return {"out": _keep(p, x["var"], ops["Sub"](x["var"], step), x)}
