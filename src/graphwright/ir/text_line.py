"""Reads one line of the text form of a graph, which `ir.text` describes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from graphwright.errors import FileFormatError
from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.constants import tensor_attribute
from graphwright.ir.dtypes import DTYPES, DType, Shape, dtype_from_number

NAME = r"[A-Za-z0-9_.][A-Za-z0-9_.\\/>-]*"
"""What a name looks like that needs no quotes."""

Edge = tuple[str, int]
"""The name of a node and the index of its output."""

_STRING = r'"(?:[^"\\]|\\.)*"'
_SPACE = re.compile(r"\s*")
_T = TypeVar("_T")


@dataclass(slots=True)
class NodeLine:
    """A parsed line of a node."""

    number: int
    name: str
    op_type: str
    inputs: list[Edge]
    controls: list[str]
    attrs: dict[str, Attribute] = field(default_factory=dict[str, Attribute])
    device: str = ""
    extra: bytes = b""
    types: list[tuple[DType, Shape]] = field(default_factory=list[tuple[DType, Shape]])


def read_node(reader: LineReader) -> NodeLine:
    """The line of a node.

    >>> read_node(LineReader("%y = Relu(%x:0) ^log {T = float32} : float32[2]", 1)).inputs
    [('x', 0)]
    """
    name = reader.reference()
    reader.expect("=")
    op_type = reader.name()
    line = NodeLine(reader.number, name, op_type, reader.bracketed(reader.edge, "()"), [])
    while reader.take("^"):
        line.controls.append(reader.name())
    if reader.peek("{"):
        line.attrs = reader.named(reader.attribute, "{}")
    if reader.take("on"):
        line.device = reader.string()
    if reader.take("extra"):
        line.extra = reader.hexadecimal()
    if reader.take(":"):
        line.types = reader.separated(reader.type)
    return line


class LineReader:
    """Takes one line apart from left to right. What does not read what it is to read raises `FileFormatError`."""

    def __init__(self, line: str, number: int) -> None:
        self.number = number
        self._line = line
        self._at = 0

    def error(self, what: str) -> FileFormatError:
        """What is wrong, with the place that has been reached."""
        return FileFormatError(what, where=f"line {self.number}, column {self._at + 1}: {self._line.strip()[:200]}")

    def at_end(self) -> bool:
        """Whether nothing is left but a comment."""
        self._skip()
        return self._at == len(self._line) or self._line[self._at] == "#"

    def check_end(self) -> None:
        """Raise where something is left."""
        if not self.at_end():
            raise self.error("the line goes on after its end")

    def peek(self, text: str) -> bool:
        """Whether this comes next."""
        self._skip()
        if not self._line.startswith(text, self._at):
            return False
        # A word must end where it ends: `on` does not begin `once`.
        return not text[0].isalpha() or self._at + len(text) == len(self._line) or not self._line[self._at + len(text)].isalnum()

    def take(self, text: str) -> bool:
        """Go past this where it comes next; returns whether it did."""
        found = self.peek(text)
        if found:
            self._at += len(text)
        return found

    def expect(self, text: str) -> None:
        """Go past this, or raise."""
        if not self.take(text):
            raise self.error(f"`{text}` is expected here")

    def separated(self, item: Callable[[], _T]) -> list[_T]:
        """One or more items with commas between them."""
        found = [item()]
        while self.take(","):
            found.append(item())
        return found

    def bracketed(self, item: Callable[[], _T], brackets: str) -> list[_T]:
        """Items with commas between them, in brackets such as `[]`."""
        self.expect(brackets[0])
        found = [] if self.peek(brackets[1]) else self.separated(item)
        self.expect(brackets[1])
        return found

    def named(self, item: Callable[[], _T], brackets: str) -> dict[str, _T]:
        """Items with names in brackets: `("x" = %x:0)`."""
        return dict(self.bracketed(lambda: self._pair(item), brackets))

    def _pair(self, item: Callable[[], _T]) -> tuple[str, _T]:
        name = self.name()
        self.expect("=")
        return name, item()

    def name(self) -> str:
        """A name, in quotes where it needs them."""
        return self.string() if self.peek('"') else self._match(NAME, "a name")

    def string(self) -> str:
        """A string in double quotes."""
        return self.bytes().decode()

    def bytes(self) -> bytes:
        """A string in double quotes, as bytes."""
        literal = self._match(_STRING, "a string in double quotes")
        if not literal.isascii():
            literal = '"' + "".join(c if c.isascii() else "".join(f"\\x{b:02x}" for b in c.encode()) for c in literal[1:-1]) + '"'
        return ast.literal_eval("b" + literal)

    def integer(self) -> int:
        """A whole number."""
        return int(self._match(r"-?\d+", "a whole number"))

    def hexadecimal(self) -> bytes:
        """Bytes such as `0x0a00`."""
        return bytes.fromhex(self._match(r"0x(?:[0-9a-f]{2})*", "bytes such as 0x0a00")[2:])

    def reference(self) -> str:
        """A node: `%name`."""
        self.expect("%")
        return self.name()

    def edge(self) -> Edge:
        """A value: `%name:0`."""
        name = self.reference()
        self.expect(":")
        return name, self.integer()

    def type(self) -> tuple[DType, Shape]:
        """The type of a value: `float32[2,?]`."""
        return self._dtype(), self._shape()

    def attribute(self) -> Attribute:
        """An attribute."""
        if self.peek("["):
            return tuple(self.bracketed(self.attribute, "[]"))
        if self.peek('"'):
            return self.bytes()
        if self.peek("0x"):
            return SerializedAttribute(self.hexadecimal())
        if self.take("@"):
            name = self.name()
            return FunctionReference(name, self.hexadecimal() if self.peek("0x") else b"")
        if self.take("true"):
            return True
        if self.take("false"):
            return False
        if self.take("shape"):
            return ShapeAttribute(self._shape())
        if self.take("tensor"):
            return self._tensor()
        number = self._number()
        return self._dtype() if number is None else number

    def _number(self) -> int | float | None:
        self._skip()
        found = re.compile(r"-?(?:inf\b|nan\b|\d+(?:\.\d+)?(?:e[+-]?\d+)?)").match(self._line, self._at)
        if found is None:
            return None
        self._at = found.end()
        text = found.group()
        return int(text) if text.lstrip("-").isdecimal() else float(text)

    def _tensor(self) -> SerializedAttribute:
        dtype, shape = self.type()
        elements = self.bracketed(self.attribute, "[]")
        if shape is None or None in shape:
            raise self.error("the shape of a constant must be known")
        try:
            array = np.array(elements, dtype=np.dtype(dtype.name)).reshape([d for d in shape if d is not None])
        except (TypeError, ValueError) as error:
            raise self.error(f"these elements make no tensor: {error}") from error
        return tensor_attribute(array)

    def _dtype(self) -> DType:
        name = self._match(r"[a-z][a-z0-9_]*", "an attribute or type")
        if name in DTYPES:
            return DTYPES[name]
        if re.fullmatch(r"dtype\d+", name):
            return dtype_from_number(int(name[5:]))
        raise self.error(f"there is no data type {name!r}")

    def _shape(self) -> Shape:
        return None if self.take("[*]") else tuple(self.bracketed(lambda: None if self.take("?") else self.integer(), "[]"))

    def _match(self, pattern: str, what: str) -> str:
        self._skip()
        found = re.compile(pattern).match(self._line, self._at)
        if found is None:
            raise self.error(f"{what} is expected here")
        self._at = found.end()
        return found.group()

    def _skip(self) -> None:
        found = _SPACE.match(self._line, self._at)
        self._at = found.end() if found else self._at
