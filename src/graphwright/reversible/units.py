"""Residual units of convolutional networks.

*Preactivation*: normalization, ReLU and convolution, in this order, two or three times (K. He et al., "Identity Mappings in
Deep Residual Networks", 2016, figure 4e). *Bottleneck*: 1x1, 3x3 and 1x1 convolutions, with a quarter of the channels inside.
"""

# What a Keras layer inherits has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import importlib
from typing import Any

from graphwright.reversible.batch_norm import FusedBatchNormalization
from graphwright.reversible.remember import remember
from graphwright.source.private_keras import track_parts

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

BOTTLENECK_FACTOR = 4
"""Channels outside of a bottleneck over those inside."""


class OptionsLayer(keras.layers.Layer):
    """A layer whose arguments are in `options`. By default its output has the shape of its input."""

    options: dict[str, Any]

    def compute_output_shape(self, input_shape: Any) -> Any:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self.options


@keras.saving.register_keras_serializable(package="graphwright")
class Preactivation(OptionsLayer):
    """The residual function of a preactivation unit.

    Args:
        filters: channels of the result.
        inside: channels between the convolutions; None for `filters`, or a quarter of it in a bottleneck.
        bottleneck: use three convolutions instead of two.
        strides: of the first 3x3 convolution.
        activate_first: whether it begins with normalization and ReLU.
    """

    def __init__(
        self,
        filters: int,
        *,
        inside: int | None = None,
        bottleneck: bool = False,
        strides: int = 1,
        activate_first: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.options = {
            "filters": filters,
            "inside": inside,
            "bottleneck": bottleneck,
            "strides": strides,
            "activate_first": activate_first,
        }
        middle = inside or (filters // BOTTLENECK_FACTOR if bottleneck else filters)
        plan = [(middle, 3, strides), (filters, 3, 1)]
        if bottleneck:
            plan = [(middle, 1, 1), (middle, 3, strides), (filters, 1, 1)]
        self.norms = [normalization(self.dtype_policy) for _ in plan[0 if activate_first else 1 :]]
        self.convolutions = [convolution(*sizes, self.dtype_policy) for sizes in plan]

    def build(self, input_shape: Any) -> None:
        shape, norms = tuple(input_shape), iter(self.norms)
        for index, conv in enumerate(self.convolutions):
            if index or self.options["activate_first"]:
                next(norms).build(shape)
            conv.build(shape)
            shape = conv.compute_output_shape(shape)
        track_parts(self)
        self.built = True

    def call(self, x: Any, training: Any = None) -> Any:
        norms = iter(self.norms)
        for index, conv in enumerate(self.convolutions):
            if index:
                x = remember(x)  # with the unit's input, this avoids running any convolution again
            if index or self.options["activate_first"]:
                x = tf.nn.relu(next(norms)(x, training=training))
            x = conv(x)
        return x

    def compute_output_shape(self, input_shape: Any) -> Any:
        shape = tuple(input_shape)
        for conv in self.convolutions:
            shape = conv.compute_output_shape(shape)
        return shape


@keras.saving.register_keras_serializable(package="graphwright")
class Shortcut(keras.layers.Layer):
    """The shortcut of a unit that changes the shape.

    Without bottleneck: average pooling and channels of zeros, without weights. With bottleneck: a 1x1 convolution.

    Args:
        filters: channels of the result, at least as many as of the input.
        strides: factor by which images get smaller.
        bottleneck: as in `Preactivation`.
    """

    def __init__(self, filters: int, *, strides: int = 1, bottleneck: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters, self.strides = filters, strides
        self.projection = convolution(filters, 1, strides, self.dtype_policy) if bottleneck else None

    def build(self, input_shape: Any) -> None:
        if self.projection is not None:
            self.projection.build(input_shape)
        self.built = True

    def call(self, x: Any) -> Any:
        if self.projection is not None:
            return self.projection(x)
        if self.strides > 1:
            x = tf.nn.avg_pool2d(x, self.strides, self.strides, "SAME")
        return tf.pad(x, [[0, 0], [0, 0], [0, 0], [0, self.filters - x.shape[-1]]])

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch, height, width, _ = input_shape
        return (batch, *(side and -(-side // self.strides) for side in (height, width)), self.filters)

    def get_config(self) -> dict[str, Any]:
        own = {"filters": self.filters, "strides": self.strides, "bottleneck": self.projection is not None}
        return super().get_config() | own


@keras.saving.register_keras_serializable(package="graphwright")
class Stem(OptionsLayer):
    """The layers before the first unit: convolution, normalization, ReLU.

    As the first part of a reversible sequence it takes the images as both streams and returns half of its channels as each.

    Args:
        filters: channels of the result.
        large_images: use strides of two and a pooling, which make images four times smaller.
    """

    def __init__(self, filters: int, *, large_images: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = {"filters": filters, "large_images": large_images}
        self.convolution = convolution(filters, 7 if large_images else 3, 2 if large_images else 1, self.dtype_policy)
        self.norm = normalization(self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        images = _first(input_shape)
        self.convolution.build(images)
        self.norm.build(self.convolution.compute_output_shape(images))
        self.built = True

    def call(self, images: Any, training: Any = None) -> Any:
        x = tf.nn.relu(self.norm(self.convolution(images[0] if isinstance(images, list | tuple) else images), training=training))
        if self.options["large_images"]:
            x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        return tuple(tf.split(x, 2, -1)) if isinstance(images, list | tuple) else x

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch, height, width, _ = _first(input_shape)
        shrinks = 4 if self.options["large_images"] else 1
        sides = tuple(side and -(-side // shrinks) for side in (height, width))
        filters = self.options["filters"]
        return ((batch, *sides, filters // 2),) * 2 if isinstance(input_shape[0], list | tuple) else (batch, *sides, filters)


def _first(shape: Any) -> tuple[int | None, ...]:
    return tuple(shape[0] if isinstance(shape[0], list | tuple) else shape)


def convolution(filters: int, size: int, strides: int, dtype: Any) -> Any:
    """Return a convolution without bias, since a normalization follows."""
    return keras.layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False, kernel_initializer="he_normal", dtype=dtype)


def normalization(dtype: Any) -> Any:
    return FusedBatchNormalization(momentum=0.9, epsilon=1e-5, dtype=dtype)
