"""The part of a graph that depends only on what does not change, and the smallest frontier between it and the rest.

Terms
-----
source
    An input that does not change from call to call, or a variable that the graph does not write to.
unchanging
    A node that is pure and has nothing but sources, constants and unchanging nodes before it, through data and control edges. Loops and
    branches are one node; those of TensorFlow 1, which are many, are left alone.
worth keeping
    An unchanging node where computing it takes at least as many FLOPs as there are bytes to compare in the sources that nothing else that
    is kept depends on: to see that a source is what it was takes a pass over it. What is not counted, such as decoding text, is worth it.
frontier
    The values that cross from what is kept into the rest. Nodes that only move data may be computed on either side: a minimum cut finds
    the frontier with the fewest bytes, so a broadcast is made anew of what it repeats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import numpy as np

from graphwright.analyze.flop_rules.movement import silent_rule
from graphwright.analyze.flops import node_flops
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import is_control_flow_of_tf1
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import PLACEHOLDERS, is_constant, only_orders
from graphwright.ir.walk import backward_reachable, reached, topological_order
from graphwright.plan.solvers.minimum_cut import ENDLESS, LARGEST, source_side

_NOT_KEPT = ("resource", "variant")


def find_unchanging(graph: Graph, sources: Mapping[Node, int], purity: Purity) -> set[Node]:
    """The unchanging nodes that outputs and control outputs need, sources and constants among them.

    Args:
        sources: by placeholder, how many bytes there are to compare.
    """
    needed = backward_reachable([*(value.producer for value in graph.outputs), *graph.control_outputs])
    found: set[Node] = set()
    order = [node for node in topological_order(graph) if node in needed]
    for node in order:
        before = {value.producer for value in node.inputs} | set(node.control_inputs)
        plain = node.op_type not in PLACEHOLDERS and not is_control_flow_of_tf1(node)
        computes = is_constant(node) or only_orders(node) or purity.is_pure(node)
        if node in sources or (plain and computes and before <= found):
            found.add(node)
    for node in reversed(order):  # what cannot be kept stays with what reads it
        if node in found and node not in sources:
            readers = {use.node for value in node.outputs if value.dtype.name in _NOT_KEPT for use in value.uses if use.node in needed}
            if not readers <= found or any(value.dtype.name in _NOT_KEPT and value in graph.outputs for value in node.outputs):
                found.discard(node)
    return found


def find_frontier(graph: Graph, sources: Mapping[Node, int], unchanging: AbstractSet[Node], flops: Mapping[Node, float]) -> list[Value]:
    """The frontier, in the order of the graph.

    Args:
        flops: per node, those of control flow among them.
    """
    order = [node for node in topological_order(graph) if node in unchanging]
    worth = _worth_keeping(order, sources, flops)
    inner = [node for node in order if node not in sources and not is_constant(node)]
    values = [value for node in inner for value in node.outputs]
    place: dict[Node | Value, int] = {item: k for k, item in enumerate([*inner, *values], 1)}  # 0 is the rest, which comes first
    needed = backward_reachable([*(value.producer for value in graph.outputs), *graph.control_outputs])
    known = [value.nbytes for value in values if value.nbytes is not None]
    scale = LARGEST / max(sum(known) + (len(values) - len(known)) * max(known, default=1), 1)
    edges: list[tuple[int, int, int]] = []  # against the flow of data, so that of equal cuts the one that keeps most is found
    sink = len(place) + 1
    for node in inner:
        if node in worth:
            edges.append((place[node], sink, ENDLESS))
        for value in node.outputs:
            nbytes = max(known, default=1) if value.nbytes is None else value.nbytes
            edges.append((place[value], place[node], ENDLESS if value.dtype.name in _NOT_KEPT else max(1, round(nbytes * scale))))
            readers = {use.node for use in value.uses if use.node in needed}
            if value in graph.outputs or not readers <= unchanging:
                edges.append((0, place[value], ENDLESS))
            edges += [(place[reader], place[value], ENDLESS) for reader in readers if reader in place]
    if not worth or not any(row == 0 for row, _, _ in edges):
        return []
    rows, columns, capacities = np.array(edges, np.int64).T
    _, rest = source_side(capacities.astype(np.int32), rows, columns, (0, sink))
    return [value for value in values if rest[place[value]] and not rest[place[value.producer]]]


def _worth_keeping(order: list[Node], sources: Mapping[Node, int], flops: Mapping[Node, float]) -> set[Node]:
    worth: set[Node] = set()
    compared: set[Node] = set()
    varies: set[Node] = set(sources)
    for node in order:
        if varies.isdisjoint(value.producer for value in node.inputs):
            continue
        varies.add(node)
        if not _work(node, flops):
            continue
        cone = list(reached([node], lambda n: [v.producer for v in n.inputs if v.producer not in worth]))
        new = [n for n in cone if n in sources and n not in compared]
        if sum(_work(n, flops) for n in cone if n not in sources) >= sum(sources[n] for n in new):
            worth.add(node)
            compared.update(new)
    return worth


def _work(node: Node, flops: Mapping[Node, float]) -> float:
    unknown = silent_rule(node.op_type) is not None or (node_flops(node) is None and not flops.get(node))
    return math.inf if unknown else flops.get(node, 0.0)
