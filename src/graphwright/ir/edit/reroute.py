"""Replaces what nodes read and wait for."""

from collections.abc import Collection, Iterable, Sequence

from graphwright.errors import GraphError
from graphwright.ir.colocation import ATTRIBUTE
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.subgraph import graph_of


def reroute(
    new: Value | Sequence[Value],
    old: Value | Sequence[Value],
    *,
    can_modify: Collection[Node] | None = None,
    cannot_modify: Collection[Node] = (),
    borders: bool | None = None,
) -> int:
    """Make readers of `old` read `new`, value by value; return the number of changed uses.

    Args:
        can_modify: only these readers change; None means all.
        cannot_modify: these readers do not change.
        borders: whether outputs of the graph and of its signatures change too; by default they do unless `can_modify` is given.

    Raises:
        GraphError: the numbers or dtypes differ, a value is rerouted twice, or a reader would read itself.
    """
    afters = [new] if isinstance(new, Value) else list(new)
    befores = [old] if isinstance(old, Value) else list(old)
    if len(afters) != len(befores):
        raise GraphError(f"{len(afters)} values cannot take the place of {len(befores)}", where="arguments 'new' and 'old'")
    if not afters:
        return 0
    graph = graph_of(value.producer for value in (*afters, *befores))
    new_of: dict[Value, Value] = {}
    for after, before in zip(afters, befores, strict=True):
        if new_of.setdefault(before, after) is not after:
            raise GraphError(f"{before.name} is to be rerouted to {new_of[before].name} and to {after.name}", argument="old")
    take_borders = can_modify is None if borders is None else borders
    others = set[Node]() if can_modify is None else {reader for value in befores for reader in value.consumers} - set(can_modify)
    return graph.replace_many_uses(new_of, keep={*cannot_modify, *others}, borders=take_borders)


def reroute_control(
    new: Node | Iterable[Node],
    old: Node,
    *,
    cannot_modify: Collection[Node] = (),
    outputs: bool = True,
) -> int:
    """Make nodes that wait for `old` wait for `new`: one node, several or none; return the number of changed nodes. With `outputs`, `new`
    also replaces `old` among the control outputs of the graph.
    """
    if new is old:
        return 0
    after = [node for node in ((new,) if isinstance(new, Node) else dict.fromkeys(new)) if node is not old]
    graph = graph_of((old, *after))
    excluded = {*cannot_modify, *after}
    readers = [node for node in old.control_consumers if node not in excluded]
    for reader in readers:
        graph.remove_control_input(reader, old)
        for node in after:
            graph.add_control_input(reader, node)
    if outputs and graph.is_border(old) and old in graph.control_outputs:
        graph.control_outputs = dict.fromkeys(n for node in graph.control_outputs for n in (after if node is old else (node,)))
    return len(readers)


def set_control_inputs(graph: Graph, node: Node, controls: Iterable[Node]) -> None:
    new_controls = dict.fromkeys(controls)
    for control in (node, *new_controls):
        graph.check_owned(control, node.name)
    if node in new_controls:
        raise GraphError(f"{node.name!r} cannot be its own control input", where=f"node {node.name!r}")
    for control in node.control_inputs:
        graph.remove_control_input(node, control)
    for control in new_controls:
        graph.add_control_input(node, control)


def replace_node(old: Node, new: Node) -> None:
    """Replace `old` by `new`, which gets its name, and remove `old`.

    Readers, control edges, borders, signatures, collections, variables and colocation constraints follow. Outputs correspond by index.

    Raises:
        GraphError: a needed output has no counterpart or one of another dtype, or `new` reads `old`.
    """
    graph = graph_of((old, new))
    if old is new:
        return
    if any(value.producer is old for value in new.inputs) or old in new.control_inputs:
        raise GraphError(f"{new.name!r} reads {old.name!r}, and would then read itself", where=f"node {new.name!r}")
    held = {v for place, values in graph.places_of_values(old) if not place.startswith("graph.collections") for v in values}
    for k, value in enumerate(old.outputs):
        if not value.use_count and value not in held:
            continue
        counterpart = new.outputs[k] if k < len(new.outputs) else None
        if counterpart is None:
            raise GraphError(f"{new.name!r} has no output that could replace {value.name}", where=f"node {new.name!r}")
        if counterpart.dtype != value.dtype:
            raise GraphError(
                f"{counterpart.name} has dtype {counterpart.dtype}, {value.name} {value.dtype}", remedy="insert a Cast behind the new node"
            )
    new_of = {a: b for a, b in zip(old.outputs, new.outputs, strict=False) if a.dtype == b.dtype}
    inputs = [new_of.get(v, v) for v in graph.inputs]
    if len(set(inputs)) != len(inputs):
        raise GraphError(f"{new.name!r} is an input of the graph already", where=f"node {new.name!r}")
    graph.replace_many_uses(new_of)
    reroute_control(new, old)
    for control in old.control_inputs:
        if control is not new:
            graph.add_control_input(new, control)
    graph.inputs = inputs
    for signature in graph.signatures.values():
        for key, value in signature.inputs.items():
            if value in new_of:
                signature.inputs[key] = new_of[value]
    for value, after in new_of.items():
        if value in graph.variables:
            graph.variables[after] = graph.variables.pop(value)
    graph.replace_in_collections(old, new)
    name = old.name
    colocated = [(node, node.attrs[ATTRIBUTE]) for node in graph.colocated_with(old) if node is not old]
    graph.remove_node(old)
    graph.rename(new, name)
    for node, attribute in colocated:
        graph.set_attr(node, ATTRIBUTE, attribute)


def take_name(graph: Graph, old: Node, new: Node) -> None:
    """Replace a node that nothing reads any more by another one, which gets its name; a border stays."""
    if not (graph.is_border(old) or any(v.use_count for v in old.outputs)):
        replace_node(old, new)
