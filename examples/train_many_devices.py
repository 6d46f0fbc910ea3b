"""How do I train on several devices, each within its memory, and resume after an interruption?

Build the model under a strategy, pass it to `optimize_memory` with a budget per device, and pass the callback
`ResumeTraining` to `fit`. Here two logical CPU devices stand for two GPUs, and an exception for a killed process.
"""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw


def build_model(strategy: Any) -> Any:
    """A small network with batch norm and dropout, built under the strategy; the seed makes two calls return equal networks."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        hidden = inputs = keras.Input((64,))
        for _ in range(3):
            hidden = keras.layers.Dense(64, activation="relu")(hidden)
            hidden = keras.layers.Dropout(0.1)(keras.layers.BatchNormalization()(hidden))
        model = keras.Model(inputs, keras.layers.Dense(10)(hidden))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


class InterruptedTrainingError(Exception):
    """Raised in the middle of the training."""


def stop_at(epoch: int, batch: int) -> Any:
    """A callback that raises before this batch."""
    at = {"epoch": -1}

    def begin(number: int, **_: Any) -> None:
        if (at["epoch"], number) == (epoch, batch):
            raise InterruptedTrainingError

    return keras.callbacks.LambdaCallback(on_epoch_begin=lambda number, *_: at.update(epoch=number), on_train_batch_begin=begin)


def train(strategy: Any, folder: str, *callbacks: Any) -> list[float]:
    """Train two epochs within a budget and return the loss after each."""
    random = np.random.default_rng(0)
    x, y = random.random((1024, 64), np.float32), random.integers(0, 10, 1024)
    model = gw.optimize_memory(build_model(strategy), budget=0.9)  # of each device
    resume = gw.train.ResumeTraining(folder, every=2)
    history = model.fit(x, y, batch_size=256, epochs=2, shuffle=False, verbose=0, callbacks=[*callbacks, resume])
    print(model.memory_plan().how["devices"])
    return history.history["loss"]


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with tempfile.TemporaryDirectory() as folder:
        whole = train(strategy, folder)
        try:
            train(strategy, folder, stop_at(epoch=1, batch=3))
        except InterruptedTrainingError:
            print("interrupted in epoch 1, before batch 3")
        resumed = train(strategy, folder)
    print("loss per epoch, uninterrupted:", *(f"{loss:.6f}" for loss in whole))
    print("loss per epoch, resumed:      ", *(f"{loss:.6f}" for loss in resumed))
    assert resumed == whole


if __name__ == "__main__":
    main()
