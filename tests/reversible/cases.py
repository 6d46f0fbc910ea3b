"""Small reversible networks, and steps that take all gradients."""

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw
from graphwright import train

CHANNELS = 4  # of a stream


@keras.saving.register_keras_serializable(package="graphwright_tests")
class Rotation(train.Coupling):
    """A custom coupling: scaled, turned around, shifted."""

    def forward(self, x, p, axis):
        return p - 2.0 * x

    def inverse(self, y, p, axis):
        return (p - y) / 2.0


COUPLINGS = ("additive", "affine", Rotation())


def function(coupling, *, rich=True):
    """Batch norm, dropout, losses of activities and weights; rich in all that a second call could spoil."""
    out = 2 * CHANNELS if coupling == "affine" else CHANNELS
    layers = [keras.layers.BatchNormalization(), keras.layers.ReLU(), keras.layers.Conv2D(CHANNELS, 3, padding="same")]
    if rich:
        layers += [keras.layers.Dropout(0.3), keras.layers.Conv2D(out, 1, activity_regularizer="l2", kernel_regularizer="l2")]
    else:
        layers += [keras.layers.Conv2D(out, 1)]
    return keras.Sequential(layers)


def network(coupling="additive", *, blocks=2, rich=True, kept_blocks=0, **options):
    keras.utils.set_random_seed(0)
    layers = [gw.ReversibleBlock(function(coupling, rich=rich), function(coupling, rich=rich), coupling=coupling) for _ in range(blocks)]
    sequence = gw.ReversibleSequence(layers, kept_blocks=kept_blocks, name="trunk", **options)
    return keras.Sequential(
        [keras.layers.Input((6, 6, 2 * CHANNELS)), sequence, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
    )


def images(batch=4, dtype="float64"):
    return tf.constant(np.random.default_rng(1).normal(size=(batch, 6, 6, 2 * CHANNELS)), dtype)


def gradients(model, x, *, how="graph", plain=False):
    """Loss, gradients of the input and of all weights, and the states after the step."""
    model.get_layer("trunk").reconstructs = not plain

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.add_n([tf.reduce_sum(tf.square(model(x, training=True))), *model.losses])
        return loss, tape.gradient(loss, [x, *(v.value for v in model.trainable_variables)])

    run = {"eager": step, "graph": tf.function(step), "xla": tf.function(step, jit_compile=True)}[how]
    loss, values = run(x)
    return loss.numpy(), [g.numpy() for g in values], [v.numpy() for v in model.non_trainable_variables]


def largest_difference(a, b):
    """Of two lists of arrays, relative to the second."""
    return max(float(np.abs(x - y).max() / max(1.0, np.abs(y).max())) for x, y in zip(a, b, strict=True))
