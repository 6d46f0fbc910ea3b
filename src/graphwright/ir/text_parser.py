"""Parses the text form of a graph, which `ir.text` describes and prints.

First every line is read by itself, then the names in them are looked up: nodes may stand in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from graphwright.errors import FileFormatError, GraphError
from graphwright.ir.graph import Function, Graph, Value, Variable
from graphwright.ir.node import Library
from graphwright.ir.signature import Collection, CollectionKind, NamedRefs, Signature
from graphwright.ir.text_line import Edge, HeldItem, LineReader, NodeLine, read_node
from graphwright.ir.traits import closes_loop
from graphwright.ir.walk import in_order

_COLLECTION_KINDS = get_args(CollectionKind)


@dataclass(slots=True)
class _Section:
    """A graph or function before its names are looked up."""

    number: int
    name: str
    nodes: list[NodeLine] = field(default_factory=list[NodeLine])
    inputs: list[Edge] = field(default_factory=list[Edge])
    outputs: list[Edge] = field(default_factory=list[Edge])
    control_outputs: list[str] = field(default_factory=list[str])
    variables: list[tuple[Edge, Variable]] = field(default_factory=list[tuple[Edge, Variable]])
    versions: tuple[int, int] | None = None
    definition: bytes = b""
    signatures: dict[str, _SignatureLine] = field(default_factory=dict[str, "_SignatureLine"])
    collections: dict[str, tuple[str, list[Any]]] = field(default_factory=dict[str, "tuple[str, list[Any]]"])


@dataclass(slots=True)
class _SignatureLine:
    """A parsed line of a signature."""

    inputs: list[tuple[str, Edge]]
    outputs: list[tuple[str, Edge]]
    method: str = ""
    extra: bytes = b""


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
    sections: list[_Section] = []
    for number, line in enumerate(text.splitlines(), start=1):
        reader = LineReader(line, number)
        if reader.at_end():
            continue
        if reader.take("graph" if not sections else "function"):
            sections.append(_Section(number, reader.string()))
        elif not sections:
            raise reader.error('the text does not start with a line `graph "name"`')
        else:
            _read_line(reader, sections[-1])
        if not reader.at_end():
            raise reader.error("the line goes on after its end")
    if not sections:
        raise FileFormatError("the text holds no graph", remedy='start with a line `graph "name"`')
    functions = Library()
    graph = _build(sections[0], functions)
    for section in sections[1:]:
        if section.name in functions:
            raise FileFormatError(f"two functions are named {section.name!r}", where=f"line {section.number}")
        functions[section.name] = Function(section.name, _build(section, functions), section.definition)
    return graph


def _read_line(reader: LineReader, section: _Section) -> None:
    if reader.peek("%"):
        section.nodes.append(read_node(reader))
    elif reader.take("inputs"):
        section.inputs = reader.separated(reader.edge)
    elif reader.take("outputs"):
        section.outputs = reader.separated(reader.edge)
    elif reader.take("control_outputs"):
        section.control_outputs = reader.separated(reader.reference)
    elif reader.take("variable"):
        edge = reader.edge()
        reader.expect("=")
        name = reader.string()
        reader.expect(":")
        dtype, shape = reader.type()
        section.variables.append((edge, Variable(name, dtype, shape, reader.take("trainable"))))
    elif reader.take("versions"):
        section.versions = (reader.integer(), reader.integer())
    elif reader.take("signature"):
        name = reader.string()
        line = _SignatureLine(reader.named(reader.edge, "(", ")"), reader.named(reader.edge, "(", ")"))
        if reader.take("method"):
            line.method = reader.string()
        if reader.take("extra"):
            line.extra = reader.hexadecimal()
        section.signatures[name] = line
    elif reader.take("collection"):
        name, kind = reader.string(), reader.name()
        if kind not in _COLLECTION_KINDS:
            raise reader.error(f"there is no kind of collection {kind!r}")
        reader.expect("[")
        section.collections[name] = (kind, [] if reader.peek("]") else reader.separated(reader.item))
        reader.expect("]")
    elif reader.take("definition"):
        section.definition = reader.hexadecimal()
    else:
        raise reader.error("this is neither a node nor a line that a graph can have")


def _build(section: _Section, functions: dict[str, Function]) -> Graph:
    graph = Graph(section.name, functions=functions, versions=section.versions)
    lines: dict[str, NodeLine] = {}
    for line in section.nodes:
        if line.name in lines:
            raise FileFormatError(f"two nodes are named {line.name!r}", where=f"lines {lines[line.name].number} and {line.number}")
        lines[line.name] = line
    for line in _in_dependency_order(lines):
        graph.append_node(
            line.op_type,
            line.name,
            inputs=[_look_up(graph, edge, line.number) for edge in line.inputs if not _is_back_edge(edge, line, lines)],
            control_inputs=[graph[name] for name in line.controls],
            attrs=line.attrs,
            output_types=line.types,
            device=line.device,
            extra=line.extra,
        )
    for line in lines.values():
        if len(line.inputs) != len(graph[line.name].inputs):
            graph.set_inputs(graph[line.name], [_look_up(graph, edge, line.number) for edge in line.inputs])
    graph.sort_nodes([graph[name] for name in lines])
    graph.inputs = [_look_up(graph, edge, section.number) for edge in section.inputs]
    graph.outputs = [_look_up(graph, edge, section.number) for edge in section.outputs]
    for name in section.control_outputs:
        if name not in graph:
            raise FileFormatError(f"there is no node %{name}", where=f"graph {section.name!r} from line {section.number}")
    graph.control_outputs = [graph[name] for name in section.control_outputs]
    graph.variables = {_look_up(graph, edge, section.number): variable for edge, variable in section.variables}
    for name, line in section.signatures.items():
        inputs = {key: _look_up(graph, edge, section.number) for key, edge in line.inputs}
        outputs = {key: _look_up(graph, edge, section.number) for key, edge in line.outputs}
        graph.signatures[name] = Signature(inputs, outputs, line.method, line.extra)
    for name, (kind, items) in section.collections.items():
        graph.collections[name] = Collection(cast(CollectionKind, kind), [_item(graph, item, section.number) for item in items])
    return graph


def _item(graph: Graph, item: Any, number: int) -> Any:
    if not isinstance(item, HeldItem):
        return item
    if item.refs is not None:
        return NamedRefs(item.serialized, {path: _item(graph, held, number) for path, held in item.refs})
    value = None if item.index is None else _look_up(graph, (item.name, item.index), number)
    if value is None and item.name not in graph:
        raise FileFormatError(f"there is no node %{item.name}", where=f"line {number}")
    return graph[item.name] if value is None else value


def _is_back_edge(edge: Edge, line: NodeLine, lines: Mapping[str, NodeLine]) -> bool:
    before = lines.get(edge[0])
    return before is not None and closes_loop(before.op_type, line.op_type)


def _in_dependency_order(lines: dict[str, NodeLine]) -> list[NodeLine]:
    """Each line after those that it names; the order of the text may be another one."""
    needs: dict[str, list[str]] = {}
    for name, line in lines.items():
        needs[name] = [edge[0] for edge in line.inputs if not _is_back_edge(edge, line, lines)] + [*line.controls]
        for source in needs[name]:
            if source not in lines:
                raise FileFormatError(f"there is no node %{source}", where=f"line {line.number}")
    order = in_order(lines, needs.__getitem__)
    if len(order) < len(lines):
        stuck = [str(line.number) for name, line in lines.items() if name not in order]
        raise FileFormatError("nodes wait for each other", where=f"lines {', '.join(stuck[:5])}")
    return [lines[name] for name in order]


def _look_up(graph: Graph, edge: Edge, number: int) -> Value:
    name, index = edge
    try:
        return graph.value(f"{name}:{index}")
    except GraphError as error:
        raise FileFormatError(f"there is no value %{name}:{index}", where=f"line {number}", cause=error.what) from None
