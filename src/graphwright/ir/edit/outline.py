"""Moves nodes into a new function of the library, with a call in their place."""

from collections.abc import Collection, Iterable

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.attributes import Attribute, FunctionReference
from graphwright.ir.call_types import types_attribute
from graphwright.ir.edit.clone import clone
from graphwright.ir.edit.library import unique_function_name
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.select import walk_forward
from graphwright.ir.subgraph import Boundary, boundary, graph_of
from graphwright.ir.traits.control_flow import called_functions, is_control_flow_of_tf1
from graphwright.ir.traits.effects import Purity, has_known_effects
from graphwright.ir.traits.values import only_orders
from graphwright.ir.traits.variables import reads_resource
from graphwright.ir.walk import fed_values


def outline(nodes: Iterable[Node], name: str, *, call_name: str = "", stateful: bool = True) -> Node:
    """Move nodes into a new function of the library, and replace them by a call; return the call.

    Arguments are the values from outside that the nodes read. Results are their values that are read outside or by nobody, in the order of
    the nodes. Control edges across the boundary lead to the call. The body keeps the names of the nodes; collections lose them.

    Args:
        name: of the function, with a suffix where it is taken.
        call_name: of the call, `name` by default.
        stateful: whether the call is a `StatefulPartitionedCall`, which is right for all bodies.

    Raises:
        GraphError: an input of the graph or of a signature is among the nodes, or a path leaves them and comes back, so that the call would
            wait for itself.
        UnsupportedError: the nodes hold control flow of TF1, whose frames cannot cross a function.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... outputs %b:0
    ... %x = Placeholder() : float32[2]
    ... %a = Relu(%x:0) : float32[2]
    ... %b = Neg(%a:0) : float32[2]
    ... ''')
    >>> outline([g["a"], g["b"]], "tail"), g.outputs[0].name, [n.name for n in g.functions["tail"].body]
    (<Node tail = StatefulPartitionedCall(x:0)>, 'tail:0', ['x', 'a', 'b'])
    """
    members = dict.fromkeys(nodes)
    graph, ends = graph_of(members), boundary(members)
    _check_outline(graph, members, ends)
    graph.check_new_name(name)
    graph.check_new_name(call_name or name)
    graph.settle_shapes()  # the arguments and the call keep them
    function_name = unique_function_name(graph, name)
    body = Graph(function_name, functions=graph.functions, versions=graph.versions)
    body.take_rules(graph)
    arguments: dict[Value, Value] = {}
    own_names = {node.name for node in members}
    for k, value in enumerate(ends.inputs):
        argument_name = value.producer.name.rsplit("/", 1)[-1]
        while argument_name in own_names or argument_name in body:
            argument_name += "_arg"
        attrs: dict[str, Attribute] = {"T": value.dtype, "index": k}
        argument = body.add_node("_Arg", argument_name, attrs=attrs, output_types=[(value.dtype, value.last_shape)]).outputs[0]
        arguments[value] = argument
        if value in graph.variables:
            body.variables[argument] = graph.variables[value]
    inside = clone(members, into=body, input_map=arguments)
    body.inputs = arguments.values()
    body.outputs = [inside.value_of[v] for v in ends.outputs]
    waited_for = {*ends.control_outputs, *graph.control_outputs}
    purity = Purity(graph, {})
    effects = [node for node in members if node in waited_for or _acts(node, purity)]
    body.control_outputs = [inside.node_of[node] for node in effects]
    graph.functions[function_name] = Function(function_name, body)

    call = graph.add_node(
        "StatefulPartitionedCall" if stateful else "PartitionedCall",
        graph.unique_name(call_name or name),
        inputs=ends.inputs,
        control_inputs=ends.control_inputs,
        attrs={
            "Tin": types_attribute(ends.inputs),
            "Tout": types_attribute(ends.outputs),
            "f": FunctionReference(function_name),
            "config": b"",
            "config_proto": b"",
            "executor_type": b"",
        },
        output_types=[(v.dtype, v.last_shape) for v in ends.outputs],
    )
    graph.replace_many_uses(dict(zip(ends.outputs, call.outputs, strict=True)), keep=members)
    for node in ends.control_outputs:
        reroute_control(call, node, cannot_modify=members, outputs=False)
    graph.control_outputs = dict.fromkeys(call if node in members else node for node in graph.control_outputs)
    graph.remove_nodes(members)
    return call


def _acts(node: Node, purity: Purity) -> bool:
    """Return whether a node must run though no result needs it. An unknown op with outputs counts as having no further effects."""
    if has_known_effects(node):
        return True
    if called_functions(node) or node.op_type in node.graph.functions or reads_resource(node):
        return purity.changes_something(node)
    return not node.outputs and not only_orders(node)


def _check_outline(graph: Graph, members: Collection[Node], ends: Boundary) -> None:
    fed = {value.producer for value in fed_values(graph)}
    held = next((node for node in members if node in fed), None)
    if held is not None:
        raise GraphError(f"{held.name!r} is an input of the graph or of a signature", where=f"node {held.name!r}", remedy="leave it out")
    loop = next((node for node in members if is_control_flow_of_tf1(node)), None)
    if loop is not None:
        raise UnsupportedError(f"{loop.name!r} = {loop.op_type} is control flow of TF1, whose frames cannot cross a function")
    outside = [c for n in members for v in n.outputs for c in v.consumers if c not in members]
    outside += [c for n in ends.control_outputs for c in n.control_consumers if c not in members]
    back = next((node for node in walk_forward(outside, control=True, stop_at=members) if node in members), None)
    if back is not None:
        raise GraphError(
            f"a path leaves the nodes and comes back at {back.name!r}, so the call would wait for itself",
            where=f"node {back.name!r}",
            remedy="take the nodes between into the subgraph too",
        )
