"""Find writes of one variable without an order: its final value depends on the run."""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice, pairwise

from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import SWITCHES
from graphwright.ir.traits.variables import adds_to_variable
from graphwright.ir.walk import producers_of, reached, topological_order

_NEAR = 16
_AT_ONCE = 1024
"""Pairs whose order is looked for in one sweep over the graph; a set of them is one whole number."""


def unordered_writes(body: Graph, writers: Mapping[str, Collection[Node]]) -> dict[str, tuple[Node, Node]]:
    """Return two nodes of a body that write a variable without order, for each such variable.

    Additions may come in any order and are skipped, and so are the branches of a `Switch` of TF1.

    Args:
        writers: by variable, the nodes that write it or call a writer.
    """
    several = {key: nodes for key, nodes in writers.items() if len(nodes) > 1 and not all(map(adds_to_variable, nodes))}
    if not several:
        return {}
    order = topological_order(body)
    place = {node: k for k, node in enumerate(order)}
    pairs: list[tuple[str, Node, Node]] = []
    for key, nodes in several.items():
        sorted_nodes = sorted(nodes, key=place.__getitem__)
        # Most wait by a short way, as by TensorFlow's own dependencies.
        pairs += [(key, a, b) for a, b in pairwise(sorted_nodes) if a not in islice(reached([b], producers_of), _NEAR)]
    unordered: dict[str, tuple[Node, Node]] = {}
    for start in range(0, len(pairs), _AT_ONCE):
        _sweep(order, pairs[start : start + _AT_ONCE], unordered)
    return unordered


def _sweep(order: Sequence[Node], pairs: Sequence[tuple[str, Node, Node]], unordered: dict[str, tuple[Node, Node]]) -> None:
    starts: dict[Node, int] = {}
    ends: dict[Node, list[int]] = {}
    for k, (_, first, second) in enumerate(pairs):
        starts[first] = starts.get(first, 0) | 1 << k
        ends.setdefault(second, []).append(k)
    branch = 1 << len(pairs)  # behind a Switch of TF1
    behind: dict[Node, int] = {}
    for node in order:
        bits = 0
        for before in producers_of(node):
            bits |= behind.get(before, 0)
        for k in ends.get(node, ()):
            key, first, _ = pairs[k]
            if not (bits >> k & 1 or bits & branch or behind[first] & branch):
                unordered.setdefault(key, (first, node))
        bits |= starts.get(node, 0)
        if node.op_type in SWITCHES:
            bits |= branch
        if bits:
            behind[node] = bits
