"""Steps on batches: the methods agree, and the model's random numbers and statistics are those of one function per step."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from graphwright.errors import ArgumentError, UnsupportedError

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

from graphwright.least_squares.keras.trainer import LevenbergMarquardt  # noqa: E402

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(23, 3)).astype(np.float32)
Y = np.sin(X @ np.array([[1.0, 0.5], [0.2, -1.0], [0.3, 0.3]])).astype(np.float32)


def network(*hidden: Any, dtype: str = "float32") -> Any:
    keras.utils.set_random_seed(2)
    middle = hidden or (keras.layers.Dense(4, "tanh", dtype=dtype),)
    return keras.Sequential([keras.Input((3,), dtype=dtype), *middle, keras.layers.Dense(2, dtype=dtype)])


def weights_of(model: Any) -> Any:
    return np.concatenate([np.ravel(variable.numpy()) for variable in model.trainable_variables])


def one_step(x: Any = X, y: Any = Y, sample_weight: Any = None, loss: Any = "mse", **options: Any) -> Any:
    """The weights after one step in float64."""
    model = network(dtype="float64")
    found = LevenbergMarquardt(model, loss, **options).step(x.astype(np.float64), y.astype(np.float64), sample_weight)
    assert bool(found.accepted)
    assert float(found.new_loss) < float(found.loss)
    return weights_of(model)


def test_a_linear_model_is_solved_in_one_step() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    trainer = LevenbergMarquardt(model, "mse", first_damping=1e-9)
    trainer.step(X, Y)
    expected, *_ = np.linalg.lstsq(np.hstack([X, np.ones((23, 1))]), Y, rcond=None)
    kernel, bias = (variable.numpy() for variable in model.trainable_variables)
    assert np.vstack([kernel, bias[np.newaxis]]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_methods_modes_and_chunks_make_the_same_step() -> None:
    expected = one_step(method="qr")
    variants: list[dict[str, Any]] = [
        {"method": "cholesky", "chunk_size": 5},
        {"method": "cholesky", "chunk_size": 7, "jacobian_mode": "reverse"},
        {"method": "dual", "jacobian_mode": "forward"},
    ]
    for options in variants:
        assert one_step(**options) == pytest.approx(expected, abs=1e-9), options


def test_chunks_make_the_same_step() -> None:
    expected = one_step(method="qr")
    assert one_step(method="cholesky", chunk_size=5) == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_matrix_free_steps_lower_the_loss() -> None:
    one_step(method="cg", krylov_tolerance=1e-6)


@pytest.mark.slow
def test_a_weight_of_two_is_a_sample_twice() -> None:
    weights = np.ones(23)
    weights[3] = 2.0
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    twice = one_step(np.vstack([X, X[3:4]]), np.vstack([Y, Y[3:4]]), method="cholesky")
    assert one_step(sample_weight=weights, loss=loss, method="cholesky") == pytest.approx(twice, abs=1e-6)


def test_dropout_masks_are_one_per_step() -> None:
    """The loss that a step reports is that of the same masks before and after: a step without effect changes nothing."""
    model = network(keras.layers.Dense(4, "tanh"), keras.layers.Dropout(0.5))
    trainer = LevenbergMarquardt(model, "mse", attempts=1, first_damping=1e9, largest_damping=1e10)
    found = [trainer.step(X, Y) for _ in range(3)]
    assert all(float(one.new_loss) == pytest.approx(float(one.loss), rel=1e-4) for one in found)
    losses = [float(one.loss) for one in found]
    assert min(abs(a - b) for a, b in itertools.pairwise(losses)) > 1e-4  # the masks of the next step are others


def test_batch_normalization_is_evaluated_as_a_whole_and_updated_once() -> None:
    model = network(keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Activation("tanh"))
    mean = model.layers[1].moving_mean
    hidden = model.layers[0](X).numpy().mean(axis=0)
    trainer = LevenbergMarquardt(model, "mse")
    found = trainer.step(X, Y)
    assert bool(found.accepted)
    assert mean.numpy() == pytest.approx(0.5 * hidden, abs=1e-5)
    assert trainer.decisions[0].jacobian_mode in ("forward", "reverse")


def test_a_refused_step_changes_nothing() -> None:
    model = network()
    trainer = LevenbergMarquardt(model, keras.losses.MeanSquaredError(), attempts=2)
    targets = model(X).numpy()
    before = weights_of(model)
    found = trainer.step(X, targets)  # nothing to gain
    assert not bool(found.accepted)
    assert (weights_of(model) == before).all()


def test_layers_that_couple_samples_are_noticed() -> None:
    class Centered(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs - tf.reduce_mean(inputs, axis=0, keepdims=True)

    trainer = LevenbergMarquardt(network(keras.layers.Dense(4, "tanh"), Centered()), "mse")
    trainer.prepare((tf.constant(X), tf.constant(Y), None))
    assert trainer._function.couples_samples


def test_attention_is_not_vectorized_over_samples() -> None:
    """TensorFlow's vectorized gradient of an einsum writes beyond its memory with oneDNN: the process would end."""
    inputs = keras.Input((4, 3))
    attention = keras.layers.MultiHeadAttention(1, 2)(inputs, inputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(attention)))
    x = RANDOM.normal(size=(23, 4, 3)).astype(np.float32)
    trainer = LevenbergMarquardt(model, "mse")
    found = [float(trainer.step(x, Y).loss) for _ in range(3)]
    assert found == sorted(found, reverse=True)
    assert trainer.decisions[0].jacobian_mode == "reverse"
    with pytest.raises(UnsupportedError, match="EinsumDense"):
        LevenbergMarquardt(model, "mse", jacobian_mode="per_sample").step(x, Y)


def test_what_cannot_be_proved_is_refused() -> None:
    regularized = network(keras.layers.Dense(4, kernel_regularizer="l2"))
    with pytest.raises(UnsupportedError, match="regularizers"):
        LevenbergMarquardt(regularized, "mse").step(X, Y)
    with pytest.raises(UnsupportedError, match="not built"):
        LevenbergMarquardt(keras.Sequential([keras.layers.Dense(1)]), "mse")
    frozen = network()
    frozen.trainable = False
    with pytest.raises(UnsupportedError, match="no trainable"):
        LevenbergMarquardt(frozen, "mse")
    for options in (
        {"method": "lu"},
        {"attempts": 0},
        {"first_damping": -1.0},
        {"smallest_damping": -1.0},
        {"smallest_damping": None},
        {"solve_dtype": "float16"},
    ):
        with pytest.raises(ArgumentError):
            LevenbergMarquardt(network(), "mse", **options)
    with pytest.raises(ArgumentError, match="no target for output"):  # not: trained on anything else
        LevenbergMarquardt(network(), "mse").step(X, None)
    with pytest.raises(ArgumentError, match=r"targets of shape \(None, 4, 4\) for outputs of shape \(None, 2\)"):
        LevenbergMarquardt(network(), "mse").step(X, np.ones((23, 4, 4), np.float32))
    with pytest.raises(ArgumentError, match="5 samples in y for 23 in x"):
        LevenbergMarquardt(network(), "mse").step(X, Y[:5])
    with pytest.raises(ArgumentError, match="without a dimension of samples"):
        LevenbergMarquardt(network(), "mse").step(X.tolist(), Y)
    with pytest.raises(UnsupportedError, match="while a graph is built"):
        tf.function(LevenbergMarquardt(network(), "mse").step, autograph=False)(tf.constant(X), tf.constant(Y))
    with pytest.raises(ArgumentError, match="sample weights"):
        LevenbergMarquardt(network(), "mse").step(X, Y, np.ones((23, 7), np.float32))
