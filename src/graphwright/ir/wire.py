"""The wire format of protobuf (https://protobuf.dev/programming-guides/encoding), for messages that the IR keeps as bytes: tensors and
names of functions.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple


class Field(NamedTuple):
    """One field of a message."""

    number: int
    content: int | bytes
    """The number, or the bytes of a string or message. Fixed numbers stay bytes, too."""
    start: int
    end: int
    """Where the field stands in the message."""
    is_delimited: bool
    """Whether the content is a string, a message or packed numbers."""


def fields_of(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message, in order; raise `ValueError` where the bytes are no message.

    >>> [(field.number, field.content) for field in fields_of(varint_field(1, 300) + message_field(2, b"ab"))]
    [(1, 300), (2, b'ab')]
    """
    at = 0
    while at < len(data):
        start = at
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == 0:
            number, at = _read_varint(data, at)
            yield Field(key >> 3, number, start, at, False)
            continue
        if kind == 2:
            size, at = _read_varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > len(data):
            raise ValueError("the message ends inside a field")
        yield Field(key >> 3, data[at : at + size], start, at + size, kind == 2)
        at += size


def varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = _read_varint(data, at)
        yield number


def varint_field(number: int, content: int) -> bytes:
    return _varint(number << 3) + _varint(content)


def message_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


Layout = Mapping[str, Mapping[int, str | None]]
"""Message -> field -> the message that it holds, or None for a string that is meant. Fields that are not listed are passed over."""


def replace_strings(data: bytes, layout: Layout, message: str, replaced: Callable[[str], str]) -> bytes:
    """Return the message with other strings in the places that a layout names; raise `ValueError` where the bytes are no such message.

    >>> data = message_field(2, message_field(1, b"old") + varint_field(3, 7))
    >>> replace_strings(data, {"Outer": {2: "Inner"}, "Inner": {1: None}}, "Outer", lambda name: "newer")
    b'\\x12\\t\\n\\x05newer\\x18\\x07'
    """
    places = layout[message]
    parts: list[bytes] = []
    done = 0
    for field in fields_of(data):
        if field.number not in places or not isinstance(field.content, bytes) or not field.is_delimited:
            continue
        inner = places[field.number]
        content = field.content
        if inner is None:
            new = replaced(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        else:
            new = replace_strings(content, layout, inner, replaced)
        if new != content:
            parts += [data[done : field.start], message_field(field.number, new)]
            done = field.end
    return b"".join((*parts, data[done:])) if parts else data


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("the message ends inside a number")
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return number, at


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
