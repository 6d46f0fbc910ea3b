"""Keras's private machinery still does what we use it for."""

import tempfile

import keras
import tensorflow as tf

from graphwright.source.private_keras import track_parts, without_autocast


def test_variables_keep_their_dtype():
    class Probe(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(1,))

        def call(self, x):
            self.cast = str(self.kernel.value.dtype.name)
            with without_autocast():
                self.kept = str(self.kernel.value.dtype.name)
            return x

    probe = Probe(dtype="mixed_float16")
    probe(keras.ops.ones((1,)))
    assert (probe.cast, probe.kept) == ("float16", "float32")


def test_tensorflow_sees_what_keras_keeps_in_lists():
    class Holder(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.parts = [keras.layers.Dense(1), keras.layers.Dropout(0.5)]

        def build(self, shape):
            self.parts[0].build(shape)

    def saved(layer):
        return {key for key, _ in tf.train.list_variables(tf.train.Checkpoint(layer).write(f"{folder}/at")) if "VARIABLE_VALUE" in key}

    with tempfile.TemporaryDirectory() as folder:
        holder = Holder()
        holder.build((1, 1))
        holder.built = True
        assert not saved(holder)  # where this fails Keras does it itself
        track_parts(holder)
        assert len(saved(holder)) == len(holder.variables) == 3
