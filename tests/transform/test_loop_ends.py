"""What reads a loop waits until the whole loop is over."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import graphwright as gw  # noqa: E402
from graphwright.ir.graph import Graph, Node  # noqa: E402
from graphwright.ir.traits.control_flow import LOOPS  # noqa: E402
from graphwright.ir.verify import verify as verify_graph  # noqa: E402
from graphwright.memory.planning import follow_schedule, map_tasks  # noqa: E402
from graphwright.plan.model import Schedule  # noqa: E402
from graphwright.run.verify import verify  # noqa: E402
from graphwright.step.flatten import flatten  # noqa: E402
from graphwright.transform.loop_ends import wait_for_loop_ends  # noqa: E402

pytestmark = pytest.mark.tensorflow


@tf.function
def rows(x: Any) -> Any:
    """Sums of running products of the rows, twice over, as two recurrent layers do it; a loop in a loop makes each row."""
    for _ in range(2):
        states = tf.TensorArray(tf.float32, size=8, element_shape=[512])

        def row(k: Any, state: Any, states: Any, x: Any = x) -> Any:
            _, state = tf.while_loop(lambda i, _: i < 2, lambda i, s: (i + 1, tf.tanh(s + x[k])), (0, state))
            return k + 1, state, states.write(k, state)

        x = tf.tanh(tf.while_loop(lambda k, *_: k < 8, row, (0, tf.zeros([512]), states))[2].stack())
    return tf.reduce_sum(x)


def _bodies(graph: Graph) -> list[Graph]:
    return [graph, *(f.body for f in graph.functions.values())]


def _row_behind(loop: Node) -> list[Node]:
    """The NoOps behind a loop, in order."""
    found: list[Node] = []
    waiting = list(loop.control_consumers)
    while waiting and waiting[0].op_type == "NoOp":
        found.append(waiting[0])
        waiting = [node for node in waiting[0].control_consumers if node.op_type == "NoOp"]
    return found


def test_rows_are_longer_than_the_bodies_and_everything_waits_for_them() -> None:
    x = tf.ones([8, 512])
    flat = flatten(rows.get_concrete_function(x))
    before = [node for body in _bodies(flat.graph) for node in body.nodes if node.op_type in LOOPS]
    assert wait_for_loop_ends(flat.graph) == len(before) == 4
    lengths: dict[bool, int] = {}
    for body in _bodies(flat.graph):
        verify_graph(body)
        for loop in body.nodes:
            if loop.op_type in LOOPS:
                row = _row_behind(loop)
                lengths[body is flat.graph] = len(row)
                for value in loop.outputs:
                    assert all(use.node.op_type == "Identity" and row[-1] in use.node.control_inputs for use in value.uses)
    # The outer body has the inner loop's row in it, and the inner body besides.
    assert lengths[True] >= 2 * lengths[False]


def test_the_step_computes_the_same_and_its_peak_is_no_matter_of_chance() -> None:
    x = tf.random.stateless_normal([8, 512], (1, 2))
    flat = flatten(rows.get_concrete_function(x))
    tasks = map_tasks(flat)
    held = follow_schedule(flat, tasks, Schedule(tasks.costs.order))
    assert verify(rows, held, (x,)).equal
    one, two = (gw.predict_peak(rows, inputs=x, order="traced", threads=threads).peak_bytes for threads in (1, 2))
    assert two <= 1.01 * one
