"""Which calls of an optimized step run the same function."""

from __future__ import annotations

import tensorflow as tf

from graphwright.step.signatures import signature_of, signature_of_shapes
from graphwright.step.targets import trace


def test_shapes_and_dtypes_of_tensors_and_values_of_the_rest() -> None:
    ones = tf.ones((2, 3))
    assert signature_of((ones, 1), {}) == signature_of((tf.zeros((2, 3)), 1), {})
    others = [(tf.ones((3, 2)), 1), (tf.cast(ones, tf.float64), 1), (ones, 2), (ones, True), (ones, 1.0), (ones, None)]
    assert len({signature_of(args, {}) for args in ((ones, 1), *others)}) == 1 + len(others)
    assert signature_of((), {"x": ones, "y": 1}) == signature_of((), {"y": 1, "x": ones})
    assert signature_of((), {"x": ones}) != signature_of((ones,), {})
    assert len({signature_of(({"a": ones},), {}), signature_of(({"b": ones},), {}), signature_of(([ones],), {})}) == 3


def test_what_counts_as_a_tensor_may_be_told() -> None:
    one, other = tf.Variable(1.0), tf.Variable(1.0)
    assert signature_of((one,), {}) == signature_of((other,), {})
    assert signature_of((one,), {}, tensor_types=(tf.Tensor,)) != signature_of((other,), {}, tensor_types=(tf.Tensor,))


def test_sparse_tensors_count_by_their_parts() -> None:
    def sparse(count: int) -> tf.SparseTensor:
        return tf.SparseTensor(tf.zeros((count, 2), tf.int64), tf.ones(count), (5, 5))

    assert signature_of((sparse(2),), {}) == signature_of((sparse(2),), {}) != signature_of((sparse(3),), {})


def test_extension_types_count_by_their_constants() -> None:
    class Scaled(tf.experimental.ExtensionType):
        values: tf.Tensor
        by: int

    def key(count: int, by: int) -> object:
        return signature_of((Scaled(tf.ones(count), by),), {})

    assert key(2, 1) == key(2, 1)
    assert len({key(2, 1), key(2, 3), key(3, 1)}) == 3


def test_an_object_is_equal_to_itself_alone_even_when_it_is_gone() -> None:
    class Thing:
        pass

    thing = Thing()
    assert signature_of((thing,), {}) == signature_of((thing,), {})
    keys = {signature_of((Thing(),), {}) for _ in range(100)}  # without a hold on them, they would share ids
    assert len(keys) == 100


def test_shapes_alone_are_the_key_of_a_later_call() -> None:
    step = tf.function(lambda x, y: x + y)
    target = trace(step, feeds={"x": (2, 3), "y": (3,)})
    assert signature_of_shapes(target) == signature_of((tf.ones((2, 3)), tf.ones(3)), {})
