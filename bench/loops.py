"""Loops in segments and in parts of the batch: planned and measured share of the peak, and ratios of time.

    python -m bench.loops                        # 2 layers of 512 units, 128 steps, and 1 of 128 units, 2,000 steps; 10 minutes
    python -m bench.loops --small                # variants of these that take seconds
    python -m bench.loops --parts                # with all verbs: loops with large rounds, and one with small rounds

Each peak is measured in a fresh process. The two steps take turns, the plain one with Grappler. Times are those by the clock, and of the
processor, for a shared machine.
"""

from __future__ import annotations

import argparse
import re
import time
from functools import partial
from typing import Any

import keras
import numpy as np

import graphwright as gw
from bench.processor_time import ratios
from graphwright.step.keras_step import keras_data, keras_step

CASES = {
    "LSTM 512 x 2, 128 steps, batch 64": (128, 64, 512, 512, 2, (0.5, 0.3, 0.23)),
    "LSTM 128, 2,000 steps, batch 64": (2000, 64, 16, 128, 1, (0.8, 0.5, 0.25, 0.1)),
}
SMALL = {
    "LSTM 64 x 2, 60 steps, batch 32": (60, 32, 64, 64, 2, (0.5, 0.35)),
    "LSTM 64, 300 steps, batch 32": (300, 32, 8, 64, 1, (0.5, 0.25)),
}
PARTS = {
    "two convolutions of 32, 8 rounds, 32x32, batch 32": (8, 32, 32, 32, (0.5, 0.3)),
    "LSTM 128, 64 steps, batch 512": (64, 512, 128, 128, 1, (0.5, 0.3)),
    "LSTM 512 x 2, 128 steps, batch 64": (128, 64, 512, 512, 2, (0.3,)),
}
TURNS = 3
ROUNDS = re.compile(r"segments of (\d+ rounds(?: up to round \d+ of \d+)?)")


def lstm(steps: int, batch: int, features: int, units: int, layers: int) -> tuple[Any, tuple[Any, Any]]:
    """A compiled model, and a batch of data."""
    keras.utils.set_random_seed(0)
    inside = [keras.layers.LSTM(units, return_sequences=k < layers - 1) for k in range(layers)]
    model = keras.Sequential([keras.layers.Input((steps, features)), *inside, keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(batch, steps, features)).astype(np.float32)
    return model, (x, np.zeros((batch, 4), np.float32))


def refined(rounds: int, batch: int, pixels: int, channels: int) -> tuple[Any, tuple[Any, ...]]:
    """A step that refines features by the same two convolutions in each round, and its input."""
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    shape = batch, pixels, pixels, channels
    convolutions = [keras.layers.Conv2D(channels, 3, padding="same", activation="relu") for _ in range(2)]
    for convolution in convolutions:
        convolution.build(shape)
    weights = [weight for convolution in convolutions for weight in convolution.trainable_variables]
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(weights)

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            for _ in tf.range(rounds):
                x += convolutions[1](convolutions[0](x))
            loss = tf.reduce_mean(x**2)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return step, (tf.constant(np.random.default_rng(0).normal(size=shape).astype(np.float32)),)


def trained(*sizes: int) -> tuple[Any, Any]:
    """The step that trains an LSTM, and its inputs."""
    model, data = lstm(*sizes)
    return keras_step(model, "train"), keras_data(model, "train", data, are_specs=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--small", action="store_true")
    kind.add_argument("--parts", action="store_true")
    chosen = parser.parse_args()
    allow = "all" if chosen.parts else ("recompute", "segment")
    print("| step | budget | plan | peak, planned | measured | share | time, planned | by the clock | of the processor | planned in |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, (*sizes, budgets) in (PARTS if chosen.parts else SMALL if chosen.small else CASES).items():
        plain, inputs = refined(*sizes) if len(sizes) == 4 else trained(*sizes)
        before = gw.measure(plain, inputs, time=False, steps=1)
        print(f"| {name} | plain | | | {before.peak_bytes / 2**20:.1f} MiB | | | | | |", flush=True)
        for budget in budgets:
            begun = time.process_time()
            fast = gw.optimize_memory(plain, budget, inputs=inputs, cache_dir=None, allow=allow)
            planning_s = time.process_time() - begun
            after = gw.measure(fast, inputs, time=False, steps=1)
            clock, processor = ratios(partial(plain, *inputs), partial(fast, *inputs), TURNS)
            print(
                f"| {name} | {budget:.0%} | {' and '.join(ROUNDS.findall(fast.plan.rewritten)) or fast.plan.rewritten} "
                f"| {fast.plan.peak_bytes / 2**20:.1f} MiB | {after.peak_bytes / 2**20:.1f} MiB "
                f"| {after.peak_bytes / before.peak_bytes:.2f} | {1 + fast.plan.overhead:.2f} | {clock:.2f} "
                f"| {processor:.2f} | {planning_s:.0f} s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
