"""Calls inlined in place compute the same, with the same effects, under the same signatures."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.text import from_text, to_text
from graphwright.transform.inline_calls import inline_calls
from tests.transform.serving import random, serve, traced

pytestmark = pytest.mark.tensorflow

LIBRARY = """
graph "g"
inputs %x:0
outputs %call:0
%x = Placeholder() : float32[2]
%call = PartitionedCall(%x:0) {f = @%s} : float32[2]

function "f"
inputs %a:0
outputs %again:0
%a = _Arg() : float32[2]
%again = PartitionedCall(%a:0) {f = @g} : float32[2]

function "g"
inputs %a:0
outputs %again:0
%a = _Arg() : float32[2]
%again = PartitionedCall(%a:0) {f = @f} : float32[2]
"""


def test_nested_calls_and_a_branch_compute_the_same():
    @tf.function
    def inner(x):
        return tf.nn.relu(x) * 2.0

    def outer(x):
        y = tf.cond(tf.reduce_sum(x) > 0.0, lambda: inner(x), lambda: x)
        return inner(inner(x)) + y, y

    spec = tf.TensorSpec([None, 3], tf.float32, "x")
    graph, original = traced(outer, spec), traced(outer, spec)
    count = inline_calls(graph)
    assert count >= 3
    assert not any(n.op_type.endswith("PartitionedCall") for n in graph)
    assert inline_calls(graph) == 0
    for seed in (0, 1):
        x = random(2, 3, seed=seed)
        for key, value in serve(original, {"x": x}).items():
            np.testing.assert_array_equal(serve(graph, {"x": x})[key], value)


def test_effects_of_a_body_happen_when_its_result_is_fetched(capfd):
    def shout(x):
        tf.print("called", x)
        return x + 1.0

    graph = traced(shout, tf.TensorSpec([], tf.float32, "x"))
    assert inline_calls(graph) == 1
    assert serve(graph, {"x": 2.0})["output_0"] == 3.0
    assert capfd.readouterr().err.count("called 2") == 1


def test_recursion_and_missing_functions_change_nothing():
    for name, kind in (("f", UnsupportedError), ("lost", GraphError)):
        graph = from_text(LIBRARY.replace("%s", name))
        before = to_text(graph)
        with pytest.raises(kind):
            inline_calls(graph)
        assert to_text(graph) == before


def test_a_loop_of_tf1_in_a_function_that_is_called_twice_gets_a_frame_per_call():
    graph = from_text("""
        graph "g"
        inputs %x:0
        outputs %second:0
        %x = Placeholder() : float32[2]
        %first = PartitionedCall(%x:0) {f = @f} : float32[2]
        %between = Relu(%x:0) : float32[2]
        %second = PartitionedCall(%first:0) {f = @f} : float32[2]
        function "f"
        inputs %a:0
        outputs %left:0
        %a = _Arg() : float32[2]
        %entered = Enter(%a:0) {frame_name = "rounds"} : float32[2]
        %left = Exit(%entered:0) : float32[2]
    """)
    assert inline_calls(graph) == 2
    assert {graph[f"{call}/entered"].attrs["frame_name"] for call in ("first", "second")} == {b"first/rounds", b"second/rounds"}
    # A body stands where its call stood.
    assert [node.name for node in graph] == ["x", "first/entered", "first/left", "between", "second/entered", "second/left"]
