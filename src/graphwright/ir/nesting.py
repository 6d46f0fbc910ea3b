"""Limits for the depth of function calls and for the size of a graph with all calls inlined, checked before calls are followed.

TensorFlow follows calls by recursion and inlines them all: a function that calls itself ends the process, and forty functions that each
call the next one twice never end.
"""

from collections import Counter
from collections.abc import Container

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.graph import Graph
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.walk import cycle_among, in_order

DEEPEST = 100
"""Functions that may call each other in a row; models nest about ten deep."""
MOST_NODES = 2_000_000
"""Nodes that a graph may have with the body of each function in the place of its calls, branches and loop bodies included."""


def check_nesting(graph: Graph) -> None:
    """Refuse a graph whose functions call unknown functions, call themselves, nest too deep, or expand too far; takes linear time.

    Raises:
        GraphError: a function is not in the library.
        UnsupportedError: a function calls itself, directly or through others, or a limit of this module is exceeded.
    """
    library = graph.functions
    depth: dict[str, int] = {}
    nodes: dict[str, int] = {}
    callees = {name: _callees(function.body, library) for name, function in library.items()}
    own = _callees(graph, library)

    def close(body: Graph, called: Counter[str]) -> tuple[int, int]:
        deep = 1 + max((depth[name] for name in called), default=0)
        many = len(body) + sum(count * nodes[name] for name, count in called.items())
        if deep > DEEPEST + 1:
            raise UnsupportedError(
                f"functions call each other {deep - 1} deep, and {DEEPEST} is the limit", where=f"function {body.name!r}"
            )
        if many > MOST_NODES:
            raise UnsupportedError(
                f"with all calls in place there would be {many} nodes, and {MOST_NODES} is the limit",
                where=f"function {body.name!r}",
                cause="functions call functions several times each; the file may be malicious",
            )
        return deep, many

    for name in in_order(library, callees.__getitem__):
        depth[name], nodes[name] = close(library[name].body, callees[name])
    if len(depth) < len(library):
        name = cycle_among(library, callees.__getitem__)[-1]
        raise UnsupportedError(f"function {name!r} calls itself", where=f"function {name!r}", remedy="use tf.while_loop")
    close(graph, own)


def _callees(body: Graph, library: Container[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for node in body:
        for name in called_functions(node):
            if name not in library and name:
                raise GraphError(
                    f"function {name!r} is not in the library",
                    where=f"node {node.name!r} of graph {body.name!r}",
                    cause="the file is damaged, or the function was removed by hand",
                )
            counts[name] += bool(name)
        if node.op_type in library:
            counts[node.op_type] += 1
    del counts[""]
    return counts
