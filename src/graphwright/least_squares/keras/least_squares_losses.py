"""Losses for Keras that least squares can train: residuals of your own, fewer residuals per sample, roots of other losses."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from graphwright.errors import ArgumentError

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")


class LeastSquaresLoss(keras.losses.Loss):
    """The mean of squared residuals of your own, as a Keras loss.

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
        """The residuals (batch, ...)."""
        return self._residuals(y_true, y_pred)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The mean square of each sample's residuals (batch,)."""
        found = self.residuals(y_true, y_pred)
        return _mean_squares(found) if len(found.shape) > 1 else tf.square(found)


class ReducedMeanSquaredError(keras.losses.Loss):
    """The mean squared error with one residual per sample, the root of its mean square: a smaller Jacobian for models of many outputs.

    The curvature is less exact than that of `MeanSquaredError`, whose loss it has.

    Example:
        >>> float(ReducedMeanSquaredError()(tf.constant([[1.0, 2.0]]), tf.constant([[3.0, 2.0]])))
        2.0
    """

    def __init__(self, reduction: str = "sum_over_batch_size", name: str = "reduced_mean_squared_error") -> None:
        keras.losses.Loss.__init__(self, name=name, reduction=reduction)

    def residuals(self, y_true: Any, y_pred: Any) -> Any:
        """One residual per sample (batch,)."""
        y_true, y_pred = alike(y_true, y_pred)
        squares = _mean_squares(y_pred - y_true)
        return tf.sqrt(tf.maximum(squares, tf.constant(1e-14, squares.dtype)))  # a root has no derivative at zero

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The mean square of each sample (batch,)."""
        y_true, y_pred = alike(y_true, y_pred)
        return _mean_squares(y_pred - y_true)


class SquareRootLoss(keras.losses.Loss):
    """Any loss that is never negative, with its square root as the one residual of each element.

    The Gauss-Newton matrix of these residuals has rank one per element: a cross-entropy of k classes needs a k-th of the rows that its own
    Hessian needs (see the module), for steps that are less exact. What tf-levenberg-marquardt makes of cross-entropies.

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
        """The square roots of the loss's elements (batch, ...)."""
        return tf.sqrt(tf.maximum(self._loss.call(y_true, y_pred), 1e-10))  # a root has no derivative at zero

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._loss.call(y_true, y_pred)


def keras_loss(given: Any) -> Any:
    """A loss object, made from a name or from one of Keras's functions where need be."""
    if isinstance(given, keras.losses.Loss) or callable(getattr(given, "residuals", None)):
        return given
    try:
        function = keras.losses.get(given)
    except ValueError as error:
        raise ArgumentError(f"loss={given!r}", argument="loss", remedy="a Keras loss, or its name") from error
    if isinstance(function, keras.losses.Loss):
        return function
    name = getattr(function, "__name__", "").replace("_", "")
    public: Any = keras.losses
    for kind in [getattr(public, entry) for entry in dir(public)]:
        if isinstance(kind, type) and issubclass(kind, keras.losses.Loss) and kind.__name__.lower() == name:
            return kind()
    return function


def alike(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Both of the predictions' type, and of the same rank where one lacks a last dimension of 1."""
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
