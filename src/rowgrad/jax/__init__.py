"""The runner of JAX arrays."""
