"""`AttrValue` protobufs <-> attributes of the IR."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.dtypes import DType, Shape, dtype_from_number
from graphwright.ir.graph import Value
from graphwright.ir.traits import is_constant
from graphwright.source.tensorflow_import import import_tensorflow


def shape_from_proto(proto: Any) -> Shape:
    """A `TensorShapeProto` as a shape."""
    if proto.unknown_rank:
        return None
    return tuple(None if d.size < 0 else int(d.size) for d in proto.dim)


def shape_to_proto(shape: Shape, proto: Any) -> None:
    """Write a shape into a `TensorShapeProto`."""
    if shape is None:
        proto.unknown_rank = True
        return
    for d in shape:
        proto.dim.add().size = -1 if d is None else d


def from_attr_value(value: Any) -> Attribute:
    """Decode an `AttrValue`; what the IR does not model is kept serialized."""
    kind = value.WhichOneof("value")
    match kind:
        case "i":
            return int(value.i)
        case "f":
            return float(value.f)
        case "b":
            return bool(value.b)
        case "s":
            return bytes(value.s)
        case "type" if value.type < 100:
            return dtype_from_number(value.type)
        case "shape" if _is_modeled(value.shape):
            return ShapeAttribute(shape_from_proto(value.shape))
        case "func":
            return _from_function(value.func)
        case "list":
            decoded = _from_list(value.list)
            if decoded is not None:
                return decoded
        case _:
            pass
    return SerializedAttribute(value.SerializeToString(deterministic=True))


def _is_modeled(proto: Any) -> bool:
    """Whether a `TensorShapeProto` holds nothing that a `Shape` would lose."""
    return not any(d.name or d.size < -1 for d in proto.dim) and not (proto.unknown_rank and proto.dim)


def _from_function(proto: Any) -> FunctionReference:
    return FunctionReference(proto.name, proto.SerializeToString(deterministic=True) if proto.attr else b"")


def _write_function(reference: FunctionReference, proto: Any) -> None:
    if reference.serialized:
        proto.ParseFromString(reference.serialized)
    proto.name = reference.name


def _from_list(items: Any) -> tuple[Attribute, ...] | None:
    """A list that holds one kind of item, or None: then it stays serialized."""
    filled = [d.name for d, _ in items.ListFields()]
    if len(filled) != 1:
        return None
    match filled[0]:
        case "i":
            return tuple(int(i) for i in items.i)
        case "f":
            return tuple(float(f) for f in items.f)
        case "b":
            return tuple(bool(b) for b in items.b)
        case "s":
            return tuple(bytes(s) for s in items.s)
        case "type" if all(t < 100 for t in items.type):
            return tuple(dtype_from_number(t) for t in items.type)
        case "shape" if all(_is_modeled(s) for s in items.shape):
            return tuple(ShapeAttribute(shape_from_proto(s)) for s in items.shape)
        case "func":
            return tuple(_from_function(f) for f in items.func)
        case _:
            return None


def write_attr_value(attribute: Attribute, value: Any) -> None:
    """Encode an attribute into an `AttrValue`.

    Raises:
        ArgumentError: a list holds something that no `AttrValue` list can hold.
    """
    match attribute:
        case bool():
            value.b = attribute
        case int():
            value.i = attribute
        case float():
            value.f = attribute
        case bytes():
            value.s = attribute
        case DType():
            value.type = attribute.number
        case ShapeAttribute():
            value.shape.SetInParent()
            shape_to_proto(attribute.shape, value.shape)
        case FunctionReference():
            _write_function(attribute, value.func)
        case SerializedAttribute():
            value.ParseFromString(attribute.data)
        case _:
            _write_list(attribute, value.list)


def _write_list(items: tuple[Attribute, ...], proto: Any) -> None:
    for item in items:
        match item:
            case bool():
                proto.b.append(item)
            case int():
                proto.i.append(item)
            case float():
                proto.f.append(item)
            case bytes():
                proto.s.append(item)
            case DType():
                proto.type.append(item.number)
            case ShapeAttribute():
                shape_to_proto(item.shape, proto.shape.add())
            case FunctionReference():
                _write_function(item, proto.func.add())
            case _:
                raise ArgumentError(f"an attribute list cannot hold {item!r}", remedy="keep the whole list as a SerializedAttribute")


def constant_array(value: Value) -> np.ndarray[Any, Any] | None:
    """The array of a `Const`, of strings too, or None for any other value.

    >>> from graphwright.ir.constants import constant_types, tensor_attribute
    >>> from graphwright.ir.graph import Graph
    >>> array = np.array([2, 3], np.int32)
    >>> node = Graph().add_node("Const", "c", attrs={"value": tensor_attribute(array)}, output_types=[constant_types(array)])
    >>> constant_array(node.outputs[0])
    array([2, 3], dtype=int32)
    """
    attribute = value.producer.attrs.get("value")
    return tensor_from_attribute(attribute) if is_constant(value.producer) and attribute is not None else None


def tensor_from_attribute(attribute: Attribute) -> Any:
    """The NumPy array of a serialized tensor attribute (for example `Const`'s `value`), or None when it is none."""
    if not isinstance(attribute, SerializedAttribute):
        return None
    tf = import_tensorflow()
    value: Any = tf.compat.v1.AttrValue.FromString(attribute.data)
    return tf.make_ndarray(value.tensor) if value.WhichOneof("value") == "tensor" else None
