"""The peak of a function body whose control edges fix the order of its nodes."""

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

from graphwright.analyze.storages import SMALL_BYTES, State, Storage, storages_of
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import CONSTANTS
from graphwright.ir.walk import finished_before, made_of, topological_order


def peak_in_order(body: Graph, states: Mapping[Value, State], allocated: Collection[Storage]) -> int | None:
    """Return the most bytes of the body's own storages that exist at once; None if nodes that touch large tensors have several orders.

    Values computed of constants may exist at any time and count throughout.

    Args:
        states: of all values of the body.
        allocated: the storages that the nodes of the body allocate.
    """
    order = topological_order(body)
    touched = {node: storages_of(states[v] for v in (*node.inputs, *node.outputs)).intersection(allocated) for node in order}
    always = set[Storage]().union(*(touched[node] for node in made_of(body, CONSTANTS)))
    if not _is_fixed(order, {node for node in order if any(s.nbytes >= SMALL_BYTES for s in touched[node] - always)}):
        return None
    first, last = dict.fromkeys(always, 0), dict[Storage, int]()
    for k, node in enumerate(order):
        for storage in touched[node]:
            first.setdefault(storage, k)
            last[storage] = k
    outputs = always | storages_of(states[v] for v in body.outputs).intersection(allocated)
    last.update(dict.fromkeys(outputs, len(order)))
    change = [0] * (len(order) + 2)
    for storage, k in last.items():
        change[first[storage]] += storage.nbytes
        change[k + 1] -= storage.nbytes
    return max(accumulate(change))


def _is_fixed(order: Sequence[Node], asked: set[Node]) -> bool:
    length: dict[Node, int] = {}  # of the longest chain of them that ends with a node
    for node in order:
        length[node] = (node in asked) + max((length.get(other, 0) for other in finished_before(node)), default=0)
    return max(length.values(), default=0) == len(asked)
