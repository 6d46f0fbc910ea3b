"""`gw.jacobian` in chunks compared with `tape.jacobian`: `python -m bench.reuse_jacobian [--rounds 5]`.

96 outputs with respect to 24,576 inputs, in reverse mode: six layers of 256 on a batch of 96, in float64. Each peak is measured
in a fresh process (`gw.measure`); the prediction is the upper end of the executor's range. Steps take turns for times.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from typing import Any

import numpy as np
import tensorflow as tf
from rich import box
from rich.console import Console
from rich.table import Table

import graphwright as gw
from graphwright.report.units import format_bytes

WIDTH, BATCH = 256, 96


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    weights = [tf.Variable(rng.normal(size=(WIDTH, WIDTH)) / 16.0) for _ in range(6)]
    points = tf.constant(rng.normal(size=(BATCH, WIDTH)))

    def network(x: Any) -> Any:
        for weight in weights:
            x = tf.tanh(x @ weight)
        return tf.reduce_sum(x, 1)

    @tf.function
    def plain(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = network(x)
        return tape.jacobian(y, x)

    steps = {"tape.jacobian": plain} | {
        f"gw.jacobian, {named}": tf.function(lambda x, keywords=keywords: gw.jacobian(network, x, mode="reverse", **keywords))
        for named, keywords in {'peak="40%"': {"peak": "40%"}, "8 rows at a time": {"chunk": 8}}.items()
    }
    expected = plain(points)
    timings = gw.measure_many(steps, (points,), steps=options.rounds)
    table = Table(box=box.MARKDOWN)
    for column in ("", "predicted", "measured", "time", "largest difference"):
        table.add_column(column, justify="right" if column else "left")
    for name, step in steps.items():
        predicted = gw.predict_peak(step, inputs=(points,), order="executor").high_bytes
        measured = gw.measure(step, (points,), steps=1, time=False).peak_bytes
        apart = float(tf.reduce_max(abs(step(points) - expected)) / tf.reduce_max(abs(expected)))
        table.add_row(name, format_bytes(predicted), format_bytes(measured), f"{timings[name].ratio:.2f}x", f"{apart:.0e}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
