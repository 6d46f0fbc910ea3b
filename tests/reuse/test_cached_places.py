"""`gw.cached` where others call it: in each other, in vectorized loops, under tapes of every kind, as methods of objects that go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graphwright as gw


def counts(fn: Any) -> tuple[int, int]:
    info = fn.cache_info()
    return info.hits, info.misses


def test_cached_functions_call_each_other_and_themselves() -> None:
    w, v = tf.Variable(2.0), tf.Variable(3.0)
    inner = gw.cached(lambda: w * w)
    outer = gw.cached(lambda x: inner() * v * x)

    @gw.cached
    def power(n: int) -> Any:
        return tf.constant(1.0) if n == 0 else w * power(n - 1)

    for changed in (w, v, w):
        for _ in range(2):
            assert float(outer(tf.constant(1.0))) == float(w * w * v)
            assert float(power(3)) == float(w**3)
        changed.assign_add(1.0)
    assert counts(outer) == (3, 3)
    assert float(inner()) == float(w * w)
    with tf.GradientTape() as tape:
        y = outer(tf.constant(2.0))
    assert [float(g) for g in tape.gradient(y, [w, v])] == [float(4.0 * w * v), float(2.0 * w * w)]


def test_a_vectorized_loop_evaluates_it_as_it_is_written() -> None:
    w = tf.Variable(3.0)
    fn, constant = gw.cached(lambda x: w * x), gw.cached(lambda: w * w)
    assert tf.vectorized_map(lambda x: fn(x) + constant(), tf.constant([1.0, 2.0])).numpy().tolist() == [12.0, 15.0]
    assert tf.function(lambda x: tf.vectorized_map(fn, x))(tf.constant([1.0, 2.0])).numpy().tolist() == [3.0, 6.0]
    w.assign(4.0)
    assert tf.vectorized_map(fn, tf.constant([1.0, 2.0])).numpy().tolist() == [4.0, 8.0]
    with tf.name_scope("loop_body"):  # of somebody else
        assert float(tf.function(lambda: constant())()) == 16.0
    assert counts(constant) == (0, 1)


@pytest.mark.parametrize("jacobian", [False, True])
def test_a_persistent_tape_around_a_function(jacobian: bool) -> None:
    w, x = tf.Variable([2.0, 3.0]), tf.constant([0.1, 0.2])
    plain = lambda x: tf.sin(w * x) * w[0]  # noqa: E731
    fn, found = gw.cached(plain), []
    for run in (tf.function(lambda x: fn(x)), plain):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = run(x)
        found.append(tape.jacobian(y, [w, x]) if jacobian else tape.gradient(y, [w, x]))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert counts(fn) == (0, 1)


def test_a_tensor_array_in_a_loop_under_a_tape() -> None:
    w = tf.Variable(2.0)

    @gw.cached
    def rows(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, 3)
        for k in tf.range(3):
            array = array.write(k, x * tf.cast(k, tf.float32) * w)
        return array.stack()

    for hits in (0, 1):
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(rows(tf.constant(2.0)))
        assert (float(y), float(tape.gradient(y, w))) == (12.0, 6.0)
        assert counts(rows) == (hits, 1)


class Kernel:
    def __init__(self, scale: float) -> None:
        self.scale = tf.Variable(scale)

    @gw.cached
    def squared(self) -> Any:
        return self.scale**2

    @gw.checkpointed
    def cubed(self, x: Any) -> Any:
        return self.scale**3 * x


@pytest.mark.parametrize("call", [lambda k: k.squared(), lambda k: k.cubed(tf.constant(1.0))])
def test_methods_do_not_keep_their_objects(call: Callable[[Any], Any]) -> None:
    kernel = Kernel(3.0)
    with tf.GradientTape() as tape:
        y = call(kernel)
    assert float(tape.gradient(y, kernel.scale)) in (6.0, 27.0)
    gone = weakref.ref(kernel)
    del kernel, tape, y
    gc.collect()
    assert gone() is None


def test_nothing_is_returned_and_what_is_no_tensor() -> None:
    assert gw.cached(lambda x: None)(tf.constant(1.0)) is None
    with pytest.raises(gw.ArgumentError, match="returns a object, which is no tensor"):
        gw.cached(lambda x: object())(tf.constant(1.0))
    with pytest.raises(gw.ArgumentError, match="'max_bytes'"):
        gw.cached(lambda x: x, max_bytes=0)
    with pytest.raises(gw.UnsupportedError, match="qint8 cannot be kept"):
        gw.cached(tf.identity)(tf.bitcast(tf.constant([1], tf.int8), tf.qint8))
