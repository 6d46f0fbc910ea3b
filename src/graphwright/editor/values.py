"""Attributes, dtypes and shapes as users of the editor see them (TensorFlow's own types) <-> those of the IR."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.dtypes import DType, Shape
from graphwright.source.attributes import shape_from_proto, write_attr_value
from graphwright.source.tensorflow_import import import_tensorflow


def to_tf_dtype(dtype: DType) -> Any:
    """The `tf.DType`."""
    return import_tensorflow().as_dtype(dtype.number)


def to_tf_shape(shape: Shape) -> Any:
    """The `tf.TensorShape`."""
    return import_tensorflow().TensorShape(shape)


def to_attr_value(value: Any) -> Any:
    """A Python value as a `tf.compat.v1.AttrValue`.

    Takes str, bytes, bool, int, float, `tf.DType`, `tf.TensorShape`, NumPy arrays, `NameAttrList`, an `AttrValue`
    itself, and lists of these.

    Raises:
        ArgumentError: there is no `AttrValue` for it.

    >>> to_attr_value([1, 2]).list.i
    [1, 2]
    """
    proto: Any = import_tensorflow().compat.v1.AttrValue
    if isinstance(value, proto):
        return value
    result = proto()
    if isinstance(value, list | tuple):
        result.list.SetInParent()
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            _add_to_list(result.list, item)
        return result
    _set_scalar(result, value)
    return result


def _set_scalar(result: Any, value: Any) -> None:
    tf = import_tensorflow()
    match value:
        case str():
            result.s = value.encode()
        case bytes():
            result.s = value
        case bool() | np.bool_():
            result.b = bool(value)
        case int() | np.integer():
            result.i = int(cast("int", value))
        case float() | np.floating():
            result.f = float(cast("float", value))
        case np.ndarray():
            result.tensor.CopyFrom(tf.make_tensor_proto(value))
        case _ if isinstance(value, tf.DType):
            result.type = value.as_datatype_enum
        case _ if isinstance(value, tf.TensorShape):
            result.shape.CopyFrom(value.as_proto())
        case _ if isinstance(value, type(result.func)):
            result.func.CopyFrom(value)
        case _:
            raise ArgumentError(f"a {type(value).__name__} cannot be an attribute", remedy="give an AttrValue protobuf instead")


def _add_to_list(items: Any, value: Any) -> None:
    single: Any = import_tensorflow().compat.v1.AttrValue()
    _set_scalar(single, value)
    field = single.WhichOneof("value")
    target = getattr(items, field)
    content = getattr(single, field)
    if field in ("shape", "tensor", "func"):
        target.add().CopyFrom(content)
    else:
        target.append(content)


def to_python(attribute: Attribute) -> Any:
    """An attribute of the IR as a Python value: str, numbers, `tf.DType`, `tf.TensorShape`, NumPy array, list, `NameAttrList`."""
    match attribute:
        case bool() | int() | float():
            return attribute
        case bytes():
            return _text(attribute)
        case DType():
            return to_tf_dtype(attribute)
        case ShapeAttribute():
            return to_tf_shape(attribute.shape)
        case FunctionReference():
            return attr_value_of(attribute).func
        case SerializedAttribute():
            return from_attr_value_proto(attr_value_of(attribute))
        case _:
            return [to_python(item) for item in attribute]


def attr_value_of(attribute: Attribute) -> Any:
    """An attribute of the IR as a `tf.compat.v1.AttrValue`."""
    proto: Any = import_tensorflow().compat.v1.AttrValue()
    write_attr_value(attribute, proto)
    return proto


def from_attr_value_proto(attr_value: Any) -> Any:
    """The Python value inside an `AttrValue`, lists included.

    Raises:
        ArgumentError: it is empty.
    """
    tf = import_tensorflow()
    kind = attr_value.WhichOneof("value")
    match kind:
        case "list":
            return [_from_field(tf, field.name, item) for field, items in attr_value.list.ListFields() for item in items]
        case None:
            raise ArgumentError("the AttrValue is empty")
        case _:
            return _from_field(tf, kind, getattr(attr_value, kind))


def _from_field(tf: Any, kind: str, content: Any) -> Any:
    match kind:
        case "s" | "placeholder":
            return _text(content)
        case "type":
            return tf.as_dtype(content)
        case "shape":
            return tf.TensorShape(shape_from_proto(content))
        case "tensor":
            return tf.make_ndarray(content)
        case _:
            return content


def _text(content: bytes | str) -> str | bytes:
    """As str where it is text; bytes that are none stay bytes."""
    if isinstance(content, str):
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
