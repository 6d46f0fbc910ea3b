"""`NodeDef` and attributes of a node: the two attributes with words of their own, and the protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from graphwright.editor.values import to_attr_value
from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.colocation import ATTRIBUTE as COLOCATION
from graphwright.ir.dtypes import DType, Shape
from graphwright.ir.graph import Node
from graphwright.source.attributes import from_attr_value, shape_from_proto, shape_to_proto
from graphwright.source.tensorflow_import import import_tensorflow

SHAPES = "_output_shapes"
SPECIAL_ATTRS = (COLOCATION, SHAPES)
_PREFIX = "loc:@"


def write_attr(node: Node, key: str, value: Any, *, new: bool, validate_groups: bool) -> None:
    """Add an attribute, or replace one.

    Raises:
        ArgumentError: it is there already, or is not, or the value cannot be an attribute.
    """
    if key == SHAPES:
        _set_shapes(node, value)
        return
    if new and key in node.attrs:
        raise ArgumentError(f"Already have an attribute called '{key}'", where=f"node {node.name!r}", remedy="use replace_attr")
    if not new and key not in node.attrs:
        raise ArgumentError(f"Node {node.name} has no attribute called '{key}'", remedy="use add_attr")
    if key != COLOCATION:
        value = from_attr_value(value) if isinstance(value, import_tensorflow().compat.v1.AttrValue) else value
        node.graph.set_attr(node, key, value)
        return
    names = _group_names(value)
    if validate_groups:
        check_heads(node, names)
    set_colocation_groups(node, names)


def set_colocation_groups(node: Node, names: Sequence[str]) -> None:
    """Write the attribute `_class`."""
    node.graph.set_attr(node, COLOCATION, tuple(f"{_PREFIX}{name}".encode() for name in names) or None)


def check_heads(node: Node, names: Iterable[str]) -> None:
    """Raise unless the nodes exist."""
    for name in names:
        if name not in node.graph:
            raise GraphError(f"Graph does not contain a node with name '{name}'", where=f"colocation groups of {node.name!r}")


def _group_names(value: Any) -> list[str]:
    if not isinstance(value, list | tuple):
        value = [item.decode() for item in to_attr_value(value).list.s]
    names: list[str] = []
    for item in value:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(item, str) or not item.startswith(_PREFIX):
            raise ArgumentError(f"a colocation group starts with '{_PREFIX}', got {item!r}", where=f"attribute {COLOCATION!r}")
        names.append(item.removeprefix(_PREFIX))
    return names


def _set_shapes(node: Node, value: Any) -> None:
    proto: Any = import_tensorflow().compat.v1.AttrValue
    if not isinstance(value, proto):
        raise ArgumentError(f"attribute {SHAPES!r} takes an AttrValue, got {type(value).__name__}")
    shapes: list[Shape] = [shape_from_proto(s) for s in to_attr_value(value).list.shape]
    if not node.outputs:
        return  # without dtypes there are no outputs yet; `infer_outputs` finds both
    if len(shapes) != len(node.outputs):
        raise ArgumentError(f"{len(shapes)} shapes for {len(node.outputs)} outputs", where=f"node {node.name!r}")
    set_output_types(node, [(v.dtype, s) for v, s in zip(node.outputs, shapes, strict=True)])


def set_output_types(node: Node, types: Sequence[tuple[DType, Shape]]) -> None:
    """Set dtype and shape of the outputs in place; more of them may follow those that are there."""
    for value, (dtype, shape) in zip(node.outputs, types, strict=False):
        value.dtype = dtype
        value.shape = shape
    for dtype, shape in types[len(node.outputs) :]:
        node.graph.add_output(node, dtype, shape)


def write_shapes(node: Node, target: Any, wanted: bool) -> None:
    """Write the shapes of the outputs into a `NodeDef` where one is known; or take them out."""
    target.attr.pop(SHAPES, None)
    shapes = [value.known_shape for value in node.outputs] if wanted else []
    if any(shape is not None for shape in shapes):
        written = target.attr[SHAPES].list.shape
        for shape in shapes:
            shape_to_proto(shape, written.add())
