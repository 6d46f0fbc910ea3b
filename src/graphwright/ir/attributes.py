"""Attributes of nodes, decoded as far as graphwright reads them. Tensors, empty lists and unknown fields stay serialized, and survive a
round trip byte for byte.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np

from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.dtypes import DType, Shape, as_dtype, as_shape


@dataclass(frozen=True, slots=True)
class ShapeAttribute:
    """A shape."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class FunctionReference:
    """A function of the library, with the serialized `NameAttrList` when it carries attributes."""

    name: str
    serialized: bytes = b""


@dataclass(frozen=True, slots=True)
class SerializedAttribute:
    """An `AttrValue` kept as serialized bytes."""

    data: bytes


Attribute = int | float | bool | bytes | DType | ShapeAttribute | FunctionReference | SerializedAttribute | tuple["Attribute", ...]


def as_attribute(value: Any) -> Attribute:
    """Convert a value of Python, NumPy or TensorFlow to an attribute, or raise `ArgumentError`; text stays text, also where it names a
    dtype.

    >>> as_attribute("SAME"), as_attribute([np.int64(1), 2]), as_attribute(np.float32).name
    (b'SAME', (1, 2), 'float32')
    """
    match value:
        case bool() | int() | float() | bytes() | DType() | ShapeAttribute() | FunctionReference() | SerializedAttribute():
            return value
        case str():
            return value.encode()
        case np.bool_() | np.integer() | np.floating():
            return cast("Attribute", value.item())
        case list() | tuple():
            return tuple(as_attribute(item) for item in cast("list[Any]", value)) or SerializedAttribute(EMPTY_LIST)
        case _ if hasattr(value, "as_list"):
            return ShapeAttribute(as_shape(value))
        case _ if isinstance(value, type | np.dtype) or hasattr(value, "as_datatype_enum"):
            return as_dtype(value)
        case _:
            raise ArgumentError(
                f"a {type(value).__name__} cannot be an attribute",
                remedy="for a tensor give graphwright.ir.constants.tensor_attribute(array)",
            )


EMPTY_LIST = b"\x0a\x00"
"""An `AttrValue` with a list that holds nothing, of whatever kind."""


class Attributes(dict[str, Attribute]):
    """The attributes of a node: a dictionary that only `Graph.set_attr` changes.

    >>> Attributes(T=1)["T"] = 2
    Traceback (most recent call last):
        ...
    graphwright.errors.GraphError: attributes of a node do not change in place
      remedy: graph.set_attr(node, name, attribute); None removes one
    """

    __slots__ = ()

    def _closed(self, *_: Any, **__: Any) -> NoReturn:
        raise GraphError("attributes of a node do not change in place", remedy="graph.set_attr(node, name, attribute); None removes one")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _closed  # pyright: ignore[reportAssignmentType]

    def record(self, name: str, attribute: Attribute | None) -> None:
        """Write an attribute that only repeats what the graph knows, such as shapes, without inferring anything; None removes it."""
        if attribute is None:
            super().pop(name, None)
        else:
            super().__setitem__(name, attribute)

    def restore(self, content: Mapping[str, Attribute]) -> None:
        super().clear()
        super().update(content)
