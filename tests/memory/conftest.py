"""Steps for the tests of `graphwright.train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _own_plan_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWRIGHT_CACHE_DIR", str(tmp_path / "plans"))


@pytest.fixture
def conv_step() -> Any:
    """A Keras model with batch norm and dropout, its own training step, and one batch: (step, inputs, model)."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    layers = keras.layers
    image = keras.Input((24, 24, 3))
    hidden = image
    for filters in (16, 32):
        hidden = layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
        hidden = layers.BatchNormalization()(hidden)
        hidden = layers.Dropout(0.2)(hidden)
    model = keras.Model(image, layers.Dense(4)(layers.GlobalAveragePooling2D()(hidden)))
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": loss}

    inputs = (tf.random.stateless_normal((16, 24, 24, 3), (1, 2)), tf.constant([0, 1, 2, 3] * 4))
    return step, inputs, model
