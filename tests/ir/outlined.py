"""Functions made of nodes, for tests of functions."""

from __future__ import annotations

from collections.abc import Iterable

from graphwright.ir.attributes import FunctionReference
from graphwright.ir.call_types import types_attribute
from graphwright.ir.edit import clone
from graphwright.ir.edit.insert import add_op
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Function, Graph, Node
from graphwright.ir.subgraph import boundary, graph_of


def outlined(nodes: Iterable[Node], name: str) -> Node:
    """Move nodes into a new function, and return the call that replaces them."""
    members = list(nodes)
    graph, ends = graph_of(members), boundary(members)
    graph.settle_shapes()
    body = Graph(name, functions=graph.functions, versions=graph.versions)
    body.take_rules(graph)
    body.inputs = [add_op(body, "_Arg", f"argument_{k}", [], v.dtype, v.shape, T=v.dtype, index=k) for k, v in enumerate(ends.inputs)]
    arguments = dict(zip(ends.inputs, body.inputs, strict=True))
    body.variables.update((arguments[v], graph.variables[v]) for v in ends.inputs if v in graph.variables)
    copies = clone(members, into=body, input_map=arguments)
    body.outputs = [copies.value_of[v] for v in ends.outputs]
    graph.functions[name] = Function(name, body)
    attrs = {"Tin": types_attribute(ends.inputs), "Tout": types_attribute(ends.outputs), "f": FunctionReference(name)}
    attrs |= dict.fromkeys(("config", "config_proto", "executor_type"), b"")
    types = [(v.dtype, v.shape) for v in ends.outputs]
    call = graph.add_node("StatefulPartitionedCall", graph.unique_name(name), inputs=ends.inputs, attrs=attrs, output_types=types)
    graph.replace_many_uses(dict(zip(ends.outputs, call.outputs, strict=True)), keep=members)
    for node in members:
        reroute_control(call, node, cannot_modify=members, outputs=False)
    graph.remove_nodes(members)
    return call
