"""Expansions of graph-layer blocks into nodes: constants, placeholders, Variables, lists, feeds, sessions, lookups.

`variables` expands the blocks that update Variables, `gradients` expands AddSymbolicGradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._catalog.shapes import check_elements, differ
from .._catalog.spec import ALL_DTYPES, CATALOG, Aval
from .._runtime.arrays import Array, aval_of
from .._runtime.results import check_size
from ..errors import make_error, shape_text
from ..lookup import COMBINERS, clip_rows, smallest_positive
from .inputs import admit_inputs, as_sparse, frozen, in_dtype, infer_outputs, is_sparse, kind_of, many_values, one_value
from .node_builder import BlockExpansion, expands
from .nodes import Check, Feed, Node, Operation, Output, Placed, SessionBlock, Sparse, is_open

Pins = dict[str, Any]
MOST_DIMENSIONS = 32  # the limit of NumPy's iterators


# -- values ------------------------------------------------------------------------------------------------------------


def checked_dtype(p: BlockExpansion) -> str | None:
    """Return the attribute `dtype`, or None if it is empty."""
    dtype: str = p.attrs["dtype"]
    if dtype and dtype not in ALL_DTYPES:
        raise make_error("attr_not_allowed", argument="dtype", value=repr(dtype), bound=", ".join(ALL_DTYPES))
    return dtype or None


def checked_shape(p: BlockExpansion, is_open: bool = False) -> tuple[int | None, ...] | None:
    """Return the attribute `shape`, or None if it is not set. With `is_open`, a size of -1 becomes None."""
    shape = p.attrs["shape"]
    if shape is None:
        return None
    for position, d in enumerate(shape):
        if d < (-1 if is_open else 0):
            raise make_error("dimension_negative", argument="shape", position=position, value=d, bound=0)
    if len(shape) > MOST_DIMENSIONS:
        raise make_error(
            "value_unfit", argument="shape", bound=f"of at most {MOST_DIMENSIONS} dimensions", value=len(shape)
        )
    found = tuple(None if d == -1 else d for d in shape)
    check_elements(found)
    return found


def typed_value(p: BlockExpansion, pin: str) -> Array:
    """Return the array of a constant in the block's dtype and shape. A single number fills the shape."""
    value = one_value(p.inputs[pin], pin)
    if isinstance(value, Output):
        if value.value is None:
            raise make_error(
                "value_unfit", argument=pin, bound="a value that is known before the run", value=value.name
            )
        value = value.value
    array = in_dtype(value, pin, checked_dtype(p))
    return in_shape(array, pin, checked_shape(p), value)


def in_shape(array: Array, pin: str, shape: Any, original: Any = None) -> Array:
    """Reshape an array to a shape with as many elements. A single number fills any shape."""
    if shape is None or array.shape == shape:
        return frozen(array, original)
    if array.ndim == 0:
        check_size(Aval(aval_of(array).dtype, shape))
        return np.broadcast_to(frozen(array, original), shape)
    if array.size != np.prod(shape, dtype=object):
        raise make_error("elements_match", argument=pin, value=shape_text(array.shape), bound=shape_text(shape))
    return frozen(array.reshape(shape))


def constant(p: BlockExpansion, array: Array, own: bool = False) -> Output:
    """Add a Const node for an array. With `own`, it is the block's own node and has the block's name."""
    name = p.name if own else p.graph.inner(p.name, "Const")
    aval = aval_of(array)
    node = p.graph.add(Node(name, p.name, CATALOG["Const"], (array,), {}), [(aval.dtype, aval.shape)])
    node.outputs[0].value = array
    return node.outputs[0]


def wire(p: BlockExpansion, value: Any, pin: str, dtype: str | None = None) -> Output:
    """Return a wire unchanged, and a constant for any other value."""
    value = one_value(value, pin)
    return value if isinstance(value, Output) else constant(p, frozen(in_dtype(value, pin, dtype), value))


@expands("Const")
@expands("Const_ex")
def _const(p: BlockExpansion) -> Pins:
    return {"output": constant(p, typed_value(p, "val"), own=True)}


@expands("Tensor")
def _tensor(p: BlockExpansion) -> Pins:
    return {"output": constant(p, typed_value(p, "initvalues"), own=True)}


@expands("Input")
def _input(p: BlockExpansion) -> Pins:
    value = one_value(p.inputs["initvalues"], "initvalues")
    if isinstance(value, Output) and value.value is None:
        return {"input": value}
    return {"input": constant(p, typed_value(p, "initvalues"), own=True)}


@expands("Input_Initializer")
def _initializer(p: BlockExpansion) -> Pins:
    return {"output": constant(p, typed_value(p, "t"), own=True)}


def check_sparse(shapes: Mapping[str, Any]) -> None:
    """Raise if known shapes of the parts do not form a sparse tensor."""
    for pin, rank in (("indices", 2), ("values", 1), ("dense_shape", 1)):
        if (shape := shapes.get(pin)) is not None and len(shape) != rank:
            raise make_error("must_be_matrix" if rank == 2 else "must_be_vector", argument=pin, shape=shape_text(shape))
    if (indices := shapes["indices"]) is not None:
        for pin, wanted in (("values", indices[0]), ("dense_shape", indices[1])):
            if (shape := shapes.get(pin)) is not None and differ(shape[0], wanted):
                raise make_error("lengths_match", argument=pin, value=shape[0], bound=wanted)


@expands("SparseTensor")
def _sparse(p: BlockExpansion) -> Pins:
    indices, values, shape = (
        wire(p, p.inputs[n], n, "int64" if n != "values" else None) for n in ("indices", "values", "dense_shape")
    )
    for pin, part in (("indices", indices), ("dense_shape", shape)):
        if part.dtype != "int64":
            raise make_error("dtype_expected", argument=pin, value=part.dtype, bound="int64", why="")
    check_sparse({"indices": indices.shape, "values": values.shape, "dense_shape": shape.shape})
    return {"indices": indices, "values": values, "dense_shape": shape, "tensor": Sparse(indices, values, shape)}


# -- values that change from run to run --------------------------------------------------------------------------------


@expands("Placeholder")
def _placeholder(p: BlockExpansion) -> Pins:
    dtype = checked_dtype(p)
    if dtype is None:
        raise make_error("attr_not_allowed", argument="dtype", value="''", bound=", ".join(ALL_DTYPES))
    return {"output": p.node((), [(dtype, checked_shape(p, is_open=True))], steady=False).outputs[0]}


@expands("Variable")
def _variable(p: BlockExpansion) -> Pins:
    value = one_value(p.inputs["initvalues"], "initvalues")
    if isinstance(value, Output) and value.value is None:
        _check_initial_value(value)
        dtype, shape = checked_dtype(p) or value.dtype, checked_shape(p)
        if dtype != value.dtype:
            raise make_error("dtype_expected", argument="initvalues", value=value.dtype, bound=dtype, why="")
        if value.shape is None or None in value.shape:
            if shape is None:
                raise make_error("rank_unknown", argument="initvalues")
        elif shape not in (None, value.shape):
            raise make_error(
                "same_shape", argument="initvalues", value=shape_text(value.shape), bound=shape_text(shape or ())
            )
        shape = value.shape if shape is None else shape
    else:
        value = typed_value(p, "initvalues")
        output = constant(p, value)
        value, dtype, shape = output, output.dtype, output.shape
    return {"ref": p.node((value,), [(dtype, shape)], steady=False).outputs[0]}


def _check_initial_value(value: Output) -> None:
    """Raise if an initial value depends on a placeholder or a Variable, whose values only a run has."""
    visited, waiting = set(), [value]
    while waiting:
        node = waiting.pop().node
        if node.op.name in ("Placeholder", "Variable", "Assign"):
            raise make_error("initial_value_varies", argument="initvalues", value=node.name)
        if node not in visited:
            visited.add(node)
            waiting += node.sources()


@expands("RandomUniform")
@expands("RandomNormal")
def _random(p: BlockExpansion) -> Pins:
    known = admit_inputs(p.op, p.inputs)
    for name in ("seed", "seed2"):
        if not -(1 << 63) <= p.attrs[name] < 1 << 64:
            raise make_error("integer_does_not_fit", argument=name, value=p.attrs[name], bound="64 bits")
    if known.avals["shape"].shape is None:
        raise make_error("rank_unknown", argument="shape")
    ((_, shape),) = infer_outputs(p.op, known, p.attrs)
    check_size(Aval(p.attrs["dtype"], shape))
    if known.host["shape"] is None and known.avals["shape"].shape == (None,):
        shape = None
    return {"output": p.node(tuple(known.inputs.values()), [(p.attrs["dtype"], shape)], steady=False).outputs[0]}


@expands("NoOp")
def _no_op(p: BlockExpansion) -> Pins:
    return {"output": Operation(p.node((), []))}


# -- lists, feeds and sessions -----------------------------------------------------------------------------------------


@expands("InputList")
def _list(p: BlockExpansion) -> Pins:
    items = many_values(p.inputs["outputlist"], "outputlist")
    return {"output": [wire(p, v, f"outputlist[{k}]") for k, v in enumerate(items)]}


@expands("Output")
def _output(p: BlockExpansion) -> Pins:
    value = p.inputs["output_op"]
    if isinstance(value, Placed) and value.pins:
        value = next(iter(value.pins.values()))
    value = wire(p, value, "output_op")
    index, outputs = p.attrs["index"], value.node.outputs
    if not 0 <= index < len(outputs):
        raise make_error(
            "value_unfit",
            argument="index",
            bound=f"in [0, {len(outputs)}), the outputs of {value.node.name}",
            value=index,
        )
    return {"output": outputs[index] if index else value}


def as_operation(value: Any, argument: str) -> Operation:
    """Return the operation of any block that does something."""
    if isinstance(value, Placed):
        found = [v for v in value.pins.values() if isinstance(v, Output | Operation)]
        value = found[0] if found else value
    if isinstance(value, Output):
        return Operation(value.node)
    if isinstance(value, Operation):
        return value
    raise make_error("pin_kind", argument=argument, bound="an operation", value=kind_of(value))


@expands("Operation")
def _operation(p: BlockExpansion) -> Pins:
    return {"output": as_operation(p.inputs["operation"], "operation")}


@expands("FeedType")
def _feed(p: BlockExpansion) -> Pins:
    target, value = one_value(p.inputs["input"], "input"), one_value(p.inputs["initializer"], "initializer")
    if not isinstance(target, Output) or target.node.op.name != "Placeholder":
        raise make_error("fed_not_a_placeholder", argument="input", value=kind_of(target))
    if isinstance(value, Output):
        if value.value is None:
            raise make_error("fed_varies", argument="initializer", value=value.name)
        value = value.value
    return {"output": Feed(target, fed_value(target, value, "initializer"))}


def fed_value(target: Output, value: Any, argument: str) -> Array:
    """Return a fed value as an array in the dtype of its placeholder, after checking the shape."""
    array = in_dtype(value, argument, target.dtype)
    shape = target.shape
    if shape is not None and (len(shape) != array.ndim or any(map(differ, array.shape, shape))):
        wanted = shape_text(tuple(-1 if d is None else d for d in shape))
        raise make_error("same_shape", argument=argument, value=shape_text(array.shape), bound=wanted)
    return array


@expands("ClientSession")
def _session(p: BlockExpansion) -> Pins:
    feeds = [_as_feed(v, k) for k, v in enumerate(_items(p.inputs.get("inputs", ())))]
    for k, feed in enumerate(feeds):
        if any(feed.placeholder is other.placeholder for other in feeds[:k]):
            raise make_error("fed_twice", argument=f"inputs[{k}]", value=feed.placeholder.node.name)
    fetches: list[Output] = []
    runs = [as_operation(v, f"run_outputs[{k}]") for k, v in enumerate(_items(p.inputs.get("run_outputs", ())))]
    for k, value in enumerate(_items(p.inputs["fetch_outputs"])):
        if is_sparse(value):
            parts = as_sparse(value)
            fetches += [parts.indices, parts.values, parts.dense_shape]
        elif isinstance(value, Placed) and len(value.pins) > 1:
            fetches += [v for v in value.pins.values() if isinstance(v, Output)]
        else:
            for item in many_values(value, f"fetch_outputs[{k}]"):
                if isinstance(item, Operation):
                    runs.append(item)
                elif isinstance(item, Output):
                    fetches.append(item)
                else:
                    raise make_error("pin_kind", argument=f"fetch_outputs[{k}]", bound="a wire", value=kind_of(item))
    p.graph.sessions[p.name] = SessionBlock(p.name, feeds, fetches, runs, p.attrs)
    return {}


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _as_feed(value: Any, k: int) -> Feed:
    found = value.only if isinstance(value, Placed) and len(value.pins) == 1 else value
    if not isinstance(found, Feed):
        raise make_error(
            "pin_kind", argument=f"inputs[{k}]", bound="a feed, such as the output of FeedType", value=kind_of(found)
        )
    return found


# -- embedding lookups -------------------------------------------------------------------------------------------------

# The compositions of `rowgrad.lookup`, for ids whose values only a run knows.


@expands("EmbeddingLookupSparse")
def _lookup_block(p: BlockExpansion) -> Pins:
    params, indices, ids, _ = _lookup_inputs(p)
    weights = _lookup_weights(p, ids)
    result = _lookup(p, params, indices, ids, weights)
    _check_lookup_in_run(p, result, indices=indices, values=ids, weights=weights)
    return {"output": result}


@expands("SafeEmbeddingLookupSparse")
def _safe_lookup_block(p: BlockExpansion) -> Pins:
    ops = p.ops
    params, indices, ids, dense_shape = _lookup_inputs(p)
    weights = _lookup_weights(p, ids)
    parts = {"indices": indices, "values": ids, "dense_shape": dense_shape, "weights": weights}
    selected = ops["Flatnonzero"](ops["GreaterEqual"](ids, ops["FullLike"](ids, value=0.0)))
    if weights is not None and p.attrs["combiner"] != "sum":
        least = ops["FullLike"](weights, value=smallest_positive(weights.dtype))
        positive = ops["GreaterEqual"](weights, least)
        fine = ops["LogicalAnd"](positive, ops["GreaterEqual"](ids, ops["FullLike"](ids, value=0.0)))
        selected = ops["Flatnonzero"](fine)
    indices, ids = (ops["GatherRows"](x, selected, gradient="dense") for x in (indices, ids))
    default = p.attrs["default_id"]
    filled = ops["SparseFillEmptyRows"](indices, ids, dense_shape, max(default, 0))
    if weights is not None:
        weights = ops["GatherRows"](weights, selected, gradient="dense")
        weights = ops["SparseFillEmptyRows"](indices, weights, dense_shape, 1.0).output_values
    result = _lookup(p, params, filled.output_indices, filled.output_values, weights)
    if default < 0:
        result = ops["MaskRows"](result, filled.empty_row_indicator)
    _check_lookup_in_run(p, result, **parts)
    return {"output": result}


def _check_lookup_in_run(p: BlockExpansion, result: Output, **parts: Output | None) -> None:
    """Let every run validate ids and weights whose shapes the graph does not know."""
    inputs = {name: part for name, part in parts.items() if part is not None}
    if any(map(is_open, inputs.values())):
        result.node.check = Check(p.op, inputs, _check_lookup_shapes)


def _check_lookup_shapes(shapes: Mapping[str, tuple[int, ...]]) -> None:
    check_sparse(shapes)
    if shapes["indices"][1] != 2:
        raise make_error("same_shape", argument="ids", value=shape_text(shapes["indices"]), bound="[?,2] of indices")
    if "weights" in shapes and shapes["weights"] != shapes["values"]:
        bound = shape_text(shapes["values"])
        raise make_error("same_shape", argument="weights", value=shape_text(shapes["weights"]), bound=bound)


def _lookup_inputs(p: BlockExpansion) -> tuple[Output, Output, Output, Output]:
    """Return table, indices, ids and dense shape of a lookup block."""
    sparse_ids = p.inputs["ids"]
    if not is_sparse(sparse_ids):
        raise make_error("pin_kind", argument="ids", bound="a sparse tensor", value=kind_of(sparse_ids))
    parts = as_sparse(sparse_ids)
    indices, shape = (wire(p, v, "ids", "int64") for v in (parts.indices, parts.dense_shape))
    ids = wire(p, parts.values, "ids")
    if indices.shape is not None and (len(indices.shape) != 2 or indices.shape[1] not in (2, None)):
        raise make_error("same_shape", argument="ids", value=shape_text(indices.shape), bound="[?,2] of indices")
    if ids.dtype not in ("int32", "int64"):
        raise make_error("dtype_not_allowed", argument="ids", value=ids.dtype, bound="int32, int64")
    return wire(p, p.inputs["params"], "params"), indices, ids, shape


def _lookup_weights(p: BlockExpansion, ids: Output) -> Output | None:
    if "weights" not in p.inputs:
        return None
    weights = p.inputs["weights"]
    return wire(p, as_sparse(weights).values if is_sparse(weights) else one_value(weights, "weights"), "weights")


def _lookup(p: BlockExpansion, params: Output, indices: Output, ids: Output, weights: Output | None) -> Output:
    ops, kind = p.ops, COMBINERS[p.attrs["combiner"]]
    segments = ops["Column"](indices, index=0)
    if p.attrs["max_norm"] > 0:
        params = clip_rows(ops["GatherRows"](params, ids, gradient="dense"), p.attrs["max_norm"], ops)
        ids = ops["Positions"](ids)
    if weights is None:
        result: Output = ops[f"SparseSegment{kind}"](params, ids, segments)
    else:
        result = ops[f"WeightedSparseSegment{kind}"](params, ids, segments, weights)
    return result
