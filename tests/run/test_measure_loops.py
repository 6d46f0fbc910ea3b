"""Trip counts by one run, which changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from graphwright.run.measure_loops import measure_trip_counts  # noqa: E402
from graphwright.source.attributes import constant_array  # noqa: E402
from graphwright.source.concrete_function import from_concrete_function  # noqa: E402
from graphwright.transform.inline_calls import inline_functions  # noqa: E402

pytestmark = pytest.mark.tensorflow


def measured(step: Any, *arguments: Any) -> dict[str, int]:
    function = tf.function(step).get_concrete_function(*arguments)
    graph, binding = from_concrete_function(function)
    graph = inline_functions(graph)
    loops = [n.name for n in graph if n.op_type in ("While", "StatelessWhile")]
    assert loops
    return dict(measure_trip_counts(graph, binding, arguments, loops, constant_array))


def test_a_loop_is_counted_by_its_counter():
    def step(x, limit):
        return tf.while_loop(lambda y: y < limit, lambda y: (2 * y,), (x,), name="doubling")

    assert list(measured(step, tf.constant(1.0), tf.constant(1000.0)).values()) == [10]
    assert list(measured(step, tf.constant(5.0), tf.constant(1.0)).values()) == [0]


def test_a_loop_that_writes_a_variable_is_not_run():
    total = tf.Variable(0.0)

    def step(x):
        def body(y):
            total.assign_add(y)
            return (2 * y,)

        return tf.while_loop(lambda y: y < 100.0, body, (x,))

    assert measured(step, tf.constant(1.0)) == {}
    assert total.numpy() == 0.0


def test_captured_variables_are_read():
    limit = tf.Variable(50.0)
    assert list(measured(lambda x: tf.while_loop(lambda y: y < limit, lambda y: (2 * y,), (x,)), tf.constant(1.0)).values()) == [6]
