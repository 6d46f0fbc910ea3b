"""Walks along the edges from node to node, breadth first, and name scopes."""

from collections.abc import Callable, Collection, Container, Iterable, Iterator

from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.names import free_name
from graphwright.ir.walk import reached

Where = Collection[Node] | Callable[[Node], bool]


def scopes(graph: Graph) -> dict[str, int]:
    """Return every name scope, with the number of nodes in it or below it."""
    counts: dict[str, int] = {}
    for node in graph:
        for scope in parents(node.name):
            counts[scope] = counts.get(scope, 0) + 1
    return counts


def parents(name: str) -> list[str]:
    """Return the scopes of a name, the outermost first."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[:k]) for k in range(1, len(parts) + 1)]


def unique_scope(graph: Graph, scope: str) -> str:
    """Return the scope itself or with a suffix, so that no node has its name or lies below it."""
    return free_name(scope, {*scopes(graph), *(node.name for node in graph)})


def walk_forward(
    seeds: Iterable[Node | Value],
    *,
    inclusive: bool = True,
    within: Where | None = None,
    stop_at: Iterable[Node | Value] = (),
    control: bool = False,
) -> list[Node]:
    """Return the nodes that depend on the seeds (for values: on their readers), each once, in the order of the walk.

    Args:
        within: other nodes are not entered.
        stop_at: values that are not followed, and nodes that are reached but not left.
    """
    start = dict.fromkeys(node for seed in seeds for node in ((seed,) if isinstance(seed, Node) else seed.consumers))
    stop = frozenset(stop_at)

    def after(node: Node) -> Iterator[Node]:
        yield from (reader for value in node.outputs if value not in stop for reader in value.consumers)
        yield from node.control_consumers if control else ()

    return _walk(start, after, inclusive, within, stop)


def walk_backward(
    seeds: Iterable[Node | Value],
    *,
    inclusive: bool = True,
    within: Where | None = None,
    stop_at: Iterable[Node | Value] = (),
    control: bool = False,
) -> list[Node]:
    """Return the nodes that the seeds depend on; arguments as in `walk_forward`, but a value means its producer."""
    start = dict.fromkeys(seed if isinstance(seed, Node) else seed.producer for seed in seeds)
    stop = frozenset(stop_at)

    def before(node: Node) -> Iterator[Node]:
        yield from (value.producer for value in node.inputs if value not in stop)
        yield from node.control_inputs if control else ()

    return _walk(start, before, inclusive, within, stop)


def _walk(
    first: dict[Node, None], near: Callable[[Node], Iterable[Node]], inclusive: bool, within: Where | None, stop: Container[Node | Value]
) -> list[Node]:
    inside = within if within is None or callable(within) else frozenset(within).__contains__
    walk = reached(first, lambda node: () if node in stop else near(node) if inside is None else filter(inside, near(node)))
    return [node for node in walk if inclusive or node not in first]
