"""A batch of calls as one call: what vmap does, by a rule per kernel, over whatever arrays `xp` stands for.

What the rules promise: each item's result has the bits of the call on that item alone, and whatever that call refuses
is refused, in its words. A rule may meet arrays of an outer transform or of a tracer, so none looks at data to decide.

`xp` has names of the array standard (`where`, `concat`, `stack`, `reshape`, `broadcast_to`, `moveaxis`, `astype`,
`all`, `ones_like`), the dtypes `int64` (the longest integers there are) and `float32`, the set `short_floats`, and

- `admit(op, arguments)`: by name the value as rules handle it, and its aval;
- `sizes(value)`: sizes as shape rules see them; `is_array(value)`: whether it is no size; `highest(dtype)`;
- `numbers(stop, like, dtype)`: 0, 1, 2, … on the device of `like`; `zeros(shape, like)`: of its dtype too;
- `count(ids)`: the last id plus one, as an int or an array;
- `pick(pool, index)`: pool[b, index[b, i]]; `named(index, size)`: which of `size` positions each row of `index` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..check import infer
from ..errors import OpError, ResourceExhaustedError, UnimplementedError, refuse
from ..spec import CATALOG, PLAN, Aval, Op
from .batch import Batch, Outputs, Run
from .entries import batch_fill_grad, batch_fill_grad_grad, batch_moved
from .rows import ROW_KERNELS, batch_elements, batch_offsets, batch_rows


def batched(
    xp: Any,
    op: Op,
    attrs: Mapping[str, Any],
    batch_size: int,
    values: Sequence[Any],
    in_dims: Sequence[Any],
    run: Run,
) -> Outputs:
    """A kernel op for every item of a batch: outputs, and where each has the batch (None: it is one for all)."""
    dims = {n: d if isinstance(d, int) else None for n, d in zip(op.input_names, in_dims, strict=True)}
    _refuse_fixed(op, dims)
    if op.name.endswith("WithPlan"):  # the plan of one item's ids is not that of all items'
        without = CATALOG[op.name.replace("WithPlan", "WithNumSegments")]
        values = [v for n, v in zip(op.input_names, values, strict=True) if n in without.input_names]
        return batched(xp, without, attrs, batch_size, values, [dims[n] for n in without.input_names], run)
    rule = _RULES[str(op.kernel)]
    admitted = xp.admit(op, dict(zip(op.input_names, values, strict=True)))
    batch = _batch(xp, op, attrs, batch_size, admitted, dims, run)
    _refuse_deciding(batch)
    try:
        return rule(batch)
    except (ResourceExhaustedError, UnimplementedError):
        raise
    except OpError as error:
        return _one_by_one(batch, error)


def _batch(
    xp: Any,
    op: Op,
    attrs: Mapping[str, Any],
    size: int,
    admitted: Mapping[str, tuple[Any, Aval]],
    dims: Mapping[str, int | None],
    run: Run,
) -> Batch:
    arguments: dict[str, Any] = {}
    avals: dict[str, Aval] = {}
    for name, dim in dims.items():  # in the op's order, which admission does not keep
        value, aval = admitted[name]
        if dim is not None:
            value = xp.moveaxis(value, dim, 0)
            aval = Aval(aval.dtype, tuple(value.shape)[1:])
        arguments[name], avals[name] = value, Aval(aval.dtype, xp.sizes(aval.shape))
    host = {arg.name: xp.sizes(arguments[arg.name]) for arg in op.inputs if arg.host}
    outputs = infer(op, avals, host, attrs)  # refuses what no item could be
    named = frozenset(name for name, dim in dims.items() if dim is not None)
    return Batch(xp, op, attrs, size, arguments, named, dims, outputs, run)


def _one_by_one(batch: Batch, refusal: OpError) -> Outputs:
    """The call was refused. Whose fault was it? If no item's, only their number was too much for one call."""
    results = []
    for number in range(batch.size):
        try:
            results.append(batch.call(batch.item(number)))
        except OpError as error:
            error.add_note(f"in item {number} of the batch")
            raise error from None
    if not results:
        raise refusal
    return tuple(batch.xp.stack(outputs) for outputs in zip(*results, strict=True)), (0,) * len(batch.op.outputs)


# -- what cannot be batched --------------------------------------------------------------------------------------------

_FIXED = {
    **dict.fromkeys(PLAN, "use the op that takes ids in place of a plan"),
    "sorted_ids": "it is the list all items share",
    "input_start": "subtract it from input_indices, and give zeros",
}
_WITHOUT_RULE = {
    "sparse_add": "which sums reach thresh, and so are kept, depends on the values",
    "row_plan": "it decides how many rows a plan has",
}
# Kernels that give rows by id: ids that differ would give each item other rows.
_SHARED_IDS = {"sparse_segment_grad_padded": "use jax.lax.map, or the dense gradient"}


def _refuse_fixed(op: Op, dims: Mapping[str, int | None]) -> None:
    """Arguments that are one for all items whatever the rest, and ops that have no rule at all."""
    kernel = str(op.kernel)
    general = None if kernel in _RULES else _WITHOUT_RULE.get(kernel, "call it before vmap")
    for arg in op.inputs:
        reason = "it decides a shape" if arg.host else _FIXED.get(arg.name, general)
        if arg.role == "ids":
            reason = reason or _SHARED_IDS.get(kernel)
        if dims[arg.name] is not None and reason is not None:
            raise refuse("batch_unfit", argument=arg.name, bound=reason)


def _refuse_deciding(batch: Batch) -> None:
    """Ids that decide how many rows come out are one list for all items."""
    if any(d is None for aval in batch.outputs for d in aval.shape):
        for arg in batch.op.inputs:
            if arg.name in batch.batched and arg.role == "ids":
                raise refuse("batch_unfit", argument=arg.name, bound=_advice(batch.op))


def _advice(op: Op) -> str:
    for name in (f"{op.name}WithNumSegments", f"{op.name}GradGrad"):
        if name in CATALOG and "num_segments" in CATALOG[name].input_names:
            return f"use {name}, whose number of output rows is given"
    if op.name.endswith("V2"):
        return f"use {op.name.removesuffix('V2')}, which gives all rows"
    return "it decides how many rows come out"


_RULES: dict[str, Callable[[Batch], Outputs]] = {
    **dict.fromkeys(ROW_KERNELS, batch_rows),
    "fill_empty_rows": batch_moved,
    "fill_empty_rows_grad": batch_fill_grad,
    "fill_empty_rows_grad_grad": batch_fill_grad_grad,
    "segment_ids_from_offsets": batch_offsets,
    "sparse_slice": batch_moved,
    "sqrt": batch_elements,
}
