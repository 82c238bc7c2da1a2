"""Convolution and pooling over an array namespace, as sums and maxima over the positions inside of a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..._catalog.images import window
from ..._core import memory_limit
from ...errors import make_error
from .shared import narrow, product, wide


class _Axis(NamedTuple):
    """The windows along a dimension: only the positions in a window that are inside of the image for some window."""

    windows: int
    stride: int  # 1 for a single window, whose stride may be any number
    kept: range  # these positions
    starts: tuple[int, ...]  # where the first window has each of them, in the padded image
    padding: tuple[int, int]  # what they need, which is less than the image's size
    size: int  # of the image

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, dilation: int, padding: str) -> _Axis:
        """Return the windows of a kernel size along a dimension of an image."""
        count, before, _ = window(size, kernel, stride, dilation, padding)
        if not (count and size):
            return cls(count, 1, range(0), (), (0, 0), size)
        stride = stride if count > 1 else 1
        reach = stride * (count - 1)  # from the first window to the last
        first = max(0, -((reach - before) // dilation))
        kept = range(first, min(kernel, (size - 1 + before) // dilation + 1))
        if not kept:
            return cls(count, stride, kept, (), (0, 0), size)
        low = max(0, before - first * dilation)
        starts = tuple(k * dilation - before + low for k in kept)
        return cls(count, stride, kept, starts, (low, max(0, starts[-1] + reach - low - size + 1)), size)

    @property
    def padded(self) -> int:
        return self.size + sum(self.padding)

    def part(self, start: int) -> slice:
        """Return where all windows have the position that the first window has at `start`."""
        return slice(start, start + self.stride * (self.windows - 1) + 1 if self.windows else start, self.stride)


class _Windows(NamedTuple):
    """The windows over images: those along height and along width."""

    down: _Axis
    across: _Axis

    @classmethod
    def of(cls, image: Any, kernel: Any, strides: Any, dilations: Any, padding: str) -> _Windows:
        """Return the windows of a kernel size over images of a shape."""
        return cls(*(_Axis.of(image[k + 1], kernel[k], strides[k + 1], dilations[k + 1], padding) for k in (0, 1)))

    @property
    def counts(self) -> tuple[int, int]:
        return self.down.windows, self.across.windows

    @property
    def positions(self) -> int:
        """Return the number of positions in a window."""
        return len(self.down.starts) * len(self.across.starts)

    @property
    def starts(self) -> list[tuple[int, int]]:
        """Return the positions in a window, in row-major order, as places in the padded image."""
        return [(i, j) for i in self.down.starts for j in self.across.starts]

    def check_memory(self, images: Any, channels: Any = None) -> None:
        """Raise if the elements at all positions of all windows cannot fit into memory together."""
        each = images.shape[3] if channels is None else channels
        elements = product((images.shape[0], *self.counts, self.positions, each))
        if isinstance(elements, int) and elements * max(images.dtype.itemsize, 4) > memory_limit():
            raise make_error("out_of_memory", value=elements, bound=memory_limit())

    def parts(self, xp: Any, images: Any) -> Iterator[Any]:
        """Yield the elements at each position of all windows; padding is 0."""
        padded = xp.pad(images, ((0, 0), self.down.padding, self.across.padding, (0, 0)))
        for i, j in self.starts:
            yield padded[:, self.down.part(i), self.across.part(j)]

    def inside(self, xp: Any, images: Any) -> list[Any]:
        """Return for each position whether it is inside of the image, not in the padding."""
        self.check_memory(images[:1], 1)
        return list(self.parts(xp, xp.ones_like(images[:1, :, :, :1]) > 0))

    def filled(self, xp: Any, images: Any, value: Any) -> Any:
        """Return an array with the value for each window and channel."""
        shape = (images.shape[0], *self.counts, images.shape[3])
        return xp.full(shape, value, dtype=images.dtype, device=xp.device(images))

    def added(self, xp: Any, parts: list[Any]) -> Any:
        """Return images to which the elements at each position are added: the transpose of `parts`.

        Each element of an image gets those of its windows in the order of the windows, as in TensorFlow.
        """
        total: Any = None
        for (i, j), part in reversed(list(zip(self.starts, parts, strict=True))):
            placed = self._placed(xp, part, i, j)
            total = placed if total is None else total + placed
        (before, _), (left, _) = self.down.padding, self.across.padding
        return xp.copy(total[:, before : before + self.down.size, left : left + self.across.size])

    def _placed(self, xp: Any, part: Any, i: int, j: int) -> Any:
        """Return padded images of zeros with the elements of one position."""
        batch, height, width, channels = tuple(part.shape)
        down, across = self.down.stride, self.across.stride
        if down > 1 or across > 1:
            apart = xp.reshape(part, (batch, height, 1, width, 1, channels))
            apart = xp.pad(apart, ((0, 0), (0, 0), (0, down - 1), (0, 0), (0, across - 1), (0, 0)))
            part = xp.reshape(apart, (batch, height * down, width * across, channels))
        rows = max(down * (height - 1) + 1, 0)
        columns = max(across * (width - 1) + 1, 0)
        full = self.down.padded, self.across.padded
        widths = ((0, 0), (i, full[0] - i - rows), (j, full[1] - j - columns), (0, 0))
        return xp.pad(part[:, :rows, :columns], widths) if rows and columns else self._zeros(xp, part, full)

    @staticmethod
    def _zeros(xp: Any, part: Any, full: tuple[int, int]) -> Any:
        return xp.full((part.shape[0], *full, part.shape[3]), 0, dtype=part.dtype, device=xp.device(part))


# -- convolution: a matrix product of windows and filters --------------------------------------------------------------


def _columns(xp: Any, windows: _Windows, images: Any) -> Any:
    """Return a matrix with a row for each window."""
    windows.check_memory(images)
    rows = images.shape[0] * product(windows.counts)
    return xp.reshape(xp.concat(list(windows.parts(xp, images)), 3), (rows, windows.positions * images.shape[3]))


def _rows(xp: Any, windows: _Windows, filter: Any) -> Any:
    """Return the filter as a matrix with the rows of the positions that `_columns` has."""
    (down, across), outputs = (axis.kept for axis in windows), filter.shape[3]
    kept = wide(xp, filter)[down.start : down.stop, across.start : across.stop]
    return xp.reshape(kept, (len(down) * len(across) * filter.shape[2], outputs))


def _conv(xp: Any, input: Any, filter: Any, strides: Any, padding: str, data_format: str, dilations: Any) -> Any:
    windows = _Windows.of(input.shape, filter.shape, strides, dilations, padding)
    shape = (input.shape[0], *windows.counts, filter.shape[3])
    if not windows.positions or filter.shape[2] == 0:
        return xp.full(shape, 0, dtype=input.dtype, device=xp.device(input))
    sums = xp.matmul(_columns(xp, windows, wide(xp, input)), _rows(xp, windows, filter))
    return narrow(xp, xp.reshape(sums, shape), input.dtype)


def _conv_input(
    xp: Any, sizes: Any, filter: Any, out_backprop: Any, strides: Any, padding: str, data_format: str, dilations: Any
) -> Any:
    windows = _Windows.of(sizes, filter.shape, strides, dilations, padding)
    channels, outputs = filter.shape[2:]
    if not windows.positions or channels == 0:
        return xp.full(tuple(sizes), 0, dtype=filter.dtype, device=xp.device(filter))
    windows.check_memory(out_backprop, channels)
    left = xp.reshape(wide(xp, out_backprop), (product(out_backprop.shape[:3]), outputs))
    right = xp.permute_dims(_rows(xp, windows, filter), (1, 0))
    columns = xp.reshape(xp.matmul(left, right), (*out_backprop.shape[:3], windows.positions * channels))
    parts = [columns[..., k * channels : (k + 1) * channels] for k in range(windows.positions)]
    return narrow(xp, windows.added(xp, parts), filter.dtype)


def _conv_filter(
    xp: Any, input: Any, sizes: Any, out_backprop: Any, strides: Any, padding: str, data_format: str, dilations: Any
) -> Any:
    windows = _Windows.of(input.shape, sizes, strides, dilations, padding)
    height, width, channels, outputs = sizes
    if not windows.positions or channels == 0:
        return xp.full(tuple(sizes), 0, dtype=input.dtype, device=xp.device(input))
    left = xp.permute_dims(_columns(xp, windows, wide(xp, input)), (1, 0))
    right = xp.reshape(wide(xp, out_backprop), (product(out_backprop.shape[:3]), outputs))
    (down, across) = (axis.kept for axis in windows)
    found = xp.reshape(xp.matmul(left, right), (len(down), len(across), channels, outputs))
    outside = ((down.start, height - down.stop), (across.start, width - across.stop), (0, 0), (0, 0))
    return narrow(xp, xp.pad(found, outside), input.dtype)


# -- pooling -----------------------------------------------------------------------------------------------------------


def _pool_windows(images: Any, ksize: Any, strides: Any, padding: str) -> _Windows:
    return _Windows.of(images.shape, (ksize[1], ksize[2]), strides, (1, 1, 1, 1), padding)


def _pool(xp: Any, input: Any, ksize: Any, strides: Any, padding: str, data_format: str) -> Any:
    windows = _pool_windows(input, ksize, strides, padding)
    best = windows.filled(xp, input, xp.lowest_finite(input.dtype))
    for part, inside in zip(windows.parts(xp, input), windows.inside(xp, input), strict=True):
        best = xp.where(inside & (part > best), part, best)
    return xp.copy(best)


def _largest(xp: Any, windows: _Windows, images: Any) -> list[Any]:
    """Return for each position in a window whether it is the first of the largest elements."""
    windows.check_memory(images)
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
    return [index == k for k in range(windows.positions)]


def _pool_grad(
    xp: Any, orig_input: Any, orig_output: Any, grad: Any, ksize: Any, strides: Any, padding: str, data_format: str
) -> Any:
    windows = _pool_windows(orig_input, ksize, strides, padding)
    if not windows.positions:
        return xp.zeros_like(orig_input)
    zeros = xp.zeros_like(grad)
    return windows.added(xp, [xp.where(mask, grad, zeros) for mask in _largest(xp, windows, orig_input)])


def _pool_grad_grad(
    xp: Any, orig_input: Any, orig_output: Any, grad: Any, ksize: Any, strides: Any, padding: str, data_format: str
) -> Any:
    windows = _pool_windows(orig_input, ksize, strides, padding)
    found = windows.filled(xp, grad, 0)
    for part, mask in zip(windows.parts(xp, grad), _largest(xp, windows, orig_input), strict=True):
        found = xp.where(mask, part, found)
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
