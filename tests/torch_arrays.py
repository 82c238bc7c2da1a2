"""Golden arrays and samples as torch tensors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from rowgrad._catalog.spec import Op
from samples import sample


def to_torch(value: Any) -> Any:
    """Return a NumPy array as a tensor on the same memory; None if torch lacks the dtype."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(value.view(np.uint16)).view(torch.bfloat16)
    if value.dtype.kind in "OTV":
        return None
    return torch.from_numpy(value if value.flags.writeable else value.copy())


def to_numpy(tensor: Any) -> np.ndarray:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def split(op: Op, dtype: Any = np.float64, seed: int = 3) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a sample's arguments as tensors (host inputs as numbers), and its attributes."""
    sampled = sample(op.name, np.random.default_rng(seed), dtype)
    args = {k: v for k, v in sampled.items() if k in op.input_names}
    attrs = {k: v for k, v in sampled.items() if k in op.attrs}
    return {
        a.name: [to_torch(v) for v in args[a.name]] if a.many else _argument(args[a.name], a.host) for a in op.inputs
    }, attrs


def _argument(value: Any, host: bool) -> Any:
    if host:
        return value.tolist() if isinstance(value, np.ndarray) else value
    return to_torch(np.asarray(value))


def floats(outputs: Any) -> Any:
    results = outputs if isinstance(outputs, tuple) else (outputs,)
    return tuple(o for o in results if o.is_floating_point())
