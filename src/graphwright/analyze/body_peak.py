"""What the body of a function holds at its peak, where control edges fix the order of its nodes."""

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

from graphwright.analyze.storages import SMALL_BYTES, State, Storage, storages_of
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import CONSTANTS
from graphwright.ir.walk import finished_before, made_of, topological_order


def peak_in_order(body: Graph, states: Mapping[Value, State], made: Collection[Storage]) -> int | None:
    """The most bytes that are there at once of what the body makes; None where nodes that touch large tensors may run in several orders.

    What is computed of constants may be there at any time, and counts throughout.

    Args:
        states: of all values of the body.
        made: the storages that its nodes made.
    """
    order = topological_order(body)
    touched = {node: storages_of(states[v] for v in (*node.inputs, *node.outputs)).intersection(made) for node in order}
    always = set[Storage]().union(*(touched[node] for node in made_of(body, CONSTANTS)))
    if not _is_fixed(order, {node for node in order if any(s.nbytes >= SMALL_BYTES for s in touched[node] - always)}):
        return None
    first, last = dict.fromkeys(always, 0), dict[Storage, int]()
    for k, node in enumerate(order):
        for storage in touched[node]:
            first.setdefault(storage, k)
            last[storage] = k
    kept = always | storages_of(states[v] for v in body.outputs).intersection(made)
    last.update(dict.fromkeys(kept, len(order)))
    change = [0] * (len(order) + 2)
    for storage, k in last.items():
        change[first[storage]] += storage.nbytes
        change[k + 1] -= storage.nbytes
    return max(accumulate(change))


def _is_fixed(order: Sequence[Node], asked: set[Node]) -> bool:
    """Whether each of these nodes is behind the one before it, whatever the executor does."""
    length: dict[Node, int] = {}  # of the longest chain of them that ends with a node
    for node in order:
        length[node] = (node in asked) + max((length.get(other, 0) for other in finished_before(node)), default=0)
    return max(length.values(), default=0) == len(asked)
