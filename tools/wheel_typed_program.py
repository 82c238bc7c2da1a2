"""A typical user program; `mypy --strict` checks it against the types of an installed rowgrad."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import rowgrad as rg
from rowgrad.errors import InvalidArgumentError


def mean_of(table: npt.NDArray[np.float32], ids: list[int]) -> npt.NDArray[np.float32]:
    """Return the mean of one bag; mypy would reject None here, the op a negative id."""
    found: npt.NDArray[np.float32] = rg.raw_ops.SparseSegmentMean(table, np.array(ids), np.zeros(len(ids), np.int64))
    return found


def main() -> None:
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    try:
        mean_of(table, [-1])
    except InvalidArgumentError as error:
        print(error.op, mean_of(table, [0, 2]).tolist())


if __name__ == "__main__":
    main()
