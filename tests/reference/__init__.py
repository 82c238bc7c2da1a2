"""A naive reference of every kernel op, with which `tools/fuzzing/random_calls.py` compares the C++ kernels.

It follows TensorFlow 2.21's observed behaviour and, for rowgrad's own ops, their documentation, and shares no code with
the library. `reference(op, inputs, attrs)` returns the outputs or raises an `ExpectedError` with the error's class and
message. An op is a list of checks of its shapes and sizes, and a function that validates ids and computes row by row,
elementwise along a row, in the documented order.

Deliberate differences from TensorFlow are included: RaggedFillEmptyRows of 0 rows returns row ids of rank 1, an int64
num_segments beyond int32 raises, the dense gradient of an empty batch is zero, and thresh must have the values' real
type.
"""

from .arithmetic import ExpectedError as ExpectedError
from .arithmetic import NotModelled as NotModelled
from .checks import OPS as OPS
from .checks import reference as reference
