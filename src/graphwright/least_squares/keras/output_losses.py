"""Losses of one model output as roots for least squares.

For a loss l(z) of the outputs z, a damped Gauss-Newton step needs per element a *root*: values b and a matrix B with

    B' b = gradient of l,        B' B = H, the Hessian of l in the outputs or a positive approximation of it.

`root` returns a tensor with the value b and the derivative B in z. Then J'J of the roots is the generalized Gauss-Newton matrix
`Jz' H Jz` (N. N. Schraudolph: Fast curvature matrix-vector products for second-order gradient descent, 2002; J. Martens: Deep learning
via Hessian-free optimization, 2010) and J'b the gradient. Every least-squares solver applies unchanged. The loss itself decides whether a
step is accepted.

| loss | H | b |
|---|---|---|
| squares (`MeanSquaredError`, residuals of your own) | 2 / d | the residuals: the usual Gauss-Newton matrix |
| `CategoricalCrossentropy`, sparse or not | diag(p) - p p' in the logits, p = softmax | (p - y) / sqrt(p), less one dimension |
| `BinaryCrossentropy` | p (1 - p) in the logit, p = sigmoid | (p - y) / sqrt(p (1 - p)) |
| `Huber`, `LogCosh` | as in `graphwright.least_squares.robust_losses`; tanh(f) / f | |

For cross-entropies, softmax or sigmoid count as part of the loss even if the model ends with them (the matching loss of Schraudolph).
"""

import importlib
import math
from collections.abc import Callable
from typing import Any

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.least_squares.keras.losses import SquareRootLoss, aligned, keras_loss
from graphwright.least_squares.robust_losses import RobustLoss
from graphwright.source.private_keras import logits_of

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

_SMALLEST_PROBABILITY = 1e-7


class OutputLoss:
    """A loss of one output; `reduction` is `"sum"`, `"sum_over_batch_size"`, or `"mean_with_sample_weight"`, as in Keras."""

    is_square = False
    """Whether it is a mean square of residuals."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss
        self.name = str(getattr(loss, "name", type(loss).__name__))
        reduction = str(getattr(loss, "reduction", "sum_over_batch_size"))
        if reduction not in ("sum", "mean", "sum_over_batch_size", "mean_with_sample_weight"):
            raise ArgumentError(f"{self.name} with reduction={reduction!r}", argument="loss", remedy='use "sum" or "sum_over_batch_size"')
        self.reduction = "sum_over_batch_size" if reduction == "mean" else reduction

    def elements(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each element (batch, ...), not reduced."""
        return self._loss.call(y_true, y_pred)

    def root(self, y_true: Any, y_pred: Any) -> Any:
        """Return the root of each element's loss (batch, ..., r)."""
        raise NotImplementedError


def output_loss(loss: Any) -> OutputLoss:
    """Return the loss of one output for a name, a Keras loss or loss function, or an object with `residuals(y_true, y_pred)`."""
    loss = keras_loss(loss)
    if callable(getattr(loss, "residuals", None)):
        return _OwnResiduals(loss)
    kinds: dict[type, type[OutputLoss]] = {
        keras.losses.MeanSquaredError: _MeanSquares,
        keras.losses.MeanSquaredLogarithmicError: _MeanLogarithmicSquares,
        keras.losses.Huber: _Huber,
        keras.losses.LogCosh: _LogCosh,
        keras.losses.CategoricalCrossentropy: _Softmax,
        keras.losses.SparseCategoricalCrossentropy: _Softmax,
        keras.losses.BinaryCrossentropy: _Sigmoid,
    }
    kind = kinds.get(loss.__class__)
    if kind is None:
        raise UnsupportedError(
            f"the loss {getattr(loss, 'name', None) or getattr(loss, '__name__', None) or loss!r}",
            argument="loss",
            cause="Levenberg-Marquardt needs residuals, or the Hessian of the loss in the outputs",
            remedy=f"use {', '.join(kind.__name__ for kind in kinds)}, or SquareRootLoss, or LeastSquaresLoss with residuals of your own",
        )
    return kind(loss)


class _MeanSquares(OutputLoss):
    is_square = True

    def residuals(self, y_true: Any, y_pred: Any) -> Any:
        y_true, y_pred = aligned(y_true, y_pred)
        return y_pred - y_true

    def elements(self, y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(self.residuals(y_true, y_pred)), axis=-1)

    def root(self, y_true: Any, y_pred: Any) -> Any:
        residuals = self.residuals(y_true, y_pred)
        return residuals * math.sqrt(2.0 / residuals.shape[-1])


class _MeanLogarithmicSquares(_MeanSquares):
    def residuals(self, y_true: Any, y_pred: Any) -> Any:
        y_true, y_pred = aligned(y_true, y_pred)
        return tf.math.log1p(tf.maximum(y_pred, _SMALLEST_PROBABILITY)) - tf.math.log1p(tf.maximum(y_true, _SMALLEST_PROBABILITY))


class _OwnResiduals(_MeanSquares):
    """Mean squares of residuals that the loss object returns: over all dimensions of a sample, or single roots of a loss."""

    def residuals(self, y_true: Any, y_pred: Any) -> Any:
        residuals = tf.convert_to_tensor(self._loss.residuals(y_true, y_pred))
        if isinstance(self._loss, SquareRootLoss):
            return residuals[..., tf.newaxis]
        return tf.reshape(residuals, [residuals.shape[0], math.prod(residuals.shape[1:])])


class _Huber(OutputLoss):
    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        # Keras does not publish the residual from which the loss is linear; it is the slope there.
        near, far = (float(loss.call(tf.constant([[0.0]]), tf.constant([[residual]]))[0]) for residual in (1e6, 2e6))
        self._robust = RobustLoss("huber", (far - near) / 1e6)

    def root(self, y_true: Any, y_pred: Any) -> Any:
        y_true, y_pred = aligned(y_true, y_pred)
        residuals = y_pred - y_true
        row, weight = self._robust.weights(residuals)
        return _linear(weight * residuals, lambda moved: row * moved, residuals) / math.sqrt(residuals.shape[-1])


class _LogCosh(OutputLoss):
    """Mean logarithms of the hyperbolic cosine, with the curvature tanh(f) / f of the secant, which is positive everywhere."""

    def root(self, y_true: Any, y_pred: Any) -> Any:
        y_true, y_pred = aligned(y_true, y_pred)
        residuals = y_pred - y_true
        small = tf.abs(residuals) < 1e-3
        safe = tf.where(small, tf.ones_like(residuals), residuals)
        row = tf.sqrt(tf.where(small, tf.ones_like(residuals), tf.tanh(safe) / safe))
        return _linear(row * residuals, lambda moved: row * moved, residuals) / math.sqrt(residuals.shape[-1])


class _Softmax(OutputLoss):
    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        config = loss.get_config()
        self._from_logits = bool(config.get("from_logits", False))
        self._sparse = isinstance(loss, keras.losses.SparseCategoricalCrossentropy)
        self._smoothing = float(config.get("label_smoothing", 0.0))
        if config.get("axis", -1) != -1 or config.get("ignore_class") is not None:
            raise UnsupportedError(
                f"{loss.name} with axis={config.get('axis', -1)}, ignore_class={config.get('ignore_class')}",
                argument="loss",
                remedy="keep classes in the last axis; give samples of an ignored class the weight 0",
            )

    def root(self, y_true: Any, y_pred: Any) -> Any:
        """Reduce B = diag(sqrt p) (1 - 1 p') and b = (p - y) / sqrt p by one dimension.

        Both are orthogonal to the unit vector u = sqrt p. A Householder reflection takes u to the first axis, where both become zero.
        """
        logits = _logits(y_pred, self._from_logits, tf.math.log)
        classes = logits.shape[-1]
        if classes < 2:
            raise ArgumentError(f"{self.name} of {classes} class", argument="loss", remedy="use BinaryCrossentropy, or an output per class")
        if self._sparse:
            labels = tf.cast(y_true, tf.int32)
            if labels.shape.rank == logits.shape.rank:
                labels = tf.squeeze(labels, axis=-1)
            truth = tf.one_hot(labels, classes, dtype=logits.dtype)
        else:
            truth = tf.cast(y_true, logits.dtype)
        truth = truth * (1.0 - self._smoothing) + self._smoothing / classes
        p = tf.stop_gradient(tf.nn.softmax(logits))
        root = tf.sqrt(tf.maximum(p, _SMALLEST_PROBABILITY))
        root_first, root_others = tf.split(root, [1, classes - 1], axis=-1)
        mirror = root_others / (1.0 + root_first)

        def total(values: Any) -> Any:
            return tf.reduce_sum(values, axis=-1, keepdims=True)

        def reflected(across: Any) -> Any:
            first, others = tf.split(across, [1, classes - 1], axis=-1)
            return others - mirror * (total(root * across) + first)

        return _linear(reflected((p - truth) / root), lambda moved: reflected(root * (moved - total(p * moved))), logits)


class _Sigmoid(OutputLoss):
    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        config = loss.get_config()
        self._from_logits = bool(config["from_logits"])
        self._smoothing = float(config["label_smoothing"])
        if config.get("axis", -1) != -1:
            raise UnsupportedError(f"{loss.name} with axis={config['axis']}", argument="loss", remedy="use axis=-1")

    def root(self, y_true: Any, y_pred: Any) -> Any:
        logits = _logits(y_pred, self._from_logits, lambda p: tf.math.log(p) - tf.math.log1p(-p))
        y_true, logits = aligned(y_true, logits)
        truth = y_true * (1.0 - self._smoothing) + 0.5 * self._smoothing
        p = tf.stop_gradient(tf.sigmoid(logits))
        root = tf.sqrt(tf.maximum(p * (1.0 - p), _SMALLEST_PROBABILITY))
        return _linear((p - truth) / root, lambda moved: root * moved, logits) / math.sqrt(logits.shape[-1])


def _linear(value: Any, matrix: Callable[[Any], Any], outputs: Any) -> Any:
    """Return a tensor with this value and with this matrix as its derivative in the outputs."""
    return tf.stop_gradient(value) + matrix(outputs - tf.stop_gradient(outputs))


def _logits(y_pred: Any, from_logits: bool, inverse: Callable[[Any], Any]) -> Any:
    """Return the argument of softmax or sigmoid: the prediction itself, the tensor that Keras remembers, or computed from probabilities."""
    if from_logits:
        return tf.convert_to_tensor(y_pred)
    remembered = logits_of(y_pred)
    if remembered is not None:
        return tf.cast(remembered, y_pred.dtype)
    return inverse(tf.clip_by_value(y_pred, _SMALLEST_PROBABILITY, 1.0 - _SMALLEST_PROBABILITY))
