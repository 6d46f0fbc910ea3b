"""How far does a small network get in forty steps? Levenberg-Marquardt compared with Adam, on the same curve from the same start.

python examples/train_levenberg_marquardt.py
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import graphwright as gw

STEPS = 40


def network() -> Any:
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(20, "tanh"), keras.layers.Dense(1)])


def main() -> None:
    x = np.linspace(-1.0, 1.0, 1000, dtype=np.float32)[:, np.newaxis]
    y = np.sinc(10.0 * x)

    by_adam = network()
    by_adam.compile("adam", "mse")
    by_adam.fit(x, y, batch_size=len(x), epochs=STEPS, verbose=0)
    print(f"Adam, {STEPS} steps:                 loss {by_adam.evaluate(x, y, verbose=0):.5f}")

    inner = network()
    model = gw.train.LMModel(inner)
    model.compile("mse")
    history = model.fit(x, y, batch_size=len(x), epochs=STEPS, verbose=0).history
    print(f"Levenberg-Marquardt, {STEPS} steps:  loss {model.evaluate(x, y, verbose=0):.5f}")
    print(f"damping at the end {history['damping'][-1]:.2g}; {model.decisions[0]}")


if __name__ == "__main__":
    main()
