"""TensorFlow's sparse-embedding operators and their gradients, without TensorFlow."""

from . import errors as errors
from . import raw_ops as raw_ops
