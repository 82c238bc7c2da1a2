"""Graph blocks for state and sessions, which `rowgrad.graph` implements.

Types here may also be `any` (any value), `operation` (something to run, without a value), `feed` (a value for a
placeholder) and `sparse` (indices, values and shape in one wire)."""

from __future__ import annotations

from typing import Any

from ..errors import make_error, shape_text
from .enums import COMBINERS
from .shapes import differ
from .spec import ALL_DTYPES, FLOATS, INDEX, NUMBERS, Known, Shape, declare

CATEGORY = "Session"
STATE = "State"
T_ANY = {"T": ALL_DTYPES}


def _no_shape_rule(x: Known) -> tuple[Shape, ...]:
    """Raise: there is no shape rule, because `rowgrad.graph` replaces the block by other nodes."""
    raise NotImplementedError


def _graph(name: str, signature: str, doc: str, example: str, category: str = CATEGORY, **fields: Any) -> None:
    fields = {"types": {}, "shape": _no_shape_rule, **fields}
    example = "from rowgrad.graph import ClientSession, Const, Scope, ops\nroot = Scope.new_root_scope()\n" + example
    declare(name, signature, doc=doc, example=example, layer="graph", category=category, **fields)


_AT = {"dtype": "", "shape": None}
_graph(
    "Const",
    "val: T -> output: T",
    "A constant. With `shape`, the value is reshaped, or a single number fills the shape.",
    "ClientSession(root).run(Const(root, [[3.0, 2.0], [-1.0, 0.0]]))\n",
    types=T_ANY,
    attrs=_AT,
)
_graph(
    "Const_ex",
    "val: T -> output: T",
    "A `Const` with an explicit dtype, for example for int64 indices.",
    'ClientSession(root).run(ops.Const_ex(root, [4, 7], dtype="int64"))\n',
    types=T_ANY,
    attrs=_AT,
    tensorflow=False,
)
_graph(
    "Tensor",
    "initvalues: T -> output: T",
    "A value for a feed.",
    'ClientSession(root).run(ops.Tensor(root, [4, 7], dtype="int8"))\n',
    types=T_ANY,
    attrs=_AT,
    tensorflow=False,
)
_graph(
    "Input",
    "initvalues: T -> input: T",
    "A value for an input of an op.",
    "ClientSession(root).run(ops.Input(root, [5, 3]))\n",
    types=T_ANY,
    attrs=_AT,
    tensorflow=False,
)
_graph(
    "Input_Initializer",
    "t: T -> output: T",
    "An initial value, entered or wired.",
    "ClientSession(root).run(ops.Input_Initializer(root, [1, 2]))\n",
    types=T_ANY,
    attrs=_AT,
    tensorflow=False,
)
_graph(
    "InputList",
    "outputlist: list any -> output: list any",
    "Several wires as one list, in the order in which they were drawn.",
    "ClientSession(root).run(ops.AddN(root, ops.InputList(root, [Const(root, 1), Const(root, 2)])))\n",
    tensorflow=False,
)
_graph(
    "Output",
    "output_op: any -> output: any",
    "One output of an op: the wired one, or the output `index` of the same op.",
    "ClientSession(root).run(ops.Output(root, Const(root, 3)))\n",
    attrs={"index": 0},
    tensorflow=False,
)
_graph(
    "Operation",
    "operation: operation -> output: operation",
    "An op to run for its effect, not for its value.",
    """x = ops.Variable(root, 1.0)
step = ops.Operation(root, ops.Assign(root, x, 2.0))
session = ClientSession(root)
session.run([], run_outputs=[step])
session.run(x)
""",
    tensorflow=False,
)
_graph(
    "FeedType",
    "input: any, initializer: any -> output: feed",
    "A value for a placeholder, for a session's `inputs`.",
    """x = ops.Placeholder(root, dtype="int32", shape=[2])
feed = ops.FeedType(root, x, [1, 2])
ops.ClientSession(root.with_op_name("s"), [feed], [ops.Add(root, x, x)])
ClientSession(root).run_block("s")
""",
    tensorflow=False,
)
_graph(
    "ClientSession",
    "inputs: optional list feed, fetch_outputs: list any, run_outputs: optional list operation ->",
    "A run: values to fetch, further ops to run, and values for placeholders.",
    'ops.ClientSession(root.with_op_name("s"), fetch_outputs=[Const(root, 3)])\nClientSession(root).run_block("s")\n',
    attrs={"device": "", "infinite_loop": False, "show_debug": False},
    runs=True,
    tensorflow=False,
)
_graph(
    "AddSymbolicGradients",
    "outputs: list any, inputs: list any, grad_inputs: optional list any -> grad_outputs: list any",
    """The gradients of `outputs` for each of `inputs`, as nodes of the graph: to fetch, wire and differentiate.

The upstream gradient of `outputs` is `grad_inputs`, by default ones. An input that no output depends on is an error, or
has a gradient of zeros with `unconnected_gradients="zero"`.""",
    """x = ops.Variable(root, [3.0, 4.0])
(dx,) = ops.AddSymbolicGradients(root, [ops.L2Loss(root, x)], [x])
ClientSession(root).run(dx)
""",
    attrs={"unconnected_gradients": "none"},
    choices={"unconnected_gradients": ("none", "zero")},
    tensorflow=False,
)
_graph(
    "SparseTensor",
    "indices: int64, values: T, dense_shape: int64 -> indices: int64, values: T, dense_shape: int64, tensor: sparse",
    "A sparse tensor in one block. Wiring `tensor` to the indices of an op also wires its values and shape.",
    """a = ops.SparseTensor(root, [[0, 1], [2, 0]], [1.0, 2.0], [3, 4])
ClientSession(root).run(ops.SparseAdd(root, a.tensor, a.tensor, 0.0).sum_values)
""",
    types=T_ANY,
    tensorflow=False,
)
_LOOKUP = """Rows of a table for the ids of every row of a sparse tensor, combined ("mean", "sum" or "sqrtn").

There is one weight per id. Rows longer than `max_norm` are first shrunk to this norm; 0 means no limit."""
_graph(
    "EmbeddingLookupSparse",
    "params: T, ids: sparse, weights: optional any -> output: T",
    _LOOKUP,
    """ids = ops.SparseTensor(root, [[0, 0], [0, 1], [1, 0]], [0, 2, 1], [2, 2]).tensor
ClientSession(root).run(ops.EmbeddingLookupSparse(root, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], ids))
""",
    types={"T": FLOATS},
    attrs={"combiner": "mean", "max_norm": 0.0},
    choices={"combiner": tuple(COMBINERS)},
    category="Embedding",
    tensorflow=False,
)
_graph(
    "SafeEmbeddingLookupSparse",
    "params: T, ids: sparse, weights: optional any -> output: T",
    _LOOKUP
    + """

Negative ids are dropped, and unless the combiner is "sum" also ids whose weight is not positive. Rows without an id are
zero, or the row `default_id` if that is not negative.""",
    """ids = ops.SparseTensor(root, [[0, 0], [0, 1], [2, 0]], [0, -1, 1], [3, 2]).tensor
ClientSession(root).run(ops.SafeEmbeddingLookupSparse(root, [[1.0, 2.0], [3.0, 4.0]], ids))
""",
    types={"T": FLOATS},
    attrs={"combiner": "mean", "max_norm": 0.0, "default_id": -1},
    choices={"combiner": tuple(COMBINERS)},
    category="Embedding",
    tensorflow=False,
)
_graph(
    "Placeholder",
    "-> output: any",
    "A value that is fed when the session runs. Unknown sizes of `shape` are -1; without `shape` any shape is allowed.",
    """x = ops.Placeholder(root, dtype="float32", shape=[-1])
ClientSession(root).run(ops.Square(root, x), {x: [1.0, 2.0]})
""",
    attrs={"dtype": "float32", "shape": None},
    category=STATE,
)
_graph(
    "Variable",
    "initvalues: T -> ref: T",
    """A value that persists between runs.

`initvalues` are entered, or wired from constants and random numbers. With `shape`, a single number is the initial value
of all elements.""",
    """x = ops.Variable(root, [1.0, 2.0])
session = ClientSession(root)
session.run(ops.Assign(root, x, ops.Add(root, x, x)))
session.run(x)
""",
    types=T_ANY,
    attrs=_AT,
    category=STATE,
)


def _same_as(first: str, *others: str) -> Any:
    def rule(x: Known) -> tuple[Shape, ...]:
        shape = x.shape(first)
        for name in others:
            other = x.shape(name)
            if len(other) != len(shape) or any(map(differ, other, shape)):
                raise make_error("same_shape", argument=name, value=shape_text(other), bound=shape_text(shape))
        return (shape,)

    return rule


def _update(
    name: str, signature: str, *like: str, doc: str, example: str, scalars: tuple[str, ...] = (), **fields: Any
) -> None:
    """Declare an update of the Variable on the first pin; arguments `like` have its shape, `scalars` are numbers."""
    first, *others = like

    def rule(x: Known) -> tuple[Shape, ...]:
        for scalar in scalars:
            if len(x.shape(scalar)) != 0:
                raise make_error("should_be_scalar", argument=scalar, shape=shape_text(x.shape(scalar)))
        shapes: tuple[Shape, ...] = _same_as(first, *others)(x)
        return shapes

    _graph(name, signature, doc, example, STATE, shape=rule, **fields)


_FLOATING = {"T": FLOATS}
_STEP = "x = ops.Variable(root, [1.0, 2.0])\nsession = ClientSession(root)\n"
for _name, _change in (("Assign", "Set the Variable to"), ("AssignAdd", "Add to the Variable"),
                       ("AssignSub", "Subtract from the Variable")):  # fmt: skip
    _update(
        _name,
        "ref: ref T, value: T -> output_ref: T",
        "ref",
        "value",
        doc=f"{_change} `value` when the run ends; the output is its new value.",
        example=_STEP + f"session.run(ops.{_name}(root, x, [5.0, 7.0]))\n",
        types=T_ANY if _name == "Assign" else {"T": NUMBERS},
        attrs={"use_locking": False, **({"validate_shape": True} if _name == "Assign" else {})},
    )
_update(
    "ApplyGradientDescent",
    "var: ref T, alpha: T, delta: T -> out: T",
    "var",
    "delta",
    scalars=("alpha",),
    doc="var ← var − alpha · delta, when the run ends; the output is the new value of var.",
    example=_STEP + "session.run(ops.ApplyGradientDescent(root, x, 0.5, [2.0, 2.0]))\n",
    types=_FLOATING,
    attrs={"use_locking": False},
)
_update(
    "ApplyMomentum",
    "var: ref T, accum: ref T, lr: T, grad: T, momentum: T -> out: T",
    "var",
    "accum",
    "grad",
    scalars=("lr", "momentum"),
    doc="accum ← accum · momentum + grad; var ← var − lr · accum (Nesterov: var − lr · (grad + momentum · accum)).",
    example=_STEP
    + "m = ops.Variable(root, [0.0, 0.0])\nsession.run(ops.ApplyMomentum(root, x, m, 0.5, [2.0, 2.0], 0.9))\n",
    types=_FLOATING,
    attrs={"use_locking": False, "use_nesterov": False},
)
_update(
    "ApplyAdagrad",
    "var: ref T, accum: ref T, lr: T, grad: T -> out: T",
    "var",
    "accum",
    "grad",
    scalars=("lr",),
    doc="accum ← accum + grad²; var ← var − lr · grad / √accum.",
    example=_STEP + "a = ops.Variable(root, [0.1, 0.1])\nsession.run(ops.ApplyAdagrad(root, x, a, 0.5, [2.0, 2.0]))\n",
    types=_FLOATING,
    attrs={"use_locking": False, "update_slots": True},
)
_update(
    "ApplyAdam",
    "var: ref T, m: ref T, v: ref T, beta1_power: T, beta2_power: T, lr: T, beta1: T, beta2: T, epsilon: T, grad: T"
    " -> out: T",
    "var",
    "m",
    "v",
    "grad",
    scalars=("beta1_power", "beta2_power", "lr", "beta1", "beta2", "epsilon"),
    doc="""A step of Adam, when the run ends.

m ← m + (grad − m)(1 − beta1); v ← v + (grad² − v)(1 − beta2);
var ← var − lr · √(1 − beta2_power) / (1 − beta1_power) · m / (√v + epsilon).""",
    example=_STEP
    + "m = ops.Variable(root, [0.0, 0.0])\nv = ops.Variable(root, [0.0, 0.0])\n"
    + "session.run(ops.ApplyAdam(root, x, m, v, 0.9, 0.999, 0.1, 0.9, 0.999, 1e-8, [2.0, 2.0]))\n",
    types=_FLOATING,
    attrs={"use_locking": False, "use_nesterov": False},
)


def _random(x: Known) -> tuple[Shape, ...]:
    shape = x.host["shape"]
    if len(x.shape("shape")) != 1:
        raise make_error("should_be_vector", argument="shape", shape=shape_text(x.shape("shape")))
    if shape is None:
        count = x.shape("shape")[0]
        return ((None,) * (count or 0),)
    for position, d in enumerate(shape):
        if d < 0:
            raise make_error("dimension_negative", argument="shape", position=position, value=d, bound=0)
    return (tuple(shape),)


for _name, _what in (("RandomUniform", "in [0, 1)"), ("RandomNormal", "of mean 0 and deviation 1")):
    _graph(
        _name,
        "shape: host Tshape -> output: any",
        f"""Random numbers {_what}, new ones in every run of a session.

They come from a counter-based generator (Philox 4x32, ten rounds) with the seeds `seed` and `seed2`; the session
advances the counter. A session that is restarted produces the same numbers, on every engine.""",
        f"ClientSession(root).run(ops.{_name}(root, [2, 2], seed=1))\n",
        category="Random",
        types={"Tshape": INDEX},
        shape=_random,
        attrs={"dtype": "float32", "seed": 0, "seed2": 0},
        choices={"dtype": ("float32", "float64", "float16", "bfloat16")},
    )
_graph(
    "NoOp",
    "-> output: operation",
    "An operation that does nothing, for places where an op is required.",
    "ClientSession(root).run([], run_outputs=[ops.NoOp(root)])\n",
)
