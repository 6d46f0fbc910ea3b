"""`gw.GradientCache` beside the plain step: peaks, times and differences of loss and gradients of a contrastive loss.

Two encoders, dropout included, and InfoNCE. The plain step at a batch of 16 stands for what fits; then 32 times as many samples, plainly
and through the cache. Each peak is measured in a fresh process; all steps take turns in one process for the times. Differences are those
from the plain step on the same chunks with the same draws, by the largest entry of all gradients.
"""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

SMALL, TIMES = 16, 32
_COLUMNS = ("encoder", "batch", "step", "peak, MiB", "predicted", "time", "largest difference")
MIB = 1 << 20


def images(dtype: str = "float32") -> tuple[Any, tuple[int, ...]]:
    """A small convolutional network, and the shape of a sample."""
    import keras

    layers: list[Any] = []
    for width, stride in ((16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        layers += [
            keras.layers.Conv2D(width, 3, stride, "same", activation="relu", dtype=dtype),
            keras.layers.GroupNormalization(4, dtype=dtype),
        ]
    head = [keras.layers.GlobalAveragePooling2D(dtype=dtype), keras.layers.Dropout(0.1, dtype=dtype), keras.layers.Dense(64, dtype=dtype)]
    return keras.Sequential([keras.Input((32, 32, 3), dtype=dtype), *layers, *head]), (32, 32, 3)


def sequences(dtype: str = "float32") -> tuple[Any, tuple[int, ...]]:
    """A small Transformer over vectors, and the shape of a sample."""
    import keras

    inputs = x = keras.Input((32, 64), dtype=dtype)
    for _ in range(3):
        attended = keras.layers.MultiHeadAttention(4, 16, dropout=0.1, dtype=dtype)(x, x)
        x = keras.layers.LayerNormalization(dtype=dtype)(keras.layers.Add(dtype=dtype)([x, attended]))
        y = keras.layers.Dense(64, dtype=dtype)(keras.layers.Dense(256, "gelu", dtype=dtype)(x))
        y = keras.layers.Dropout(0.1, dtype=dtype)(y)
        x = keras.layers.LayerNormalization(dtype=dtype)(keras.layers.Add(dtype=dtype)([x, y]))
    return keras.Model(inputs, keras.layers.GlobalAveragePooling1D(dtype=dtype)(x)), (32, 64)


ENCODERS = {"6 convolutions, 32x32": images, "3 Transformer blocks, 32x64": sequences}


def table(rounds: int = 5) -> Table:
    """All rows."""
    found = Table(*_COLUMNS, title="gw.GradientCache")
    for name in ENCODERS:
        for row in rows(name, rounds):
            found.add_row(*row)
    return found


def rows(name: str, rounds: int) -> list[list[str]]:
    """The rows of one encoder."""
    import numpy as np
    import tensorflow as tf

    import graphwright as gw

    large = SMALL * TIMES
    encoders, shape, plain, cached = _steps(name, "float32", SMALL)
    random = np.random.default_rng(0)
    inputs = tuple(tf.constant(random.normal(size=(large, *shape)).astype("float32")) for _ in range(2))
    small = tuple(part[:SMALL] for part in inputs)
    told: list[list[str]] = []
    for batch, words, step, given in (
        (SMALL, "plain", plain, small),
        (large, "plain", plain, inputs),
        (large, f"in chunks of {SMALL}", cached, inputs),
        (large, f"in chunks of {4 * SMALL}", _steps(name, "float32", 4 * SMALL, encoders)[3], inputs),
    ):
        peak = gw.measure(step, given, steps=1, time=False).peak_bytes
        predicted = gw.predict_peak(step, inputs=given, order="executor", simulations=2).peak_bytes
        told.append([name, str(batch), words, f"{peak / MIB:.1f}", f"{predicted / MIB:.1f}", "", ""])
    steps = {row[2]: step for row, step in zip(told[1:], (plain, cached, _steps(name, "float32", 4 * SMALL, encoders)[3]), strict=True)}
    timings = gw.measure_many(steps, inputs, steps=rounds)
    for row in told[1:]:
        row[5] = f"{timings[row[2]].ratio:.2f}x"
    told[1][5] += f" ({statistics.median(timings['plain'].times_s):.2f} s)"
    told[2][6] = f"{difference(name):.0e} (float64)"
    return told


def difference(name: str) -> float:
    """In float64, on 3 chunks and a smaller one, with the same dropout."""
    import numpy as np
    import tensorflow as tf

    (query, document), shape, _, cached = _steps(name, "float64", SMALL)
    random = np.random.default_rng(0)
    x, y = (tf.constant(random.normal(size=(3 * SMALL + 5, *shape))) for _ in range(2))
    variables = [*query.trainable_variables, *document.trainable_variables]
    seeds = [v for model in (query, document) for v in model.non_trainable_variables]
    start = [seed.numpy() for seed in seeds]
    found = cached(x, y)[1]
    for seed, value in zip(seeds, start, strict=True):
        seed.assign(value)

    def in_chunks(model: Any, rows: Any) -> Any:
        return tf.concat([model(rows[k : k + SMALL], training=True) for k in range(0, len(rows), SMALL)], 0)

    with tf.GradientTape() as tape:
        loss = info_nce(in_chunks(query, x), in_chunks(document, y))
    wanted = tape.gradient(loss, variables)
    apart = max(float(tf.reduce_max(abs(a - b))) for a, b in zip(found, wanted, strict=True))
    return apart / max(float(tf.reduce_max(abs(b))) for b in wanted)


def info_nce(queries: Any, documents: Any) -> Any:
    """Cross-entropy of each query's own document among all."""
    import tensorflow as tf

    scores = tf.matmul(queries, documents, transpose_b=True)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(scores)[0]), scores))


def _steps(name: str, dtype: str, chunk: int, encoders: Any = None) -> tuple[Any, tuple[int, ...], Any, Any]:
    """Two encoders, the shape of a sample, and the two steps."""
    import keras
    import tensorflow as tf

    import graphwright as gw

    keras.utils.set_random_seed(1)
    made = [ENCODERS[name](dtype) for _ in range(2)]
    query, document = encoders or tuple(model for model, _ in made)
    cache = gw.GradientCache((query, document), info_nce, chunk)

    @tf.function
    def plain(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = info_nce(query(x, training=True), document(y, training=True))
        return loss, tape.gradient(loss, [*query.trainable_variables, *document.trainable_variables])

    @tf.function
    def cached(x: Any, y: Any) -> Any:
        found = cache((x, y))
        return found.loss, found.gradients

    return (query, document), made[0][1], plain, cached


def main() -> None:
    """Print the table."""
    Console(width=140).print(table())
