"""Data types and shapes, free of TensorFlow.

A `Shape` is a tuple of dimensions, where None is an unknown dimension, or None when the rank is unknown.
"""

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, cast

import numpy as np

from graphwright.errors import ArgumentError

Shape = tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class DType:
    """A data type: its name, its number in `tensorflow.DataType`, and the bytes of one element.

    `itemsize` is None where elements have no fixed size (string, resource, variant) and 0.5 for the 4-bit types.
    """

    name: str
    number: int
    itemsize: float | None

    def __str__(self) -> str:
        return self.name


_NAMES = (
    "float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 bfloat16 qint16 quint16 uint16 complex128 "
    "float16 resource variant uint32 uint64 float8_e5m2 float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2fnuz int4 uint4"
).split()
"""In the order of their numbers in `tensorflow.DataType`, from 1 on."""


def _itemsize(name: str) -> float | None:
    bits = re.search(r"\d+", name)
    return (1 if name == "bool" else None) if bits is None else int(bits[0]) // 8 or int(bits[0]) / 8


DTYPES: dict[str, DType] = {name: DType(name, number, _itemsize(name)) for number, name in enumerate(_NAMES, start=1)}
_BY_NUMBER: dict[int, DType] = {d.number: d for d in DTYPES.values()}


def dtype_from_number(number: int) -> DType:
    """Return the type with this number in `tensorflow.DataType`; reference types (number + 100) map to their base."""
    base = number - 100 if number > 100 else number
    return _BY_NUMBER.get(base) or DType(f"dtype{number}", number, None)


_PYTHON_NAMES: dict[Any, str] = {float: "float32", str: "string", bytes: "string", object: "string", "float": "float32", "str": "string"}
"""Types and names that TensorFlow reads differently from NumPy."""


def as_dtype(dtype: Any) -> DType:
    """Convert a `DType`, a `tf.DType`, a name, a number of `tensorflow.DataType`, or a NumPy or Python type.

    Raises:
        ArgumentError: it is not a dtype.

    >>> as_dtype("float32").name, as_dtype(np.float16).name, as_dtype(np.dtype("int8")).name, as_dtype(bool).name, as_dtype(3).name
    ('float32', 'float16', 'int8', 'bool', 'int32')
    >>> as_dtype("flaot32")
    Traceback (most recent call last):
        ...
    graphwright.errors.ArgumentError: 'flaot32' is not a dtype
      remedy: did you mean float32?
    """
    if isinstance(dtype, DType):
        return dtype
    number = getattr(dtype, "as_datatype_enum", dtype)  # a `tf.DType` has its number
    if isinstance(number, int) and not isinstance(number, bool):
        if _BY_NUMBER.get(number - 100 if number > 100 else number) is not None:
            return dtype_from_number(number)
    else:
        try:
            name = _PYTHON_NAMES.get(dtype, dtype)
            name = name if isinstance(name, str) and name in DTYPES else np.dtype(name).name
        except TypeError:
            name = ""
        name = "string" if name.startswith(("str", "bytes", "object")) else name
        if name in DTYPES and dtype is not None:
            return DTYPES[name]
    close = get_close_matches(str(dtype), DTYPES, 1)
    raise ArgumentError(f"{dtype!r} is not a dtype", remedy=f"did you mean {close[0]}?" if close else "give a tf.DType or its name")


def as_shape(shape: Any) -> Shape:
    """Convert a `tf.TensorShape`, dimensions (None and -1 are unknown), or None (unknown rank), or raise `ArgumentError`.

    >>> as_shape([-1, np.int64(3)]), as_shape(()), as_shape(None)
    ((None, 3), (), None)
    """
    if shape.__class__ is tuple and all(d is None or (type(d) is int and d >= 0) for d in cast("tuple[Any, ...]", shape)):
        return cast("Shape", shape)  # the common case
    if shape is None or getattr(shape, "rank", ()) is None:
        return None
    try:
        dimensions = [getattr(d, "value", d) for d in cast("Iterable[Any]", shape)]
        sizes = tuple(None if d is None or d == -1 else int(d.__index__()) for d in dimensions)
    except (AttributeError, TypeError, ValueError):
        sizes = (-2,)
    if any(d is not None and d < 0 for d in sizes):
        raise ArgumentError(f"{shape!r} is not a shape", remedy="give a tuple of sizes, None where one is unknown")
    return sizes


def element_count(shape: Shape) -> int | None:
    """Return the number of elements, or None when a dimension is unknown."""
    if shape is None or any(d is None for d in shape):
        return None
    return math.prod(d for d in shape if d is not None)


@functools.lru_cache(maxsize=2**16)  # asked for each tensor in each round of a loop
def byte_count(dtype: DType, shape: Shape) -> int | None:
    """Return the bytes of a dense tensor, or None when the shape or the element size is unknown."""
    count = element_count(shape)
    if count is None or dtype.itemsize is None:
        return None
    return math.ceil(count * dtype.itemsize)


def format_shape(shape: Shape) -> str:
    """Return the text of a shape; `?` is an unknown dimension, `*` an unknown rank.

    >>> format_shape((None, 3)), format_shape(None)
    ('[?,3]', '[*]')
    """
    if shape is None:
        return "[*]"
    return "[" + ",".join("?" if d is None else str(d) for d in shape) + "]"


def common_shape(first: Shape, second: Shape) -> Shape:
    """Return the dimensions that both shapes share.

    >>> common_shape((2, 3), (2, 4)), common_shape((2,), (2, 3))
    ((2, None), None)
    """
    if first is None or second is None or len(first) != len(second):
        return None
    return tuple(a if a == b else None for a, b in zip(first, second, strict=True))


def agree(first: Shape, second: Shape) -> bool:
    """Return whether one tensor can have both shapes.

    >>> agree((None, 3), (2, 3)), agree((2, 4), (2, 3)), agree(None, (2,))
    (True, False, True)
    """
    if first is None or second is None:
        return True
    return len(first) == len(second) and all(a is None or b is None or a == b for a, b in zip(first, second, strict=True))


def filled(shape: Shape, other: Shape) -> Shape:
    """Return the dimensions of a shape, with unknown ones taken from the other shape."""
    if shape is None or other is None or len(shape) != len(other):
        return other if shape is None else shape
    return tuple(b if a is None else a for a, b in zip(shape, other, strict=True))


Numbers = tuple[Any, Any]
"""Arrays of whole numbers: the least and the largest that each can be when it runs."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a function.

    Attributes:
        shape: where it depends on data, the largest possible shape.
        handle: for a list or a variable, the dtype and shape of its elements or of its value.
        numbers: the least and largest values of a few whole numbers, where they are known.
        exact: for a shape that depends on data, the dimensions that are the same in every run; else None.
        element: for a list, the shape of its elements; where it depends on data, the largest possible one.
    """

    shape: Shape
    handle: tuple[DType, Shape] | None = None
    numbers: Numbers | None = None
    exact: Shape = None
    element: Shape = None


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about a graph besides its shapes, where sizes depend on data: `sizes`, the output shapes of nodes by name, and `numbers`,
    the whole numbers in an input, by position.
    """

    sizes: Mapping[str, Sequence[Shape]] = field(default_factory=dict[str, Sequence[Shape]])
    numbers: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
