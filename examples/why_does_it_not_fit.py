"""Why does my training step not fit, what is the largest batch that does, and what is the smallest budget at all?

Needs `pip install "graphwright[cpu]"`.
"""

from __future__ import annotations

from typing import Any

import keras

import graphwright as gw


def build_model() -> Any:
    """A small image classifier, compiled."""
    model = keras.Sequential(
        [
            keras.layers.Input((64, 64, 3), name="image"),
            *(keras.layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(6)),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def main() -> None:
    model = build_model()
    report = gw.inspect(model, batch=8)
    print(report)

    print(gw.sweep(model, batches=[1, 2, 4, 8, 16, 32], budget="64MiB"))

    try:
        gw.optimize_memory(model, budget="1MiB", feeds=report.feeds)
    except gw.InfeasibleError as error:
        print(error)
        print(f"the smallest budget known to work: {error.smallest_budget_bytes} bytes")


if __name__ == "__main__":
    main()
