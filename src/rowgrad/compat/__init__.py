"""Names where TensorFlow's older programs look for them."""
