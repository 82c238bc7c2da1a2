"""Convolution and pooling of images: arrays of (batch, height, width, channels)."""

from __future__ import annotations

from typing import Any

from ..errors import make_error, shape_text
from .elementwise import dense
from .shapes import check_same, differ, vector
from .spec import FLOATS, INDEX, Call, Known, Shape

CATEGORY = "Images"
_SHORT = (
    "16-bit floats are multiplied and added in float32 and rounded once; the order of additions is the array library's."
)

# -- windows -----------------------------------------------------------------------------------------------------------


def window(size: int, kernel: int, stride: int, dilation: int, padding: str) -> tuple[int, int, int]:
    """Return the number of windows along a dimension, and the padding before and after it."""
    reach = (kernel - 1) * dilation + 1
    if padding == "VALID":
        return max((size - reach) // stride + 1, 0), 0, 0
    count = -(-size // stride)
    total = max((count - 1) * stride + reach - size, 0)
    return count, total // 2, total - total // 2


def _count(size: int | None, kernel: int | None, stride: int, dilation: int, padding: str) -> int | None:
    """Return the number of windows; raise as TensorFlow does if they are much larger than the image."""
    if size is None or kernel is None:
        return None
    reach = (kernel - 1) * dilation + 1
    if padding == "VALID" and (space := size - reach + stride) <= -stride:
        sizes = f"input_size: {size}, effective_filter_size: {reach}, stride: {stride}"
        raise make_error("windows_negative", argument="padding", value=-(-space // stride), bound=sizes)
    return window(size, kernel, stride, dilation, padding)[0]


def _four(x: Known, name: str, own: str) -> tuple[int, int]:
    """Return the entries of an attribute for height and width; those for batch and channels must be 1."""
    found = tuple(x.attrs[name])
    valid = len(found) == 4 and found[0] == found[3] == 1 and all(1 <= n < 1 << 31 for n in found[1:3])
    if not valid:
        bound = f"[1, height, width, 1], {own} of 1 or more"
        raise make_error("attr_kind", argument=name, value=shape_text(found), bound=bound)
    return found[1], found[2]


def _image(x: Known, name: str) -> Shape:
    shape = x.shape(name)
    if len(shape) != 4:
        raise make_error("rank_exactly", argument=name, value=shape_text(shape), bound=4)
    return shape


_ATTRS: dict[str, Any] = {"strides": (1, 1, 1, 1), "padding": "VALID", "data_format": "NHWC"}
_CHOICES: dict[str, Any] = {"padding": ("SAME", "VALID"), "data_format": ("NHWC",)}
_WINDOWS = """`padding` is VALID, for windows inside of the image only, or SAME, for as many windows as the size divided
by the stride, rounded up, with the image in their middle. Images are (batch, height, width, channels), NHWC."""

# -- convolution -------------------------------------------------------------------------------------------------------


def _convolved(x: Known, image: Shape, kernel: Shape, kernel_name: str = "filter") -> Shape:
    """Return the shape of a convolution; `kernel_name` is the argument that has the filter's shape."""
    strides, dilations = _four(x, "strides", "strides"), _four(x, "dilations", "dilations")
    if differ(kernel[2], image[3]):
        raise make_error("channels_match", argument=kernel_name, value=kernel[2], bound=image[3])
    padding = x.attrs["padding"]
    height, width = (_count(image[k + 1], kernel[k], strides[k], dilations[k], padding) for k in (0, 1))
    return image[0], height, width, kernel[3]


def _conv(x: Known) -> tuple[Shape, ...]:
    return (_convolved(x, _image(x, "input"), _image(x, "filter")),)


def _sizes(x: Known, name: str) -> Shape:
    """Return the shape that a host vector of four sizes states."""
    values = vector(x, name)
    if values is None:
        return (None,) * 4
    if len(values) != 4:
        raise make_error("lengths_match", argument=name, value=len(values), bound=4)
    for position, n in enumerate(values):
        if n < 0:
            raise make_error("size_negative", argument=name, position=position, value=n, bound=0)
    return tuple(values)


def _backprop(x: Known, image: Shape, kernel: Shape, kernel_name: str = "filter") -> None:
    check_same(_image(x, "out_backprop"), _convolved(x, image, kernel, kernel_name), "out_backprop")


def _conv_input(x: Known) -> tuple[Shape, ...]:
    image = _sizes(x, "input_sizes")
    _backprop(x, image, _image(x, "filter"))
    return (image,)


def _conv_filter(x: Known) -> tuple[Shape, ...]:
    kernel = _sizes(x, "filter_sizes")
    _backprop(x, _image(x, "input"), kernel, "filter_sizes")
    return (kernel,)


def _input_like(x: Known) -> tuple[Shape, ...]:
    image = _image(x, "like")
    _backprop(x, image, _image(x, "filter"))
    return (image,)


def _filter_like(x: Known) -> tuple[Shape, ...]:
    kernel = _image(x, "like")
    _backprop(x, _image(x, "input"), kernel, "like")
    return (kernel,)


def _to_input(ops: Any, c: Call, kernel: Any, y: Any, like: Any) -> Any:
    return ops["Conv2DInputLike"](kernel, y, like, **c.attrs)


def _to_filter(ops: Any, c: Call, image: Any, y: Any, like: Any) -> Any:
    return ops["Conv2DFilterLike"](image, y, like, **c.attrs)


def _conv_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    return (
        _to_input(ops, c, c.filter, y, c.input) if c.wants("input") else None,
        _to_filter(ops, c, c.input, y, c.filter) if c.wants("filter") else None,
    )


def _input_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    return (
        _to_filter(ops, c, y, c.out_backprop, c.filter) if c.wants("filter") else None,
        ops["Conv2D"](y, c.filter, **c.attrs) if c.wants("out_backprop") else None,
    )


def _filter_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    return (
        _to_input(ops, c, y, c.out_backprop, c.input) if c.wants("input") else None,
        ops["Conv2D"](c.input, y, **c.attrs) if c.wants("out_backprop") else None,
    )


_CONV: dict[str, Any] = {
    "attrs": {**_ATTRS, "dilations": (1, 1, 1, 1)},
    "choices": _CHOICES,
    "category": CATEGORY,
}
_INPUT: dict[str, Any] = {"differentiable": ("filter", "out_backprop"), "adjoint": _input_adjoint, **_CONV}
_FILTER: dict[str, Any] = {"differentiable": ("input", "out_backprop"), "adjoint": _filter_adjoint, **_CONV}
_SIZED: dict[str, Any] = {"T": FLOATS, "Tshape": INDEX}
_EXAMPLE = "np.arange(9.).reshape(1, 3, 3, 1)"

dense(
    "Conv2D",
    "input: T, filter: T -> output: T",
    types={"T": FLOATS},
    shape=_conv,
    differentiable=("input", "filter"),
    adjoint=_conv_adjoint,
    doc=f"""The sums of the windows of images, each multiplied by every filter.

`filter` is (height, width, input channels, output channels), `strides` and `dilations` are [1, height, width, 1].
{_WINDOWS} {_SHORT}""",
    example=f"Conv2D({_EXAMPLE}, np.ones((2, 2, 1, 1)))",
    **_CONV,
)
dense(
    "Conv2DBackpropInput",
    "input_sizes: host Tshape, filter: T, out_backprop: T -> output: T",
    types=_SIZED,
    shape=_conv_input,
    doc=f"The gradient of `Conv2D` with respect to its input, whose shape is `input_sizes`.\n\n{_SHORT}",
    example="Conv2DBackpropInput([1, 3, 3, 1], np.ones((2, 2, 1, 1)), np.ones((1, 2, 2, 1)))",
    **_INPUT,
)
dense(
    "Conv2DBackpropFilter",
    "input: T, filter_sizes: host Tshape, out_backprop: T -> output: T",
    types=_SIZED,
    shape=_conv_filter,
    doc=f"The gradient of `Conv2D` with respect to its filter, whose shape is `filter_sizes`.\n\n{_SHORT}",
    example=f"Conv2DBackpropFilter({_EXAMPLE}, [2, 2, 1, 1], np.ones((1, 2, 2, 1)))",
    **_FILTER,
)
dense(
    "Conv2DInputLike",
    "filter: T, out_backprop: T, like: T -> output: T",
    types={"T": FLOATS},
    shape=_input_like,
    tensorflow=False,
    doc="`Conv2DBackpropInput` with the shape of `like`, for gradients.",
    example="Conv2DInputLike(np.ones((2, 2, 1, 1)), np.ones((1, 1, 1, 1)), np.ones((1, 2, 2, 1)))",
    **_INPUT,
)
dense(
    "Conv2DFilterLike",
    "input: T, out_backprop: T, like: T -> output: T",
    types={"T": FLOATS},
    shape=_filter_like,
    tensorflow=False,
    doc="`Conv2DBackpropFilter` with the shape of `like`, for gradients.",
    example=f"Conv2DFilterLike({_EXAMPLE}, np.ones((1, 2, 2, 1)), np.ones((2, 2, 1, 1)))",
    **_FILTER,
)

# -- pooling -----------------------------------------------------------------------------------------------------------

_POOLED = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16")


def _pooled(x: Known, image: Shape) -> Shape:
    kernel, strides = _four(x, "ksize", "sizes"), _four(x, "strides", "strides")
    height, width = (_count(image[k + 1], kernel[k], strides[k], 1, x.attrs["padding"]) for k in (0, 1))
    return image[0], height, width, image[3]


def _pool(x: Known) -> tuple[Shape, ...]:
    return (_pooled(x, _image(x, "input")),)


def _pool_grad(x: Known) -> tuple[Shape, ...]:
    image = _image(x, "orig_input")
    for name in ("orig_output", "grad"):
        check_same(_image(x, name), _pooled(x, image), name)
    return (image,)


def _pool_grad_grad(x: Known) -> tuple[Shape, ...]:
    image = _image(x, "orig_input")
    pooled = _pooled(x, image)
    check_same(_image(x, "orig_output"), pooled, "orig_output")
    check_same(_image(x, "grad"), image, "grad")
    return (pooled,)


def _pool_adjoint(ops: Any, c: Call, y: Any) -> tuple[Any, ...]:
    return (ops["MaxPoolGrad"](c.input, c.outputs[0], y, **c.attrs),)


def _transposed(name: str) -> Any:
    return lambda ops, c, y: (ops[name](c.orig_input, c.orig_output, y, **c.attrs),)


_POOL: dict[str, Any] = {
    "types": {"T": _POOLED},
    "attrs": {"ksize": (1, 1, 1, 1), **_ATTRS},
    "choices": _CHOICES,
    "category": CATEGORY,
}
_FIRST = "Of equal elements, the first of a window is the largest one; an element before it that is NaN comes first."

dense(
    "MaxPool",
    "input: T -> output: T",
    shape=_pool,
    differentiable=("input",),
    adjoint=_pool_adjoint,
    doc=f"""The largest element of each window of images, channel by channel.

`ksize` and `strides` are [1, height, width, 1]. {_WINDOWS} As in TensorFlow, NaN is never the largest element, and the
result is at least the lowest finite number.""",
    example=f"MaxPool({_EXAMPLE}, ksize=[1, 2, 2, 1])",
    **_POOL,
)
dense(
    "MaxPoolGrad",
    "orig_input: T, orig_output: T, grad: T -> output: T",
    shape=_pool_grad,
    differentiable=("grad",),
    linear=("grad",),
    adjoint=_transposed("MaxPoolGradGrad"),
    doc=f"The gradient of `MaxPool`: each gradient is added to the largest element of its window.\n\n{_FIRST}",
    example=f"MaxPoolGrad({_EXAMPLE}, np.ones((1, 2, 2, 1)), np.ones((1, 2, 2, 1)), ksize=[1, 2, 2, 1])",
    **_POOL,
)
dense(
    "MaxPoolGradGrad",
    "orig_input: T, orig_output: T, grad: T -> output: T",
    shape=_pool_grad_grad,
    differentiable=("grad",),
    linear=("grad",),
    adjoint=_transposed("MaxPoolGrad"),
    doc=f"The transpose of `MaxPoolGrad`: the element of `grad` at the largest element of each window.\n\n{_FIRST}",
    example=f"MaxPoolGradGrad({_EXAMPLE}, np.ones((1, 2, 2, 1)), {_EXAMPLE}, ksize=[1, 2, 2, 1])",
    **_POOL,
)
