"""Walks over a graph: dependencies, consumers, and orders in which nodes can run."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, TypeVar

from graphwright.errors import GraphError
from graphwright.ir.node import Node, Value
from graphwright.ir.signature import node_of
from graphwright.ir.traits.arithmetic import ASKS_FOR_SHAPE
from graphwright.ir.traits.control_flow import LOOPS, MERGES, called_functions, is_back_edge
from graphwright.ir.traits.values import is_constant
from graphwright.ir.traits.variables import VARIABLES

if TYPE_CHECKING:
    from graphwright.ir.graph import Graph

Item = TypeVar("Item", bound=Hashable)


def backward_reachable(seeds: Iterable[Node]) -> set[Node]:
    """Return the seeds and everything that they need, through data and control edges."""
    return set(reached(seeds, lambda node: (*(v.producer for v in node.inputs), *node.control_inputs)))


def forward_reachable(seeds: Iterable[Node], *, control: bool = True) -> set[Node]:
    """Return the seeds and everything that depends on them, through data edges and, where wanted, control edges."""
    return set(reached(seeds, lambda node: consumers_of(node, control=control)))


def paths_among(pairs: Iterable[tuple[Node, Node]]) -> set[tuple[Node, Node]]:
    asked = set(pairs)
    joined = {(first, node) for first, node in asked if first in producers_of(node)}
    asked -= joined
    bits = {first: 1 << k for k, first in enumerate({first for first, _ in asked})}
    needed: dict[Node, int] = {}  # per node, the bits of the nodes that it needs
    for node in order_of(backward_reachable(node for _, node in asked)):
        needed[node] = 0
        for other in producers_of(node):
            needed[node] |= needed[other] | bits.get(other, 0)
    return joined | {(first, node) for first, node in asked if needed[node] & bits[first]}


def reached(seeds: Iterable[Item], following: Callable[[Item], Iterable[Item]]) -> Iterator[Item]:
    """Yield the seeds and all that follows from them, each once, breadth first and lazily.

    >>> list(reached([7], lambda number: [number // 2, number - 1] if number else []))
    [7, 3, 6, 1, 2, 5, 0, 4]
    """
    queue = list(dict.fromkeys(seeds))
    seen = set(queue)
    for item in queue:  # grows while it is walked
        yield item
        for other in following(item):
            if other not in seen:
                seen.add(other)
                queue.append(other)


def made_of(graph: Graph, op_types: AbstractSet[str]) -> set[Node]:
    """Return the nodes of these types, and nodes that read only values made from such nodes, directly or not."""
    members: set[Node] = set()
    for node in topological_order(graph):
        if node.op_type in op_types or (node.inputs and all(value.producer in members for value in node.inputs)):
            members.add(node)
    return members


def producers_of(node: Node) -> dict[Node, None]:
    """Return the nodes that it needs directly, through data and control edges; back edges of loops are left out."""
    inputs = node.inputs
    if node.op_type in MERGES:
        inputs = tuple(value for value in inputs if not is_back_edge(value, node))
    return dict.fromkeys([*(value.producer for value in inputs), *node.control_inputs])


def consumers_of(node: Node, *, control: bool = True) -> dict[Node, None]:
    """Return the nodes that need it directly, through data and control edges; back edges of loops are left out."""
    consumers = {reader: None for value in node.outputs for reader in value.consumers if not is_back_edge(value, reader)}
    if control:
        consumers.update(dict.fromkeys(node.control_consumers))
    return consumers


def finished_before(node: Node) -> Sequence[Node]:
    """Return nodes that have certainly finished when a result of this node is read, directly."""
    if is_constant(node) or _is_loose(node):
        return ()
    return (*node.control_inputs, *(value.producer for value in node.inputs if not _is_loose(value.producer)))


def _is_loose(node: Node) -> bool:
    """Return whether a result may be available before all inputs. A loop's results are not: see `transform.loop_ends`."""
    return node.op_type in ASKS_FOR_SHAPE or (node.op_type not in LOOPS and bool(called_functions(node)))


def order_of(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes in an order in which each follows the nodes of the set that it needs, as near as possible to the given order; in
    linear time. Raise `GraphError` where they wait for each other.
    """
    members = dict.fromkeys(nodes)
    order = in_order(members, producers_of)
    if len(order) != len(members):
        stuck = [node.name for node in members.keys() - set(order)]
        raise GraphError(f"{len(stuck)} nodes are in or behind a cycle", where=", ".join(sorted(stuck)[:5]))
    return order


def fed_values(graph: Graph) -> tuple[Value, ...]:
    return tuple(dict.fromkeys((*graph.inputs, *(v for s in graph.signatures.values() for v in s.inputs.values()))))


def fetched_values(graph: Graph) -> tuple[Value, ...]:
    return tuple(dict.fromkeys((*graph.outputs, *(v for s in graph.signatures.values() for v in s.outputs.values()))))


def needed_nodes(graph: Graph, *, inputs: bool = True, signatures: bool = True, collections: bool = True) -> set[Node]:
    """Return the nodes that inputs, outputs and control outputs of the graph, its signatures and collections need; without `inputs`,
    resources among the inputs do not count.
    """
    fed = [value for value in graph.inputs if inputs or value.dtype.name != "resource"]
    seeds = [*(value.producer for value in (*fed, *graph.outputs)), *graph.control_outputs]
    for signature in graph.signatures.values() if signatures else ():
        seeds += [value.producer for value in (*signature.inputs.values(), *signature.outputs.values())]
    for collection in graph.collections.values() if collections else ():
        seeds += [node_of(held) for held in collection.references()]
    return backward_reachable(seeds)


def served_variables(graph: Graph) -> list[str]:
    needed = backward_reachable([*(value.producer for value in fetched_values(graph)), *graph.control_outputs])
    return [node.name for node in graph.nodes if node.op_type in VARIABLES and node in needed]


def topological_order(graph: Graph) -> list[Node]:
    """Return all nodes in the order of `order_of`. A `Merge` may precede the `NextIteration` that it reads, as loops of TF1 require."""
    return order_of(graph)


def in_order(items: Iterable[Item], needs: Callable[[Item], Iterable[Item]]) -> list[Item]:
    """Return the items, each after the items that it needs, as near as possible to the given order. Items in or behind a cycle are
    left out.

    >>> in_order("abc", {"a": "c", "b": "", "c": "b"}.__getitem__), in_order("abc", {"a": "", "b": "c", "c": "b"}.__getitem__)
    (['b', 'c', 'a'], ['a'])
    """
    distinct = list(dict.fromkeys(items))
    place = {item: k for k, item in enumerate(distinct)}
    before = [[place[other] for other in needs(item) if other in place] for item in distinct]
    if all(not places or max(places) < k for k, places in enumerate(before)):
        return distinct
    readers: list[list[int]] = [[] for _ in distinct]
    for k, places in enumerate(before):
        for needed in places:
            readers[needed].append(k)
    missing = [len(places) for places in before]
    ready = [k for k, count in enumerate(missing) if not count]
    order: list[Item] = []
    while ready:
        done = heapq.heappop(ready)
        order.append(distinct[done])
        for k in readers[done]:
            missing[k] -= 1
            if not missing[k]:
                heapq.heappush(ready, k)
    return order


def cycle_among(items: Iterable[Item], needs: Callable[[Item], Iterable[Item]]) -> list[Item]:
    """Return the items of one cycle, each before one that needs it; empty where there is none.

    >>> cycle_among("abc", {"a": "b", "b": "c", "c": "b"}.__getitem__)
    ['c', 'b']
    """
    distinct = dict.fromkeys(items)
    stuck = distinct.keys() - set(in_order(distinct, needs))
    item = next((item for item in distinct if item in stuck), None)
    path: dict[Item, None] = {}
    while item is not None and item not in path:  # what is stuck needs what is stuck
        path[item] = None
        item = next(other for other in needs(item) if other in stuck)
    way = list(path)
    return [] if item is None else way[way.index(item) :][::-1]
