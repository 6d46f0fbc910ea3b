"""Small constant tensors as attributes, in the wire format of `TensorProto` (tensorflow/core/framework/tensor.proto)."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import SerializedAttribute
from graphwright.ir.dtypes import DTYPES, DType, dtype_from_number
from graphwright.ir.wire import fields_of, message_field, varint_field

_PLAIN_NUMBERS = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())


def tensor_attribute(array: np.ndarray[Any, Any]) -> SerializedAttribute:
    """The serialized `AttrValue` of a numeric array, as attribute `value` of a `Const` node.

    Raises:
        ArgumentError: the array's dtype has no TensorFlow type.

    >>> tensor_attribute(np.array([2], dtype=np.int32)).data.hex()
    '420e0803120412020801220402000000'
    """
    dtype = DTYPES.get(str(array.dtype))
    if dtype is None or dtype.itemsize is None:
        raise ArgumentError(f"an array of dtype {array.dtype} cannot be a constant")
    dims = b"".join(message_field(2, varint_field(1, d)) for d in array.shape)
    tensor = varint_field(1, dtype.number) + message_field(2, dims) + message_field(4, np.ascontiguousarray(array).tobytes())
    return SerializedAttribute(message_field(8, tensor))


def array_of(attribute: SerializedAttribute) -> np.ndarray[Any, Any] | None:
    """The array of an attribute that `tensor_attribute` made of real numbers; None for anything else, other encodings included.

    >>> array_of(tensor_attribute(np.array([2, 3], dtype=np.int32)))
    array([2, 3], dtype=int32)
    """
    try:
        [(field, tensor)] = _contents(attribute.data)
        if field != 8 or not isinstance(tensor, bytes):
            return None
        parts = dict(_contents(tensor))
        number, dims, content = parts[1], parts.get(2, b""), parts.get(4, b"")
        if not (isinstance(number, int) and isinstance(dims, bytes) and isinstance(content, bytes)):
            return None
        shape = [
            size for _, dim in _contents(dims) for _, size in _contents(dim if isinstance(dim, bytes) else b"") if isinstance(size, int)
        ]
        name = dtype_from_number(number).name
        return np.frombuffer(content, np.dtype(name)).reshape(shape) if name in _PLAIN_NUMBERS else None
    except (KeyError, IndexError, TypeError, ValueError):  # bytes that say something else
        return None


def constant_types(array: np.ndarray[Any, Any]) -> tuple[DType, tuple[int, ...]]:
    """Dtype and shape of the constant."""
    return DTYPES[str(array.dtype)], tuple(array.shape)


def _contents(data: bytes) -> list[tuple[int, int | bytes]]:
    return [(field.number, field.content) for field in fields_of(data)]
