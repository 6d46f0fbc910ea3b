"""A value that depends on a variable, used twenty times, kept and not kept: `python -m bench.reuse_cached [--size 200]`.

Each row calls `expm(W)` twenty times, W unchanged between calls: by plain code, in a `tf.function` that Grappler optimizes, kept by hand in
a variable (which nobody updates when W changes), and with `gw.cached`. Evaluations are the `MatrixSolve` kernels that TensorFlow's
profiler saw (`expm` has one, its gradient further ones). The last table scores twenty queries against 4,000 rows that two dense layers
encode, in float32, and counts `MatMul`. The rows take turns; times are medians, and multiples of the row of ours in front.
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


def kernels(run: Callable[[], Any], op_type: str) -> int:
    """How many kernels of a type ran."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        run()
        tf.profiler.experimental.stop()
        planes = read_xspace(next(Path(folder).rglob("*.xplane.pb")).read_bytes()).planes
    names = (p.event_metadata[event.metadata_id].name for p in planes for line in p.lines for event in line.events)
    return sum(name.endswith(op_type) for name in names)


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


def queries() -> dict[str, Callable[[], Any]]:
    """Twenty queries against a table that stays, by name."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return tf.constant(rng.normal(size=shape), tf.float32)

    table, asked = drawn(4000, 256), [drawn(1, 64) for _ in range(USES)]
    first, second = tf.Variable(drawn(256, 512) / 16.0), tf.Variable(drawn(512, 64) / 22.0)

    def encoded(table: Any) -> Any:
        return tf.nn.relu(table @ first) @ second

    def nearest(rows: Any, query: Any) -> Any:
        return tf.math.top_k(tf.linalg.matmul(query, rows, transpose_b=True), 10).values

    def best(table: Any, query: Any) -> Any:
        return nearest(encoded(table), query)

    by_hand = tf.Variable(encoded(table))
    kept = gw.partially_evaluated(best, constant="table")
    compiled, hand = tf.function(best), tf.function(lambda query: nearest(by_hand, query))
    kept_compiled = tf.function(kept)
    for query in asked:
        np.testing.assert_allclose(kept_compiled(table, query), compiled(table, query), rtol=1e-4)
    return {
        "plain, eager": lambda: [best(table, query) for query in asked],
        "plain, tf.function": lambda: [compiled(table, query) for query in asked],
        "by hand, tf.function": lambda: [hand(query) for query in asked],
        "ours, eager": lambda: [kept(table, query) for query in asked],
        "ours, tf.function": lambda: [kept_compiled(table, query) for query in asked],
    }


def measure(title: str, runs: dict[str, Callable[[], Any]], rounds: int, base: str, op_type: str) -> None:
    """Print a table; ratios are to the row `base`."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    unit = statistics.median(times[base])
    print(f"\n{title:26} {'time':>10} {'ratio':>8} {'kernels':>8}")
    for name, run in runs.items():
        median = statistics.median(times[name])
        print(f"{name:26} {median * 1e3:7.1f} ms {median / unit:7.2f}x {kernels(run, op_type):8}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    forward, steps, cached = rows(arguments.size)
    print(f"expm of {arguments.size} x {arguments.size}, float64, {USES} uses, TensorFlow {tf.__version__}, {os.cpu_count()} cores")
    measure("forward", forward, arguments.rounds, "gw.cached, eager", "MatrixSolve")
    measure("gradient by W", steps, arguments.rounds, "gw.cached, eager", "MatrixSolve")
    measure("queries to a table", queries(), arguments.rounds, "ours, tf.function", "MatMul")
    print(f"\nkept: {cached.cache_info().nbytes} bytes, of a matrix of {arguments.size**2 * 8}")


if __name__ == "__main__":
    main()
