"""Every kernel op of the catalogue once more, naively: what `tools/fuzzing/random_calls.py` holds the C++ against.

Written from the law (TensorFlow 2.21's observed behaviour) and, for rowgrad's own ops, from their documentation; it
shares no code with the library. `reference(op, inputs, attrs)` gives the outputs or raises a `Refusal` with the
error's class and bare message. An op is a list of checks of its shapes and sizes, and a function that looks at ids and
computes, row by row, elementwise along a row, in the order the law gives.

Where rowgrad differs from TensorFlow on purpose, so does this: RaggedFillEmptyRows of 0 rows gives row ids of rank 1,
an int64 num_segments beyond int32 is refused, the dense gradient of an empty batch is zeros, and thresh has to be of
the values' real type.
"""

from .arithmetic import Refusal as Refusal
from .arithmetic import Unmodelled as Unmodelled
from .checks import OPS as OPS
from .checks import reference as reference
