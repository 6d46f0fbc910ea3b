"""Nodes of a graph -> `NodeDef`s, with attributes that match the current inputs and outputs."""

from collections.abc import Callable
from typing import Any

from graphwright.ir.attributes import Attribute, ShapeAttribute
from graphwright.ir.call_types import lists_of_types, types_attribute
from graphwright.ir.graph import Node, Value
from graphwright.ir.node import recorded_shapes
from graphwright.source.attributes import shape_to_proto, write_attr_value


def graph_edge(value: Value) -> str:
    return value.producer.name if value.index == 0 else value.name


def write_node(node: Node, node_def: Any, edge: Callable[[Value], str] = graph_edge) -> None:
    if node.extra:
        node_def.ParseFromString(node.extra)
    node_def.name = node.name
    node_def.op = node.op_type
    node_def.device = node.device
    for value in node.inputs:
        node_def.input.append(edge(value))
    for control in node.control_inputs:
        node_def.input.append(f"^{control.name}")
    for key, attribute in follow_values(node).items():
        write_attr_value(attribute, node_def.attr[key])


def write_placeholder(value: Value, name: str, node_def: Any) -> None:
    node_def.attr.clear()
    node_def.name, node_def.op = name, "Placeholder"
    node_def.attr["dtype"].type = value.dtype.number
    shape_to_proto(value.last_shape, node_def.attr["shape"].shape)


def follow_values(node: Node) -> dict[str, Attribute]:
    """Return the attributes, with lists of dtypes and shapes that match the current inputs and outputs."""
    lists = lists_of_types(node)
    if "_output_shapes" not in node.attrs and not lists:
        return node.attrs
    attrs = dict(node.attrs)
    for key, values in lists.items():
        if isinstance(attrs.get(key), tuple) or (values and key not in attrs):
            attrs[key] = types_attribute(values)
    follow_shapes(node, attrs)
    return attrs


def follow_shapes(node: Node, attrs: dict[str, Attribute]) -> None:
    at_most = node.graph.at_most
    shapes = tuple(ShapeAttribute(at_most.get(v, v.known_shape)) for v in node.outputs)
    for name in recorded_shapes(node):
        listed = attrs.get(name)
        if (
            isinstance(listed, tuple)
            and shapes != listed[: len(shapes)]
            and (name[0] == "_" or not at_most.keys().isdisjoint(node.outputs))
        ):
            attrs[name] = shapes
