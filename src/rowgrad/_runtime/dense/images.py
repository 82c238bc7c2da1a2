"""Convolution and pooling over an array namespace, as sums and maxima over the positions inside of a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..._catalog.images import window
from .shared import narrow, product, wide


class _Windows(NamedTuple):
    """The windows over images: their number, the padding and the strides along height and width."""

    counts: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    strides: tuple[int, int]
    offsets: tuple[tuple[int, int], ...]  # positions in a window, in row-major order
    size: tuple[int, int]  # of the images

    @classmethod
    def of(cls, image: Any, kernel: Any, strides: Any, dilations: Any, padding: str) -> _Windows:
        """Return the windows of a kernel size over images of a shape."""
        found = [window(image[k + 1], kernel[k], strides[k + 1], dilations[k + 1], padding) for k in (0, 1)]
        rows, columns = (range(0, kernel[k] * dilations[k + 1], dilations[k + 1]) for k in (0, 1))
        return cls(
            (found[0][0], found[1][0]),
            (found[0][1:], found[1][1:]),
            (strides[1], strides[2]),
            tuple((i, j) for i in rows for j in columns),
            (image[1], image[2]),
        )

    def parts(self, xp: Any, images: Any) -> Iterator[Any]:
        """Yield the elements at each position of all windows; padding is 0."""
        padded = xp.pad(images, ((0, 0), *self.padding, (0, 0)))
        for i, j in self.offsets:
            yield padded[:, self._along(0, i), self._along(1, j)]

    def _along(self, axis: int, start: int) -> slice:
        count, stride = self.counts[axis], self.strides[axis]
        return slice(start, start + stride * (count - 1) + 1 if count else start, stride)

    def inside(self, xp: Any, images: Any) -> list[Any]:
        """Return for each position whether it is inside of the image, not in the padding."""
        return list(self.parts(xp, xp.ones_like(images[:1, :, :, :1]) > 0))

    def added(self, xp: Any, parts: list[Any]) -> Any:
        """Return images to which the elements at each position are added: the transpose of `parts`.

        Each element of an image gets those of its windows in the order of the windows, as in TensorFlow.
        """
        total: Any = None
        for (i, j), part in reversed(list(zip(self.offsets, parts, strict=True))):
            placed = self._placed(xp, part, i, j)
            total = placed if total is None else total + placed
        (before, _), (left, _) = self.padding
        return xp.copy(total[:, before : before + self.size[0], left : left + self.size[1]])

    def _placed(self, xp: Any, part: Any, i: int, j: int) -> Any:
        """Return padded images of zeros with the elements of one position."""
        batch, height, width, channels = tuple(part.shape)
        down, across = self.strides
        if down > 1 or across > 1:
            apart = xp.reshape(part, (batch, height, 1, width, 1, channels))
            apart = xp.pad(apart, ((0, 0), (0, 0), (0, down - 1), (0, 0), (0, across - 1), (0, 0)))
            part = xp.reshape(apart, (batch, height * down, width * across, channels))
        rows = max(down * (height - 1) + 1, 0)
        columns = max(across * (width - 1) + 1, 0)
        full = [size + sum(ends) for size, ends in zip(self.size, self.padding, strict=True)]
        widths = ((0, 0), (i, full[0] - i - rows), (j, full[1] - j - columns), (0, 0))
        return xp.pad(part[:, :rows, :columns], widths) if rows and columns else self._zeros(xp, part, full)

    @staticmethod
    def _zeros(xp: Any, part: Any, full: list[int]) -> Any:
        return xp.full((part.shape[0], *full, part.shape[3]), 0, dtype=part.dtype, device=xp.device(part))


# -- convolution: a matrix product of windows and filters --------------------------------------------------------------


def _columns(xp: Any, windows: _Windows, images: Any) -> Any:
    """Return a matrix with a row for each window."""
    batch, channels = images.shape[0], images.shape[3]
    rows = batch * product(windows.counts)
    return xp.reshape(xp.concat(list(windows.parts(xp, images)), 3), (rows, len(windows.offsets) * channels))


def _conv(xp: Any, input: Any, filter: Any, strides: Any, padding: str, data_format: str, dilations: Any) -> Any:
    windows = _Windows.of(input.shape, filter.shape, strides, dilations, padding)
    *kernel, outputs = filter.shape
    shape = (input.shape[0], *windows.counts, outputs)
    if 0 in kernel:
        return xp.full(shape, 0, dtype=input.dtype, device=xp.device(input))
    left, right = _columns(xp, windows, wide(xp, input)), xp.reshape(wide(xp, filter), (product(kernel), outputs))
    return narrow(xp, xp.reshape(xp.matmul(left, right), shape), input.dtype)


def _conv_input(
    xp: Any, sizes: Any, filter: Any, out_backprop: Any, strides: Any, padding: str, data_format: str, dilations: Any
) -> Any:
    windows = _Windows.of(sizes, filter.shape, strides, dilations, padding)
    *kernel, outputs = filter.shape
    if 0 in kernel:
        return xp.full(tuple(sizes), 0, dtype=filter.dtype, device=xp.device(filter))
    left = xp.reshape(wide(xp, out_backprop), (product(out_backprop.shape[:3]), outputs))
    right = xp.permute_dims(xp.reshape(wide(xp, filter), (product(kernel), outputs)), (1, 0))
    columns = xp.reshape(xp.matmul(left, right), (*out_backprop.shape[:3], product(kernel)))
    channels = kernel[2]
    parts = [columns[..., k * channels : (k + 1) * channels] for k in range(len(windows.offsets))]
    return narrow(xp, windows.added(xp, parts), filter.dtype)


def _conv_filter(
    xp: Any, input: Any, sizes: Any, out_backprop: Any, strides: Any, padding: str, data_format: str, dilations: Any
) -> Any:
    windows = _Windows.of(input.shape, sizes, strides, dilations, padding)
    *kernel, outputs = sizes
    if 0 in kernel:
        return xp.full(tuple(sizes), 0, dtype=input.dtype, device=xp.device(input))
    left = xp.permute_dims(_columns(xp, windows, wide(xp, input)), (1, 0))
    right = xp.reshape(wide(xp, out_backprop), (product(out_backprop.shape[:3]), outputs))
    return narrow(xp, xp.reshape(xp.matmul(left, right), tuple(sizes)), input.dtype)


# -- pooling -----------------------------------------------------------------------------------------------------------


def _pool_windows(images: Any, ksize: Any, strides: Any, padding: str) -> _Windows:
    return _Windows.of(images.shape, (ksize[1], ksize[2]), strides, (1, 1, 1, 1), padding)


def _pool(xp: Any, input: Any, ksize: Any, strides: Any, padding: str, data_format: str) -> Any:
    windows = _pool_windows(input, ksize, strides, padding)
    best = None
    for part, inside in zip(windows.parts(xp, input), windows.inside(xp, input), strict=True):
        if best is None:
            best = xp.full_like(part, xp.lowest_finite(input.dtype))
        best = xp.where(inside & (part > best), part, best)
    return xp.copy(best)


def _largest(xp: Any, windows: _Windows, images: Any) -> list[Any]:
    """Return for each position in a window whether it is the first of the largest elements."""
    best = index = None
    masks = windows.inside(xp, images)
    for k, (part, inside) in enumerate(zip(windows.parts(xp, images), masks, strict=True)):
        if best is None or index is None:
            best = part
            index = xp.where(inside, xp.astype(xp.zeros_like(part), xp.int64), -1)
            continue
        better = inside & ((index < 0) | (part > best))
        best = xp.where(better, part, best)
        index = xp.where(better, xp.full_like(index, k), index)
    return [index == k for k in range(len(windows.offsets))]


def _pool_grad(
    xp: Any, orig_input: Any, orig_output: Any, grad: Any, ksize: Any, strides: Any, padding: str, data_format: str
) -> Any:
    windows = _pool_windows(orig_input, ksize, strides, padding)
    zeros = xp.zeros_like(grad)
    return windows.added(xp, [xp.where(mask, grad, zeros) for mask in _largest(xp, windows, orig_input)])


def _pool_grad_grad(
    xp: Any, orig_input: Any, orig_output: Any, grad: Any, ksize: Any, strides: Any, padding: str, data_format: str
) -> Any:
    windows = _pool_windows(orig_input, ksize, strides, padding)
    found = None
    for part, mask in zip(windows.parts(xp, grad), _largest(xp, windows, orig_input), strict=True):
        found = xp.where(mask, part, xp.zeros_like(part) if found is None else found)
    return xp.copy(found)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Conv2D": _conv,
    "Conv2DBackpropInput": _conv_input,
    "Conv2DBackpropFilter": _conv_filter,
    "Conv2DInputLike": lambda xp, filter, out_backprop, like, **attrs: _conv_input(
        xp, tuple(like.shape), filter, out_backprop, **attrs
    ),
    "Conv2DFilterLike": lambda xp, input, out_backprop, like, **attrs: _conv_filter(
        xp, input, tuple(like.shape), out_backprop, **attrs
    ),
    "MaxPool": _pool,
    "MaxPoolGrad": _pool_grad,
    "MaxPoolGradGrad": _pool_grad_grad,
}
