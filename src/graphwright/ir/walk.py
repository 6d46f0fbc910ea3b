"""Walks over a graph: what a node needs, and an order in which nodes can run."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from graphwright.errors import GraphError
from graphwright.ir.node import Node
from graphwright.ir.traits import VARIABLES, is_back_edge

if TYPE_CHECKING:
    from graphwright.ir.graph import Graph


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


def forward_reachable(seeds: Iterable[Node], *, control: bool = True) -> set[Node]:
    """The seeds and everything that depends on them, through data and, where wanted, control edges."""
    seen = set(seeds)
    stack = list(seen)
    while stack:
        for after in consumers_of(stack.pop(), control=control):
            if after not in seen:
                seen.add(after)
                stack.append(after)
    return seen


def made_of(graph: Graph, op_types: AbstractSet[str]) -> set[Node]:
    """The nodes of these types, and those that read nothing but what such nodes make, directly or not."""
    found: set[Node] = set()
    for node in topological_order(graph):
        if node.op_type in op_types or (node.inputs and all(value.producer in found for value in node.inputs)):
            found.add(node)
    return found


def producers_of(node: Node) -> dict[Node, None]:
    """The nodes that it needs directly: those whose values it reads, and its control inputs; back edges of loops left out."""
    found = {value.producer: None for value in node.inputs if not is_back_edge(value, node)}
    found.update(dict.fromkeys(node.control_inputs))
    return found


def consumers_of(node: Node, *, control: bool = True) -> dict[Node, None]:
    """The nodes that need it directly: those that read its values, and those that wait for it; back edges of loops left out."""
    found = {reader: None for value in node.outputs for reader in value.consumers if not is_back_edge(value, reader)}
    if control:
        found.update(dict.fromkeys(node.control_consumers))
    return found


def order_of(nodes: Iterable[Node]) -> list[Node]:
    """These nodes, each after those of them that it needs, as near as possible to the order in which they are given.

    Takes time linear in the nodes and their edges; paths through other nodes do not count.

    Raises:
        GraphError: they wait for each other; the message names some.
    """
    given = list(dict.fromkeys(nodes))
    place = {node: k for k, node in enumerate(given)}
    return _sorted(given, place)


def needed_nodes(graph: Graph) -> set[Node]:
    """The nodes that inputs, outputs and control outputs of the graph, its signatures and collections need."""
    seeds = [*(v.producer for v in (*graph.inputs, *graph.outputs)), *graph.control_outputs]
    for signature in graph.signatures.values():
        seeds += [v.producer for v in (*signature.inputs.values(), *signature.outputs.values())]
    for collection in graph.collections.values():
        seeds += [held if isinstance(held, Node) else held.producer for held in collection.references()]
    return backward_reachable(seeds)


def served_variables(graph: Graph) -> list[str]:
    """The names of the variables that outputs and control outputs of the graph, and outputs of its signatures, need."""
    values = [*graph.outputs, *(value for signature in graph.signatures.values() for value in signature.outputs.values())]
    needed = backward_reachable([*(value.producer for value in values), *graph.control_outputs])
    return [node.name for node in graph.nodes if node.op_type in VARIABLES and node in needed]


def topological_order(graph: Graph) -> list[Node]:
    """All nodes, each after what it needs; among the possible orders, the one nearest to the graph's own.

    A `Merge` may come before the `NextIteration` that it reads, as a loop of TF1 asks for.

    Raises:
        GraphError: the graph has a cycle; the message names its nodes.
    """
    nodes = graph.nodes
    return _sorted(nodes, {node: k for k, node in enumerate(nodes)})


def _sorted(nodes: Sequence[Node], place: Mapping[Node, int]) -> list[Node]:
    missing: dict[Node, int] = {}
    in_order = True
    for k, node in enumerate(nodes):
        places = [place[before] for before in producers_of(node) if before in place]
        missing[node] = len(places)
        in_order = in_order and (not places or max(places) < k)
    if in_order:
        return list(nodes)
    ready = [place[node] for node in nodes if missing[node] == 0]
    heapq.heapify(ready)
    order: list[Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for consumer in consumers_of(node):
            if consumer not in place:
                continue
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heapq.heappush(ready, place[consumer])
    if len(order) != len(nodes):
        stuck = [n.name for n in nodes if missing[n] > 0]
        raise GraphError(f"{len(stuck)} nodes are in or behind a cycle", where=", ".join(stuck[:5]))
    return order
