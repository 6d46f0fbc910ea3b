"""Parses the text form of a graph, which `ir.text` describes and prints.

The lines of nodes come first, since nodes may stand in any order; the other lines are read when the nodes that they name are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast, get_args

from graphwright.errors import FileFormatError, GraphError
from graphwright.ir.attributes import SerializedAttribute
from graphwright.ir.graph import Function, Graph, Node, Value, Variable
from graphwright.ir.node import Library
from graphwright.ir.signature import Collection, CollectionKind, NamedRefs, Signature
from graphwright.ir.text_line import LineReader, NodeLine, read_node
from graphwright.ir.walk import cycle_among, producers_of

_COLLECTION_KINDS = get_args(CollectionKind)


@dataclass(slots=True)
class _Section:
    """The lines of a graph or function."""

    name: str
    nodes: dict[str, NodeLine] = field(default_factory=dict[str, NodeLine])
    others: list[LineReader] = field(default_factory=list[LineReader])


def from_text(text: str) -> Graph:
    """The graph that a text describes.

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
    """Finds what a line names."""

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
