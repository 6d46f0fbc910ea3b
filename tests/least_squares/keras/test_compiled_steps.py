from __future__ import annotations

import gc

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

from graphwright.least_squares.keras.trainer import LevenbergMarquardt  # noqa: E402


def test_python_keeps_no_graph_of_a_step_and_the_runtime_errors_are_still_told() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    trainer = LevenbergMarquardt(model, "mse")
    x, y = np.random.default_rng(1).normal(size=(2, 8, 2)).astype(np.float32)
    kind = type(tf.function(lambda: 0).get_concrete_function().graph)
    gc.collect()
    before = sum(isinstance(one, kind) for one in gc.get_objects())
    losses = [float(trainer.step(x, y[:, :1]).loss) for _ in range(3)]
    gc.collect()
    assert sum(isinstance(one, kind) for one in gc.get_objects()) <= before
    assert losses == sorted(losses, reverse=True)
    assert len(trainer.decisions) == 1

    inside = tf.function(lambda: trainer.step(tf.constant(x), tf.constant(y[:, :1])).new_loss)  # the tf.function itself runs
    assert float(inside()) < losses[-1]
