"""Small constant tensors as attributes, in the wire format of `TensorProto` (tensorflow/core/framework/tensor.proto)."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import SerializedAttribute
from graphwright.ir.dtypes import DTYPES, DType


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


def constant_types(array: np.ndarray[Any, Any]) -> tuple[DType, tuple[int, ...]]:
    """Dtype and shape of the constant."""
    return DTYPES[str(array.dtype)], tuple(array.shape)


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
