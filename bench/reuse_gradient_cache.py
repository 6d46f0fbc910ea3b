"""`gw.GradientCache` compared with the plain step: peaks, times and differences of loss and gradients of a contrastive loss.

Two towers with dropout, and InfoNCE. A plain step with a batch of 16 fits; then 32 times as many samples by the plain step, through the
cache, and by hand (compiled functions of a chunk, called in a Python loop). Each peak is measured in a fresh process. For times, all steps
take turns in one process: processor time of all threads, and wall time, each as the median ratio to the plain step of the same turn.
"least" is a lower bound for every gradient cache: 1 plus the measured share of the forward pass in the plain step. Spinning threads count
as busy. Differences are from the plain step on the same chunks with the same random draws, relative to the largest entry of all gradients.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

SMALL, TIMES = 16, 32
_COLUMNS = ("encoder", "batch", "step", "peak, MiB", "predicted", "processor", "clock", "least", "largest difference")
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


def sequences(dtype: str = "float32", blocks: int = 3, tokens: int = 32, width: int = 64) -> tuple[Any, tuple[int, ...]]:
    """A Transformer over vectors, and the shape of a sample."""
    import keras

    inputs = x = keras.Input((tokens, width), dtype=dtype)
    for _ in range(blocks):
        attended = keras.layers.MultiHeadAttention(4, width // 4, dropout=0.1, dtype=dtype)(x, x)
        x = keras.layers.LayerNormalization(dtype=dtype)(keras.layers.Add(dtype=dtype)([x, attended]))
        y = keras.layers.Dense(width, dtype=dtype)(keras.layers.Dense(4 * width, "gelu", dtype=dtype)(x))
        y = keras.layers.Dropout(0.1, dtype=dtype)(y)
        x = keras.layers.LayerNormalization(dtype=dtype)(keras.layers.Add(dtype=dtype)([x, y]))
    return keras.Model(inputs, keras.layers.GlobalAveragePooling1D(dtype=dtype)(x)), (tokens, width)


def wide_sequences(dtype: str = "float32") -> tuple[Any, tuple[int, ...]]:
    """Blocks as wide as in a small BERT, whose products keep two processors busy with a chunk."""
    return sequences(dtype, blocks=2, tokens=16, width=256)


ENCODERS = {"6 convolutions, 32x32": images, "3 Transformer blocks, 32x64": sequences, "2 Transformer blocks, 16x256": wide_sequences}


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
        predicted = gw.predict_peak(step, inputs=given, order="executor").peak_bytes
        told.append([name, str(batch), words, f"{peak / MIB:.1f}", f"{predicted / MIB:.1f}", *[""] * 4])
    found = times(name, inputs, rounds, encoders)
    for row in told[1:]:
        row[5:8] = found[row[2]]
    told[2][8] = f"{difference(name):.0e} (float64)"
    return [*told, [name, str(large), "by hand", "", "", *found["by hand"], ""]]


def times(name: str, inputs: Any, rounds: int, encoders: Any = None) -> dict[str, tuple[str, str, str]]:
    """Return processor and wall time of each step as multiples of the plain step's, and the lower bound of a cache.

    Args:
        name: of the encoders.
        inputs: of both, the whole batch.
        rounds: turns that count.
        encoders: both, where they were made.
    """
    import numpy as np
    import tensorflow as tf

    encoders, _, plain, cached = _steps(name, "float32", SMALL, encoders)
    in_fours = _steps(name, "float32", 4 * SMALL, encoders)[3]
    forward = tf.function(lambda x, y: info_nce(encoders[0](x, training=True), encoders[1](y, training=True)))
    manual = by_hand(encoders, SMALL)
    steps = {"plain": plain, f"in chunks of {SMALL}": cached, f"in chunks of {4 * SMALL}": in_fours, "by hand": manual}
    spent = _turns({how: lambda step=step: step(*inputs) for how, step in (steps | {"forward": forward}).items()}, rounds)
    base = spent["plain"]
    least = 1 + float(np.median(spent["forward"][:, 0] / base[:, 0]))
    found: dict[str, tuple[str, str, str]] = {}
    for how in steps:
        processor, clock = np.median(spent[how] / base, 0)
        absolute = tuple(f" ({seconds:.2f} s)" if how == "plain" else "" for seconds in np.median(spent[how], 0))
        found[how] = (f"{processor:.2f}x{absolute[0]}", f"{clock:.2f}x{absolute[1]}", "" if how == "plain" else f"{least:.2f}x")
    return found


def _turns(steps: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """Return, per step and turn, processor time of all threads and wall time. Each turn has another order; the first does not count."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    found: dict[str, list[tuple[float, float]]] = {how: [] for how in steps}
    for turn in range(rounds + 1):
        for how in random.permutation(list(steps)):
            processor, clock = time.process_time(), time.perf_counter()
            tf.nest.flatten(steps[how]())[0].numpy()
            if turn:
                found[how].append((time.process_time() - processor, time.perf_counter() - clock))
    return {how: np.array(spent) for how, spent in found.items()}


def by_hand(encoders: tuple[Any, Any], chunk: int) -> Callable[[Any, Any], Any]:
    """The same loss and gradients without graphwright: dropout states are saved for each chunk and restored."""
    import tensorflow as tf

    encode = {model: tf.function(lambda rows, model=model: model(rows, training=True)) for model in encoders}

    def pulled(model: Any) -> Any:
        def pull(rows: Any, cotangent: Any) -> Any:
            with tf.GradientTape() as tape:
                found = model(rows, training=True)
            return tape.gradient(found, model.trainable_variables, output_gradients=cotangent)

        return tf.function(pull)

    pull = {model: pulled(model) for model in encoders}

    def step(*inputs: Any) -> Any:
        states: list[list[list[Any]]] = []
        whole: list[Any] = []
        for model, rows in zip(encoders, inputs, strict=True):
            kept: list[list[Any]] = []
            parts: list[Any] = []
            for k in range(0, len(rows), chunk):
                kept.append([seed.numpy() for seed in model.non_trainable_variables])
                parts.append(encode[model](rows[k : k + chunk]))
            states.append(kept)
            whole.append(tf.concat(parts, 0))
        with tf.GradientTape() as tape:
            tape.watch(whole)
            loss = info_nce(*whole)
        gradients: list[Any] = []
        for model, rows, kept, cotangents in zip(encoders, inputs, states, tape.gradient(loss, whole), strict=True):
            sums: list[Any] = []
            for values, k in zip(kept, range(0, len(rows), chunk), strict=True):
                for seed, value in zip(model.non_trainable_variables, values, strict=True):
                    seed.assign(value)
                found = pull[model](rows[k : k + chunk], cotangents[k : k + chunk])
                sums = found if not sums else [a + b for a, b in zip(sums, found, strict=True)]
            gradients += sums
        return loss, gradients

    return step


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
    """Print the table, and the load of the machine."""
    Console(width=150).print(table())
    print(f"processors: {os.cpu_count()}; runnable processes over 1, 5 and 15 minutes: {os.getloadavg()}")
