"""`GradientCacheModel`: a Keras model whose `fit` takes gradients through a `GradientCache`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.source.private_keras import loss_tracker_of
from graphwright.source.tensorflow_import import import_keras, import_tensorflow

if TYPE_CHECKING:
    from graphwright.reuse.gradient_cache import GradientCache, GradientCacheResult

keras: Any = import_keras()
tf: Any = import_tensorflow()


class GradientCacheModel(keras.Model):
    """Encoders that `fit` trains with the loss of a `GradientCache`; made by `GradientCache.model`.

    Callbacks, metrics (of `y` and the representations), mixed precision and `tf.distribute` strategies work as with any Keras model.
    `compile` takes an optimizer and metrics; the loss is the cache's, plus regularizers of weights.
    """

    def __init__(self, cache: GradientCache, **keywords: Any) -> None:
        keras.Model.__init__(self, **keywords)
        self.cache = cache
        self.encoders = cache.encoders  # so that Keras saves and trains them
        self.contrast = cache.loss if isinstance(cache.loss, keras.layers.Layer) else None
        encoders = keras.tree.flatten(cache.encoders)
        wrong = next((encoder for encoder in encoders if not isinstance(encoder, keras.layers.Layer)), None)
        if wrong is not None:
            raise ArgumentError(
                f"a {type(wrong).__name__} is no Keras layer",
                argument="encoders",
                remedy="make it a layer, so that Keras finds its variables; or call the cache in a training loop of your own",
            )
        self.built = all(encoder.built for encoder in encoders)

    def build(self, input_shape: Any) -> None:  # noqa: ARG002
        self.built = True

    def call(self, inputs: Any, training: Any = None) -> Any:
        encoders: Any = self.cache.encoders
        if isinstance(encoders, keras.layers.Layer):
            return encoders(inputs, training=training)
        if isinstance(encoders, Mapping):
            return {key: encoder(inputs[key], training=training) for key, encoder in cast("Mapping[str, Any]", encoders).items()}
        return tuple(encoder(inputs[k], training=training) for k, encoder in enumerate(encoders))

    def train_step(self, data: Any) -> Any:
        x, others = self._unpacked(data)
        result = self.cache.trace(x, others, True, self.optimizer.scale_loss, self._regularization)
        gradients = {id(variable): gradient for variable, gradient in zip(self.cache.variables, result.gradients, strict=True)}
        own = {id(variable): variable for variable in self.trainable_variables}
        foreign = next((variable for variable in self.cache.variables if id(variable) not in own), None)
        if foreign is not None:
            raise UnsupportedError(
                f"the loss or an encoder reads the trainable variable {foreign.name!r}, which is not among the model's",
                where=f"model {self.name!r}",
                remedy="make the loss a Keras layer that holds it, and that is built before fit",
            )
        self.optimizer.apply_gradients([(gradients[key], v) for key, v in own.items() if gradients.get(key) is not None])
        return self._logs(x, others, result)

    def test_step(self, data: Any) -> Any:
        x, others = self._unpacked(data)
        return self._logs(x, others, self.cache.forward(x, *others))

    def get_config(self) -> dict[str, Any]:
        """Raise an UnsupportedError, because a file cannot hold a loss that is a function."""
        raise UnsupportedError(
            "a GradientCacheModel is not saved as a whole", where=f"model {self.name!r}", remedy="save its encoders, or its weights"
        )

    def _unpacked(self, data: Any) -> tuple[Any, tuple[Any, ...]]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is not None:
            raise UnsupportedError(
                "sample weights were given",
                where=f"model {self.name!r}",
                cause="in a loss over all pairs, a weight per sample has no defined meaning",
                remedy="give them to the loss as a part of y",
            )
        return x, () if y is None else (y,)

    def _regularization(self) -> Any:
        return sum(variable.regularizer(variable) for variable in self.trainable_variables if variable.regularizer is not None)

    def _logs(self, x: Any, others: tuple[Any, ...], result: GradientCacheResult) -> Any:
        loss = result.loss + tf.cast(self._regularization(), result.loss.dtype)
        loss_tracker_of(self).update_state(loss, sample_weight=tf.shape(tf.nest.flatten(x)[0])[0])
        return self.compute_metrics(x, others[0] if others else None, result.representations)
