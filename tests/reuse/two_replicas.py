"""A `GradientCache` and a plain loop over the global batch, on two logical CPUs; prints how far they are apart, as JSON."""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw


def info_nce(queries, documents, temperature):
    """Cross-entropy of each query's own document among all."""
    scores = tf.matmul(queries, documents, transpose_b=True) / temperature
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(scores)[0]), scores))


class Loss(keras.layers.Layer):
    """With a temperature that is trained."""

    def build(self, *_):
        self.temperature = self.add_weight(shape=(), initializer="ones", name="temperature", dtype="float64")

    def call(self, queries, documents):
        return info_nce(queries, documents, self.temperature)


def network():
    """An encoder, the same each time."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, "tanh", dtype="float64"), keras.layers.Dropout(0.0), keras.layers.Dense(4, dtype="float64")]
    return keras.Sequential([keras.Input((6,), dtype="float64"), *layers])


def main() -> None:
    """Train both."""
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    random = np.random.default_rng(3)
    x, y = random.normal(size=(24, 6)), random.normal(size=(24, 6))
    plain, loss = network(), Loss()
    loss.build()
    optimizer = keras.optimizers.SGD(0.1)
    variables = [*plain.trainable_variables, *loss.trainable_variables]
    losses = []
    for k in (0, 12) * 2:
        with tf.GradientTape() as tape:
            value = loss(plain(x[k : k + 12]), plain(y[k : k + 12]))
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        losses.append(float(value))
    wanted = [v.numpy() for v in variables]
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ours = network()
        own = Loss()
        own.build()
        model = gw.GradientCache((ours, ours), own, 4).model()
        model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    history = model.fit((x, y), batch_size=12, epochs=2, shuffle=False, verbose=0).history["loss"]
    found = [v.numpy() for v in (*ours.trainable_variables, *own.trainable_variables)]
    difference = max(float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True))
    told = np.abs(np.mean(np.reshape(losses, (2, 2)), 1) - history).max()
    sys.stdout.write(json.dumps({"weights": difference, "losses": float(told), "moved": float(np.abs(wanted[-1] - 1.0))}) + "\n")


if __name__ == "__main__":
    main()
