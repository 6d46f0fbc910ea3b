"""Find nodes by walking along the edges, and the name scopes that they are in.

Walks go from node to node in breadth, and answer with a list in the order of the walk, each node once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.walk import reached

Where = Collection[Node] | Callable[[Node], bool]


def scopes(graph: Graph) -> dict[str, int]:
    """Every name scope, and how many nodes are in it or below it."""
    counts: dict[str, int] = {}
    for node in graph:
        for scope in parents(node.name):
            counts[scope] = counts.get(scope, 0) + 1
    return counts


def parents(name: str) -> list[str]:
    """The scopes that a name lies in, the outermost first.

    >>> parents("a/b/c")
    ['a', 'a/b']
    """
    parts = name.split("/")[:-1]
    return ["/".join(parts[:k]) for k in range(1, len(parts) + 1)]


def walk_forward(
    seeds: Iterable[Node | Value],
    *,
    inclusive: bool = True,
    within: Where | None = None,
    stop_at: Iterable[Node | Value] = (),
    control: bool = False,
) -> list[Node]:
    """What depends on the seeds.

    Args:
        seeds: nodes, or values, which stand for the nodes that read them.
        inclusive: whether the seeds are part of the answer.
        within: other nodes are not entered.
        stop_at: values that are not followed, and nodes that are reached but not left.
        control: whether to follow control edges.
    """
    start = dict.fromkeys(node for seed in seeds for node in ((seed,) if isinstance(seed, Node) else seed.consumers))
    stop = set(stop_at)

    def after(node: Node) -> Iterator[Node]:
        if node in stop:
            return
        for value in node.outputs:
            if value not in stop:
                yield from value.consumers
        if control:
            yield from node.control_consumers

    return _walk(start, after, inclusive, within)


def walk_backward(
    seeds: Iterable[Node | Value],
    *,
    inclusive: bool = True,
    within: Where | None = None,
    stop_at: Iterable[Node | Value] = (),
    control: bool = False,
) -> list[Node]:
    """What the seeds depend on; the arguments are those of `walk_forward`, and a value stands for the node that makes it."""
    start = dict.fromkeys(seed if isinstance(seed, Node) else seed.producer for seed in seeds)
    stop = set(stop_at)

    def before(node: Node) -> Iterator[Node]:
        if node in stop:
            return
        for value in node.inputs:
            if value not in stop:
                yield value.producer
        if control:
            yield from node.control_inputs

    return _walk(start, before, inclusive, within)


def _walk(seeds: Iterable[Node], following: Callable[[Node], Iterable[Node]], inclusive: bool, within: Where | None) -> list[Node]:
    inside = _predicate(within)
    first = dict.fromkeys(seeds)
    found = reached(first, lambda node: filter(inside, following(node)))
    return [node for node in found if inclusive or node not in first]


def _predicate(within: Where | None) -> Callable[[Node], bool]:
    if within is None:
        return lambda _: True
    if callable(within):
        return within
    members = frozenset(within)
    return lambda node: node in members
