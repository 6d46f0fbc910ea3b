"""Small constant tensors as attributes, in the wire format of `TensorProto` (tensorflow/core/framework/tensor.proto)."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import SerializedAttribute
from graphwright.ir.dtypes import DTYPES, DType, dtype_from_number

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
    dims = b"".join(_field(2, _varint_field(1, d)) for d in array.shape)
    tensor = _varint_field(1, dtype.number) + _field(2, dims) + _field(4, np.ascontiguousarray(array).tobytes())
    return SerializedAttribute(_field(8, tensor))


def array_of(attribute: SerializedAttribute) -> np.ndarray[Any, Any] | None:
    """The array of an attribute that `tensor_attribute` made of real numbers; None for anything else, other encodings included.

    >>> array_of(tensor_attribute(np.array([2, 3], dtype=np.int32)))
    array([2, 3], dtype=int32)
    """
    try:
        [(field, tensor)] = _fields(attribute.data)
        if field != 8 or not isinstance(tensor, bytes):
            return None
        parts = dict(_fields(tensor))
        number, dims, content = parts[1], parts.get(2, b""), parts.get(4, b"")
        if not (isinstance(number, int) and isinstance(dims, bytes) and isinstance(content, bytes)):
            return None
        shape = [size for _, dim in _fields(dims) for _, size in _fields(dim if isinstance(dim, bytes) else b"") if isinstance(size, int)]
        name = dtype_from_number(number).name
        return np.frombuffer(content, np.dtype(name)).reshape(shape) if name in _PLAIN_NUMBERS else None
    except (KeyError, IndexError, TypeError, ValueError):  # bytes that say something else
        return None


def constant_types(array: np.ndarray[Any, Any]) -> tuple[DType, tuple[int, ...]]:
    """Dtype and shape of the constant."""
    return DTYPES[str(array.dtype)], tuple(array.shape)


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """Numbers and contents of the fields of a message: numbers and byte strings, which is all that tensors hold here."""
    found: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        value, at = _read_varint(data, at)
        if key & 7 == 0:
            found.append((key >> 3, value))
        elif key & 7 == 2 and at + value <= len(data):
            found.append((key >> 3, data[at : at + value]))
            at += value
        else:
            raise ValueError("another kind of field")
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | data[at] << shift, at + 1


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varint_field(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data
