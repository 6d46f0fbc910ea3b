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

    Callbacks, metrics (of `y` and the representations), history, mixed precision with loss scaling and `tf.distribute` strategies work as
    with any Keras model. `compile` takes an optimizer and metrics; the loss is that of the cache, and regularizers of weights are added.

    Args:
        cache: what computes loss and gradients.

    Raises:
        ArgumentError: an encoder is no Keras layer.
    """

    def __init__(self, cache: GradientCache, **keywords: Any) -> None:
        keras.Model.__init__(self, **keywords)
        self.cache = cache
        self.encoders = cache.encoders  # where Keras finds what is to be saved and trained
        self.contrast = cache.loss if isinstance(cache.loss, keras.layers.Layer) else None
        wrong = next((e for e in keras.tree.flatten(cache.encoders) if not isinstance(e, keras.layers.Layer)), None)
        if wrong is not None:
            raise ArgumentError(
                f"a {type(wrong).__name__} is no Keras layer",
                argument="encoders",
                remedy="make it a layer, so that Keras finds its variables; or call the cache in a training loop of your own",
            )

        self.built = all(encoder.built for encoder in keras.tree.flatten(cache.encoders))

    def build(self, input_shape: Any) -> None:  # noqa: ARG002
        """Nothing: encoders build themselves when they are called."""
        self.built = True

    def call(self, inputs: Any, training: Any = None) -> Any:
        encoders: Any = self.cache.encoders
        if isinstance(encoders, keras.layers.Layer):
            return encoders(inputs, training=training)
        if isinstance(encoders, Mapping):
            return {key: encoder(inputs[key], training=training) for key, encoder in cast("Mapping[str, Any]", encoders).items()}
        return tuple(encoder(inputs[k], training=training) for k, encoder in enumerate(encoders))

    def train_step(self, data: Any) -> Any:
        x, others = self._of_batch(data)
        variables = list(self.trainable_variables)
        found = self.cache.trace(x, others, True, self.optimizer.scale_loss, self._regularization)
        of = {id(variable): gradient for variable, gradient in zip(self.cache.variables, found.gradients, strict=True)}
        unknown = [v for v in self.cache.variables if id(v) not in {id(own) for own in variables}]
        if unknown:
            raise UnsupportedError(
                f"the loss or an encoder reads the trainable variable {unknown[0].name!r}, which is not among the model's",
                where=f"model {self.name!r}",
                remedy="make the loss a Keras layer that holds it, and that is built before fit",
            )
        self.optimizer.apply_gradients([(of[id(v)], v) for v in variables if of.get(id(v)) is not None])
        return self._told(x, others, found)

    def test_step(self, data: Any) -> Any:
        x, others = self._of_batch(data)
        return self._told(x, others, self.cache.forward(x, *others))

    def get_config(self) -> dict[str, Any]:
        """Closed: a loss is a function, which no file holds.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "a GradientCacheModel is not saved as a whole", where=f"model {self.name!r}", remedy="save its encoders, or its weights"
        )

    def _of_batch(self, data: Any) -> tuple[Any, tuple[Any, ...]]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is not None:
            raise UnsupportedError(
                "sample weights were given",
                where=f"model {self.name!r}",
                cause="what the weight of a sample is in a loss over all pairs, only the loss can say",
                remedy="give them to the loss as a part of y",
            )
        return x, () if y is None else (y,)

    def _regularization(self) -> Any:
        return sum(variable.regularizer(variable) for variable in self.trainable_variables if variable.regularizer is not None)

    def _told(self, x: Any, others: tuple[Any, ...], found: GradientCacheResult) -> Any:
        loss = found.loss + tf.cast(self._regularization(), found.loss.dtype)
        loss_tracker_of(self).update_state(loss, sample_weight=tf.shape(tf.nest.flatten(x)[0])[0])
        return self.compute_metrics(x, others[0] if others else None, found.representations)
