"""Conversion of attributes, dtypes and shapes between TensorFlow and the IR."""

from collections.abc import Callable
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import Attribute
from graphwright.ir.dtypes import DType, Shape
from graphwright.source.attributes import shape_from_proto, write_attr_value
from graphwright.source.registry_rule import plain_attribute
from graphwright.source.tensorflow_import import import_tensorflow


def to_tf_dtype(dtype: DType) -> Any:
    return import_tensorflow().as_dtype(dtype.number)


def to_tf_shape(shape: Shape) -> Any:
    return import_tensorflow().TensorShape(shape)


def to_attr_value(value: Any) -> Any:
    """Return a `tf.compat.v1.AttrValue` of a str, bytes, bool, int, float, `tf.DType`, `tf.TensorShape`, a list of these, a NumPy array, or
    a `NameAttrList`, or raise an ArgumentError.

    >>> to_attr_value([1, 2]).list.i
    [1, 2]
    """
    proto: Any = import_tensorflow().compat.v1.AttrValue
    return value if isinstance(value, proto) else _attr_value(plain_attribute(value))


def to_python(attribute: Attribute) -> Any:
    """Return an attribute of the IR as str, number, `tf.DType`, `tf.TensorShape`, NumPy array, list or `NameAttrList`."""
    if isinstance(attribute, tuple):
        return [to_python(item) for item in attribute]
    # An `AttrValue` would round floats.
    return attribute if isinstance(attribute, bool | int | float) else from_attr_value_proto(_attr_value(attribute))


def _attr_value(attribute: Attribute) -> Any:
    proto: Any = import_tensorflow().compat.v1.AttrValue()
    write_attr_value(attribute, proto)
    return proto


def from_attr_value_proto(attr_value: Any) -> Any:
    """Return the Python value in an `AttrValue`; if it is empty, raise an ArgumentError."""
    tf = import_tensorflow()
    conversions: dict[str, Callable[[Any], Any]] = {
        "s": _text,
        "type": tf.as_dtype,
        "shape": lambda proto: to_tf_shape(shape_from_proto(proto)),
        "tensor": tf.make_ndarray,
    }

    def read(kind: str, content: Any) -> Any:
        return conversions[kind](content) if kind in conversions else content

    kind = attr_value.WhichOneof("value")
    if kind is None:
        raise ArgumentError("the AttrValue is empty")
    if kind != "list":
        return read(kind, getattr(attr_value, kind))
    return [read(field.name, item) for field, items in attr_value.list.ListFields() for item in items]


def _text(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
