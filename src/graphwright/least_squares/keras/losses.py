"""Losses for Keras models that least squares can train: residuals of your own, fewer residuals per sample, roots of other losses."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from graphwright.errors import ArgumentError

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

# A root has no derivative at zero: lower bounds of its argument.
_SMALLEST_SQUARE = 1e-14
_SMALLEST_LOSS = 1e-10


class LeastSquaresLoss(keras.losses.Loss):
    """The mean square of residuals of your own, as a Keras loss.

    Args:
        residuals: `residuals(y_true, y_pred)` -> a tensor (batch, ...) in TensorFlow operations.
        reduction: as of any Keras loss.
        name: as of any Keras loss.

    Example:
        >>> import tensorflow as tf
        >>> loss = LeastSquaresLoss(lambda y_true, y_pred: (y_pred - y_true) / (1.0 + tf.abs(y_true)))
        >>> float(loss(tf.constant([[1.0], [3.0]]), tf.constant([[2.0], [3.0]])))
        0.125
    """

    def __init__(self, residuals: Callable[[Any, Any], Any], reduction: str = "sum_over_batch_size", name: str = "least_squares") -> None:
        keras.losses.Loss.__init__(self, name=name, reduction=reduction)
        self._residuals = residuals

    def residuals(self, y_true: Any, y_pred: Any) -> Any:
        """Return the residuals (batch, ...)."""
        return self._residuals(y_true, y_pred)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the mean square of each sample's residuals (batch,)."""
        residuals = self.residuals(y_true, y_pred)
        return _mean_squares(residuals) if len(residuals.shape) > 1 else tf.square(residuals)


class ReducedMeanSquaredError(keras.losses.Loss):
    """The mean squared error with one residual per sample, the root of its mean square.

    For models of many outputs the Jacobian is smaller and the curvature less exact than with `MeanSquaredError`. The loss is the same.

    Example:
        >>> float(ReducedMeanSquaredError()(tf.constant([[1.0, 2.0]]), tf.constant([[3.0, 2.0]])))
        2.0
    """

    def __init__(self, reduction: str = "sum_over_batch_size", name: str = "reduced_mean_squared_error") -> None:
        keras.losses.Loss.__init__(self, name=name, reduction=reduction)

    def residuals(self, y_true: Any, y_pred: Any) -> Any:
        """Return one residual per sample (batch,)."""
        squares = self.call(y_true, y_pred)
        return tf.sqrt(tf.maximum(squares, tf.constant(_SMALLEST_SQUARE, squares.dtype)))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the mean square of each sample (batch,)."""
        y_true, y_pred = aligned(y_true, y_pred)
        return _mean_squares(y_pred - y_true)


class SquareRootLoss(keras.losses.Loss):
    """Any loss that is never negative, with its square root as the one residual of each element.

    The Gauss-Newton matrix of these residuals has rank one per element. A cross-entropy of k classes needs 1/k of the rows that its
    Hessian in the logits needs, for steps that are less exact. tf-levenberg-marquardt treats cross-entropies in this way.

    Args:
        loss: a Keras loss, or its name.

    Example:
        >>> loss = SquareRootLoss("sparse_categorical_crossentropy")
        >>> round(float(loss(tf.constant([1]), tf.constant([[0.5, 0.5]]))), 6)
        0.693147
    """

    def __init__(self, loss: Any, name: str | None = None) -> None:
        self._loss = keras_loss(loss)
        keras.losses.Loss.__init__(self, name=name or f"square_root_{self._loss.name}", reduction=self._loss.reduction)

    def residuals(self, y_true: Any, y_pred: Any) -> Any:
        """Return the square roots of the loss's elements (batch, ...)."""
        return tf.sqrt(tf.maximum(self._loss.call(y_true, y_pred), _SMALLEST_LOSS))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._loss.call(y_true, y_pred)


def keras_loss(loss: Any) -> Any:
    """Return a loss object for a name, for one of Keras's functions, or for a loss object."""
    if isinstance(loss, keras.losses.Loss) or callable(getattr(loss, "residuals", None)):
        return loss
    try:
        function = keras.losses.get(loss)
    except ValueError as error:
        raise ArgumentError(f"loss={loss!r}", argument="loss", remedy="a Keras loss, or its name") from error
    if isinstance(function, keras.losses.Loss):
        return function
    name = getattr(function, "__name__", "").replace("_", "")
    for kind in map(keras.losses.__dict__.get, dir(keras.losses)):
        if isinstance(kind, type) and issubclass(kind, keras.losses.Loss) and kind.__name__.lower() == name:
            return kind()
    return function


def aligned(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Return both with the type of the predictions and with the same rank, if one lacks a last dimension of 1."""
    y_pred = tf.convert_to_tensor(y_pred)
    y_true = tf.cast(y_true, y_pred.dtype)
    if y_pred.shape.rank == y_true.shape.rank + 1 and y_pred.shape[-1] == 1:
        y_true = y_true[..., tf.newaxis]
    elif y_true.shape.rank == y_pred.shape.rank + 1 and y_true.shape[-1] == 1:
        y_pred = y_pred[..., tf.newaxis]
    elif y_true.shape.rank == y_pred.shape.rank == 1:
        y_true, y_pred = y_true[:, tf.newaxis], y_pred[:, tf.newaxis]
    return y_true, y_pred


def _mean_squares(residuals: Any) -> Any:
    return tf.reduce_mean(tf.square(residuals), axis=list(range(1, residuals.shape.rank)))
