"""Budgets as shares of the unmodified peak, predicted and measured.

    python -m bench.shares                      # a GAN's step: two networks, two optimizers, one tf.function
    python -m bench.shares --models gan gpt2    # GPT-2 in small too, with random weights; needs keras-hub

Shares refer to the predicted peak of the unmodified step in the order of TensorFlow's executor. For each model: that peak with its
range, the peak of the traced order, and the measured peak; then a plan for each share, or for the smallest budget that is known to
work. Each peak is measured in a fresh process. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

MIB = 2**20
SHARES = (0.75, 0.5)
COLUMNS = ("model", "step", "budget", "predicted", "measured", "of the measured", "kept")

Step = tuple[str, Any, tuple[Any, ...]]
"""A description, the step, and its inputs."""


def gan(pixels: int = 32, batch: int = 64, filters: int = 32, noise: int = 64) -> Step:
    """A DCGAN's step: both losses on one tape, each network with its own optimizer."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(0)
    start = pixels // 8

    def up(count: int) -> list[Any]:
        return [layers.Conv2DTranspose(count, 4, strides=2, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU()]

    def down(count: int) -> list[Any]:
        return [layers.Conv2D(count, 4, strides=2, padding="same"), layers.LeakyReLU(0.2), layers.Dropout(0.3)]

    head = [layers.Input((noise,)), layers.Dense(start * start * 4 * filters, use_bias=False), layers.Reshape((start, start, 4 * filters))]
    last = layers.Conv2DTranspose(3, 4, strides=2, padding="same", activation="tanh")
    generator = keras.Sequential([*head, layers.BatchNormalization(), layers.ReLU(), *up(2 * filters), *up(filters), last])
    judge = [*down(filters), *down(2 * filters), *down(4 * filters), layers.Flatten(), layers.Dense(1)]
    discriminator = keras.Sequential([layers.Input((pixels, pixels, 3)), *judge])
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
    networks = [(network, keras.optimizers.Adam(2e-4, beta_1=0.5)) for network in (generator, discriminator)]
    for network, optimizer in networks:
        optimizer.build(network.trainable_variables)

    @tf.function
    def train_step(images: Any, seeds: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            made = generator(seeds, training=True)
            real, fake = discriminator(images, training=True), discriminator(made, training=True)
            generator_loss = loss_of(tf.ones_like(fake), fake)
            discriminator_loss = loss_of(tf.ones_like(real), real) + loss_of(tf.zeros_like(fake), fake)
        for (network, optimizer), loss in zip(networks, (generator_loss, discriminator_loss), strict=True):
            gradients = tape.gradient(loss, network.trainable_variables)
            optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        return generator_loss, discriminator_loss

    draw = np.random.default_rng(0).standard_normal
    images = np.tanh(draw((batch, pixels, pixels, 3))).astype(np.float32)
    inputs = tf.constant(images), tf.constant(draw((batch, noise)).astype(np.float32))
    return f"GAN, {pixels}x{pixels}, batch {batch}, two Adams", train_step, inputs


def gpt2(layers: int = 6, width: int = 192, tokens: int = 128, batch: int = 8, vocabulary: int = 8000) -> Step:
    """GPT-2 of keras-hub in small, next-token loss, Adam; no weights are loaded."""
    import keras
    import keras_hub  # pyright: ignore[reportMissingImports]
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    hub: Any = keras_hub.models
    backbone = hub.GPT2Backbone(vocabulary, layers, width // 32, width, 4 * width, max_sequence_length=tokens)
    model = hub.GPT2CausalLM(backbone=backbone, preprocessor=None)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(ids: Any, mask: Any, following: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(following, model({"token_ids": ids, "padding_mask": mask}, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    ids = np.random.default_rng(0).integers(0, vocabulary, (batch, tokens + 1)).astype(np.int32)
    inputs = tf.constant(ids[:, :-1]), tf.ones((batch, tokens), tf.bool), tf.constant(ids[:, 1:])
    return f"GPT-2 of keras-hub, {layers} layers of {width}, {tokens} tokens, batch {batch}, Adam", train_step, inputs


MODELS: dict[str, Callable[[], Step]] = {"gan": gan, "gpt2": gpt2}


def rows(step: Step, shares: Sequence[float]) -> Iterator[tuple[str, ...]]:
    """The table's rows of one model.

    Args:
        step: see `Step`.
        shares: of the executor's predicted peak.
    """
    import graphwright as gw

    description, function, inputs = step
    loose = gw.predict_peak(function, inputs=inputs, order="executor")
    traced = gw.predict_peak(function, inputs=inputs)
    plain = gw.measure(function, inputs, time=False).peak_bytes
    span = f"{_mib(loose.peak_bytes)} ({_mib(loose.low_bytes)} to {_mib(loose.high_bytes)})"
    yield description, "as it is", "", span, _mib(plain), "", ""
    yield "", "as it is, traced order", "", _mib(traced.peak_bytes), "", "", ""
    for share in shares:
        words, budget = f"{share:.0%}".replace("%", " %"), share
        try:
            fast = gw.optimize_memory(function, budget=budget, inputs=inputs, cache_dir=None)
        except gw.InfeasibleError as error:
            words += f": infeasible; least known to work = {_mib(error.smallest_budget_bytes)}"
            fast = gw.optimize_memory(function, budget=error.smallest_budget_bytes, inputs=inputs, cache_dir=None)
        else:
            words += f" = {_mib(fast.plan.budget_bytes)}"
        measured = gw.measure(fast, inputs, time=False).peak_bytes
        kept = "yes" if measured <= fast.plan.budget_bytes else "no"
        yield "", "plan", words, _mib(fast.plan.peak_bytes), _mib(measured), f"{100 * measured / plain:.0f} %", kept


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.shares", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=["gan"])
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES))
    options = parser.parse_args(arguments)
    print(f"| {' | '.join(COLUMNS)} |\n|---|---|---|---:|---:|---:|---|")
    for name in options.models:
        for row in rows(MODELS[name](), options.shares):
            print(f"| {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
