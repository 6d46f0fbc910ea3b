"""What the body of a function holds at its peak, where control edges fix the order of its nodes."""

from collections.abc import Collection, Mapping, Sequence

from graphwright.analyze.storages import State, Storage, storages_of
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import CONSTANTS
from graphwright.ir.walk import finished_before, made_of, topological_order

_SMALL_BYTES = 4096  # as `transform.rematerialize` leaves free what touches less


def peak_in_order(body: Graph, states: Mapping[Value, State], made: Collection[Storage]) -> int | None:
    """The most bytes that are there at once of what the body makes; None where nodes that touch large tensors may run in several orders.

    What is computed of constants may be there at any time, and counts throughout.

    Args:
        states: of all values of the body.
        made: the storages that its nodes made.
    """
    order = topological_order(body)
    held = {node: {s for s in storages_of(states[v] for v in node.outputs if v in states) if s in made} for node in order}
    read = {node: {s for s in storages_of(states[v] for v in node.inputs if v in states) if s in made} for node in order}
    of_constants = made_of(body, CONSTANTS)
    always = set[Storage]().union(*(held[node] for node in of_constants))
    touched = {node: (held[node] | read[node]) - always for node in order}
    if not _is_fixed(order, {node for node in order if any(s.nbytes >= _SMALL_BYTES for s in touched[node])}):
        return None
    last: dict[Storage, int] = {}
    for k, node in enumerate(order):
        last.update(dict.fromkeys(touched[node], k))
    last.update(dict.fromkeys(storages_of(states[v] for v in body.outputs), len(order)))
    gone: list[int] = [0] * (len(order) + 2)
    for storage in made:
        if storage in last:
            gone[last[storage] + 1] += storage.nbytes
    there = peak = sum(s.nbytes for s in always)
    seen = set(always)
    for k, node in enumerate(order):
        new = held[node] - seen
        seen |= new
        there += sum(s.nbytes for s in new) - gone[k]
        peak = max(peak, there)
    return peak


def _is_fixed(order: Sequence[Node], asked: set[Node]) -> bool:
    """Whether each of these nodes is behind the one before it, whatever the executor does."""
    length: dict[Node, int] = {}  # of the longest chain of them that ends with a node
    for node in order:
        length[node] = (node in asked) + max((length.get(other, 0) for other in finished_before(node)), default=0)
    return max(length.values(), default=0) == len(asked)
