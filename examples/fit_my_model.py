"""How do I train my Keras model in less memory, without changing how I train it?

Compile the model as usual, pass it to `optimize_memory` with a budget, and call `fit` as usual.
The loss curve equals that of the plain model. Needs `pip install "graphwright[cpu,demo]"`.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits

import graphwright as gw


def build_model() -> Any:
    """A small compiled convolutional network; the seed makes two calls return equal networks."""
    keras.utils.set_random_seed(0)
    layers: list[Any] = [keras.layers.Input((8, 8, 1))]
    for width in (16, 32, 32):
        layers += [keras.layers.Conv2D(width, 3, padding="same"), keras.layers.BatchNormalization(), keras.layers.ReLU()]
    layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dropout(0.2, seed=1), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def train(model: Any) -> list[float]:
    """Train three epochs on scanned digits and return the loss after each."""
    images, digits = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    history = model.fit(images, digits, batch_size=256, epochs=3, shuffle=False, validation_split=0.2, verbose=0)
    return history.history["loss"]


def main() -> None:
    plain = train(build_model())
    model = gw.optimize_memory(build_model(), budget=0.6)  # the only new line
    thrifty = train(model)
    print(model.memory_plan().verdict)
    print("loss per epoch, plain:    ", *(f"{loss:.6f}" for loss in plain))
    print("loss per epoch, optimized:", *(f"{loss:.6f}" for loss in thrifty))
    np.testing.assert_allclose(thrifty, plain, rtol=1e-4)


if __name__ == "__main__":
    main()
