"""What XLA lays out; fails loudly when TensorFlow moves a private module."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from graphwright.errors import UnsupportedError
from graphwright.run.xla_memory import xla_memory

MIB = 1 << 20


def test_arguments_results_and_what_lies_between() -> None:
    weights = tf.Variable(tf.ones((512, 512)))

    def step(x: Any) -> Any:
        first = tf.matmul(x, weights, name="first")
        second = tf.matmul(first, weights, name="second")
        weights.assign_sub(tf.matmul(first, second, transpose_a=True, name="third"))
        return tf.reduce_sum(second)

    memory = xla_memory(tf.function(step).get_concrete_function(tf.TensorSpec((512, 512))), [(512, 512)])
    assert memory.argument_bytes == 2 * MIB
    assert memory.output_bytes < 100  # the new weights lie where the old ones did
    assert 2 * MIB <= memory.temporary_bytes <= 3 * MIB
    assert memory.peak_bytes == memory.argument_bytes + memory.output_bytes + memory.temporary_bytes + memory.constant_bytes
    assert {"first", "second"} <= {buffer.name for buffer in memory.live}
    assert [buffer.nbytes for buffer in memory.live] == sorted((buffer.nbytes for buffer in memory.live), reverse=True)


def test_a_step_that_xla_cannot_compile() -> None:
    step = tf.function(lambda x: tf.strings.length(tf.strings.as_string(x)))
    with pytest.raises(UnsupportedError, match="XLA cannot compile"):
        xla_memory(step.get_concrete_function(tf.TensorSpec((4,))), [(4,)])
