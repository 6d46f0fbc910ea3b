"""Put nodes on edges and take them out: insert, bypass, detach, connect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute, ShapeAttribute
from graphwright.ir.dtypes import as_dtype, as_shape
from graphwright.ir.edit.reroute import reroute
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.subgraph import Subgraph, fetched_values, graph_of


def insert_before(
    graph: Graph,
    node: Node,
    index: int,
    op_type: str,
    name: str = "",
    *,
    more_inputs: Sequence[Value] = (),
    attrs: Mapping[str, Any] | None = None,
    output_types: Sequence[tuple[Any, Any]] | None = None,
    device: str | None = None,
) -> Node:
    """Put a new node on the edge that ends in `node.inputs[index]`; returns it.

    The new node reads what stood there, then `more_inputs`; `node` reads its first output.

    Args:
        name: a suffix is added where it is taken; by default `<node>/<op_type>`.
        attrs, output_types: as for `Graph.add_node`; without a rule for ops there is by default one output of the dtype and shape of the
            input.
        device: by default that of `node`.

    Raises:
        GraphError: there is no such input, the dtype of the first output is another one, something belongs to another graph, or the
            node could not be written (see `Graph.add_node`); nothing is changed then.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %a = Relu(%x:0) : float32[2]
    ... ''')
    >>> insert_before(g, g["a"], 0, "Neg"), g["a"]
    (<Node a/Neg = Neg(x:0)>, <Node a = Relu(a/Neg:0)>)
    """
    graph_of([node, *(v.producer for v in more_inputs)])
    if not 0 <= index < len(node.inputs):
        raise GraphError(f"{node.name!r} has {len(node.inputs)} inputs, got index {index}", where=f"node {node.name!r}")
    made = _add_reader(graph, node.inputs[index], node, op_type, name, more_inputs, attrs, output_types, device)
    graph.replace_input(node, index, made.outputs[0])
    graph.refresh_shapes([made])
    return made


def insert_after(
    value: Value,
    op_type: str,
    name: str = "",
    *,
    more_inputs: Sequence[Value] = (),
    attrs: Mapping[str, Any] | None = None,
    output_types: Sequence[tuple[Any, Any]] | None = None,
    device: str | None = None,
    can_modify: Collection[Node] | None = None,
    cannot_modify: Collection[Node] = (),
    borders: bool | None = None,
) -> Node:
    """Put a new node between a value and what reads it; returns it.

    Args:
        name: a suffix is added where it is taken; by default `<producer>/<op_type>`.
        more_inputs: read after the value. What makes them goes on reading the value itself.
        can_modify, cannot_modify, borders: which readers are meant, as in `reroute`.

    Raises:
        GraphError: as `insert_before`.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... outputs %x:0
    ... %x = Placeholder() : float32[2]
    ... %a = Relu(%x:0) : float32[2]
    ... ''')
    >>> insert_after(g.value("x"), "Neg", "negated"), g["a"], g.outputs[0].name
    (<Node negated = Neg(x:0)>, <Node a = Relu(negated:0)>, 'negated:0')
    """
    graph = graph_of([value.producer, *(v.producer for v in more_inputs)])
    made = _add_reader(graph, value, value.producer, op_type, name, more_inputs, attrs, output_types, device)
    also_kept = (made, *(v.producer for v in more_inputs))
    reroute(made.outputs[0], value, can_modify=can_modify, cannot_modify=(*cannot_modify, *also_kept), borders=borders)
    graph.refresh_shapes([made])
    return made


def add_identity(value: Value, name: str, *, control_inputs: Sequence[Node] = ()) -> Node:
    """Add an Identity of a value, on its device, that nothing reads yet; returns it.

    Args:
        name: a suffix is added where it is taken.
        control_inputs: what it waits for.

    Raises:
        GraphError: something belongs to another graph; nothing is changed then.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... ''')
    >>> add_identity(g.value("x"), "later", control_inputs=[g["x"]])
    <Node later = Identity(x:0)>
    """
    node = value.producer
    graph = graph_of([node, *control_inputs])
    return graph.add_node(
        "Identity",
        graph.unique_name(name),
        inputs=[value],
        control_inputs=control_inputs,
        attrs={"T": value.dtype},
        output_types=[(value.dtype, value.shape)],
        device=node.device,
    )


def _add_reader(
    graph: Graph,
    value: Value,
    beside: Node,
    op_type: str,
    name: str,
    more_inputs: Sequence[Value],
    attrs: Mapping[str, Any] | None,
    output_types: Sequence[tuple[Any, Any]] | None,
    device: str | None,
) -> Node:
    """The new node, whose first output can stand for the value; name and device are those of the node `beside` where none are given."""
    if output_types is None and graph.op_rule is None:
        output_types = [(value.dtype, value.last_shape)]
    name = graph.unique_name(name or f"{beside.name}/{op_type}")
    graph.check_new_name(name)
    attrs, types = graph.completed(op_type, name, [value, *more_inputs], attrs or {}, output_types)
    if not types or types[0][0] != value.dtype:
        raise GraphError(
            f"the first output would be {types[0][0] if types else 'missing'} where {value.name} is {value.dtype}",
            where="argument 'output_types'",
            remedy="insert a Cast too, or reroute by hand",
        )
    return graph.append_node(
        op_type,
        name,
        inputs=[value, *more_inputs],
        attrs=attrs,
        output_types=types,
        device=beside.device if device is None else device,
    )


def bypass(
    nodes: Node | Iterable[Node] | Subgraph,
    *,
    replacements: Mapping[Value, Value] | None = None,
    remove: bool = True,
) -> tuple[Node, ...]:
    """Let what reads the outputs of these nodes read their inputs instead; returns the nodes that were removed.

    Output k becomes input k of the boundary (or of the view, which may be remapped). What waited for the nodes waits
    for what they waited for.

    Args:
        replacements: which value takes the place of which output, where order does not say it.
        remove: whether the nodes are removed, as far as nothing needs them any more.

    Raises:
        GraphError: an output that is read has no input of its dtype to take its place, or is an input of the graph
            or of a signature; nothing is changed then.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... outputs %b:0
    ... %x = Placeholder() : float32[2]
    ... %a = Dropout(%x:0) : float32[2]
    ... %b = Relu(%a:0) : float32[2]
    ... ''')
    >>> _ = bypass(g["a"])
    >>> [str(node) for node in g]
    ['<Node x = Placeholder()>', '<Node b = Relu(x:0)>']
    """
    view = nodes if isinstance(nodes, Subgraph) else Subgraph.of(nodes)
    graph, members = view.graph, view.members
    graph_of(view.nodes)
    fed = {v.producer for v in graph.inputs} | {v.producer for s in graph.signatures.values() for v in s.inputs.values()}
    held = next((node for node in view.nodes if node in fed), None)
    if held is not None:
        raise GraphError(f"{held.name!r} is an input of the graph or of a signature", where=f"node {held.name!r}")
    ends = view.boundary
    fetched = fetched_values(graph)

    def is_needed(value: Value) -> bool:
        return value in fetched or any(c not in members for c in value.consumers)

    if replacements is None:
        new_of: dict[Value, Value] = {}
        for place, value in enumerate(view.outputs):
            if value in new_of or not is_needed(value):  # a view may hold an output twice; its first place counts
                continue
            if place >= len(view.inputs):
                raise GraphError(
                    f"the nodes have {len(view.inputs)} inputs and {len(view.outputs)} outputs, so nothing can stand for {value.name}",
                    where="bypass",
                    remedy="say what takes its place in the argument replacements",
                )
            new_of[value] = view.inputs[place]
    else:
        new_of = dict(replacements)
    _check_bypass(members, [value for value in ends.outputs if is_needed(value)], new_of)
    inherited = _waits(view)
    waiting = [(node, control) for control in ends.control_outputs for node in control.control_consumers if node not in members]
    graph.replace_many_uses(new_of, keep=members)
    for node, control in waiting:
        graph.remove_control_input(node, control)
        for before in inherited:
            if before is not node:
                graph.add_control_input(node, before)
    graph.control_outputs = dict.fromkeys(
        node for control in graph.control_outputs for node in (inherited if control in members else (control,))
    )
    if not remove:
        return ()
    graph.remove_nodes(view.nodes)
    return view.nodes


def _check_bypass(members: Collection[Node], needed: Iterable[Value], new_of: Mapping[Value, Value]) -> None:
    for old, new in new_of.items():
        graph_of((old.producer, new.producer))
        if new.producer in members:
            raise GraphError(f"{new.name} is bypassed itself, and cannot take the place of {old.name}", where="bypass")
        if new.dtype != old.dtype:
            raise GraphError(
                f"{old.name} has dtype {old.dtype}, and {new.name}, which would take its place, {new.dtype}",
                where="bypass",
                remedy="say what takes its place in the argument replacements",
            )
        if any(reader is new.producer for reader in old.consumers):
            raise GraphError(f"{new.producer.name!r} reads {old.name}, and would then read itself", where="bypass")
    lost = next((value for value in needed if value not in new_of), None)
    if lost is not None:
        raise GraphError(f"nothing takes the place of {lost.name}, which is read", where="bypass")


def _waits(view: Subgraph) -> tuple[Node, ...]:
    """What a node must wait for that waited for the view: all that the view waited for, through data or control edges."""
    return tuple(dict.fromkeys((*(v.producer for v in view.boundary.inputs), *view.boundary.control_inputs)))


@dataclass(frozen=True)
class Detached:
    """What `detach` put in the place of values on the boundary."""

    view: Subgraph
    """The nodes, which read placeholders now."""
    inputs: dict[Value, Value]
    """Value outside -> the placeholder that the nodes read in its place."""
    outputs: dict[Value, Value]
    """Value of the nodes -> the placeholder that the rest of the graph reads in its place."""


def detach(
    nodes: Node | Iterable[Node] | Subgraph, *, inputs: bool = True, outputs: bool = True, control: bool = False, prefix: str = "detached"
) -> Detached:
    """Cut nodes off the rest of their graph: each side reads placeholders where it read the other.

    Args:
        inputs: whether the nodes read placeholders instead of values from outside.
        outputs: whether the rest reads placeholders instead of values of the nodes.
        control: whether control edges across the boundary are removed too.
        prefix: of the placeholders' names, `<prefix>/<name>`.

    Raises:
        GraphError: the nodes belong to several graphs.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %a = Relu(%x:0) : float32[2]
    ... %b = Neg(%a:0) : float32[2]
    ... ''')
    >>> found = detach(g["a"])
    >>> g["a"], g["b"]
    (<Node a = Relu(detached/x:0)>, <Node b = Neg(detached/a:0)>)
    """
    view = nodes if isinstance(nodes, Subgraph) else Subgraph.of(nodes)
    graph_of(view.nodes)
    ends = view.boundary
    new_inputs: dict[Value, Value] = {}
    new_outputs: dict[Value, Value] = {}
    if inputs:
        new_inputs = {value: _placeholder_of(view.graph, value, prefix) for value in view.inputs}
        for value, placeholder in new_inputs.items():
            reroute(placeholder, value, can_modify=view.members)
    if outputs:
        read = [v for v in view.outputs if any(c not in view.members for c in v.consumers)]
        new_outputs = {value: _placeholder_of(view.graph, value, prefix) for value in read}
        for value, placeholder in new_outputs.items():
            reroute(placeholder, value, cannot_modify=view.members, borders=False)
    if control:
        for node in view.nodes:
            for before in node.control_inputs:
                if before not in view.members:
                    view.graph.remove_control_input(node, before)
        for node in ends.control_outputs:
            for after in node.control_consumers:
                if after not in view.members:
                    view.graph.remove_control_input(after, node)
    cut = Subgraph(view.graph, view.nodes, tuple(new_inputs.get(v, v) for v in view.inputs), view.outputs)
    return Detached(cut, new_inputs, new_outputs)


def add_placeholder(graph: Graph, name: str, dtype: Any, shape: Any) -> Value:
    """Add a placeholder; a suffix is added to its name where it is taken. Dtype and shape in any usual form."""
    dtype, shape = as_dtype(dtype), as_shape(shape)
    attrs: dict[str, Attribute] = {"dtype": dtype, "shape": ShapeAttribute(shape)}
    return graph.add_node("Placeholder", graph.unique_name(name), attrs=attrs, output_types=[(dtype, shape)]).outputs[0]


def _placeholder_of(graph: Graph, value: Value, prefix: str) -> Value:
    suffix = f"_{value.index}" if value.index else ""
    return add_placeholder(graph, f"{prefix}/{value.producer.name}{suffix}", value.dtype, value.last_shape)


def connect(source: Subgraph, target: Subgraph, *, detach_first: bool = False) -> Subgraph:
    """Let the nodes of `target` read the outputs of `source` in the place of its inputs, one by one; returns the new view of `target`.

    Args:
        detach_first: cut `source` off its readers and `target` off what it reads before.

    Raises:
        GraphError: the numbers or dtypes differ, the views overlap or belong to several graphs; nothing is changed then.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %a = Relu(%x:0) : float32[2]
    ... %b = Neg(%x:0) : float32[2]
    ... ''')
    >>> _ = connect(Subgraph.of(g["a"]), Subgraph.of(g["b"]))
    >>> g["b"]
    <Node b = Neg(a:0)>
    """
    graph_of((*source.nodes, *target.nodes))
    if source.members & target.members:
        raise GraphError(f"{next(iter(source.members & target.members)).name!r} is in both subgraphs", where="connect")
    if len(source.outputs) != len(target.inputs):
        raise GraphError(f"{len(source.outputs)} outputs cannot be connected to {len(target.inputs)} inputs", where="connect")
    for new, old in zip(source.outputs, target.inputs, strict=True):
        if new.dtype != old.dtype:
            raise GraphError(f"{new.name} has dtype {new.dtype}, {old.name} {old.dtype}", where="connect", remedy="insert a Cast")
    if detach_first:
        detach(source, inputs=False)
        target = detach(target, outputs=False).view
    new_of = dict(zip(target.inputs, source.outputs, strict=True))
    source.graph.replace_many_uses(new_of, keep=_Outside(target.members), borders=False)
    return Subgraph(target.graph, target.nodes, source.outputs, target.outputs)


class _Outside:
    """Every node but these, as something that answers `in`."""

    def __init__(self, members: Collection[Node]) -> None:
        self._members = members

    def __contains__(self, node: object) -> bool:
        return node not in self._members
