"""A value that depends on a variable, used twenty times, kept and not kept: `python -m bench.reuse_cached [--size 200]`.

Each row calls `expm(W)` twenty times, W unchanged between calls: by plain code, in a `tf.function` that Grappler optimizes, kept by hand in
a variable (which nobody updates when W changes), and with `gw.cached`. Evaluations are the `MatrixSolve` kernels that TensorFlow's
profiler saw (`expm` has one, its gradient further ones). The rows take turns; times are medians, and multiples of the cached row.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import graphwright as gw
from graphwright.source.private_tensorflow import read_xspace

USES = 20


def kernels(run: Callable[[], Any]) -> int:
    """How many `MatrixSolve` kernels ran."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        run()
        tf.profiler.experimental.stop()
        planes = read_xspace(next(Path(folder).rglob("*.xplane.pb")).read_bytes()).planes
    names = (p.event_metadata[event.metadata_id].name for p in planes for line in p.lines for event in line.events)
    return sum(name.endswith("MatrixSolve") for name in names)


def rows(size: int) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]], Any]:
    """Forward passes and training steps, by name; and the cached function."""
    rng = np.random.default_rng(0)
    w = tf.Variable(rng.normal(size=(size, size)) / size)
    xs = [tf.constant(rng.normal(size=(size, 1))) for _ in range(USES)]
    by_hand = tf.Variable(tf.linalg.expm(w))
    cached = gw.cached(lambda: tf.linalg.expm(w))

    def plain() -> Any:
        return tf.linalg.expm(w)

    def uses(fn: Callable[[], Any]) -> list[Any]:
        return [fn() @ x for x in xs]

    def training(fn: Callable[[], Any]) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(y * y) for y in uses(fn)])
        return tape.gradient(loss, w)

    forward = {
        "plain, eager": lambda: uses(plain),
        "plain, tf.function": tf.function(lambda: uses(plain)),
        "by hand, in a variable": lambda: uses(by_hand.read_value),
        "gw.cached, eager": lambda: uses(cached),
        "gw.cached, tf.function": tf.function(lambda: uses(cached)),
    }
    steps = {"plain, eager": lambda: training(plain), "gw.cached, eager": lambda: training(cached)}
    np.testing.assert_allclose(steps["gw.cached, eager"](), steps["plain, eager"](), rtol=1e-10)
    return forward, steps, cached


def measure(title: str, runs: dict[str, Callable[[], Any]], rounds: int) -> None:
    """Print a table."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    base = statistics.median(times["gw.cached, eager"])
    print(f"\n{title:26} {'time':>10} {'ratio':>8} {'kernels':>8}")
    for name, run in runs.items():
        median = statistics.median(times[name])
        print(f"{name:26} {median * 1e3:7.1f} ms {median / base:7.2f}x {kernels(run):8}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    forward, steps, cached = rows(arguments.size)
    print(f"expm of {arguments.size} x {arguments.size}, float64, {USES} uses, TensorFlow {tf.__version__}, {os.cpu_count()} cores")
    measure("forward", forward, arguments.rounds)
    measure("gradient by W", steps, arguments.rounds)
    print(f"\nkept: {cached.cache_info().nbytes} bytes, of a matrix of {arguments.size**2 * 8}")


if __name__ == "__main__":
    main()
