"""Walks over a graph: what a node needs, and an order in which nodes can run."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from graphwright.errors import GraphError
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits import is_back_edge


def backward_reachable(seeds: Iterable[Node]) -> set[Node]:
    """The seeds and everything they need, through data and control edges."""
    seen = set(seeds)
    stack = list(seen)
    while stack:
        node = stack.pop()
        for before in (*(v.producer for v in node.inputs), *node.control_inputs):
            if before not in seen:
                seen.add(before)
                stack.append(before)
    return seen


def needed_nodes(graph: Graph) -> set[Node]:
    """The nodes that inputs, outputs and control outputs of the graph, its signatures and collections need."""
    seeds = [*(v.producer for v in (*graph.inputs, *graph.outputs)), *graph.control_outputs]
    for signature in graph.signatures.values():
        seeds += [v.producer for v in (*signature.inputs.values(), *signature.outputs.values())]
    for collection in graph.collections.values():
        seeds += [held if isinstance(held, Node) else held.producer for held in collection.references()]
    return backward_reachable(seeds)


def topological_order(graph: Graph) -> list[Node]:
    """All nodes, each after what it needs; among the possible orders, the one nearest to the graph's own.

    A `Merge` may come before the `NextIteration` that it reads, as a loop of TF1 asks for.

    Raises:
        GraphError: the graph has a cycle; the message names its nodes.
    """
    nodes = graph.nodes
    position = {node: k for k, node in enumerate(nodes)}
    missing = {node: len({v.producer for v in node.inputs if not is_back_edge(v, node)} | set(node.control_inputs)) for node in nodes}
    ready = [position[node] for node in nodes if missing[node] == 0]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        after = {c for v in node.outputs for c in v.consumers if not is_back_edge(v, c)} | set(node.control_consumers)
        for consumer in after:
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heapq.heappush(ready, position[consumer])
    if len(order) != len(nodes):
        stuck = [n.name for n in nodes if missing[n] > 0]
        raise GraphError(f"{len(stuck)} nodes are in or behind a cycle", where=", ".join(stuck[:5]))
    return order
