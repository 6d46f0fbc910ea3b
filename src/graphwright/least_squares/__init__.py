"""Least squares by damped Gauss-Newton steps (Levenberg-Marquardt), compiled as one TensorFlow loop: see `solve.least_squares`."""
