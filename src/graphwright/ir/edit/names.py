"""Rename nodes and scopes; everything that names them follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from graphwright.errors import GraphError
from graphwright.ir.graph import Graph, Node
from graphwright.ir.select import select


def rename_nodes(graph: Graph, names: Mapping[Node, str] | Callable[[str], str], nodes: Iterable[Node] | None = None) -> int:
    """Rename many nodes at the same time; returns how many names changed.

    Signatures, collections, control edges and colocation constraints follow.

    Args:
        names: the new name of each node, or a function from the old name to the new one.
        nodes: which nodes the function is asked about; by default all.

    Raises:
        GraphError: a name is empty, given twice or taken, or a node belongs to another graph; nothing is changed then.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %a = Relu(%x:0) {_class = ["loc:@x"]} : float32[2]
    ... ''')
    >>> rename_nodes(g, lambda name: f"model/{name}"), g["model/a"].attrs["_class"]
    (2, (b'loc:@model/x',))
    """
    name_of = {node: names(node.name) for node in (graph if nodes is None else nodes)} if callable(names) else names
    changed = {node: name for node, name in name_of.items() if name != node.name}
    graph.rename_many(changed)
    return len(changed)


def rename_scope(graph: Graph, old: str, new: str) -> int:
    """Rename a scope: `old` and `old/...` become `new` and `new/...`; returns how many names changed.

    Args:
        old: the scope; the empty string puts the whole graph below `new`.
        new: its new name; the empty string takes the scope away, and a node that is called like the scope keeps its name.

    Raises:
        GraphError: no node is in the scope, or a name is taken; nothing is changed then.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %a/b/relu = Relu(%x:0) : float32[2]
    ... ''')
    >>> rename_scope(g, "a/b", "c"), [n.name for n in g]
    (1, ['x', 'c/relu'])
    """
    old, new = old.rstrip("/"), new.rstrip("/")
    nodes = select(graph, scope=old) if old else list(graph)
    if not nodes:
        raise GraphError(f"no node is in scope {old!r}", where=f"graph {graph.name!r}", remedy="look at ir.select.scopes(graph)")

    def renamed(name: str) -> str:
        if name == old and not new:
            return name
        rest = name.removeprefix(old).removeprefix("/") if old else name
        return "/".join(part for part in (new, rest) if part)

    return rename_nodes(graph, renamed, nodes)


def set_devices(graph: Graph, device: str | Callable[[Node], str], nodes: Iterable[Node] | None = None) -> int:
    """Set the device of nodes; returns how many changed.

    Args:
        device: such as `/device:GPU:0`, the empty string for none, or a function of the node.
        nodes: by default all.

    Raises:
        GraphError: a node belongs to another graph; nothing is changed then.
    """
    device_of = {node: device(node) if callable(device) else device for node in (graph if nodes is None else nodes)}
    for node in device_of:
        graph.check_owned(node, node.name)
    changed = [node for node, name in device_of.items() if name != node.device]
    for node in changed:
        node.device = device_of[node]
    return len(changed)
