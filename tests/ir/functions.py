"""A node of a test graph moved into a function."""

from __future__ import annotations

from graphwright.ir.attributes import FunctionReference
from graphwright.ir.call_types import types_attribute
from graphwright.ir.edit import clone
from graphwright.ir.graph import Function, Graph, Node


def moved_into_function(node: Node, name: str) -> Node:
    """Let a call of a new function compute what the node computes; returns the call."""
    graph = node.graph
    graph.settle_shapes()
    body = Graph(name, functions=graph.functions, versions=graph.versions)
    body.take_rules(graph)
    arguments = {
        value: body.add_node("_Arg", f"argument_{k}", attrs={"T": value.dtype, "index": k}, output_types=[(value.dtype, value.last_shape)])
        for k, value in enumerate(dict.fromkeys(node.inputs))
    }
    inside = clone([node], into=body, input_map={value: argument.outputs[0] for value, argument in arguments.items()})
    body.inputs = [argument.outputs[0] for argument in arguments.values()]
    body.outputs = [inside.value_of[value] for value in node.outputs]
    graph.functions[name] = Function(name, body)
    attrs = {"Tin": types_attribute(list(arguments)), "Tout": types_attribute(node.outputs), "f": FunctionReference(name)}
    types = [(value.dtype, value.last_shape) for value in node.outputs]
    call = graph.add_node("StatefulPartitionedCall", name, inputs=list(arguments), attrs=attrs, output_types=types)
    graph.replace_many_uses(dict(zip(node.outputs, call.outputs, strict=True)))
    graph.remove_node(node)
    return call
