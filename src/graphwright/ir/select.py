"""Find nodes by walking along the edges, and the names and scopes that they have.

Walks go from node to node in breadth, and answer with a list in the order of the walk, each node once.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator

from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.names import free_name
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


def unique_scope(graph: Graph, scope: str) -> str:
    """A scope that neither is a node nor has any below it: `scope` itself or with a suffix.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph()
    >>> _ = g.add_node("NoOp", "a/b"), g.add_node("NoOp", "a_1")
    >>> unique_scope(g, "a")
    'a_2'
    """
    return free_name(scope, {*scopes(graph), *(node.name for node in graph)})


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
    """What the seeds depend on; the arguments are those of `walk_forward`, and a value stands for the node that makes it."""
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
    found = reached(first, lambda node: () if node in stop else near(node) if inside is None else filter(inside, near(node)))
    return [node for node in found if inclusive or node not in first]
