"""Grappler's own estimate; fails loudly when TensorFlow moves its private module."""

from __future__ import annotations

import tensorflow as tf

from bench.grappler_estimate import grappler_peak_bytes


def test_the_estimate_grows_with_the_batch_and_takes_an_unknown_one_for_one() -> None:
    step = tf.function(lambda x: tf.nn.relu(x @ tf.ones([256, 256])) * 2.0)
    large, one = (grappler_peak_bytes(step.get_concrete_function(tf.TensorSpec([n, 256]))) for n in (4096, 1))
    unknown = grappler_peak_bytes(step.get_concrete_function(tf.TensorSpec([None, 256])))
    assert large > 4096 * 256 * 4
    assert unknown == one
    assert one < large / 4
