"""How calls run: validation, dispatch, the NumPy runner, the dense ops, vmap rules and memory."""
