"""The demo's model and training step: the U-Net of Ronneberger, Fischer and Brox, as a user would write it.

Terms: a *level* is what works at one resolution (two 3x3 convolutions); the way down ends at the
*bottom* level, the way up has one level less. Convolutions are not padded, so every level loses
four pixels per axis and the answer covers the middle of the image only: 572 in, 388 out with
four poolings.

Source: O. Ronneberger, P. Fischer, T. Brox, "U-Net: Convolutional Networks for Biomedical Image
Segmentation", MICCAI 2015, figure 1. Two things differ from the paper: Adam instead of SGD, and an
unweighted cross entropy.

Nothing here knows of graphwright: the step is plain TensorFlow and Keras, so that the demo shows what
happens to code that was not written for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.source.tensorflow_import import import_tensorflow

PAPER_INPUT_SIZE = 572
PAPER_FILTERS = 64
PAPER_POOLINGS = 4
_LEVEL_LOSS = 4  # pixels per axis that two unpadded 3x3 convolutions take away


def unet_output_size(input_size: int, poolings: int = PAPER_POOLINGS) -> int:
    """The width and height in pixels that the unpadded U-Net answers for.

    Args:
        input_size: width and height of the image in pixels.
        poolings: number of 2x2 poolings on the way down.

    Returns:
        Width and height of the answer in pixels.

    Raises:
        ArgumentError: an odd size would have to be halved, or nothing is left of the image.

    >>> unet_output_size(572)
    388
    >>> unet_output_size(188)
    4
    """
    size = input_size
    for level in range(1, poolings + 1):
        size -= _LEVEL_LOSS
        if size <= 0 or size % 2:
            raise ArgumentError(
                f"an image of {input_size}x{input_size} leaves {size} pixels to be halved at level {level}",
                argument="input_size",
                remedy=f"take 572, or a size that differs from it by a multiple of {2**poolings}",
            )
        size //= 2
    size -= _LEVEL_LOSS
    for _ in range(poolings):
        size = 2 * size - _LEVEL_LOSS
    if size <= 0:
        raise ArgumentError(
            f"an image of {input_size}x{input_size} is too small: the unpadded convolutions take all of it away",
            argument="input_size",
            remedy="take a larger image or fewer poolings",
        )
    return size


def build_unet(
    *,
    input_size: int = PAPER_INPUT_SIZE,
    filters: int = PAPER_FILTERS,
    poolings: int = PAPER_POOLINGS,
    dropout: float = 0.5,
    seed: int = 0,
) -> Any:
    """The unpadded U-Net as a Keras model that answers with logits of two classes, for images of one channel.

    Layers are called `down1_conv1`, `bottom_conv2`, `up3_up`, ...; level 1 has the full resolution.
    With the default arguments the model has 31,030,658 trainable parameters.

    Args:
        input_size: width and height of the images in pixels.
        filters: filters of the first level; every level below has twice as many.
        poolings: number of 2x2 poolings.
        dropout: rate of the two dropout layers at the end of the way down; 0 leaves them out.
        seed: seed of the initial weights and of the dropout masks.

    Raises:
        ArgumentError: the size cannot be halved often enough; see `unet_output_size`.
        MissingDependencyError: TensorFlow is not installed.
    """
    keras = import_tensorflow().keras
    layers = keras.layers
    output_size = unet_output_size(input_size, poolings)
    seeds = iter(range(seed * 1000, seed * 1000 + 1000))

    def convolve(x: Any, width: int, name: str) -> Any:
        init = keras.initializers.HeNormal(seed=next(seeds))
        return layers.Conv2D(width, 3, activation="relu", kernel_initializer=init, name=name)(x)

    image: Any = layers.Input((input_size, input_size, 1), name="image")
    x: Any = image
    skips: list[Any] = []
    for level in range(1, poolings + 2):
        scope = f"down{level}" if level <= poolings else "bottom"
        width = filters * 2 ** (level - 1)
        x = convolve(x, width, f"{scope}_conv1")
        x = convolve(x, width, f"{scope}_conv2")
        if dropout and level >= poolings:
            x = layers.Dropout(dropout, seed=next(seeds), name=f"{scope}_dropout")(x)
        if level <= poolings:
            skips.append(x)
            x = layers.MaxPooling2D(2, name=f"{scope}_pool")(x)
    for level in range(poolings, 0, -1):
        width = filters * 2 ** (level - 1)
        init = keras.initializers.HeNormal(seed=next(seeds))
        x = layers.Conv2DTranspose(width, 2, strides=2, activation="relu", kernel_initializer=init, name=f"up{level}_up")(x)
        skip = skips[level - 1]
        margin = (skip.shape[1] - x.shape[1]) // 2
        cropped = layers.Cropping2D(margin, name=f"up{level}_crop")(skip)
        x = layers.Concatenate(name=f"up{level}_concat")([cropped, x])
        x = convolve(x, width, f"up{level}_conv1")
        x = convolve(x, width, f"up{level}_conv2")
    logits = layers.Conv2D(2, 1, kernel_initializer=keras.initializers.HeNormal(seed=next(seeds)), name="logits")(x)
    assert logits.shape[1:] == (output_size, output_size, 2)
    return keras.Model(image, logits, name="unet")


@dataclass(frozen=True)
class Demo:
    """A training step with what it needs.

    Attributes:
        step: a `tf.function`; `step(images, labels)` trains once and returns the loss.
        inputs: tensors to call it with.
        description: the model and the data in one sentence.
        model: the Keras model whose weights the step changes.
        optimizer: its optimizer, already built.
    """

    step: Any
    inputs: tuple[Any, ...]
    description: str
    model: Any
    optimizer: Any


def make_demo(*, input_size: int = PAPER_INPUT_SIZE, filters: int = PAPER_FILTERS, batch: int = 2) -> Demo:
    """The demo: a U-Net that learns to find cells and stained tissue in images which scikit-image ships.

    The defaults are the paper's model. Half of its unmodified memory can be met from a batch of two on.

    Args:
        input_size: width and height of the image crops in pixels.
        filters: filters of the first level.
        batch: number of crops in a step.

    Raises:
        ArgumentError: the sizes do not fit the model.
        MissingDependencyError: TensorFlow or scikit-image is not installed.
    """
    tf = import_tensorflow()
    from graphwright.commands.demo_data import segmentation_batch

    output_size = unet_output_size(input_size)
    images, labels = segmentation_batch(batch=batch, input_size=input_size, output_size=output_size)
    model = build_unet(input_size=input_size, filters=filters)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam(learning_rate=1e-4)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    description = (
        f"U-Net, {model.count_params():,} parameters, Adam; {batch} crops of {input_size}x{input_size} pixels "
        "from two microscope images of scikit-image, labels derived with Otsu's threshold"
    )
    return Demo(train_step, (tf.constant(images), tf.constant(labels)), description, model, optimizer)
