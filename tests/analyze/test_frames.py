"""Loops and conditionals of TF1: how often each node runs."""

from __future__ import annotations

import math

import pytest

tf = pytest.importorskip("tensorflow")

from graphwright.analyze.flop_execution import execute  # noqa: E402
from graphwright.analyze.frames import count_frames, counters_of_frames  # noqa: E402
from graphwright.ir.graph import Graph  # noqa: E402
from graphwright.ir.walk import topological_order  # noqa: E402
from graphwright.source.attributes import constant_array  # noqa: E402
from graphwright.source.graph_def import from_graph_def  # noqa: E402

pytestmark = pytest.mark.tensorflow

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def _control_flow_of_tf1():
    before = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    yield
    if before:
        v1.enable_control_flow_v2()


def number(value):
    array = constant_array(value)
    return array.item() if array is not None and array.size == 1 else None


def built(make) -> Graph:
    with tf.Graph().as_default() as graph:
        make()
    return from_graph_def(graph.as_graph_def(add_shapes=True))


def times(graph: Graph, measured: dict[str, int] | None = None) -> dict[str, float]:
    return {node.name: often for node, often in count_frames(topological_order(graph), number, measured).times.items()}


def test_the_body_runs_once_per_iteration_and_the_condition_once_more():
    graph = built(lambda: v1.while_loop(lambda i: i < 7, lambda i: tf.add(i, 1, name="body"), [0], name="loop"))
    runs = times(graph)
    assert runs["loop/body"] == 7
    assert runs["loop/Less"] == runs["loop/Merge"] == 8
    assert runs["loop/Exit"] == runs["loop/Const" if "loop/Const" in runs else "loop/Exit"] == 1


def test_frames_in_frames_multiply():
    def make():
        def body(i):
            inner = v1.while_loop(lambda j: j < 3, lambda j: tf.add(j, 1, name="inner"), [0], name="inner_loop")
            return i + 1 + 0 * inner

        v1.while_loop(lambda i: i < 5, body, [0], name="loop")

    runs = times(built(make))
    assert runs["loop/inner_loop/inner"] == 15
    assert runs["loop/inner_loop/Less"] == 5 * 4


def test_a_bound_that_another_loop_gives():
    """The number that leaves the first loop is known to the second."""

    def make():
        first = v1.while_loop(lambda i: i < 40, lambda i: i + 4, [0], name="first")
        v1.while_loop(lambda i: i < first // 10, lambda i: tf.add(i, 1, name="body"), [0], name="second")

    runs = times(built(make))
    assert runs["second/body"] == 4


def test_the_rounds_of_a_condition_on_data_are_unknown_unless_measured():
    def make():
        x = v1.placeholder(tf.int32, (), name="x")
        v1.while_loop(lambda i: i < x, lambda i: tf.add(i, 1, name="body"), [0], name="loop")

    graph = built(make)
    counts = count_frames(topological_order(graph), number)
    (name, trip), *others = counts.trips.items()
    assert not others
    assert trip.kind == "unknown"
    assert math.isnan(times(graph)["loop/body"])
    assert times(graph, {name: 9})["loop/body"] == 9
    assert list(counters_of_frames(topological_order(graph), number)) == [name]


def test_what_runs_on_one_side_of_a_conditional():
    def make():
        x = v1.placeholder(tf.float32, (4,), name="x")
        chosen = v1.cond(x[0] > 0, lambda: tf.tanh(x, name="large"), lambda: tf.exp(tf.exp(x), name="small"), name="choice")
        tf.identity(chosen, name="out")

    graph = built(make)
    counts = count_frames(topological_order(graph), number)
    sides = {node.name: {side for _, side in taken} for node, taken in counts.sides.items()}
    assert sides["choice/large"] == {1}
    assert sides["choice/small"] == {0}
    assert "out" not in sides
    assert "choice/Merge" not in sides
    execution = execute(graph, constant_array)
    assert [*execution.branches.values()] == [(8.0, 4.0)]
    assert not execution.times[graph["choice/large"]]
    assert execution.times[graph["choice/small"]]


def test_a_constant_predicate_chooses():
    def choice():
        v1.cond(tf.constant(True), lambda: tf.tanh([1.0], name="large"), lambda: tf.exp([1.0], name="small"), name="choice")

    graph = built(choice)
    execution = execute(graph, constant_array)
    assert not execution.branches
    assert execution.times[graph["choice/large"]]
    assert not execution.times[graph["choice/small"]]
