"""What did my change cost? Two models side by side, and a check that a pipeline can run on every commit.

Needs `pip install "graphwright[cpu]"`.
"""

from __future__ import annotations

from typing import Any

import keras

import graphwright as gw


def build_model(*, norm: bool) -> Any:
    """A small image classifier, compiled; with or without batch norm behind each convolution."""
    x = image = keras.Input((48, 48, 3), name="image")
    for k in range(3):
        x = keras.layers.Conv2D(16, 3, padding="same", name=f"conv{k}")(x)
        if norm:
            x = keras.layers.BatchNormalization(name=f"norm{k}")(x)
        x = keras.layers.ReLU(name=f"relu{k}")(x)
    scores = keras.layers.Dense(10, name="scores")(keras.layers.GlobalAveragePooling2D(name="pool")(x))
    model = keras.Model(image, scores, name="classifier")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def main() -> None:
    before, after = build_model(norm=False), build_model(norm=True)
    found = gw.compare(before, after, batch=8)
    print(found)
    print(f"the peak grows by {found.difference('peak_bytes'):,.0f} bytes, to {found.ratio('peak_bytes'):.2f} times")

    # Once, on the main branch: what the step costs today.
    gw.write_costs(gw.step_costs(before, batch=8), "costs.json")

    # On every commit: does it cost more? `graphwright check` does the same and exits with code 4.
    result = gw.check(after, batch=8, baseline="costs.json", tolerance={"peak": "10%", "flops": "5%", "nodes": 2.0}, max_peak="1GiB")
    print(result)
    print("passed" if result else "failed")


if __name__ == "__main__":
    main()
