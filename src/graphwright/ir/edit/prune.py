"""Pruning a graph to what its outputs need."""

from __future__ import annotations

from collections.abc import Sequence

from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import node_of
from graphwright.ir.subgraph import graph_of
from graphwright.ir.walk import backward_reachable


def prune(
    graph: Graph,
    outputs: Sequence[Value] | None = None,
    *,
    control_outputs: Sequence[Node] | None = None,
    signatures: bool = True,
    collections: bool = True,
) -> int:
    """Remove what is not needed; returns the number of nodes that are removed.

    Args:
        outputs: become the outputs of the graph; None keeps those that it has.
        control_outputs: become its control outputs; None keeps those that it has.
        signatures: whether what the signatures need is kept. Otherwise those that lose an output leave.
        collections: whether what the collections hold is kept. Otherwise what is removed leaves them.

    Raises:
        GraphError: an output belongs to another graph; nothing is changed then.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %a = Relu(%x:0) : float32[2]
    ... %b = Neg(%a:0) : float32[2]
    ... ''')
    >>> prune(g, [g.value("a")]), [n.name for n in g]
    (1, ['x', 'a'])
    """
    wanted = graph.outputs if outputs is None else tuple(outputs)
    waited = graph.control_outputs if control_outputs is None else tuple(control_outputs)
    seeds: dict[Node, None] = dict.fromkeys((*(v.producer for v in (*wanted, *graph.inputs)), *waited))
    if seeds:
        graph_of((*graph.nodes[:1], *seeds))
    if signatures:
        seeds.update((v.producer, None) for s in graph.signatures.values() for v in (*s.inputs.values(), *s.outputs.values()))
    if collections:
        seeds.update((node_of(held), None) for c in graph.collections.values() for held in c.references())
    needed = backward_reachable(seeds)
    doomed = [node for node in graph if node not in needed]
    gone = set(doomed)
    graph.outputs = wanted
    graph.control_outputs = waited
    for name, signature in list(graph.signatures.items()):
        if any(v.producer in gone for v in (*signature.inputs.values(), *signature.outputs.values())):
            del graph.signatures[name]
    graph.remove_nodes(doomed)
    return len(doomed)
