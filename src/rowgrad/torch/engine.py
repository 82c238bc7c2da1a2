"""Run graph sessions on torch: the entry point `torch` of the group `rowgrad.engines`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from .._catalog.spec import Op
from .._runtime.arrays import Array, canonical
from .._runtime.dispatch import load_runner
from ..errors import make_error
from . import runner
from .tensors import DTYPE, from_numpy


class TorchEngine:
    """An engine whose values are tensors on one device; dtypes that torch lacks stay NumPy arrays."""

    def __init__(self, device: str) -> None:
        self.name = f"torch:{device}" if device else "torch"
        try:
            self.device = torch.device(device or "cpu")
            torch.empty(0, device=self.device).cpu()  # raises for the meta device, which has no data
        except (RuntimeError, AssertionError) as error:
            text = str(error).splitlines()[0]
            raise make_error("engine_unfit", argument="engine", value=self.name, why=text) from None
        self._numpy = load_runner(np.ndarray).call

    def put(self, array: Array) -> Any:
        """Return a tensor with its own memory."""
        own = np.array(canonical(array, "value"))
        return from_numpy(own, "value").to(self.device) if own.dtype.name in DTYPE else own

    def put_size(self, array: Array) -> Any:
        """Return a tensor in host memory: to read one of a GPU would wait for it."""
        return from_numpy(np.array(canonical(array, "value")), "value")

    def get(self, value: Any) -> Array:
        """Return the tensor as a NumPy array."""
        if not isinstance(value, torch.Tensor):
            return np.asarray(value)
        tensor = value.detach().cpu()
        if tensor.dtype == torch.bfloat16:
            import ml_dtypes

            return tensor.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()

    def keep(self, value: Any) -> Any:
        """Return the tensor itself: ops never write to their arguments."""
        return value

    def bind(self, op: Op, attrs: Mapping[str, Any]) -> Callable[[list[Any]], tuple[Any, ...]]:
        """Return a function that runs an op without autograd: gradients are nodes of the graph."""
        names = op.input_names
        chosen = op.attrs if attrs == op.attrs else attrs
        if "order" in attrs:
            chosen = dict(attrs)  # a copy counts as passed explicitly: a page has the same order on every device

        def run(arguments: list[Any]) -> tuple[Any, ...]:
            flat = [v for a in arguments for v in (a if isinstance(a, list) else (a,))]
            if any(isinstance(v, np.ndarray) for v in flat):
                arrays = [[self.get(v) for v in a] if isinstance(a, list) else self.get(a) for a in arguments]
                results = self._numpy(op, dict(zip(names, arrays, strict=True)), chosen, None)
                return tuple(self.put(r) for r in results)
            with torch.no_grad():
                return runner.call(op, dict(zip(names, arguments, strict=True)), chosen, None)

        return run


def open_engine(device: str) -> TorchEngine:
    """Return the engine of a device: "", "cpu", "cuda", "cuda:1"."""
    return TorchEngine(device)
