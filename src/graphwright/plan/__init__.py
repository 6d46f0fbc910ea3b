"""The planning core: fit a computation into a memory budget. Knows neither TensorFlow nor the graph IR."""
