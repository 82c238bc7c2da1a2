from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")


def to_torch(value: Any) -> Any:
    """A NumPy array as a tensor on the same memory; None where torch has no such dtype."""
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
