"""Attributes of nodes in a few words that differ if the attributes differ."""

from __future__ import annotations

import zlib

from graphwright.ir.attributes import Attribute, SerializedAttribute
from graphwright.ir.text import format_attribute
from graphwright.report.units import format_count

_MOST_BYTES = 200


def attribute_text(attribute: Attribute | None) -> str:
    """Write an attribute as in the text form of a graph; a long one as its size with a checksum.

    >>> attribute_text((1, 2)), attribute_text(b"NHWC"), attribute_text(SerializedAttribute(bytes(500))), attribute_text(None)
    ('[1, 2]', '"NHWC"', '500 bytes, checksum 0283b97a', 'none')
    """
    if attribute is None:
        return "none"
    if isinstance(attribute, SerializedAttribute) and len(attribute.data) > _MOST_BYTES:
        return _sized(attribute.data)
    text = format_attribute(attribute)
    return text if len(text) <= _MOST_BYTES else _sized(text.encode())


def _sized(data: bytes) -> str:
    return f"{format_count(len(data))} bytes, checksum {zlib.crc32(data):08x}"
