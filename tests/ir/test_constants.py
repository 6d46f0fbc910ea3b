"""Arrays of constants, in every encoding that TensorFlow writes."""

from __future__ import annotations

import numpy as np
import pytest

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import SerializedAttribute
from graphwright.ir.constants import add_constant, array_of, constant_array, tensor_attribute
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Graph
from graphwright.ir.wire import message_field, varint_field

KINDS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_there_and_back(kind, shape):
    array = (np.arange(6)[: int(np.prod(shape))].reshape(shape) - (3 if kind[0] in "if" else 0)).astype(kind)
    again = array_of(tensor_attribute(array))
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", [*KINDS, "bfloat16"])
@pytest.mark.parametrize("values", [[0], [-3, 5], [7, 7, 7, 7, 7], [1, 2, 2, 2], []])
@pytest.mark.parametrize("form", ["listed", "packed"])
def test_what_tensorflow_writes(kind, values, form):
    """Lists of numbers, of which the last stands for all that follow, or bytes: `make_tensor_proto` and `tensor_content`."""
    tf = pytest.importorskip("tensorflow")
    dtype = tf.dtypes.as_dtype(kind)
    array = np.array(np.abs(values) if kind[0] in "ub" and kind != "bfloat16" else values).astype(dtype.as_numpy_dtype)
    proto = tf.make_tensor_proto(array, dtype)
    if form == "listed" and array.size:
        field = {"float32": "float_val", "float64": "double_val", "int64": "int64_val", "bool": "bool_val", "uint32": "uint32_val"}.get(
            kind
        )
        field = field or {"uint64": "uint64_val", "float16": "half_val", "bfloat16": "half_val"}.get(kind, "int_val")
        proto.ClearField("tensor_content")
        proto.ClearField(field)
        bits = array.view(np.uint16) if field == "half_val" else array
        while bits.size > 1 and bits[-1] == bits[-2]:
            bits = bits[:-1]
        getattr(proto, field).extend(bits.tolist())
    message = tf.compat.v1.AttrValue(tensor=proto)
    expected = tf.make_ndarray(proto)
    ours = array_of(SerializedAttribute(message.SerializeToString()))
    np.testing.assert_array_equal(ours, expected.astype(np.float32) if kind == "bfloat16" else expected)
    if kind != "bfloat16":
        assert ours.dtype == expected.dtype


@pytest.mark.tensorflow
def test_rounding_to_bfloat16_is_that_of_cast():
    tf = pytest.importorskip("tensorflow")
    array = np.random.default_rng(0).normal(size=1000).astype(np.float32) * np.float32(10) ** np.arange(-30, 20, 0.05, np.float32)
    array[:4] = np.inf, -np.inf, np.nan, 0
    rounded = array_of(tensor_attribute(array, DTYPES["bfloat16"]))
    np.testing.assert_array_equal(rounded, tf.cast(tf.cast(array, tf.bfloat16), tf.float32).numpy())


def test_a_number_repeated_takes_no_memory():
    shape = message_field(2, message_field(2, varint_field(1, 2**40)))
    attribute = SerializedAttribute(message_field(8, varint_field(1, DTYPES["int32"].number) + shape + varint_field(7, 3)))
    array = array_of(attribute)
    assert array.shape == (2**40,)
    assert array[-1] == 3


@pytest.mark.parametrize("data", [b"", b"\x42", b"\x42\x05\x08\x01", b"\x12\x03abc", b"\x42\x02\x08\x07"])
def test_other_bytes_are_no_array(data):
    assert array_of(SerializedAttribute(data)) is None


def test_nodes():
    graph = Graph()
    value = add_constant(graph, "c", np.array([1.5, 2.5]), dtype=DTYPES["float32"])
    assert (value.dtype.name, value.shape) == ("float32", (2,))
    assert constant_array(value.producer).tolist() == [1.5, 2.5]
    assert add_constant(graph, "c", np.array(1)).producer.name == "c_1"
    with pytest.raises(ArgumentError, match="cannot be a constant"):
        tensor_attribute(np.array(["text"]))
