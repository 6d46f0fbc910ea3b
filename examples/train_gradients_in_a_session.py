"""How do I save memory in code of TF1 that calls `tf.gradients`?

The graph is built as before; `gw.gradients` replaces `tf.gradients`. The peak of a step is read from TensorFlow's own
records. Needs `pip install "graphwright[cpu]"`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import graphwright as gw
from graphwright.run.step_stats import read_memory

v1: Any = tf.compat.v1


def build(depth: int = 24, width: int = 256) -> tuple[Any, list[Any]]:
    """A deep network on a batch of noise, and its weights."""
    hidden = v1.random.stateless_normal((2048, width), seed=(1, 2))
    weights = []
    for k in range(depth):
        start = np.random.default_rng(k).normal(0, width**-0.5, (width, width)).astype(np.float32)
        weights.append(v1.get_variable(f"w{k}", initializer=start, use_resource=True))
        hidden = tf.tanh(tf.nn.dropout(hidden @ weights[-1], 0.1, seed=k))
    return tf.reduce_mean(hidden**2), weights


def run(checkpoints: str | None) -> tuple[float, float]:
    """Return the peak of a step in MiB, without variables, and the loss after three steps."""
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(0)
        loss, weights = build()
        gradients = tf.gradients(loss, weights) if checkpoints is None else gw.gradients(loss, weights, checkpoints=checkpoints)
        train = v1.train.GradientDescentOptimizer(0.5).apply_gradients(zip(gradients, weights, strict=True))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(3):
                value, _ = session.run([loss, train])
            metadata = v1.RunMetadata()
            session.run(train, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), run_metadata=metadata)
    tracks = read_memory(metadata.step_stats, 0)
    return sum(track.peak_bytes - track.resident_bytes for track in tracks) / 2**20, float(value)


def main() -> None:
    for checkpoints in (None, "speed", "memory"):
        peak, loss = run(checkpoints)
        print(f"{checkpoints or 'tf.gradients':>12}: {peak:6.1f} MiB, loss {loss:.6f}")


if __name__ == "__main__":
    main()
