"""Parses the text form of a graph, which `ir.text` describes and prints.

Lines of nodes are built first, since nodes may stand in any order; other lines are read when the nodes that they name exist.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast, get_args

import numpy as np

from graphwright.errors import FileFormatError, GraphError
from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.constants import tensor_attribute
from graphwright.ir.dtypes import DTYPES, DType, Shape, dtype_from_number
from graphwright.ir.graph import Function, Graph, Node, Value, Variable
from graphwright.ir.node import Library
from graphwright.ir.signature import Collection, CollectionKind, NamedRefs, Signature
from graphwright.ir.walk import cycle_among, producers_of

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
    """Parse the line of a node.

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
    """Parses one line from left to right; raises `FileFormatError` where the line does not continue as expected."""

    def __init__(self, line: str, number: int) -> None:
        self.number = number
        self._line = line
        self._at = 0

    def error(self, what: str) -> FileFormatError:
        return FileFormatError(what, where=f"line {self.number}, column {self._at + 1}: {self._line.strip()[:200]}")

    def at_end(self) -> bool:
        """Return whether only a comment is left."""
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
        found = self.peek(text)
        if found:
            self._at += len(text)
        return found

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.error(f"`{text}` is expected here")

    def separated(self, item: Callable[[], _T]) -> list[_T]:
        found = [item()]
        while self.take(","):
            found.append(item())
        return found

    def bracketed(self, item: Callable[[], _T], brackets: str) -> list[_T]:
        self.expect(brackets[0])
        found = [] if self.peek(brackets[1]) else self.separated(item)
        self.expect(brackets[1])
        return found

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
        """Parse a node: `%name`."""
        self.expect("%")
        return self.name()

    def edge(self) -> Edge:
        """Parse a value: `%name:0`."""
        name = self.reference()
        self.expect(":")
        return name, self.integer()

    def type(self) -> tuple[DType, Shape]:
        """Parse the type of a value: `float32[2,?]`."""
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


# The text as a whole

_COLLECTION_KINDS = get_args(CollectionKind)


@dataclass(slots=True)
class _Section:
    """The lines of a graph or function."""

    name: str
    nodes: dict[str, NodeLine] = field(default_factory=dict[str, NodeLine])
    others: list[LineReader] = field(default_factory=list[LineReader])


def from_text(text: str) -> Graph:
    """Return the graph that a text describes.

    Raises:
        FileFormatError: a line cannot be read, or names something that does not exist; the message has its number.

    >>> g = from_text('''
    ... graph "g"
    ... outputs %y:0
    ... %x = Placeholder() : float32[2,3]
    ... %y = Relu(%x:0) : float32[2,3]
    ... ''')
    >>> g["y"].inputs[0].shape
    (2, 3)
    """
    main: _Section | None = None
    bodies: dict[str, _Section] = {}
    section = _Section("")
    for number, line in enumerate(text.splitlines(), start=1):
        reader = LineReader(line, number)
        if reader.at_end():
            continue
        if main is None:
            if not reader.take("graph"):
                raise reader.error('the text does not start with a line `graph "name"`')
            main = section = _Section(reader.string())
        elif reader.take("function"):
            section = _Section(reader.string())
            if section.name in bodies:
                raise FileFormatError(f"two functions are named {section.name!r}", where=f"line {number}")
            bodies[section.name] = section
        elif not reader.peek("%"):
            section.others.append(reader)
            continue
        else:
            node = read_node(reader)
            first = section.nodes.setdefault(node.name, node)
            if first is not node:
                raise FileFormatError(f"two nodes are named {node.name!r}", where=f"lines {first.number} and {number}")
        reader.check_end()
    if main is None:
        raise FileFormatError("the text holds no graph", remedy='start with a line `graph "name"`')
    functions = Library()
    graph = _build(main, functions).body
    functions.update({name: _build(section, functions) for name, section in bodies.items()})
    return graph


def _build(section: _Section, functions: dict[str, Function]) -> Function:
    graph = Graph(section.name, functions=functions)
    lines = section.nodes
    for name, line in lines.items():
        graph.append_node(line.op_type, name, attrs=line.attrs, output_types=line.types, device=line.device, extra=line.extra)
    for name, line in lines.items():
        node, names = graph[name], _Names(graph, line.number)
        graph.set_inputs(node, [names.value(names.node(source).name, index) for source, index in line.inputs])
        for control in line.controls:
            if control == name:
                raise FileFormatError(f"%{name} waits for itself", where=f"line {line.number}")
            graph.add_control_input(node, names.node(control))
    cycle = cycle_among(graph, producers_of)
    if cycle:
        raise FileFormatError("nodes wait for each other", where=f"lines {', '.join(str(lines[n.name].number) for n in cycle[:5])}")
    function = Function(section.name, graph)
    for reader in section.others:
        _read_line(reader, function)
        reader.check_end()
    return function


def _read_line(reader: LineReader, function: Function) -> None:
    graph = function.body
    names = _Names(graph, reader.number)

    def value() -> Value:
        return names.value(*reader.edge())

    def held() -> Node | Value:
        name = reader.reference()
        return names.value(name, reader.integer()) if reader.take(":") else names.node(name)

    def item() -> Any:
        if reader.peek("%"):
            return held()
        if reader.take("text"):
            return reader.string()
        found = reader.attribute()
        return NamedRefs(found.data, reader.named(held, "{}")) if isinstance(found, SerializedAttribute) and reader.peek("{") else found

    if reader.take("inputs"):
        graph.inputs = reader.separated(value)
    elif reader.take("outputs"):
        graph.outputs = reader.separated(value)
    elif reader.take("control_outputs"):
        graph.control_outputs = [names.node(name) for name in reader.separated(reader.reference)]
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
        function.definition = reader.hexadecimal()
    else:
        raise reader.error("this is neither a node nor a line that a graph can have")


@dataclass(slots=True)
class _Names:
    """Finds the nodes and values that a line names."""

    graph: Graph
    number: int

    def node(self, name: str) -> Node:
        if name not in self.graph:
            raise FileFormatError(f"there is no node %{name}", where=f"line {self.number}")
        return self.graph[name]

    def value(self, name: str, index: int) -> Value:
        try:
            return self.graph.value(f"{name}:{index}")
        except GraphError as error:
            raise FileFormatError(f"there is no value %{name}:{index}", where=f"line {self.number}", cause=error.what) from None
