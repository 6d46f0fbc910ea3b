"""A reversible and the same plain network under MirroredStrategy on two logical CPUs; prints the losses as JSON."""

import importlib.util
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf


def main() -> None:
    """Train both."""
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    spec = importlib.util.spec_from_file_location("reversible_cases", Path(__file__).with_name("cases.py"))
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)

    x, y = np.random.default_rng(3).normal(size=(16, 6, 6, 8)).astype("float32"), np.arange(16) % 3
    losses, weights = [], []
    for reconstructs in (False, True):
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = cases.network()
            model.get_layer("trunk").reconstructs = reconstructs
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(1e-2), loss, jit_compile=False)
        losses.append(model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"])
        weights.append([w.numpy() for w in model.trainable_variables])
    difference = max(float(np.abs(a - b).max()) for a, b in zip(*weights, strict=True))
    sys.stdout.write(json.dumps({"plain": losses[0], "reversible": losses[1], "weights": difference}) + "\n")


if __name__ == "__main__":
    main()
