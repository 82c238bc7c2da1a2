"""Other dtypes, and arrays as they are."""

from __future__ import annotations

from ..shape import same
from ..spec import ALL_DTYPES, NUMBERS, Known, Shape
from .broadcasting import check_number, dense

CATEGORY = "Conversion"
_VALUES = (*NUMBERS, "bool")

dense(
    "Cast",
    "x: T -> y: DstT",
    types={"T": _VALUES},
    attrs={"DstT": "float32"},
    choices={"DstT": _VALUES},
    shape=same("x"),
    category=CATEGORY,
    differentiable=("x",),
    linear=("x",),
    adjoint=lambda ops, c, y: (ops["CastLike"](y, c.x),),
    doc="x in the dtype the attribute names.\n\nFloats become integers by losing their fraction; complex numbers lose"
    " their imaginary part; a real part that is not 0 becomes true. What an integer dtype cannot hold, NaN too, becomes"
    " some integer.",
    example="Cast(np.array([1.75, -1.75]), DstT='float16')",
)
dense(
    "CastLike",
    "x: T, like: Tto -> output: Tto",
    types={"T": NUMBERS, "Tto": NUMBERS},
    shape=same("x"),
    category=CATEGORY,
    differentiable=("x",),
    linear=("x",),
    adjoint=lambda ops, c, y: (ops["CastLike"](y, c.x),),
    tensorflow=False,
    doc="x in the dtype of `like`.",
    example="CastLike(np.array([1.5, 2.5]), like=np.zeros(1, np.float32))",
)
dense(
    "Identity",
    "input: T -> output: T",
    types={"T": ALL_DTYPES},
    shape=same("input"),
    category=CATEGORY,
    differentiable=("input",),
    linear=("input",),
    adjoint=lambda ops, c, y: (y,),
    doc="The array as it is.",
    example="Identity(np.array([1., 2.]))",
)
dense(
    "StopGradient",
    "input: T -> output: T",
    types={"T": ALL_DTYPES},
    shape=same("input"),
    category=CATEGORY,
    doc="The array as it is, through which no gradient flows.",
    example="StopGradient(np.array([1., 2.]))",
)
for _name, _number in (("ZerosLike", "Zeros"), ("OnesLike", "Ones")):
    dense(
        _name,
        "x: T -> y: T",
        types={"T": _VALUES},
        shape=same("x"),
        category=CATEGORY,
        doc=f"{_number} in the shape and dtype of x; flat.",
        example=f"{_name}(np.array([1., 2.]))",
    )


def _full_like(x: Known) -> tuple[Shape, ...]:
    check_number(x, "value", x.avals["x"].dtype)
    return (x.shape("x"),)


dense(
    "FullLike",
    "x: T -> output: T",
    types={"T": NUMBERS},
    shape=_full_like,
    attrs={"value": 0.0},
    category=CATEGORY,
    tensorflow=False,
    doc="The number `value`, which the dtype must hold, in the shape and dtype of x; flat.",
    example="FullLike(np.zeros((2, 2)), value=3.)",
)
