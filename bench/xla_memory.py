"""Keras training steps compiled by XLA, within budgets: XLA's buffers, measured peaks and times.

    python -m bench.xla_memory                                  # every model; minutes
    python -m bench.xla_memory --models dense unet --budgets 0.5
    python -m bench.xla_memory --json FILE                      # the rows as JSON too

Each model is compiled with `jit_compile=True`; the step is the step of `model.fit`: forward and backward pass, optimizer, metrics. "XLA" is
XLA's own buffer assignment, "measured" the peak of a fresh process that runs the step. Time is the processor time of both steps taking
turns in one process, as a ratio. Every plan is proved equal first (`MemoryPlan.verification`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import graphwright as gw
from bench import zoo
from graphwright.step.keras_step import keras_step

MIB = 2**20
_ROUNDS = 6
Parts = tuple[Any, Any, Any, Any]  # model, images or tokens, labels, optimizer


def _dense() -> Parts:
    layers = [keras.layers.Dense(64, activation="tanh") for _ in range(24)]
    rng = np.random.default_rng(0)
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(3)])
    return model, rng.normal(size=(16384, 64)).astype("float32"), rng.integers(0, 3, 16384), keras.optimizers.Adam(1e-3)


def _residual() -> Parts:
    layers = keras.layers

    def normalized(hidden: Any) -> Any:
        return layers.Conv2D(32, 3, padding="same", use_bias=False)(layers.ReLU()(layers.BatchNormalization()(hidden)))

    image = keras.Input((32, 32, 3))
    hidden = layers.Conv2D(32, 3, padding="same", use_bias=False)(image)
    for _ in range(6):
        hidden = layers.Add()([hidden, normalized(normalized(hidden))])
    hidden = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.BatchNormalization()(hidden)))
    rng = np.random.default_rng(0)
    images = rng.normal(size=(32, 32, 32, 3)).astype("float32")
    return keras.Model(image, layers.Dense(10)(hidden)), images, rng.integers(0, 10, 32), keras.optimizers.SGD(0.01, momentum=0.9)


def _of_the_zoo(name: str, batch: int) -> Callable[[], Parts]:
    def make() -> Parts:
        model, (x, y) = zoo.keras_model(name, size="small", batch=batch, batches=1)
        return model, x[:batch], y[:batch], model.optimizer

    return make


MODELS: dict[str, tuple[str, Callable[[], Parts]]] = {
    "dense": ("24 dense layers of 64, Adam, batch 16384", _dense),
    "residual": ("6 residual blocks with batch norm, 32x32, SGD with momentum, batch 32", _residual),
    "unet": ("small U-Net with dropout, 132x132, Adam, batch 8", _of_the_zoo("unet", 8)),
    "transformer": ("3-layer Transformer with dropout, 128 tokens, Adam, batch 16", _of_the_zoo("transformer", 16)),
}


def run(name: str, budget: float) -> dict[str, Any]:
    """One row."""
    keras.utils.set_random_seed(0)
    description, make = MODELS[name]
    model, x, y, optimizer = make()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], jit_compile=True)
    row: dict[str, Any] = {"model": name, "description": description, "budget": budget}
    data = (tf.convert_to_tensor(x), tf.convert_to_tensor(y))
    try:
        gw.optimize_memory(model, budget, inputs=data, cache_dir=None)
    except gw.InfeasibleError as error:
        return row | {"error": str(error).splitlines()[0]}
    plan, steps = model.memory_plan(), (keras_step(model, "train"), model.optimized_step)
    row |= {"xla_before": plan.original_peak_bytes, "xla_after": plan.peak_bytes, "recomputed": plan.recomputed_count}
    row |= {"verification": plan.verification, "how": dict(plan.how)}
    row["measured_before"], row["measured_after"] = (gw.measure(step, (data,), steps=2, time=False).peak_bytes for step in steps)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(_ROUNDS + 1):
        for step, taken in zip(steps, times, strict=True):
            started = time.process_time()
            for leaf in tf.nest.flatten(step(data)):
                leaf.numpy()
            if number:  # the first round compiles
                taken.append(time.process_time() - started)
    return row | {"time_ratio": statistics.median(after / before for before, after in zip(*times, strict=True))}


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """The table of the documentation."""
    lines = ["| step | budget | XLA, MiB | measured, MiB | processor time | equal |", "|---|---|---|---|---|---|"]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['description']} | {row['budget']} | {row['error']} | | | |")
            continue
        share = row["xla_after"] / row["xla_before"]
        sizes = [f"{row[f'{kind}_before'] / MIB:.1f} -> {row[f'{kind}_after'] / MIB:.1f}" for kind in ("xla", "measured")]
        equal = "bit for bit" if "kernels equal bit for bit" in row["verification"] else "within the tolerance"
        lines.append(
            f"| {row['description']} | {row['budget']} | {sizes[0]} ({share:.2f}) | {sizes[1]} | {row['time_ratio']:.2f} times | {equal} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.7, 0.5], help="shares of XLA's peak of the unmodified step")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in arguments.models:
        for budget in arguments.budgets:
            rows.append(run(name, budget))
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(rows, indent=1))
    print(as_markdown(rows))


if __name__ == "__main__":
    main()
