"""Parses the text form of a graph, which `ir.text` describes and prints.

Lines of nodes are read first, since nodes may stand in any order; other lines when the nodes that they name exist.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast, get_args

import numpy as np

from graphwright.errors import FileFormatError
from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.constants import tensor_attribute
from graphwright.ir.dtypes import DTYPES, DType, Shape, dtype_from_number
from graphwright.ir.graph import Function, Graph, Node, Value, Variable
from graphwright.ir.node import Library
from graphwright.ir.signature import Collection, CollectionKind, NamedRefs, Signature
from graphwright.ir.walk import cycle_among, producers_of

NAME = r"[A-Za-z0-9_.][A-Za-z0-9_.\\/>-]*"
"""A name that needs no quotes."""

Edge = tuple[str, int]
"""The name of a node and the index of its output."""

_STRING = r'"(?:[^"\\]|\\.)*"'
_SPACE = re.compile(r"\s*")
_T = TypeVar("_T")


class LineReader:
    """Parses one line from left to right; raises `FileFormatError` where the line does not continue as expected."""

    def __init__(self, line: str, number: int) -> None:
        self.number = number
        self._line = line
        self._at = 0

    def error(self, what: str) -> FileFormatError:
        return FileFormatError(what, where=f"line {self.number}, column {self._at + 1}: {self._line.strip()[:200]}")

    def at_end(self) -> bool:
        self._skip()
        return self._at == len(self._line) or self._line[self._at] == "#"

    def check_end(self) -> None:
        if not self.at_end():
            raise self.error("the line goes on after its end")

    def peek(self, text: str) -> bool:
        self._skip()
        if not self._line.startswith(text, self._at):
            return False
        # A word must end where it ends: `on` does not begin `once`.
        return not text[0].isalpha() or self._at + len(text) == len(self._line) or not self._line[self._at + len(text)].isalnum()

    def take(self, text: str) -> bool:
        """Consume the text where it comes next; return whether it did."""
        is_next = self.peek(text)
        if is_next:
            self._at += len(text)
        return is_next

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.error(f"`{text}` is expected here")

    def separated(self, item: Callable[[], _T]) -> list[_T]:
        items = [item()]
        while self.take(","):
            items.append(item())
        return items

    def bracketed(self, item: Callable[[], _T], brackets: str) -> list[_T]:
        self.expect(brackets[0])
        items = [] if self.peek(brackets[1]) else self.separated(item)
        self.expect(brackets[1])
        return items

    def named(self, item: Callable[[], _T], brackets: str) -> dict[str, _T]:
        """Parse items with names in brackets: `("x" = %x:0)`."""
        return dict(self.bracketed(lambda: self._pair(item), brackets))

    def _pair(self, item: Callable[[], _T]) -> tuple[str, _T]:
        name = self.name()
        self.expect("=")
        return name, item()

    def name(self) -> str:
        return self.string() if self.peek('"') else self._match(NAME, "a name")

    def string(self) -> str:
        return self.bytes().decode()

    def bytes(self) -> bytes:
        literal = self._match(_STRING, "a string in double quotes")
        if not literal.isascii():
            literal = '"' + "".join(c if c.isascii() else "".join(f"\\x{b:02x}" for b in c.encode()) for c in literal[1:-1]) + '"'
        return ast.literal_eval("b" + literal)

    def integer(self) -> int:
        return int(self._match(r"-?\d+", "a whole number"))

    def hexadecimal(self) -> bytes:
        return bytes.fromhex(self._match(r"0x(?:[0-9a-f]{2})*", "bytes such as 0x0a00")[2:])

    def reference(self) -> str:
        self.expect("%")
        return self.name()

    def edge(self) -> Edge:
        name = self.reference()
        self.expect(":")
        return name, self.integer()

    def type(self) -> tuple[DType, Shape]:
        return self._dtype(), self._shape()

    def attribute(self) -> Attribute:
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
        match = re.compile(r"-?(?:inf\b|nan\b|\d+(?:\.\d+)?(?:e[+-]?\d+)?)").match(self._line, self._at)
        if match is None:
            return None
        self._at = match.end()
        text = match.group()
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
        match = re.compile(pattern).match(self._line, self._at)
        if match is None:
            raise self.error(f"{what} is expected here")
        self._at = match.end()
        return match.group()

    def _skip(self) -> None:
        space = _SPACE.match(self._line, self._at)
        self._at = space.end() if space else self._at


# The text as a whole

_COLLECTION_KINDS = get_args(CollectionKind)


class _Section:
    """A graph or function while its lines are read: its nodes first, in any order, then their edges and all other lines."""

    def __init__(self, name: str, functions: Library) -> None:
        self.function = Function(name, Graph(name, functions=functions))
        self.graph = self.function.body
        self._lines: dict[str, int] = {}
        self._edges: list[tuple[Node, list[Edge], list[str]]] = []
        self._others: list[LineReader] = []

    def read(self, reader: LineReader) -> None:
        if not reader.peek("%"):
            self._others.append(reader)
            return
        name = reader.reference()
        if name in self._lines:
            raise FileFormatError(f"two nodes are named {name!r}", where=f"lines {self._lines[name]} and {reader.number}")
        self._lines[name] = reader.number
        reader.expect("=")
        op_type = reader.name()
        inputs, controls = reader.bracketed(reader.edge, "()"), list[str]()
        while reader.take("^"):
            controls.append(reader.name())
        attrs = reader.named(reader.attribute, "{}") if reader.peek("{") else {}
        device = reader.string() if reader.take("on") else ""
        extra = reader.hexadecimal() if reader.take("extra") else b""
        types = reader.separated(reader.type) if reader.take(":") else []
        reader.check_end()
        node = self.graph.append_node(op_type, name, attrs=attrs, output_types=types, device=device, extra=extra)
        self._edges.append((node, inputs, controls))

    def close(self) -> None:
        for node, inputs, controls in self._edges:
            number = self._lines[node.name]
            self.graph.set_inputs(node, [self.value(name, index, number) for name, index in inputs])
            for control in controls:
                if control == node.name:
                    raise FileFormatError(f"%{node.name} waits for itself", where=f"line {number}")
                self.graph.add_control_input(node, self.node(control, number))
        cycle = cycle_among(self.graph, producers_of)
        if cycle:
            raise FileFormatError("nodes wait for each other", where=f"lines {', '.join(str(self._lines[n.name]) for n in cycle[:5])}")
        for reader in self._others:
            _read_line(reader, self)
            reader.check_end()

    def node(self, name: str, number: int) -> Node:
        if name not in self.graph:
            raise FileFormatError(f"there is no node %{name}", where=f"line {number}")
        return self.graph[name]

    def value(self, name: str, index: int, number: int) -> Value:
        outputs = self.node(name, number).outputs
        if not 0 <= index < len(outputs):
            raise FileFormatError(f"there is no value %{name}:{index}", where=f"line {number}", cause=f"it has {len(outputs)} outputs")
        return outputs[index]


def from_text(text: str) -> Graph:
    """Return the graph that a text describes.

    Raises:
        FileFormatError: a line cannot be read, or names something that does not exist; the message has its number.
    """
    functions = Library()
    sections: list[_Section] = []
    for number, line in enumerate(text.splitlines(), start=1):
        reader = LineReader(line, number)
        if reader.at_end():
            continue
        if not sections and not reader.take("graph"):
            raise reader.error('the text does not start with a line `graph "name"`')
        if sections and not reader.take("function"):
            sections[-1].read(reader)
            continue
        section = _Section(reader.string(), functions)
        reader.check_end()
        if section.function.name in functions:
            raise FileFormatError(f"two functions are named {section.function.name!r}", where=f"line {number}")
        if sections:
            functions[section.function.name] = section.function
        sections.append(section)
    if not sections:
        raise FileFormatError("the text holds no graph", remedy='start with a line `graph "name"`')
    for section in sections:
        section.close()
    return sections[0].graph


def _read_line(reader: LineReader, section: _Section) -> None:
    graph = section.graph

    def value() -> Value:
        return section.value(*reader.edge(), reader.number)

    def reference() -> Node | Value:
        name = reader.reference()
        return section.value(name, reader.integer(), reader.number) if reader.take(":") else section.node(name, reader.number)

    def item() -> Any:
        if reader.peek("%"):
            return reference()
        if reader.take("text"):
            return reader.string()
        plain = reader.attribute()
        if isinstance(plain, SerializedAttribute) and reader.peek("{"):
            return NamedRefs(plain.data, reader.named(reference, "{}"))
        return plain

    if reader.take("inputs"):
        graph.inputs = reader.separated(value)
    elif reader.take("outputs"):
        graph.outputs = reader.separated(value)
    elif reader.take("control_outputs"):
        graph.control_outputs = [section.node(name, reader.number) for name in reader.separated(reader.reference)]
    elif reader.take("variable"):
        resource = value()
        reader.expect("=")
        name = reader.string()
        reader.expect(":")
        graph.variables[resource] = Variable(name, *reader.type(), reader.take("trainable"))
    elif reader.take("versions"):
        graph.versions = (reader.integer(), reader.integer())
    elif reader.take("signature"):
        name = reader.string()
        signature = graph.signatures[name] = Signature(reader.named(value, "()"), reader.named(value, "()"))
        if reader.take("method"):
            signature.method_name = reader.string()
        if reader.take("extra"):
            signature.extra = reader.hexadecimal()
    elif reader.take("collection"):
        name, kind = reader.string(), reader.name()
        if kind not in _COLLECTION_KINDS:
            raise reader.error(f"there is no kind of collection {kind!r}")
        graph.collections[name] = Collection(cast(CollectionKind, kind), reader.bracketed(item, "[]"))
    elif reader.take("definition"):
        section.function.definition = reader.hexadecimal()
    else:
        raise reader.error("this is neither a node nor a line that a graph can have")
