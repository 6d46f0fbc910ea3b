"""Compare the predictions of `advise` with measurements of each followed suggestion: peak, and processor time per example.

    python -m bench.advice                       # three models, 15 minutes on two cores
    python -m bench.advice --only transformer

Each peak is measured in a fresh process. Times are processor times of all threads of this process, with steps taking turns.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np

import graphwright as gw
from bench.processor_time import processor_times
from graphwright.run.traced_step import split_inputs

TURNS = 5


def convolutions() -> Any:
    """A small convolutional network, whose activations are nearly all of its memory."""
    layers = keras.layers
    inside = [layers.Conv2D(filters, 3, padding="same", activation="relu") for filters in (32, 32, 64, 64)]
    normalized = [layer for convolution in inside for layer in (convolution, layers.BatchNormalization())]
    ends = [layers.GlobalAveragePooling2D(), layers.Dense(10, activation="softmax")]
    return keras.Sequential([layers.Input((64, 64, 3)), *normalized, *ends])


def transformer() -> Any:
    """A language model of two blocks, whose logits are the largest values."""
    layers = keras.layers
    tokens = layers.Input((128,), dtype="int32")
    x = layers.Embedding(8000, 128)(tokens)
    for _ in range(2):
        normalized = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 32)(normalized, normalized)])
        wide = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(128)(wide)])
    return keras.Model(tokens, layers.Dense(8000)(x))


def dense() -> Any:
    """Wide layers; weights and optimizer state are most of the memory."""
    layers = keras.layers
    return keras.Sequential([layers.Input((512,)), *(layers.Dense(2048, activation="relu") for _ in range(4)), layers.Dense(10)])


CASES: dict[str, tuple[Callable[[], Any], Any, float, int]] = {
    "convolutions": (convolutions, "sparse_categorical_crossentropy", 0.6, 64),
    "transformer": (transformer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), 0.6, 16),
    "dense": (dense, "mse", 0.8, 256),
}


def call(function: Any, inputs: Any) -> Callable[[], Any]:
    """One step."""
    args, kwargs = split_inputs(inputs)
    return partial(function, *args, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES)
    chosen = parser.parse_args().only
    print("| model | memory | advice | peak, predicted | measured | off | time, predicted | measured | off |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, (make, loss, memory, batch) in CASES.items():
        if chosen not in (None, name):
            continue
        keras.utils.set_random_seed(0)
        model = make()
        model.compile("adam", loss)
        report(name, gw.advise(model, memory, batch=batch, cache_dir=None), model, batch)


def report(name: str, advice: gw.Advice, model: Any, batch: int) -> None:
    """Print a row for the unmodified step and for each followed suggestion."""
    from graphwright.step.example_inputs import example_inputs
    from graphwright.step.targets import trace

    traced = trace(model, batch=batch)
    inputs = example_inputs(traced)
    memory = f"{advice.memory_bytes / 2**20:.0f} MiB"
    row(
        name,
        memory,
        "as it is",
        (advice.peak_bytes, advice.high_bytes, advice.low_bytes),
        gw.measure(traced.function, inputs, time=False).peak_bytes,
        math.nan,
        math.nan,
    )
    for suggestion in advice.suggestions:
        assert suggestion.make is not None
        function, own = suggestion.make()
        measured = gw.measure(function, own, time=False).peak_bytes
        steps = {"plain": call(traced.function, inputs), "advised": call(function, own)}
        natural = ["plain"] if suggestion.kind.startswith("plan") else ["plain", "advised"]
        times = processor_times(steps, TURNS, grappler=natural)
        examples = own[0][0].shape[0] / batch if isinstance(own[0], tuple) else 1
        ratio = float(np.median(times["advised"] / times["plain"])) / examples
        row(
            name,
            memory,
            suggestion.what,
            (suggestion.peak_bytes, suggestion.high_bytes, suggestion.low_bytes),
            measured,
            suggestion.time,
            ratio,
        )


def row(name: str, memory: str, what: str, predicted: tuple[int, int, int], measured: int, time: float, ratio: float) -> None:
    """Print a row of the table. The error of a random peak is its distance from the predicted range."""
    low, high = predicted[2] or predicted[0], max(predicted)
    peak = min(max(measured, low), high)
    mib = [f"{low / 2**20:.1f} MiB" + (f" to {high / 2**20:.1f}" if high > 1.01 * low else ""), f"{measured / 2**20:.1f} MiB"]
    times = ["" if math.isnan(t) else f"{t:.2f}" for t in (time, ratio)]
    off = "" if math.isnan(time) or math.isnan(ratio) else f"{ratio / time - 1:+.0%}"
    print(
        f"| {name} | {memory} | {what} | {mib[0]} | {mib[1]} | {measured / peak - 1:+.1%} | {times[0]} | {times[1]} | {off} |", flush=True
    )


if __name__ == "__main__":
    main()
