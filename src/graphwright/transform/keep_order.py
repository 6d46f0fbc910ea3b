"""Control edges that make TensorFlow's executor run steps in the order of a plan, or overlap them where the plan says so."""

from __future__ import annotations

from collections.abc import Sequence

from graphwright.ir.edit.insert import insert_before
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.arithmetic import CONVOLUTIONS


def keep_order(graph: Graph, steps: Sequence[tuple[Node, ...]], starts: Sequence[int]) -> None:
    """Control edges that make step k wait for all steps before `starts[k]`.

    What many wait for stands once, as a `NoOp` that waits for the one before it and for what came since.

    A group must stay fusible, or its kernels, speed and last bits would differ from the original's. TensorFlow's
    oneDNN pass fuses two nodes only when they have the same control inputs (so all nodes of a group get the same
    ones), and for Conv2D with BiasAdd it aborts the process unless they have none: there an Identity in front of
    the convolution waits instead.
    """
    asked = frozenset(starts)
    since: list[Node] = []  # when these have finished, all steps so far have
    barriers: dict[int, list[Node]] = {}
    for k, nodes in enumerate(steps):
        if k in asked:
            if len(since) > 1 and starts[k - 1] < k - 1:
                since = [
                    graph.add_node("NoOp", graph.unique_name(f"{nodes[0].name}/ordered"), control_inputs=since, device=nodes[0].device)
                ]
            barriers[k] = since
        _wait(graph, nodes, barriers[starts[k]])
        inside = set(nodes)
        exits = [n for n in nodes if not any(c in inside for v in n.outputs for c in v.consumers)]
        since = exits if starts[k] == k else [*since, *exits]


def _wait(graph: Graph, nodes: Sequence[Node], leaves: Sequence[Node]) -> None:
    """Let a step wait for other nodes."""
    inside = set(nodes)
    entries = [n for n in nodes if not any(v.producer in inside for v in n.inputs)]
    if all(leave in {v.producer for v in entry.inputs} for entry in entries for leave in leaves):
        return  # the data edges say it already
    if len(nodes) > 1 and nodes[0].op_type in CONVOLUTIONS:
        gate = insert_before(graph, nodes[0], 0, "Identity", f"{nodes[0].name}/ordered", attrs={"T": nodes[0].inputs[0].dtype})
        waiting = [gate]
    else:
        waiting = nodes
    for entry in waiting:
        for leave in leaves:
            graph.add_control_input(entry, leave)
