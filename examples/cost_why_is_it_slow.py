"""Why is my training step slow? Measure one, and see which operations and which layers take the time.

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
            keras.layers.Input((48, 48, 3), name="image"),
            *(keras.layers.Conv2D(16, 3, padding="same", activation="relu", name=f"conv{k}") for k in range(3)),
            keras.layers.GlobalAveragePooling2D(name="pool"),
            keras.layers.Dense(10, name="scores"),
        ],
        name="classifier",
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def main() -> None:
    measured = gw.profile(build_model(), batch=8)  # in a fresh process, on generated images
    print(measured)

    # The same as a tree of name scopes, slowest first, without the optimizer.
    print(measured.tree(by="scope", columns=("time", "share", "flops"), order_by="time", depth=2, hide=["adam.*"]))

    path = measured.write_trace("step.json")
    print(f"open {path} in ui.perfetto.dev to see every operation on its thread")


if __name__ == "__main__":
    main()
