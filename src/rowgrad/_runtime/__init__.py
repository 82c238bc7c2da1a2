"""Run calls of ops: dispatch, validation, the NumPy runner, the dense ops, vmap rules and memory."""
