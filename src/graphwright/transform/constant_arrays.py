"""Constant nodes <-> NumPy arrays, in every encoding that `TensorProto` has for numbers (tensorflow/core/framework/tensor.proto)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from graphwright.ir.attributes import Attribute, SerializedAttribute
from graphwright.ir.constants import tensor_attribute
from graphwright.ir.dtypes import DTYPES, DType, dtype_from_number
from graphwright.ir.graph import Graph, Node, Value

Array = np.ndarray[Any, Any]

_NUMBERS = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())
# Field of TensorProto -> how its items are packed; None for varints.
_LISTS: dict[int, str | None] = {5: "<f4", 6: "<f8", 7: None, 10: None, 11: None, 13: None, 16: None, 17: None}


def constant_array(node: Node) -> Array | None:
    """The value of a `Const` node of numbers; None for anything else. A bfloat16 constant is given as float32.

    >>> g = Graph()
    >>> constant_array(add_constant(g, "two", np.array([2.0], np.float32)).producer)
    array([2.], dtype=float32)
    """
    attribute = node.attrs.get("value")
    if node.op_type != "Const" or not isinstance(attribute, SerializedAttribute):
        return None
    try:
        return _decode(attribute.data)
    except (IndexError, KeyError, ValueError, struct.error):  # bytes that say something else
        return None


def add_constant(graph: Graph, name: str, array: Array, *, dtype: DType | None = None, device: str = "") -> Value:
    """Add a `Const` node with a name like this one; `dtype` bfloat16 rounds a float32 array to it."""
    if dtype is not None and dtype.name == "bfloat16":
        attribute = _bfloat16_attribute(array)
    else:
        attribute = tensor_attribute(array if dtype is None else array.astype(dtype.name))
        dtype = dtype or DTYPES[str(array.dtype)]
    attrs: dict[str, Attribute] = {"dtype": dtype, "value": attribute}
    node = graph.add_node("Const", graph.unique_name(name), attrs=attrs, output_types=[(dtype, tuple(array.shape))], device=device)
    return node.outputs[0]


def _bfloat16_attribute(array: Array) -> SerializedAttribute:
    """Rounded to the nearest, ties to even, as TensorFlow's Cast rounds."""
    single = np.ascontiguousarray(array, np.float32)
    bits = single.view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    rounded = np.where(np.isnan(single), np.uint16(0x7FC0), rounded)
    # The message of 16-bit numbers differs in the number of its type alone, which is one byte in both.
    same = tensor_attribute(rounded.reshape(array.shape)).data
    header = b"\x08" + bytes([DTYPES["uint16"].number])
    return SerializedAttribute(same.replace(header, b"\x08" + bytes([DTYPES["bfloat16"].number]), 1))


def _decode(data: bytes) -> Array | None:
    fields = _fields(memoryview(data))
    if len(fields) != 1 or fields[0][0] != 8:
        return None
    tensor = fields[0][1]
    assert isinstance(tensor, memoryview)
    number, content = 0, None
    shape: list[int] = []
    items: list[tuple[int, int | memoryview | bytes]] = []
    for field, value in _fields(tensor):
        if field == 1:
            assert isinstance(value, int)
            number = value
        elif field == 2:
            assert isinstance(value, memoryview)
            shape = [_dimension(dim) for key, dim in _fields(value) if key == 2]
        elif field == 4:
            content = value
        elif field in _LISTS:
            items.append((field, value))
    name = dtype_from_number(number).name
    if name not in _NUMBERS and name != "bfloat16":
        return None
    stored = np.dtype(np.uint16 if name == "bfloat16" else name)
    count = int(np.prod(shape, dtype=np.int64))
    if isinstance(content, memoryview) and len(content):
        flat = np.frombuffer(content, stored)
    else:
        flat = _from_lists(items, stored, name)
        if flat.size < count:  # the last item stands for all that follow
            last = flat[-1:] if flat.size else np.zeros(1, stored)
            flat = np.concatenate([flat, np.repeat(last, count - flat.size)])
    if name == "bfloat16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.reshape(shape)


def _from_lists(items: list[tuple[int, int | memoryview | bytes]], stored: np.dtype[Any], name: str) -> Array:
    numbers: list[Any] = []
    for field, value in items:
        kind = _LISTS[field]
        if isinstance(value, int):
            numbers.append(value)
        elif kind is None:
            at = 0
            while at < len(value):
                number, at = _varint(memoryview(value), at)
                numbers.append(number)
        else:
            numbers += np.frombuffer(value, kind).tolist()
    if stored.kind == "f" and name == "float16":  # half_val holds the bits
        return np.array(numbers, np.uint16).view(np.float16)
    if stored.kind in "ib":
        bits = 8 * stored.itemsize
        numbers = [n & (1 << bits) - 1 for n in numbers]
        return np.array(numbers, f"u{stored.itemsize}").view(stored) if stored.kind == "i" else np.array(numbers, bool)
    return np.array(numbers, stored)


def _dimension(data: int | memoryview | bytes) -> int:
    assert isinstance(data, memoryview)
    for field, value in _fields(data):
        if field == 1 and isinstance(value, int):
            return value
    return 0


def _fields(data: memoryview) -> list[tuple[int, int | memoryview | bytes]]:
    """Numbers and contents of the fields of a message."""
    found: list[tuple[int, int | memoryview | bytes]] = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            found.append((key >> 3, value))
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("the message is damaged")
        found.append((key >> 3, data[at : at + size]))
        at += size
    return found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] & 0x80:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | data[at] << shift, at + 1
