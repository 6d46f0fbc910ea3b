"""Attributes of nodes in a few words that differ if the attributes differ."""

from __future__ import annotations

import zlib

from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.dtypes import format_shape
from graphwright.report.units import format_count

_MOST_BYTES = 200
_MOST_ITEMS = 32


def attribute_text(attribute: Attribute | None) -> str:
    """Write an attribute in a few words; a long one has a checksum.

    >>> from graphwright.ir.graph import DTYPES
    >>> attribute_text((1, 2)), attribute_text(b"NHWC"), attribute_text(DTYPES["float32"]), attribute_text(None)
    ('[1, 2]', "'NHWC'", 'float32', 'none')
    >>> attribute_text(FunctionReference("body")), attribute_text(ShapeAttribute((None, 3))), attribute_text(SerializedAttribute(b"abc"))
    ('@body', '[?,3]', '3 bytes, checksum 352441c2')
    """
    match attribute:
        case None:
            return "none"
        case SerializedAttribute():
            return _sized(attribute.data)
        case ShapeAttribute():
            return format_shape(attribute.shape)
        case FunctionReference():
            return f"@{attribute.name}" + (f" with {_sized(attribute.serialized)}" if attribute.serialized else "")
        case tuple():
            if len(attribute) > _MOST_ITEMS:
                return f"{format_count(len(attribute))} items, {_sized(repr(attribute).encode())}"
            return "[" + ", ".join(map(attribute_text, attribute)) + "]"
        case bytes():
            return ascii(attribute)[1:] if len(attribute) <= _MOST_BYTES else _sized(attribute)
        case _:
            return str(attribute)


def _sized(data: bytes) -> str:
    return f"{format_count(len(data))} bytes, checksum {zlib.crc32(data):08x}"
