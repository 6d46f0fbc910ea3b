"""`gw.jacobian` equals `tf.GradientTape.jacobian`, and keeps the peak that it is told."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw


def draw(*shape: int, seed: int = 0) -> Any:
    return tf.constant(np.random.default_rng(seed).normal(size=shape))


def by_tape(function: Any, *inputs: Any) -> list[Any]:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        outputs = tf.nest.flatten(function(*inputs))
    return [part for output in outputs for part in tape.jacobian(output, inputs)]


def mix(x: Any, y: Any) -> Any:
    return {"product": tf.tanh(x @ y), "sum": tf.reduce_sum(x**2, 1), "only y": tf.cumsum(y[:, 0])}


@pytest.mark.parametrize(
    ("mode", "chunk"), [("reverse", 4), ("reverse", 1), ("reverse", 100), ("forward", 5), ("forward", 1), ("auto", None)]
)
def test_it_is_the_jacobian_of_the_tape(mode: Any, chunk: int | None) -> None:
    x, y = draw(3, 4), draw(4, 2, seed=1)
    wanted = by_tape(mix, x, y)
    for found in (
        gw.jacobian(mix, (x, y), mode=mode, chunk=chunk),
        tf.function(lambda x, y: gw.jacobian(mix, (x, y), mode=mode, chunk=chunk))(x, y),
    ):
        assert list(found) == ["product", "sum", "only y"]
        for own, other in zip([part for name in sorted(found) for part in found[name]], wanted, strict=True):
            assert (own is None) == (other is None)
            if own is not None:
                assert own.shape == other.shape
                np.testing.assert_allclose(own, other, rtol=1e-12, atol=1e-13)


def test_with_respect_to_variables() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(3)])
    x = tf.cast(draw(7, 5), tf.float32)
    with tf.GradientTape() as tape:
        outputs = model(x)
    wanted = tape.jacobian(outputs, [v.value for v in model.trainable_variables])
    found = gw.jacobian(model, x, sources=model.trainable_variables, chunk=4)
    for own, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


def test_one_input_rows_of_an_embedding_and_half_precision() -> None:
    table = draw(6, 3)
    found = gw.jacobian(lambda t: tf.reduce_sum(tf.gather(t, [1, 1, 4]) ** 2, 1), table, chunk=2, mode="reverse")
    np.testing.assert_allclose(found, by_tape(lambda t: tf.reduce_sum(tf.gather(t, [1, 1, 4]) ** 2, 1), table)[0], rtol=1e-12)
    half = tf.cast(draw(4), tf.float16)
    assert gw.jacobian(tf.sin, half, chunk=3).dtype == tf.float16
    np.testing.assert_allclose(tf.linalg.diag_part(gw.jacobian(tf.sin, half, chunk=3)), tf.cos(half), rtol=2e-3)


def test_the_cheaper_mode() -> None:
    wide, tall = draw(30, 4), draw(4, 30)
    plan = gw.plan_jacobian(lambda x: tf.tanh(tf.linalg.matvec(wide, x)), draw(4))
    assert (plan.mode, plan.rows, plan.columns) == ("forward", 30, 4)
    assert plan.flops["forward"] < plan.flops["reverse"]
    assert gw.plan_jacobian(lambda x: tf.tanh(tf.linalg.matvec(tall, x)), draw(30)).mode == "reverse"


WEIGHT = tf.constant(np.eye(64) * 0.9)


def deep(x: Any) -> Any:
    """What rows are computed with is many times the Jacobian."""
    for _ in range(6):
        x = tf.tanh(tf.concat([x, x, x, x], 0) @ WEIGHT)[: x.shape[0]]
    return tf.reduce_sum(x, 1)


def test_a_peak_that_cannot_be_kept() -> None:
    with pytest.raises(gw.InfeasibleError, match="one at a time takes"):
        gw.plan_jacobian(tf.tanh, draw(12), mode="reverse", peak=1000)


@pytest.mark.slow
def test_the_chunk_keeps_the_peak() -> None:
    x = draw(48, 64)
    plans = [gw.plan_jacobian(deep, x, mode="reverse", peak=peak) for peak in ("100%", "60%", 0.3)]
    assert plans[0].chunk == 48
    assert plans[0].chunk > plans[1].chunk > plans[2].chunk >= 1
    assert plans[0].peak_bytes is not None
    assert all((plan.peak_bytes or 0) <= share * plans[0].peak_bytes for plan, share in zip(plans, (1.0, 0.6, 0.3), strict=True))
    step = tf.function(lambda x: gw.jacobian(deep, x, peak="60%"))  # planned while it is traced
    np.testing.assert_allclose(step(x), by_tape(deep, x)[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gw.jacobian(3, draw(2)), "cannot be called"),
        (lambda: gw.jacobian(lambda x: x, tf.constant([1, 2])), "type int32"),
        (lambda: gw.jacobian(lambda x: tf.cast(x, tf.complex128), draw(2)), "real and imaginary"),
        (lambda: gw.jacobian(lambda x: tf.cast(x, tf.int32), draw(2)), "type int32"),
        (lambda: gw.jacobian(lambda x: tf.boolean_mask(x, x > 0), draw(2)), "shape"),
        (lambda: gw.jacobian(lambda x: (), draw(2)), "gives nothing"),
        (lambda: gw.jacobian(lambda x: x, ()), "nothing to take"),
        (lambda: gw.jacobian(lambda x: x, draw(2), sources=[draw(2)]), "variables"),
        (lambda: gw.jacobian(lambda x: x, draw(2), chunk=0), "chunk=0"),
        (lambda: gw.jacobian(lambda x: x, draw(2), chunk=1, peak=0.5), "one of the two"),
        (lambda: gw.jacobian(lambda x: x, draw(2), mode="sideways"), "mode="),
        (lambda: gw.jacobian(lambda x: x, draw(2), peak=2.0), "budget|share|whole"),
    ],
)
def test_what_is_wrong_is_told(call: Any, words: str) -> None:
    with pytest.raises(gw.ArgumentError, match=words):
        call()


@pytest.mark.parametrize("traced", [False, True])
def test_a_loss_of_derivatives_has_gradients(traced: bool) -> None:
    """Outside of a `tf.function` they were None: no tape saw what was computed."""
    w, x = tf.Variable([[0.5, 2.0], [1.0, -1.0]]), tf.constant([0.1, 0.2])

    def loss(jacobian: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(jacobian(lambda x: tf.sin(tf.linalg.matvec(w, x)), x) ** 2)
        return tape.gradient(y, [w, x])

    def plain(fn: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = fn(x)
        return tape.jacobian(y, x)

    for mode in ("forward", "reverse"):
        ours = lambda: loss(lambda fn, x: gw.jacobian(fn, x, mode=mode))  # noqa: B023, E731
        for a, b in zip((tf.function(ours) if traced else ours)(), loss(plain), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_nothing_to_differentiate_and_what_is_no_tensor() -> None:
    for mode in ("auto", "forward", "reverse"):
        assert gw.jacobian(lambda x: x * 2.0, tf.zeros([0]), mode=mode).shape == (0, 0)
        assert gw.jacobian(lambda x: x[:0], tf.ones([3]), mode=mode).shape == (0, 3)
    with pytest.raises(gw.ArgumentError, match="a RaggedTensor is no dense tensor"):
        gw.jacobian(lambda x: x, tf.ragged.constant([[1.0], [2.0, 3.0]]))
    with pytest.raises(gw.ArgumentError, match="a NoneType is no dense tensor"):
        gw.jacobian(lambda x: None, tf.ones([3]))


def test_a_loop_that_autograph_cannot_see() -> None:
    scope: dict[str, Any] = {"tf": tf}
    exec("def function(x):\n    for _ in tf.range(3): x = tf.tanh(x)\n    return x\n", scope)
    for function in (scope["function"], tf.autograph.experimental.do_not_convert(lambda x: next(x for _ in tf.range(2)))):
        with pytest.raises(gw.UnsupportedError, match="AutoGraph cannot convert"):
            gw.jacobian(function, tf.ones(3))
