"""Memory optimization of training steps and Keras models."""
