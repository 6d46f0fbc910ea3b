"""Attributes, dtypes and shapes as users of the editor see them (TensorFlow's own types) <-> those of the IR."""

from collections.abc import Callable
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import Attribute
from graphwright.ir.dtypes import DType, Shape
from graphwright.source.attributes import shape_from_proto, write_attr_value
from graphwright.source.registry_rule import plain_attribute
from graphwright.source.tensorflow_import import import_tensorflow


def to_tf_dtype(dtype: DType) -> Any:
    """The `tf.DType`."""
    return import_tensorflow().as_dtype(dtype.number)


def to_tf_shape(shape: Shape) -> Any:
    """The `tf.TensorShape`."""
    return import_tensorflow().TensorShape(shape)


def to_attr_value(value: Any) -> Any:
    """A Python value as a `tf.compat.v1.AttrValue`.

    Takes str, bytes, bool, int, float, `tf.DType`, `tf.TensorShape`, lists of these, NumPy arrays, `NameAttrList`, and an `AttrValue`
    itself.

    Raises:
        ArgumentError: there is no `AttrValue` for it.

    >>> to_attr_value([1, 2]).list.i
    [1, 2]
    """
    proto: Any = import_tensorflow().compat.v1.AttrValue
    return value if isinstance(value, proto) else attr_value_of(plain_attribute(value))


def to_python(attribute: Attribute) -> Any:
    """An attribute of the IR as a Python value: str, numbers, `tf.DType`, `tf.TensorShape`, NumPy array, list, `NameAttrList`."""
    if isinstance(attribute, tuple):
        return [to_python(item) for item in attribute]
    # A float is as it was given: an `AttrValue` would round it.
    return attribute if isinstance(attribute, bool | int | float) else from_attr_value_proto(attr_value_of(attribute))


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
    said: dict[str, Callable[[Any], Any]] = {
        "s": _text,
        "type": tf.as_dtype,
        "shape": lambda proto: to_tf_shape(shape_from_proto(proto)),
        "tensor": tf.make_ndarray,
    }

    def read(kind: str, content: Any) -> Any:
        return said[kind](content) if kind in said else content

    kind = attr_value.WhichOneof("value")
    if kind is None:
        raise ArgumentError("the AttrValue is empty")
    if kind != "list":
        return read(kind, getattr(attr_value, kind))
    return [read(field.name, item) for field, items in attr_value.list.ListFields() for item in items]


def _text(content: bytes) -> str | bytes:
    """As str where it is text; bytes that are none stay bytes."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
