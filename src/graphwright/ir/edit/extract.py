"""Parts of a graph: what lies between two sets of values as a new graph, and pruning to what outputs need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphwright.errors import GraphError
from graphwright.ir.edit.clone import clone
from graphwright.ir.edit.insert import add_placeholder
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import node_of
from graphwright.ir.subgraph import graph_of
from graphwright.ir.walk import backward_reachable

_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2", "_Arg"})


def extract(graph: Graph, inputs: Sequence[Value], outputs: Sequence[Value], *, name: str = "", collections: bool = True) -> Graph:
    """A new graph that computes `outputs` from `inputs`. The graph itself stays as it is.

    An input that was computed becomes a placeholder of the same name. Functions that are called come along, and so do
    the inputs of the graph that stand for variables, behind the given inputs.

    Args:
        inputs: where to cut.
        outputs: what the new graph returns.
        collections: whether collections come along, as far as their nodes do.

    Raises:
        GraphError: the outputs do not depend on an input, or need a placeholder that is not among the inputs.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %a = Relu(%x:0) : float32[2]
    ... %b = Neg(%a:0) : float32[2]
    ... ''')
    >>> [str(n) for n in extract(g, [g.value("a")], [g.value("b")])]
    ['<Node a = Placeholder()>', '<Node b = Neg(a:0)>']
    """
    if not outputs:
        raise GraphError("no outputs were given", where="argument 'outputs'")
    for node in {v.producer: None for v in (*inputs, *outputs)}:
        if not graph.owns(node):
            raise GraphError(f"{node.name!r} does not belong to graph {graph.name!r}", where="extract")
    cut = dict.fromkeys(inputs)
    if len(cut) != len(inputs):
        raise GraphError("an input is given twice", where="argument 'inputs'")
    needed = _needed(cut, outputs)
    variables = [node.outputs[0] for node in needed if _stands_for_variable(node)]
    kept = [node for node in needed if not _stands_for_variable(node)]
    _check_cut(graph, cut, kept, outputs)

    part = Graph(name or graph.name, versions=graph.versions)
    part.take_rules(graph)
    taken = set(kept)
    value_of = {value: _entry(part, value, taken) for value in (*cut, *variables)}
    for value in (*cut, *variables):
        if value in graph.variables:
            part.variables[value_of[value]] = graph.variables[value]
    entries = {value.producer: new.producer for value, new in value_of.items() if value.producer not in taken}
    result = None
    if kept:
        result = clone(_in_order(graph, kept), into=part, input_map=value_of, control_map=entries, collections=collections)
    found = value_of if result is None else result.value_of
    part.inputs = [value_of[v] for v in (*cut, *variables)]
    part.outputs = [found[v] for v in outputs]
    if result is not None:
        part.control_outputs = [result.node_of[n] for n in graph.control_outputs if n in result.node_of]
    return part


def _needed(cut: dict[Value, None], outputs: Sequence[Value]) -> list[Node]:
    """What the outputs need behind the cut. Waiting for the maker of a cut value becomes waiting for its placeholder."""
    makers = {value.producer for value in cut}
    found = list(dict.fromkeys(v.producer for v in outputs if v not in cut))
    seen = set(found)
    for node in found:  # grows while it is walked
        before = [v.producer for v in node.inputs if v not in cut] + [c for c in node.control_inputs if c not in makers]
        for other in before:
            if other not in seen:
                seen.add(other)
                found.append(other)
    return found


def _stands_for_variable(node: Node) -> bool:
    return len(node.outputs) == 1 and not node.inputs and node.outputs[0] in node.graph.variables


def _check_cut(graph: Graph, cut: dict[Value, None], needed: Sequence[Node], outputs: Sequence[Value]) -> None:
    read = {v for node in needed for v in node.inputs} | set(outputs)
    unused = next((v for v in cut if v not in read), None)
    if unused is not None:
        raise GraphError(
            f"no output depends on {unused.name}",
            where="argument 'inputs'",
            cause="another input lies between it and the outputs, or no path leads from it to them",
            remedy="leave it out",
        )
    fed = {v.producer for v in graph.inputs}
    open_ones = [n for n in needed if n in fed or n.op_type in _PLACEHOLDERS]
    if open_ones:
        raise GraphError(
            f"the outputs need {open_ones[0].name!r}, which is fed" + (f", and {len(open_ones) - 1} more" if len(open_ones) > 1 else ""),
            where="argument 'inputs'",
            remedy="add it to the inputs, or cut behind it",
        )


def _entry(part: Graph, value: Value, taken: set[Node]) -> Value:
    node = value.producer
    if not node.inputs and len(node.outputs) == 1 and node.op_type in _PLACEHOLDERS:
        copy = part.append_node(
            node.op_type, node.name, attrs=node.attrs, output_types=[(value.dtype, value.shape)], device=node.device, extra=node.extra
        )
        return copy.outputs[0]
    alone = node not in taken and node.name not in part
    return add_placeholder(part, node.name if alone else f"{node.name}_output_{value.index}", value.dtype, value.shape)


def _in_order(graph: Graph, nodes: Iterable[Node]) -> list[Node]:
    members = set(nodes)
    return [node for node in graph if node in members]


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
