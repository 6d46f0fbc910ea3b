"""`AttrValue` protobufs <-> attributes of the IR."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.dtypes import DType, Shape, dtype_from_number
from graphwright.ir.graph import Value
from graphwright.ir.traits.values import is_constant
from graphwright.source.tensorflow_import import import_tensorflow

_LARGEST_FILLED = 256 * 2**20


def shape_from_proto(proto: Any) -> Shape:
    if proto.unknown_rank:
        return None
    return tuple(None if d.size < 0 else int(d.size) for d in proto.dim)


def shape_to_proto(shape: Shape, proto: Any) -> None:
    proto.SetInParent()
    if shape is None:
        proto.unknown_rank = True
        return
    for d in shape:
        proto.dim.add().size = -1 if d is None else d


def shape_of(tensor: Any) -> Shape:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def from_attr_value(value: Any) -> Attribute:
    """Decode an `AttrValue`; what the IR does not model is kept serialized."""
    kind = value.WhichOneof("value")
    if kind == "list":
        filled = [field.name for field, _ in value.list.ListFields()]
        if len(filled) == 1:
            items = getattr(value.list, filled[0])
            if all(_is_modeled(filled[0], item) for item in items):
                return tuple(map(_DECODE[filled[0]], items))
    elif kind is not None and _is_modeled(kind, content := getattr(value, kind)):
        return _DECODE[kind](content)
    return SerializedAttribute(value.SerializeToString(deterministic=True))


def _is_modeled(kind: str, content: Any) -> bool:
    if kind == "type":
        return content < 100
    if kind == "shape":
        return not any(d.name or d.size < -1 for d in content.dim) and not (content.unknown_rank and content.dim)
    return kind in _DECODE


_DECODE: dict[str, Callable[[Any], Attribute]] = {
    "i": int,
    "f": float,
    "b": bool,
    "s": bytes,
    "type": dtype_from_number,
    "shape": lambda proto: ShapeAttribute(shape_from_proto(proto)),
    "func": lambda proto: FunctionReference(proto.name, proto.SerializeToString(deterministic=True) if proto.attr else b""),
}


def write_attr_value(attribute: Attribute, value: Any) -> None:
    """Encode an attribute into an `AttrValue`; raise `ArgumentError` for list items that no `AttrValue` can hold."""
    if isinstance(attribute, SerializedAttribute):
        value.ParseFromString(attribute.data)
    elif not isinstance(attribute, tuple):
        _write_item(attribute, functools.partial(setattr, value), lambda kind: getattr(value, kind))
    else:
        items = value.list
        for item in attribute:
            _write_item(item, lambda kind, plain: getattr(items, kind).append(plain), lambda kind: getattr(items, kind).add())


def _write_item(item: Attribute, put: Callable[[str, Any], None], message: Callable[[str], Any]) -> None:
    match item:
        case bool():
            put("b", item)
        case int():
            put("i", item)
        case float():
            put("f", item)
        case bytes():
            put("s", item)
        case DType():
            put("type", item.number)
        case ShapeAttribute():
            shape_to_proto(item.shape, message("shape"))
        case FunctionReference():
            proto = message("func")
            if item.serialized:
                proto.ParseFromString(item.serialized)
            proto.name = item.name
        case _:
            raise ArgumentError(f"an attribute list cannot hold {item!r}", remedy="keep the whole list as a SerializedAttribute")


def constant_array(value: Value) -> np.ndarray[Any, Any] | None:
    """Return the array of a `Const`, also of strings; None for any other value."""
    attribute = value.producer.attrs.get("value")
    return tensor_from_attribute(attribute) if is_constant(value.producer) and attribute is not None else None


def tensor_from_attribute(attribute: Attribute) -> Any:
    if not isinstance(attribute, SerializedAttribute):
        return None
    tf = import_tensorflow()
    value: Any = tf.compat.v1.AttrValue.FromString(attribute.data)
    return array_of(value.tensor) if value.WhichOneof("value") == "tensor" else None


def array_of(tensor: Any) -> np.ndarray[Any, Any] | None:
    """Return the array of a `TensorProto`; None where its content does not fit, or one element is repeated very often."""
    tf = import_tensorflow()
    try:
        sizes = [d.size for d in tensor.tensor_shape.dim]
        nbytes = math.prod(sizes) * max(tf.as_dtype(tensor.dtype).size or 0, 1)
        return tf.make_ndarray(tensor) if min(sizes, default=0) >= 0 and nbytes <= max(_LARGEST_FILLED, tensor.ByteSize()) else None
    except (TypeError, ValueError, LookupError, ArithmeticError):
        return None


def tensor_to_attribute(tensor: Any) -> Attribute:
    """Convert an array, number, text, nested list of them or a `TensorProto` to the attribute of a tensor."""
    tf = import_tensorflow()
    value: Any = tf.compat.v1.AttrValue()
    value.tensor.CopyFrom(tensor if isinstance(tensor, type(value.tensor)) else tf.make_tensor_proto(tensor))
    return from_attr_value(value)
