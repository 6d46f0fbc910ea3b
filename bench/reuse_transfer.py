"""Transfer learning with and without cached features of frozen layers: `python -m bench.reuse_transfer [--size 96] [--samples 2048]`.

MobileNetV2 with random weights, frozen, on crops of two photographs that scikit-learn ships: which photograph is it? Arrays, and a
shuffled `tf.data.Dataset`. Times are processor times of a whole fit, including tracing and the
call of `cache_frozen`, as multiples of the shortest plain epoch.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images

import graphwright as gw

BATCH = 32


def photographs(count: int, size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return crops of two photographs, and the photograph of each."""
    rng = np.random.default_rng(0)
    images = load_sample_images().images
    classes = rng.integers(0, len(images), count)
    furthest = min(300, min(min(image.shape[:2]) for image in images) - size)
    crops = [images[kind][top : top + size, left : left + size] for kind in classes for top, left in [rng.integers(0, furthest, 2)]]
    return np.stack(crops), classes


def network(size: int) -> Any:
    """A frozen MobileNetV2 under a dense layer."""
    keras.utils.set_random_seed(1)
    base = keras.applications.MobileNetV2(weights=None, include_top=False, pooling="avg", input_shape=(size, size, 3))
    base.trainable = False
    image = keras.Input((size, size, 3))
    hidden = keras.layers.Dropout(0.3)(base(keras.layers.Rescaling(1 / 127.5, offset=-1)(image)))
    model = keras.Model(image, keras.layers.Dense(2)(hidden))
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Clock(keras.callbacks.Callback):
    """Seconds of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._started = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras names them
        self._started = time.process_time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.seconds.append(time.process_time() - self._started)


def train(model: Any, data: str, epochs: int, samples: int, size: int) -> tuple[float, list[float], list[float]]:
    """Return the seconds of the whole fit and of each epoch, and the losses."""
    keras.utils.set_random_seed(2)
    images, classes = photographs(samples, size)
    clock, started = Clock(), time.process_time()
    given: dict[str, Any] = {"x": images, "y": classes, "batch_size": BATCH}
    if data == "tf.data":
        given = {"x": tf.data.Dataset.from_tensor_slices((images, classes)).shuffle(samples).batch(BATCH), "shuffle": False}
    losses = model.fit(**given, epochs=epochs, verbose=0, callbacks=[clock]).history["loss"]
    return time.process_time() - started, clock.seconds, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--size", type=int, default=96, help="pixels on each side of a crop; TensorFlow's own guide has 160")
    options = parser.parse_args()
    print("| data | plain, epochs' time | cached, epochs' time | ratio | largest difference of a loss | features computed |")
    print("|---|---:|---:|---:|---:|---:|")
    for data in ("arrays", "tf.data"):
        plain_s, epochs_s, plain = train(network(options.size), data, options.epochs, options.samples, options.size)
        model, started = network(options.size), time.process_time()
        model = gw.cache_frozen(model)
        finding_s = time.process_time() - started
        cached_s, _, cached = train(model, data, options.epochs, options.samples, options.size)
        cached_s += finding_s
        one_s, apart = min(epochs_s[1:]), max(abs(a - b) for a, b in zip(plain, cached, strict=True))
        computed = f"{model.frozen_cache.computed:,} of {options.epochs * options.samples:,}"
        print(f"| {data} | {plain_s / one_s:.1f} | {cached_s / one_s:.2f} | {cached_s / plain_s:.2f} | {apart:.1g} | {computed} |")


if __name__ == "__main__":
    main()
