"""Loops in segments: share of the peak and ratio of processor time, planned beside measured.

    python -m bench.loops                        # two layers of 512 units, 128 steps, and one of 128 units, 2,000 steps; 10 minutes
    python -m bench.loops --small                # variants of these that take seconds

Memory is measured in a fresh process each. Times are processor times of this process, the two steps taking turns: on a machine that others
use too, the clock says little.
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
from bench.processor_time import processor_times
from graphwright.step.keras_step import keras_data, keras_step

CASES = {
    "LSTM 512 x 2, 128 steps, batch 64": (128, 64, 512, 512, 2, (0.5, 0.3, 0.23)),
    "LSTM 128, 2,000 steps, batch 64": (2000, 64, 16, 128, 1, (0.8, 0.5, 0.25, 0.1)),
}
SMALL = {
    "LSTM 64 x 2, 60 steps, batch 32": (60, 32, 64, 64, 2, (0.5, 0.35)),
    "LSTM 64, 300 steps, batch 32": (300, 32, 8, 64, 1, (0.5, 0.25)),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    print("| step | budget | rounds | peak, planned | peak, measured | share, measured | processor time, planned | measured | planned in |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, (*sizes, budgets) in (SMALL if parser.parse_args().small else CASES).items():
        model, data = lstm(*sizes)
        plain, inputs = keras_step(model, "train"), keras_data(model, "train", data, are_specs=False)
        before = gw.measure(plain, inputs, time=False, steps=1)
        print(f"| {name} | plain | | | {before.peak_bytes / 2**20:.1f} MiB | | | | |", flush=True)
        for budget in budgets:
            begun = time.process_time()
            fast = gw.optimize_memory(plain, budget, inputs=inputs, cache_dir=None)
            planning_s = time.process_time() - begun
            after = gw.measure(fast, inputs, time=False, steps=1)
            times = processor_times({"plain": partial(plain, *inputs), "plan": partial(fast, *inputs)}, TURNS)
            ratio = float(np.median(times["plan"] / times["plain"]))
            print(
                f"| {name} | {budget:.0%} | {' and '.join(ROUNDS.findall(fast.plan.rewritten))} "
                f"| {fast.plan.peak_bytes / 2**20:.1f} MiB | {after.peak_bytes / 2**20:.1f} MiB "
                f"| {after.peak_bytes / before.peak_bytes:.2f} | {1 + fast.plan.overhead:.2f} | {ratio:.2f} | {planning_s:.0f} s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
