"""The record of an op, and the catalogue of all ops. Independent of array libraries."""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import make_error
from .kernels import KERNELS

Shape = tuple[int | None, ...]  # None: unknown


@dataclass(frozen=True, slots=True)
class Aval:
    """An abstract array: dtype and shape without data."""

    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Arg:
    """An input or output: its name, its type (a dtype, or a type variable such as T) and its role.

    The value of a *host* input determines shapes: a SymInt in torch, a static int in JAX, a field in the editor.
    `many`: a list of tensors; `ref`: a Variable itself, not its value; `optional`: may be omitted (both for graph
    blocks only).
    """

    name: str
    type: str
    host: bool = False
    many: bool = False
    ref: bool = False
    optional: bool = False

    @property
    def role(self) -> str:
        """The kind of values: `size`, `ids`, `shape` or `values`."""
        if self.host:
            return "size" if self.type != "int64" or self.name == "nrows" else "shape"
        return "ids" if self.type in ("int64", "Tidx", "Tsegmentids") else "values"


@dataclass(frozen=True, slots=True)
class Derived:
    """A type variable that is determined by another: that of thresh is the real type of T.

    `declared` are the dtypes that TensorFlow lists for it, in TensorFlow's order, if it lists more.
    """

    of: str
    table: Mapping[str, str]
    declared: tuple[str, ...] = ()

    def __getitem__(self, dtype: str) -> str:
        return self.table.get(dtype, dtype)


FLOATS = ("float16", "bfloat16", "float32", "float64")
REALS = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
NUMBERS = (*REALS, *COMPLEX)
QUANTIZED = ("qint8", "quint8", "qint32")
EVERYTHING = (*NUMBERS, "bool", "string")
INDEX = ("int32", "int64")
ALL_DTYPES = (*EVERYTHING, *QUANTIZED)
TENSORFLOW_NAME = {"float16": "half", "float32": "float", "float64": "double"}  # in its messages

REAL_OF = Derived(
    "T",
    {"complex64": "float32", "complex128": "float64"},
    declared=("float32", "float64", "int32", "uint8", "int16", "int8", "int64", "bfloat16", "uint16", "float16",
              "uint32", "uint64"),
)  # fmt: skip
ACCUMULATOR_OF = Derived("T", {"float16": "float32", "bfloat16": "float32"})


# The arguments of a Plan, in the order of every op that takes one.
PLAN = ("rows", "starts", "segments", "positions", "counts", "num_rows")


@dataclass(frozen=True, slots=True)
class Known:
    """The input of a shape rule: avals by argument (a tuple for a list), known host values, and attributes."""

    avals: Mapping[str, Any]
    host: Mapping[str, Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def shape(self, name: str) -> Shape:
        """Return the shape of an argument."""
        shape: Shape = self.avals[name].shape
        return shape

    def shapes(self, name: str) -> tuple[Shape, ...]:
        """Return the shapes of the items of a list."""
        return tuple(a.shape for a in self.avals[name])


class Call:
    """A finished call, the input of an adjoint: arguments by name, attributes, outputs in order.

    `wanted` names the arguments whose gradient is requested (None: all). If all of these are in the op's `linear`, the
    adjoint reads only the shapes of the linear arguments, so a runner need not save their values.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        attrs: Mapping[str, Any],
        outputs: tuple[Any, ...],
        wanted: frozenset[str] | None = None,
    ) -> None:
        self.__dict__.update(arguments)  # adjoints write c.indices
        self.arguments = arguments
        self.attrs = attrs
        self.outputs = outputs
        self.wanted = wanted

    def wants(self, name: str) -> bool:
        """Return whether the gradient of this argument is requested; an adjoint may return None for others."""
        return self.wanted is None or name in self.wanted

    def on(self, **arguments: Any) -> Call:
        """Return the call with some arguments replaced."""
        return Call({**self.arguments, **arguments}, self.attrs, self.outputs, self.wanted)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this call has no argument {name!r}")


ShapeRule = Callable[[Known], tuple[Shape, ...]]
Adjoint = Callable[..., tuple[Any, ...]]  # (ops, call, *cotangents) -> one per differentiable argument
RowPairs = Callable[[Mapping[str, Any]], Iterable[tuple[int, int]]]


def no_rows(inputs: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    """Return no pairs: for ops whose outputs contain no input rows, such as positions."""
    return ()


@dataclass(frozen=True, slots=True)
class Op:
    """The record of one op; README.md in this folder describes the fields."""

    name: str
    inputs: tuple[Arg, ...]
    outputs: tuple[Arg, ...]
    types: Mapping[str, tuple[str, ...] | Derived]
    shape: ShapeRule
    doc: str
    example: str
    kernel: str | None = None
    constants: tuple[int, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    passed: tuple[str, ...] = ()  # attributes passed to the kernel after the constants
    # Names of variants of the same computation.
    planned: str = ""  # takes a Plan instead of ids
    without_plan: str = ""  # takes ids only, where this one also takes a Plan
    padded: str = ""  # returns a given number of rows, where that of this one depends on data
    sized: str = ""  # takes the number of output rows, which depends on data here
    dense: str = ""  # returns all rows of the table, where this one returns the rows that ids name
    differentiable: tuple[str, ...] = ()
    linear: tuple[str, ...] = ()
    adjoint: Adjoint | None = None
    rows: RowPairs | None = None
    layer: str = "kernel"
    runs: bool = False  # a page runs it when the session runs
    category: str = ""
    tensorflow: bool = True  # whether TensorFlow has a raw op of this name
    unlisted: tuple[str, ...] = ()  # type variables TensorFlow leaves open, so a missing kernel is NotFound
    aliases: tuple[str, ...] = ()  # other names, such as those of TensorFlow's C++ client: Subtract for Sub
    input_names: tuple[str, ...] = field(init=False)
    has_lists: bool = field(init=False)  # whether an input is a list of arrays

    def __post_init__(self) -> None:
        object.__setattr__(self, "constants", tuple(map(int, self.constants)))
        object.__setattr__(self, "input_names", tuple(a.name for a in self.inputs))
        object.__setattr__(self, "has_lists", any(a.many for a in self.inputs))

    @property
    def snake_name(self) -> str:
        """SparseSegmentSqrtNGrad -> sparse_segment_sqrt_n_grad."""
        return snake(self.name)

    @property
    def is_data_sized(self) -> bool:
        """Whether the output sizes of this kernel op depend on data."""
        return self.kernel is not None and KERNELS[self.kernel].is_data_sized(self.constants)

    @property
    def traced(self) -> bool:
        """Whether the record maps output rows to input rows."""
        return self.rows is not None and self.rows is not no_rows

    def dtypes_of(self, variable: str) -> tuple[str, ...]:
        """Return the dtypes of a type variable, of an attribute that names a dtype, or of a fixed dtype."""
        listed = self.types.get(variable) or self.choices.get(variable, (variable,))
        if isinstance(listed, Derived):
            return tuple(dict.fromkeys(listed[d] for d in self.dtypes_of(listed.of)))
        return listed


def snake(name: str) -> str:
    """Convert a name to snake_case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def spread(op: Op, values: Mapping[str, Any]) -> tuple[tuple[Arg, ...], dict[str, Any]]:
    """Flatten lists of arguments: `values` becomes `values[0]`, `values[1]`, …"""
    args: list[Arg] = []
    flat: dict[str, Any] = {}
    for arg in op.inputs:
        value = values[arg.name]
        if not arg.many:
            args.append(arg)
            flat[arg.name] = value
            continue
        if not isinstance(value, list | tuple) or not value:
            what = "an empty list" if isinstance(value, list | tuple) else type(value).__name__
            raise make_error("list_expected", argument=arg.name, value=what)
        for k, item in enumerate(value):
            args.append(Arg(f"{arg.name}[{k}]", arg.type))
            flat[args[-1].name] = item
    return tuple(args), flat


def regroup(op: Op, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Invert `spread`: lists become tuples."""
    items = {a.name: tuple(v for k, v in flat.items() if k.startswith(f"{a.name}[")) for a in op.inputs if a.many}
    return {a.name: items[a.name] if a.many else flat[a.name] for a in op.inputs}


_ARG = re.compile(r"\s*(\w+)\s*:\s*((?:(?:host|list|ref|optional)\s+)*)(\w+)\s*")


def _parse_args(text: str) -> Iterator[Arg]:
    for part in filter(str.strip, text.split(",")):
        match = _ARG.fullmatch(part)
        if match is None:
            raise ValueError(f"invalid argument: {part!r}")
        marks = match[2].split()
        yield Arg(match[1], match[3], "host" in marks, "list" in marks, "ref" in marks, "optional" in marks)


CATALOG: dict[str, Op] = {}
_ALIASES: dict[str, str] = {}


def find_op(name: str) -> Op | None:
    """Return the op of this name or alias, or None."""
    return CATALOG.get(_ALIASES.get(name, name))


def declare(name: str, signature: str, **fields: Any) -> Op:
    """Declare an op. Signature: `grad: T, output_dim0: host int32 -> output: T`.

    A type may be marked `host`, `list`, `ref` or `optional`, as described in `Arg`. An output's type may be the name of
    an attribute whose value is the dtype.
    """
    inputs, outputs = signature.split("->")
    aliases: tuple[str, ...] = fields.get("aliases", ())
    for new in (name, *aliases):
        if new in CATALOG or new in _ALIASES:
            raise ValueError(f"{new} is declared twice")
    op = Op(name=name, inputs=tuple(_parse_args(inputs)), outputs=tuple(_parse_args(outputs)), **fields)
    if op.kernel is not None:
        _check_parameters(op)
    CATALOG[name] = op
    _ALIASES.update(dict.fromkeys(aliases, name))
    return op


def _check_parameters(op: Op) -> None:
    """Raise unless the op's constants and passed attributes match the kernel's parameters in order."""
    if op.kernel not in KERNELS:
        raise ValueError(f"{op.name}: declare its kernel {op.kernel!r} with kernel(...) beside it")
    names = KERNELS[op.kernel].parameters
    if len(op.constants) + len(op.passed) != len(names) or names[len(op.constants) :] != op.passed:
        raise ValueError(f"{op.name}: kernel {op.kernel} reads {names}; got {op.constants} and then {op.passed}")


def catalog() -> list[dict[str, Any]]:
    """Return every record as plain data for JSON, for editors and generators."""

    def arg(op: Op, a: Arg) -> dict[str, Any]:
        marks = {"host": a.host, "many": a.many, "ref": a.ref, "optional": a.optional}
        return {"name": a.name, "type": a.type, **marks, "role": a.role, "dtypes": list(op.dtypes_of(a.type))}

    return [
        {
            "name": op.name,
            "snake_name": op.snake_name,
            "aliases": list(op.aliases),
            "category": op.category,
            "layer": op.layer,
            "runs": op.runs,
            "traced": op.traced,
            "tensorflow": op.tensorflow,
            "doc": op.doc,
            "example": op.example,
            "inputs": [arg(op, a) for a in op.inputs],
            "outputs": [arg(op, a) for a in op.outputs],
            "attrs": {k: {"default": v, "choices": list(op.choices.get(k, ()))} for k, v in op.attrs.items()},
            "differentiable": list(op.differentiable),
            "linear": list(op.linear),
        }
        for op in CATALOG.values()
    ]


def value_text(value: Any) -> str:
    """Return a short text for a value: its type if its own text is long, an address, or fails."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an int of {value.bit_length()} bits"
    try:
        if _is_plain(value):
            return repr(value)[:80]
    except Exception:  # list items may be anything
        pass
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_plain(value: Any) -> bool:
    """Return whether the text of a value is informative; that of most objects is an address."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (numbers.Number, str, bytes))
