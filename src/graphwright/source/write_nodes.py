"""Nodes of a graph -> `NodeDef`s, with the attributes that follow from what a node reads and makes now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphwright.ir.attributes import EMPTY_LIST, Attribute, SerializedAttribute, ShapeAttribute
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits import BRANCHES
from graphwright.source.attributes import write_attr_value


def graph_edge(value: Value) -> str:
    """A value as a `GraphDef` writes it."""
    return value.producer.name if value.index == 0 else value.name


def write_node(node: Node, node_def: Any, edge: Callable[[Value], str] = graph_edge) -> None:
    """Write a node into a `NodeDef`, whose inputs are named by `edge`."""
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


_LISTS_OF_TYPES: Mapping[str, tuple[str | None, str | None]] = {
    "PartitionedCall": ("Tin", "Tout"),
    "StatefulPartitionedCall": ("Tin", "Tout"),
    "If": (None, "Tout"),
    "StatelessIf": (None, "Tout"),
    "Case": (None, "Tout"),
    "StatelessCase": (None, "Tout"),
    "While": ("T", None),
    "StatelessWhile": ("T", None),
    "IdentityN": ("T", None),
}
"""Ops whose attributes list the dtypes of all inputs and of all outputs."""


def follow_values(node: Node) -> dict[str, Attribute]:
    """The attributes, with lists of dtypes and shapes that say what the inputs and outputs are now."""
    if "_output_shapes" not in node.attrs and node.op_type not in _LISTS_OF_TYPES:
        return node.attrs
    attrs = dict(node.attrs)
    for key, values in zip(_LISTS_OF_TYPES.get(node.op_type, (None, None)), (node.inputs, node.outputs), strict=True):
        if key is not None:
            dtypes = tuple(v.dtype for v in values)
            if dtypes and isinstance(attrs.get(key), tuple | None) and attrs.get(key) != dtypes:
                attrs[key] = dtypes
            elif not dtypes and isinstance(attrs.get(key), tuple):
                attrs[key] = SerializedAttribute(EMPTY_LIST)
    if node.op_type in BRANCHES:
        dtypes = tuple(v.dtype for v in node.inputs[1:])
        if dtypes and isinstance(attrs.get("Tin"), tuple | None) and attrs.get("Tin") != dtypes:
            attrs["Tin"] = dtypes
    follow_shapes(node, attrs)
    return attrs


def follow_shapes(node: Node, attrs: dict[str, Attribute]) -> None:
    """Let `_output_shapes` say what the outputs are now, where it is among the attributes as a list of shapes."""
    listed = attrs.get("_output_shapes")
    if isinstance(listed, tuple):
        shapes = tuple(ShapeAttribute(node.graph.at_most.get(v, v.known_shape)) for v in node.outputs)
        if shapes != listed[: len(shapes)]:
            attrs["_output_shapes"] = shapes
