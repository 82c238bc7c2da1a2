"""`rowgrad.compat.v1.raw_ops` holds the same functions as `rowgrad.raw_ops`."""

from ... import raw_ops as raw_ops
