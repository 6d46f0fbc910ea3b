"""Control edges of an order: each step waits for what it shall wait for, by the fewest of them."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphwright.ir.attributes import FunctionReference
from graphwright.ir.graph import DTYPES, Graph, Node
from graphwright.ir.walk import reached
from graphwright.transform.keep_order import keep_order

F32 = [(DTYPES["float32"], (2,))]
CHAIN = [((k - 1,),) if k else () for k in range(5)]
TYPES = ("Add", "Add", "Add", "Shape", "Small", "Const")


def add(graph: Graph, name: str, op_type: str, before: list[Node], controls: list[Node] | None = None) -> Node:
    inputs = [node.outputs[0] for node in before if node.outputs]
    return graph.add_node(op_type, name, inputs=inputs, control_inputs=controls or [], output_types=F32)


def before(node: Node) -> list[Node]:
    """The nodes that have finished when this one starts, for each kernel is started when all its inputs are there."""
    return [*node.control_inputs, *(v.producer for v in node.inputs if v.producer.op_type not in ("Shape", "If"))]


def waits_for(node: Node) -> set[Node]:
    return set(reached([node], lambda n: [] if n.op_type in ("Const", "If") and n is not node else before(n))) - {node}


def control_edges(graph: Graph) -> int:
    return sum(len(node.control_inputs) for node in graph)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 40), st.sampled_from([8192, 4]))
def test_each_step_waits_for_its_groups(seed: int, count: int, remembered: int) -> None:
    """Random graphs of steps of one node or two, with nodes between them that are no steps."""
    rng = random.Random(seed)
    graph = Graph()
    steps: list[tuple[Node, ...]] = []
    for k in range(count):
        op_type = rng.choice(TYPES)
        earlier = rng.sample(list(graph), min(len(graph), rng.randint(0, 3)))
        if op_type == "Const":
            add(graph, f"n{k}", op_type, [], earlier)
        else:
            node = add(graph, f"n{k}", op_type, earlier)
            if op_type == "Add":
                steps.append((node, add(graph, f"m{k}", "Add", earlier)) if rng.random() < 0.3 else (node,))
    groups = [tuple(rng.sample(range(len(steps)), min(len(steps), rng.randint(1, 4)))) for _ in range(10)]
    waits = [tuple(group for group in rng.sample(groups, rng.randint(0, 4)) if max(group, default=-1) < k) for k in range(len(steps))]
    with patch("graphwright.transform.keep_order._REMEMBERED", remembered):
        keep_order(graph, steps, waits)
    for nodes, asked in zip(steps, waits, strict=True):
        wanted = {node for group in asked for k in group for node in steps[k]}
        assert all(wanted <= waits_for(node) for node in nodes)


def test_what_inputs_say_gets_no_edge() -> None:
    """a -> b -> c -> d, and e: in a chain of all five only e needs an edge."""
    graph = Graph()
    nodes = [add(graph, "a", "Add", [])]
    for name in "bcd":
        nodes.append(add(graph, name, "Add", [nodes[-1]]))
    nodes.append(add(graph, "e", "Add", [nodes[0]]))
    keep_order(graph, [(node,) for node in nodes], CHAIN)
    assert [node.name for node in graph if node.control_inputs] == ["e"]
    assert nodes[-1].control_inputs == (nodes[3],)


def test_what_several_wait_for_stands_once() -> None:
    """Twenty steps wait for twenty others: forty edges and a node, not 400 edges."""
    graph = Graph()
    steps = [(add(graph, f"n{k}", "Add", []),) for k in range(40)]
    keep_order(graph, steps, [()] * 20 + [(tuple(range(20)),)] * 20)
    assert control_edges(graph) == 40
    assert [node.op_type for node in graph].count("NoOp") == 1


@pytest.mark.parametrize("op_type", ["Shape", "If"])
def test_a_path_that_need_not_be_waited_for_counts_for_nothing(op_type: str) -> None:
    """The shape of a tensor may be folded, and one result of a branch may be there before another: a -> question -> b says nothing."""
    graph = Graph()
    a = add(graph, "a", "Add", [])
    question = add(graph, "question", op_type, [a])
    if op_type == "If":
        graph.set_attr(question, "then_branch", FunctionReference("f"))
    b = add(graph, "b", "Add", [question])
    keep_order(graph, [(a,), (b,)], [(), ((0,),)])
    assert b.control_inputs == (a,)
