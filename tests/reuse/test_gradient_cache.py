"""Gradients through a cache of representations are those of the whole batch, to the last digits of float64."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw

SAMPLES, FEATURES = 10, 6


def encoder(*layers: Any, dtype: str = "float64", seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    own = [keras.layers.Dense(8, "tanh", dtype=dtype), *layers, keras.layers.Dense(4, dtype=dtype)]
    return keras.Sequential([keras.Input((FEATURES,), dtype="float64"), *own])


def batch(samples: int = SAMPLES, seed: int = 0) -> Any:
    return tf.constant(np.random.default_rng(seed).normal(size=(samples, FEATURES)))


def info_nce(queries: Any, documents: Any) -> Any:
    scores = tf.matmul(tf.cast(queries, tf.float64), tf.cast(documents, tf.float64), transpose_b=True)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(scores)[0]), scores))


def relative(found: Any, wanted: Any) -> float:
    """The largest difference, by the largest entry of all: the gradient of a bias may be nothing but rounding."""
    pairs = [(tf.convert_to_tensor(f), tf.convert_to_tensor(w)) for f, w in zip(found, wanted, strict=True)]
    return max(float(tf.reduce_max(abs(f - w))) for f, w in pairs) / max(float(tf.reduce_max(abs(w))) for _, w in pairs)


def in_chunks(model: Any, x: Any, size: int) -> Any:
    """The plain forward pass, chunk by chunk: what draws the same dropout, with all residuals kept."""
    return tf.concat([model(x[i : i + size], training=True) for i in range(0, len(x), size)], 0)


def seeds_of(*models: Any) -> list[Any]:
    return [v for model in models for v in model.non_trainable_variables if "seed" in v.name]


@pytest.mark.parametrize(
    ("size", "dropout", "jit"), [(5, True, False), (4, True, False), (4, False, True), (20, False, False), (1, False, False)]
)
def test_gradients_are_those_of_the_whole_batch(size: int, dropout: bool, jit: bool) -> None:
    layers = [keras.layers.Dropout(0.4, dtype="float64", seed=3)] if dropout else []
    query, document = encoder(*layers), encoder(*layers, seed=2)
    x, y = batch(), batch(seed=1)
    variables = [*query.trainable_variables, *document.trainable_variables]
    seeds = seeds_of(query, document)
    start = [seed.numpy() for seed in seeds]
    with tf.GradientTape() as tape:
        loss = info_nce(in_chunks(query, x, size), in_chunks(document, y, size))
    wanted, end = tape.gradient(loss, variables), [seed.numpy() for seed in seeds]
    for seed, value in zip(seeds, start, strict=True):
        seed.assign(value)

    cache = gw.GradientCache((query, document), info_nce, size, jit_compile=jit)
    found = cache((x, y))

    assert [id(v) for v in cache.variables] == [id(v) for v in variables]
    assert abs(float(found.loss - loss)) < 1e-12
    assert relative(found.gradients, wanted) < 1e-12
    np.testing.assert_array_equal([seed.numpy() for seed in seeds], end)
    assert dropout == any((a != b).any() for a, b in zip(start, end, strict=True))


def test_one_shared_encoder_structures_and_a_temperature() -> None:
    """Mappings in and out, an integer output, unequal numbers of samples, an embedding, and a variable of the loss alone."""
    keras.utils.set_random_seed(4)
    table = keras.layers.Embedding(11, 4, dtype="float64")
    table.build()
    temperature = tf.Variable(0.7, dtype=tf.float64)

    def encode(inputs: Any) -> Any:
        return {"vector": tf.reduce_mean(table(inputs["ids"]), 1), "first": inputs["ids"][:, 0]}

    def loss(queries: Any, documents: Any, labels: Any) -> Any:
        scores = tf.matmul(queries["vector"], documents["vector"], transpose_b=True) / temperature
        apart = tf.cast(queries["first"][:, tf.newaxis] != documents["first"], tf.float64)
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores * apart))

    ids = np.random.default_rng(0).integers(0, 11, (12, 3))
    given = {"queries": {"ids": tf.constant(ids[:5])}, "documents": {"ids": tf.constant(ids[5:])}}
    labels = tf.constant([0, 3, 1, 6, 2])
    variables = [table.embeddings, temperature]
    with tf.GradientTape() as tape:
        value = loss(encode(given["queries"]), encode(given["documents"]), labels)
    wanted = tape.gradient(value, [table.embeddings.value, temperature])

    cache = gw.GradientCache(
        {"queries": encode, "documents": encode},
        lambda both, labels: loss(both["queries"], both["documents"], labels),
        3,
        variables=variables,
    )
    found = tf.function(cache)(given, labels)
    assert relative(found.gradients, wanted) < 1e-12
    assert found.representations["documents"]["vector"].shape == (7, 4)
    assert float(cache.forward(given, labels).loss) == pytest.approx(float(value), rel=1e-12)


def test_the_generators_of_tensorflow_are_replayed() -> None:
    generator = tf.random.Generator.from_seed(5)
    weight = tf.Variable(np.eye(FEATURES))
    x = batch()

    def noisy(rows: Any) -> Any:
        return tf.matmul(rows + generator.normal(tf.shape(rows), dtype=tf.float64), weight)

    def loss(rows: Any) -> Any:
        return tf.reduce_sum(tf.matmul(rows, rows, transpose_b=True) ** 3)

    found = gw.GradientCache(noisy, loss, 4)(x)
    end = generator.state.numpy()
    generator.reset_from_seed(5)
    with tf.GradientTape() as tape:
        value = loss(tf.concat([noisy(x[:4]), noisy(x[4:8]), noisy(x[8:])], 0))
    assert relative(found.gradients, tape.gradient(value, [weight])) < 1e-12
    np.testing.assert_array_equal(end, generator.state.numpy())


def squares(rows: Any) -> Any:
    return tf.reduce_sum(tf.matmul(rows, rows, transpose_b=True))


WEIGHT = tf.Variable(np.ones((FEATURES, 2)))
COUNTER = tf.Variable(0)


def counted(x: Any) -> Any:
    COUNTER.assign_add(1)
    return x @ WEIGHT


def regularized() -> Any:
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(2, activity_regularizer="l2")])


@pytest.mark.parametrize(
    ("encode", "words"),
    [
        (lambda: encoder(keras.layers.BatchNormalization(dtype="float64")), "statistics of a chunk"),
        (lambda: lambda x: tf.nn.dropout(x, 0.5) @ WEIGHT, "counts its calls itself"),
        (lambda: counted, "changes the variable"),
        (lambda: lambda x: (x - tf.reduce_mean(x, 0)) @ WEIGHT, "cannot be shown"),
        (lambda: lambda x: tf.nn.softmax(x @ tf.transpose(x)) @ (x @ WEIGHT), "cannot be shown"),
        (lambda: lambda x: tf.sort(x, 0) @ WEIGHT, "cannot be shown"),
        (regularized, "losses of its own"),
    ],
)
def test_what_is_not_the_same_in_chunks_is_refused(encode: Any, words: str) -> None:
    with pytest.raises(gw.UnsupportedError, match=words):
        gw.GradientCache(encode(), squares, 4)(batch())


def test_frozen_batch_normalization_and_what_is_taken_on_trust() -> None:
    normalize = keras.layers.BatchNormalization(dtype="float64", trainable=False)
    assert gw.GradientCache(encoder(normalize), squares, 4)(batch()).gradients[0] is not None
    own = gw.GradientCache(lambda x: tf.sort(x, 0) @ WEIGHT, squares, 10, assume_independent=True)
    assert own(batch()).gradients[0] is not None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gw.GradientCache(3, squares, 4), "in place of an encoder"),
        (lambda: gw.GradientCache(encoder(), 3, 4), "in place of a loss"),
        (lambda: gw.GradientCache(encoder(), squares, 0), "chunk_size=0"),
        (lambda: gw.GradientCache((encoder(), encoder()), squares, {"a": 1}), "chunk_size="),
        (lambda: gw.GradientCache(encoder(), squares, 4).variables, "first call"),
        (lambda: gw.GradientCache(encoder(), lambda rows: rows, 4)(batch()), "one real number"),
        (lambda: gw.GradientCache(encoder(), lambda rows: tf.constant(1.0), 4)(batch()), "does not depend"),
        (lambda: gw.GradientCache(lambda x: tf.reduce_sum(x @ WEIGHT), squares, 4)(batch()), "for 4 samples the encoder gives"),
        (lambda: gw.GradientCache((encoder(), encoder()), squares, 4)(batch()), "structure of the encoders"),
        (lambda: gw.GradientCache(lambda x: x[0], squares, 4)((batch(3), batch(4))), "different numbers of samples"),
        (lambda: gw.GradientCache(encoder(), squares, 4)(batch(0)), "no samples"),
    ],
)
def test_what_is_wrong_is_told(call: Any, words: str) -> None:
    with pytest.raises(gw.ArgumentError, match=words):
        call()


def test_fit_takes_the_steps_of_a_plain_loop() -> None:
    """Two models from the same weights: one by `fit`, one by a loop over whole batches."""
    ours, plain = (encoder(keras.layers.Dropout(0.0, dtype="float64")) for _ in range(2))
    x, y = batch(16).numpy(), batch(16, seed=1).numpy()
    model = gw.GradientCache((ours, ours), info_nce, 3).model()
    model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    history = model.fit((x, y), batch_size=8, epochs=2, shuffle=False, verbose=0)
    optimizer = keras.optimizers.SGD(0.1)
    losses = []
    for k in (0, 8, 0, 8):
        with tf.GradientTape() as tape:
            loss = info_nce(plain(x[k : k + 8], training=True), plain(y[k : k + 8], training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, plain.trainable_variables), plain.trainable_variables, strict=True))
        losses.append(float(loss))
    assert relative([v.value for v in ours.trainable_variables], [v.value for v in plain.trainable_variables]) < 1e-6  # rates are float32
    np.testing.assert_allclose(history.history["loss"], np.mean(np.reshape(losses, (2, 2)), 1), rtol=1e-6)
    assert model.evaluate((x, y), batch_size=16, verbose=0) == pytest.approx(float(info_nce(ours(x), ours(y))), rel=1e-6)
    assert [rows.shape for rows in model.predict((x, y), verbose=0)] == [(16, 4), (16, 4)]


@pytest.mark.slow
def test_mixed_precision_scales_the_loss() -> None:
    keras.utils.set_random_seed(1)
    policy = keras.DTypePolicy("mixed_float16")
    half = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(8, "tanh", dtype=policy), keras.layers.Dense(4, dtype=policy)])
    model = gw.GradientCache((half, half), info_nce, 3).model()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=1024.0)
    model.compile(optimizer)
    x, y = batch(16).numpy().astype(np.float32), batch(16, seed=1).numpy().astype(np.float32)
    history = model.fit((x, y), batch_size=8, epochs=8, verbose=0, shuffle=False).history["loss"]
    assert history[-1] < history[0]
    assert int(optimizer.step_counter) == 16
    assert all(np.isfinite(v.numpy()).all() for v in half.trainable_variables)


def test_the_peak_is_that_of_a_chunk() -> None:
    """With the whole batch in one chunk the residuals of all samples are there at once; in eight, an eighth of them."""
    keras.utils.set_random_seed(1)
    deep = keras.Sequential([keras.Input((64,)), *[keras.layers.Dense(256, "tanh") for _ in range(10)], keras.layers.Dense(8)])
    x = tf.zeros((2048, 64))
    peaks = [
        gw.predict_peak(tf.function(gw.GradientCache(deep, squares, size)), inputs=(x,), order="executor").peak_bytes
        for size in (2048, 256)
    ]
    residuals = 10 * 2048 * 256 * 4
    assert peaks[0] - peaks[1] > 0.7 * residuals


@pytest.mark.slow
def test_two_replicas_take_the_steps_of_the_global_batch() -> None:
    program = Path(__file__).with_name("two_replicas.py")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["moved"] > 1e-3  # the temperature
    assert found["weights"] < 1e-7
    assert found["losses"] < 1e-6
