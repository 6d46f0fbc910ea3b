"""The models of the gradients' benchmarks: model, loss, inputs and description by size and batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _unet(size: str, batch: int) -> tuple[Any, Any, Any, str]:
    from bench import zoo

    reference = zoo.make("unet", size=size, batch=batch)  # type: ignore[arg-type]
    return reference.model, reference.loss, reference.inputs, reference.description.rsplit(", ", 1)[0]  # without the optimizer


def _resnet(blocks: int) -> Callable[[str, int], tuple[Any, Any, Any, str]]:
    def make(size: str, batch: int) -> tuple[Any, Any, Any, str]:
        """Pre-activation residual blocks of He et al. (arXiv:1603.05027) at one resolution."""
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(0)
        layers = keras.layers
        pixels = 32 if size == "full" else 16
        image = keras.Input((pixels, pixels, 3))
        hidden = layers.Conv2D(16, 3, padding="same")(image)
        for _ in range(blocks):
            branch = hidden
            for _ in range(2):
                branch = layers.ReLU()(layers.BatchNormalization()(branch))
                branch = layers.Conv2D(16, 3, padding="same")(branch)
            hidden = layers.Add()([hidden, branch])
        model = keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(hidden)))
        x = tf.random.stateless_normal((batch, pixels, pixels, 3), (1, 2))
        y = tf.random.stateless_uniform((batch,), (3, 4), 0, 10, tf.int32)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return model, loss, (x, y), f"{blocks} residual blocks, 16 channels, {pixels}x{pixels} pixels"

    return make


MODELS: dict[str, tuple[Callable[[str, int], tuple[Any, Any, Any, str]], tuple[int, ...]]] = {
    "unet": (_unet, (1, 2, 4, 8)),
    "resnet11": (_resnet(11), (64,)),
    "resnet31": (_resnet(31), (64,)),
    "resnet61": (_resnet(61), (64,)),
}
