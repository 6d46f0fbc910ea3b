"""How large a batch fits into my memory? Formulas of the batch size answer without a run; one measurement confirms the answer.

Needs `pip install "graphwright[cpu]"`.
"""

from __future__ import annotations

from typing import Any

import keras

import graphwright as gw

BUDGET = "64MiB"


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
    model = build_model()
    print(gw.count_flops(model).formula, "FLOP")  # without a batch size: a formula

    found = gw.max_batch(model, BUDGET, measure=True)
    print(found)
    print(f"{found.batch} images fit {BUDGET}, {found.batch + 1} do not: {'measured' if found.is_confirmed else 'predicted only'}")


if __name__ == "__main__":
    main()
