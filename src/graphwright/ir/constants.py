"""Constant nodes <-> NumPy arrays, in the wire format of `TensorProto` (tensorflow/core/framework/tensor.proto)."""

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import Attribute, SerializedAttribute
from graphwright.ir.dtypes import DTYPES, DType, dtype_from_number
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ASKS_FOR_SHAPE, MAKES, REPEATS
from graphwright.ir.traits.rounds import is_list
from graphwright.ir.traits.values import SAME_BUT_FOR_TYPE, is_constant, origin
from graphwright.ir.traits.variables import reads_resource, resource_of
from graphwright.ir.wire import Field, fields_of, message_field, varint_field, varints

Array = np.ndarray[Any, Any]

_NUMBERS = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())
# Field of TensorProto -> how its items are packed; None for varints.
_LISTS: dict[int, str | None] = {5: "<f4", 6: "<f8", 7: None, 10: None, 11: None, 13: None, 16: None, 17: None}


def tensor_attribute(array: Array, dtype: DType | None = None) -> SerializedAttribute:
    """Return the serialized `AttrValue` of an array, as attribute `value` of a `Const` node.

    Args:
        dtype: the array is converted to it; needed for texts. bfloat16 rounds to nearest, ties to even, as TensorFlow's Cast does.

    Raises:
        ArgumentError: the array's dtype has no TensorFlow type.
    """
    if dtype is not None and dtype.name == "string":
        return text_attribute(array)
    if dtype is not None and dtype.name == "bfloat16":
        array = _rounded_bits(array)
    else:
        array = array if dtype is None else array.astype(dtype.name)
        dtype = DTYPES.get(str(array.dtype))
    if dtype is None or dtype.itemsize is None:
        raise ArgumentError(f"an array of dtype {array.dtype} cannot be a constant")
    dims = b"".join(message_field(2, varint_field(1, d)) for d in array.shape)
    tensor = varint_field(1, dtype.number) + message_field(2, dims) + message_field(4, np.ascontiguousarray(array).tobytes())
    return SerializedAttribute(message_field(8, tensor))


def text_attribute(texts: Any) -> SerializedAttribute:
    """Return the serialized `AttrValue` of a text, or of a list or array of texts or bytes."""
    array = np.asarray(texts, object)
    dims = b"".join(message_field(2, varint_field(1, d)) for d in array.shape)
    items = b"".join(message_field(8, text if isinstance(text, bytes) else text.encode()) for text in array.flat)
    return SerializedAttribute(message_field(8, varint_field(1, DTYPES["string"].number) + message_field(2, dims) + items))


def text_of(value: Value) -> tuple[str, ...]:
    """Return the texts of a `Const` node, as `text_attribute` writes them; an empty tuple for anything else."""
    attribute = value.producer.attrs.get("value")
    if not is_constant(value.producer) or value.dtype.name != "string" or not isinstance(attribute, SerializedAttribute):
        return ()
    tensor = [field for outer in fields_of(attribute.data) if isinstance(outer.content, bytes) for field in fields_of(outer.content)]
    return tuple(field.content.decode(errors="replace") for field in tensor if field.number == 8 and isinstance(field.content, bytes))


def array_of(attribute: SerializedAttribute) -> Array | None:
    """Return the array of a tensor of real numbers, read-only; None for anything else. A bfloat16 tensor becomes float32."""
    try:
        return _decode(attribute.data)
    except (IndexError, KeyError, TypeError, ValueError, struct.error):  # bytes that say something else
        return None


def constant_array(node: Node) -> Array | None:
    """Return the value of a `Const` node of numbers as `array_of` does; None for anything else."""
    attribute = node.attrs.get("value")
    return array_of(attribute) if is_constant(node) and isinstance(attribute, SerializedAttribute) else None


def is_zero(value: Value) -> bool:
    return is_filled(value, 0)


def is_filled(value: Value, number: int) -> bool:
    node = filler(value)
    if node.op_type in MAKES:
        return MAKES[node.op_type] == number and not is_list(node.outputs[0])
    array = constant_array(node)
    return array is not None and array.dtype.kind in "fiu" and bool((array == number).all())


def filler(value: Value) -> Node:
    """Return the node whose numbers a value repeats, perhaps in another shape or type."""
    value = origin(value, SAME_BUT_FOR_TYPE)
    while value.producer.op_type in REPEATS:
        value = origin(value.producer.inputs[REPEATS[value.producer.op_type]], SAME_BUT_FOR_TYPE)
    return value.producer


def add_constant(graph: Graph, name: str, array: Array, *, dtype: DType | None = None, device: str = "") -> Value:
    """Add a `Const` node; its name gets a suffix where it is taken. `dtype` is an argument of `tensor_attribute`."""
    attribute = tensor_attribute(array, dtype)
    dtype = dtype or DTYPES[str(array.dtype)]
    attrs: dict[str, Attribute] = {"dtype": dtype, "value": attribute}
    node = graph.add_node("Const", graph.unique_name(name), attrs=attrs, output_types=[(dtype, tuple(array.shape))], device=device)
    return node.outputs[0]


def shape_query_results(node: Node) -> list[Array] | None:
    """Return the results of a node that asks for shapes; None for other nodes and unknown shapes."""
    if node.op_type not in ASKS_FOR_SHAPE:
        return None
    variables = [node.graph.variables.get(resource_of(v)) for v in node.inputs]
    if reads_resource(node) and variables[0] is None:
        return None
    at_most = node.graph.at_most  # a shape that may be smaller at run time is unknown
    shapes = [variable.shape if variable else at_most.get(v, v.shape) for variable, v in zip(variables, node.inputs, strict=True)]
    if any(shape is None or None in shape for shape in shapes):
        return None
    pairs = zip(node.outputs, shapes, strict=True)
    return [np.array(_TOLD.get(node.op_type, tuple)(shape or ()), np.int64 if v.dtype.name == "int64" else np.int32) for v, shape in pairs]


_TOLD: Mapping[str, Callable[[Any], Any]] = {"Size": math.prod, "Rank": len}
"""Ops that return a number computed from a shape."""


def _rounded_bits(array: Array) -> Array:
    single = np.asarray(array, np.float32)
    bits = single.view(np.uint32) if single.ndim else single.reshape(1).view(np.uint32).reshape(())
    rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), rounded)


def _decode(data: bytes) -> Array | None:
    [attribute] = fields_of(data)
    if attribute.number != 8 or not isinstance(attribute.content, bytes):
        return None
    number, content = 0, b""
    shape: list[int] = []
    items: list[Field] = []
    for field in fields_of(attribute.content):
        if field.number == 1 and isinstance(field.content, int):
            number = field.content
        elif field.number == 2 and isinstance(field.content, bytes):
            shape = [_dimension(dim.content) for dim in fields_of(field.content) if dim.number == 2]
        elif field.number == 4 and isinstance(field.content, bytes):
            content = field.content
        elif field.number in _LISTS:
            items.append(field)
    name = dtype_from_number(number).name
    if name not in _NUMBERS and name != "bfloat16":
        return None
    stored = np.dtype(np.uint16 if name == "bfloat16" else name)
    flat = np.frombuffer(content, stored) if content else _from_lists(items, stored, name)
    if not content and flat.size < (count := int(np.prod(shape, dtype=np.int64))):  # the last item is repeated
        last = flat[-1:] if flat.size else np.zeros(1, stored)
        missing = np.broadcast_to(last, (count - flat.size,))
        flat = missing if not flat.size else np.concatenate([flat, missing]) if flat.size > 1 else np.broadcast_to(last, (count,))
    if name == "bfloat16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.reshape(shape)


def _from_lists(items: Iterable[Field], stored: np.dtype[Any], name: str) -> Array:
    numbers: list[Any] = []
    for field in items:
        kind = _LISTS[field.number]
        if isinstance(field.content, int):
            numbers.append(field.content)
        elif kind is None:
            numbers += varints(field.content)
        else:
            numbers += np.frombuffer(field.content, kind).tolist()
    if name == "float16":  # half_val holds the bits
        return np.array(numbers, np.uint16).view(np.float16)
    if stored.kind in "ib":
        bits = 8 * stored.itemsize
        numbers = [n & (1 << bits) - 1 for n in numbers]
        return np.array(numbers, f"u{stored.itemsize}").view(stored) if stored.kind == "i" else np.array(numbers, bool)
    return np.array(numbers, stored)


def _dimension(data: int | bytes) -> int:
    sizes = [field.content for field in fields_of(data) if field.number == 1] if isinstance(data, bytes) else []
    return sizes[0] if sizes and isinstance(sizes[0], int) else 0
