"""Judgement from dtypes, shapes and host values: what a call gives, or why it is refused. Data is never seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import OpError, refuse
from .spec import TENSORFLOW_NAME, Aval, Derived, Known, Op, spread


def infer(op: Op, avals: Mapping[str, Any], host: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Aval, ...]:
    """The outputs of a call; dimensions that depend on data are None. Of a list there is a tuple of avals."""
    dtypes = output_dtypes(op, avals, attrs)
    try:
        shapes = op.shape(Known(avals, host, attrs))
    except OpError as error:
        if error.argument is not None and error.argument.partition("[")[0] not in {*avals, *attrs}:
            error.argument = None
        raise
    return tuple(map(Aval, dtypes, shapes))


def output_dtypes(op: Op, avals: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[str, ...]:
    """The dtypes of a call's outputs, which take no shapes to know."""
    bound = bind_types(op, avals)
    # An output's type may be the name of an attribute, which holds its dtype.
    return tuple(bound.get(o.type) or attrs.get(o.type, o.type) for o in op.outputs)


def bind_types(op: Op, avals: Mapping[str, Any]) -> dict[str, str]:
    """Type variables to dtypes, in the order of the arguments."""
    bound: dict[str, str] = {}
    inputs, flat = spread(op, avals) if op.has_lists else (op.inputs, avals)
    for arg in inputs:
        given = flat[arg.name].dtype
        listed = op.types.get(arg.type)
        if listed is None:
            if given != arg.type:
                raise refuse("dtype_expected", argument=arg.name, value=given, bound=arg.type, why="")
        elif isinstance(listed, Derived):
            wanted = listed[bound[listed.of]]
            if listed.declared and given not in listed.declared:
                names = [TENSORFLOW_NAME.get(d, d) for d in (given, *listed.declared)]
                allowed = ", ".join(names[1:])
                raise refuse("attr_dtype", argument=arg.name, attr=arg.type, value=names[0], bound=allowed)
            if given != wanted:
                why = f", the type that goes with {listed.of} = {bound[listed.of]}"
                raise refuse("dtype_expected", argument=arg.name, value=given, bound=wanted, why=why)
        elif given not in listed:
            key = "dtype_without_kernel" if arg.type in op.unlisted else "dtype_not_allowed"
            raise refuse(key, argument=arg.name, value=given, bound=", ".join(listed))
        elif bound.setdefault(arg.type, given) != given:
            why = f", the {arg.type} of the arguments before it"
            raise refuse("dtype_expected", argument=arg.name, value=given, bound=bound[arg.type], why=why)
    for variable, listed in op.types.items():
        if isinstance(listed, Derived):
            bound[variable] = listed[bound[listed.of]]
    return bound


def check_attrs(op: Op, attrs: Mapping[str, Any]) -> None:
    """Attributes hold one of the values they may hold."""
    for name, choices in op.choices.items():
        value = attrs[name]
        if not any(value is c or (type(value) is type(c) and value == c) for c in choices):
            raise refuse("attr_not_allowed", argument=name, value=repr(value), bound=", ".join(map(repr, choices)))
