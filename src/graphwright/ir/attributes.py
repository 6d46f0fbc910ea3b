"""Attributes of nodes, decoded as far as graphwright reads them; the rest stays bytes.

int, float, bool and bytes stand for themselves. What is not decoded (tensors, empty
lists, unknown fields) is kept serialized and survives a round trip byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphwright.ir.dtypes import DType, Shape


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
