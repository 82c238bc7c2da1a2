"""`rowgrad.compat.v1.raw_ops` is `rowgrad.raw_ops`."""

from ... import raw_ops as raw_ops
