"""Aliases for code written against TensorFlow's `tf.compat` modules."""
