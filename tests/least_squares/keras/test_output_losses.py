"""Losses as roots: their gradients are those of Keras's losses, their Gram matrices the Hessians."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphwright.errors import ArgumentError, UnsupportedError

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

from graphwright.least_squares.keras.compiled_losses import CompiledLosses  # noqa: E402
from graphwright.least_squares.keras.losses import LeastSquaresLoss, ReducedMeanSquaredError, SquareRootLoss  # noqa: E402
from graphwright.least_squares.keras.output_losses import output_loss  # noqa: E402

RANDOM = np.random.default_rng(3)
LOGITS = RANDOM.normal(size=(4, 3))
TARGETS = RANDOM.normal(size=(4, 3))
CLASSES = np.array([0, 2, 1, 1])
YES_OR_NO = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
LOSSES = {
    "mse": (keras.losses.MeanSquaredError(), TARGETS),
    "mse by function": (keras.losses.mean_squared_error, TARGETS),
    "msle": (keras.losses.MeanSquaredLogarithmicError(), np.abs(TARGETS)),
    "huber": (keras.losses.Huber(0.8), TARGETS),
    "log cosh": (keras.losses.LogCosh(), TARGETS),
    "own": (LeastSquaresLoss(lambda y_true, y_pred: tf.tanh(y_pred) - y_true), TARGETS),
    "reduced": (ReducedMeanSquaredError(), TARGETS),
    "root": (SquareRootLoss(keras.losses.SparseCategoricalCrossentropy(from_logits=True)), CLASSES),
    "classes": (keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1), np.eye(3)[CLASSES]),
    "sparse classes": (keras.losses.SparseCategoricalCrossentropy(from_logits=True), CLASSES),
    "yes or no": (keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1), YES_OR_NO),
}


def compiled(loss: Any) -> CompiledLosses:
    return CompiledLosses.of(loss, None, tf.constant(LOGITS), None)


def total_and_roots(loss: Any, y_true: Any, weights: Any = None) -> tuple[Any, Any, Any, Any]:
    """The loss, its gradient by differentiation, the roots, and their Jacobian, in the outputs of all samples."""
    losses = compiled(loss)
    tensors = [() if weight is None else tf.constant(weight, tf.float64) for weight in losses.sample_weights(weights)]
    scales = tensors, losses.factors(losses.denominators(losses.sample_weights(weights), 4, tf.float64))
    outputs = tf.constant(np.abs(LOGITS) if losses.losses[0].name == "mean_squared_logarithmic_error" else LOGITS)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(outputs)
        total = losses.total([tf.constant(y_true)], [outputs], *scales, tf.float64)
        roots = tf.reshape(losses.roots([tf.constant(y_true)], [outputs], *scales, tf.float64), [-1])
    jacobian = tf.reshape(tape.jacobian(roots, outputs), [roots.shape[0], -1])
    return total, tf.reshape(tape.gradient(total, outputs), [-1]).numpy(), roots.numpy(), jacobian.numpy()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("weights", [None, np.array([1.0, 2.0, 0.0, 0.5])])
def test_cost_and_gradient_are_those_of_keras(name: str, weights: Any) -> None:
    loss, y_true = LOSSES[name]
    total, gradient, roots, jacobian = total_and_roots(loss, y_true, weights)
    keras_loss = loss if isinstance(loss, keras.losses.Loss) else keras.losses.MeanSquaredError()
    keras_loss.dtype_policy = keras.DTypePolicy("float64") if hasattr(keras_loss, "dtype_policy") else None
    outputs = np.abs(LOGITS) if name == "msle" else LOGITS
    expected = float(keras_loss(y_true, outputs.astype(np.float64), sample_weight=weights))
    assert float(total) == pytest.approx(expected, rel=1e-6)
    assert jacobian.T @ roots == pytest.approx(gradient, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["mse", "classes", "sparse classes", "yes or no"])
def test_gram_matrix_is_the_hessian(name: str) -> None:
    loss, y_true = LOSSES[name]
    losses = compiled(loss)
    scales = [()], losses.factors([tf.constant(4.0, tf.float64)])
    outputs = tf.constant(LOGITS)
    with tf.GradientTape() as outer:
        outer.watch(outputs)
        with tf.GradientTape() as inner:
            inner.watch(outputs)
            total = losses.total([tf.constant(y_true)], [outputs], *scales, tf.float64)
        gradient = inner.gradient(total, outputs)
    hessian = tf.reshape(outer.jacobian(gradient, outputs), [12, 12]).numpy()
    jacobian = total_and_roots(loss, y_true)[3]
    assert jacobian.T @ jacobian == pytest.approx(hessian, abs=1e-6)


def test_probabilities_have_the_curvature_of_their_logits() -> None:
    """Softmax counts as part of the loss, whether Keras remembers the logits or not."""
    found: list[Any] = []
    for from_logits in (True, False):
        loss = output_loss(keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits))
        logits = tf.constant(LOGITS)
        with tf.GradientTape() as tape:
            tape.watch(logits)
            roots = tf.reshape(loss.root(tf.constant(CLASSES), logits if from_logits else tf.nn.softmax(logits)), [-1])
        jacobian = tf.reshape(tape.jacobian(roots, logits), [8, 12]).numpy()  # one less than classes per sample
        found.append((jacobian.T @ jacobian, jacobian.T @ roots.numpy()))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-7)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-7)


def test_sums_and_weighted_means() -> None:
    weights = np.array([1.0, 2.0, 0.0, 0.5])
    for reduction in ("sum", "mean_with_sample_weight"):
        loss = keras.losses.MeanSquaredError(reduction=reduction, dtype="float64")
        total, gradient, roots, jacobian = total_and_roots(loss, TARGETS, weights)
        assert float(total) == pytest.approx(float(loss(TARGETS, LOGITS, sample_weight=weights)), rel=1e-12)
        assert jacobian.T @ roots == pytest.approx(gradient, rel=1e-9)


def test_losses_by_output() -> None:
    outputs = {"a": tf.zeros([2, 1]), "b": tf.zeros([2, 3])}
    losses = CompiledLosses.of({"b": "mse"}, {"b": 2.0}, outputs, None)
    assert losses.names == ("a", "b")
    assert losses.losses[0] is None
    assert losses.targets({"b": 1})[1] == 1
    with pytest.raises(ArgumentError, match="'c'"):
        CompiledLosses.of({"c": "mse"}, None, outputs, None)
    with pytest.raises(ArgumentError, match="2 outputs"):
        CompiledLosses.of(["mse"], None, outputs, None)
    with pytest.raises(ArgumentError, match="no output"):
        CompiledLosses.of(None, None, outputs, None)


def test_what_has_no_residuals_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="mean_absolute_error"):
        output_loss("mae")
    with pytest.raises(UnsupportedError, match="ignore_class"):
        output_loss(keras.losses.SparseCategoricalCrossentropy(ignore_class=0))
    with pytest.raises(ArgumentError, match="no such loss"):
        output_loss("no such loss")
    with pytest.raises(ArgumentError, match="reduction"):
        output_loss(keras.losses.MeanSquaredError(reduction=None))


@pytest.mark.parametrize("shape", [(4, 3), (4, 1)], ids=["per element", "per sample"])
def test_a_mean_by_sample_weights_is_that_of_keras_where_samples_have_several_elements(shape: tuple[int, int]) -> None:
    weights = RANDOM.random(shape)
    outputs, targets = (RANDOM.normal(size=(4, 3, 2)) for _ in range(2))
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight", dtype="float64")
    ours = CompiledLosses.of(loss, None, tf.constant(outputs), None)
    given = ours.sample_weights(tf.constant(weights))
    scales = given, ours.factors(ours.denominators(given, 4, tf.float64))
    total = ours.total([tf.constant(targets)], [tf.constant(outputs)], *scales, tf.float64)
    np.testing.assert_allclose(total, loss(targets, outputs, sample_weight=weights), rtol=1e-6)
    roots = ours.roots([tf.constant(targets)], [tf.constant(outputs)], *scales, tf.float64)
    np.testing.assert_allclose(0.5 * np.sum(np.square(roots)), total, rtol=1e-12)


def test_a_single_class_is_refused() -> None:
    with pytest.raises(ArgumentError, match="of 1 class"):
        output_loss("sparse_categorical_crossentropy").root(tf.constant([0, 0]), tf.ones([2, 1]))
