"""Keras's private machinery still does what we use it for."""

import keras

from graphwright.source.private_keras import without_autocast


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
