"""Executing steps: time, memory, and whether two of them agree. A door to TensorFlow."""
