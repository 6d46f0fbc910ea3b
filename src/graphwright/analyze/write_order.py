"""Find writes of one variable without an order: its final value depends on the run."""

from collections.abc import Collection, Mapping
from itertools import pairwise

from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import SWITCHES
from graphwright.ir.traits.variables import adds_to_variable
from graphwright.ir.walk import forward_reachable, paths_among, topological_order


def unordered_writes(body: Graph, writers: Mapping[str, Collection[Node]]) -> dict[str, tuple[Node, Node]]:
    """Return two nodes of a body that write a variable without order, for each such variable.

    Additions may come in any order and are skipped, and so are the branches of a `Switch` of TF1.

    Args:
        writers: by variable, the nodes that write it or call a writer.
    """
    several = {key: nodes for key, nodes in writers.items() if len(nodes) > 1 and not all(map(adds_to_variable, nodes))}
    if not several:
        return {}
    place = {node: k for k, node in enumerate(topological_order(body))}
    pairs = {key: list(pairwise(sorted(nodes, key=place.__getitem__))) for key, nodes in several.items()}
    ordered = paths_among(pair for of_variable in pairs.values() for pair in of_variable)
    in_branches = forward_reachable(node for node in place if node.op_type in SWITCHES)
    unordered = {key: [p for p in of_variable if p not in ordered and in_branches.isdisjoint(p)] for key, of_variable in pairs.items()}
    return {key: of_variable[0] for key, of_variable in unordered.items() if of_variable}
