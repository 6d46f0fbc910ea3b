"""Keras models trained by Levenberg-Marquardt steps, on the parts of `graphwright.least_squares`."""
