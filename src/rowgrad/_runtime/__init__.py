"""Private machinery of a call: validation, dispatch, the NumPy runner, the dense layer, vmap rules and memory."""
