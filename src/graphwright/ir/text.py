"""The text form of a graph: printed and parsed, one node per line.

```
graph "step"                                      # always the first line; `#` starts a comment
inputs %x:0, %w:0
outputs %y:0
control_outputs %log
variable %w:0 = "dense/kernel" : float32[3,4] trainable
versions 1882 12
signature "serving_default" ("image" = %x:0) ("label" = %y:0) method "tensorflow/serving/predict" extra 0x..
collection "variables" bytes [0x0a.. {"variable_name" = %w:0}]
collection "train_op" nodes [%y, %x:0]

%x = Placeholder() {dtype = float32} : float32[?,3]
%y = MatMul(%x:0, %read:0) ^log {T = float32, transpose_a = false} on "/device:CPU:0" : float32[?,4]

function "body"                                   # then its inputs, outputs and nodes, as above
```

A line is `%name = OpType(inputs) ^control {attributes} on "device" extra 0x.. : types`, where
all but name and op type may be missing. In a shape, `?` is an unknown dimension and `*` an
unknown rank.

Attributes: `true`, `-3`, `0.5`, `"bytes\\n"`, `float32`, `shape[2,?]`, `@function`, lists of
these as `[1, 2]`, constant tensors as `tensor int32[2] [1, 2]`, and everything else as the
serialized `AttrValue`, `0x0a00`. A function whose reference carries attributes is `@name 0x..`.

The text holds all of a graph but its `package`: parsing what was printed gives a graph that prints the same.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast, get_args

import numpy as np

from graphwright.errors import FileFormatError, GraphError
from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.constants import array_of, tensor_attribute
from graphwright.ir.dtypes import DTYPES, DType, Shape, dtype_from_number, format_shape
from graphwright.ir.graph import Function, Graph, Node, Value, Variable
from graphwright.ir.signature import Collection, CollectionKind, NamedRefs, Signature
from graphwright.ir.traits import closes_loop

_COLLECTION_KINDS = get_args(CollectionKind)
_T = TypeVar("_T")
_NAME = r"[A-Za-z0-9_.][A-Za-z0-9_.\\/>-]*"
_STRING = r'"(?:[^"\\]|\\.)*"'
_PLAIN = re.compile(_NAME)
_SPACE = re.compile(r"\s*")


def to_text(graph: Graph) -> str:
    """The text form of a graph and its functions.

    >>> g = Graph("g")
    >>> x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (2, None))]).outputs[0]
    >>> g.inputs, g.outputs = [x], [g.add_node("Relu", "y", inputs=[x], output_types=[(DTYPES["float32"], (2, None))]).outputs[0]]
    >>> print(to_text(g), end="")
    graph "g"
    inputs %x:0
    outputs %y:0
    <BLANKLINE>
    %x = Placeholder() : float32[2,?]
    %y = Relu(%x:0) : float32[2,?]
    """
    lines = [f"graph {_quoted(graph.name)}", *_body_lines(graph)]
    for function in graph.functions.values():
        lines += ["", f"function {_quoted(function.name)}"]
        if function.definition:
            lines.append(f"definition 0x{function.definition.hex()}")
        lines += _body_lines(function.body)
    return "\n".join(lines) + "\n"


def format_node(node: Node, *, longest: int | None = None) -> str:
    """The line of a node.

    Args:
        longest: cut attributes at this many characters, for messages; such a line cannot be parsed.

    >>> g = Graph()
    >>> a = g.add_node("NoOp", "a", attrs={"n": 3, "T": DTYPES["int32"]})
    >>> format_node(g.add_node("NoOp", "b", control_inputs=[a], attrs={"f": FunctionReference("body")}))
    '%b = NoOp() ^a {f = @body}'
    """
    parts = [f"%{_named(node.name)} = {_named(node.op_type)}({', '.join(_edge(v) for v in node.inputs)})"]
    parts += [f"^{_named(control.name)}" for control in node.control_inputs]
    if node.attrs:
        parts.append(
            "{" + ", ".join(f"{_named(key)} = {_short(format_attribute(node.attrs[key]), longest)}" for key in sorted(node.attrs)) + "}"
        )
    if node.device:
        parts.append(f"on {_quoted(node.device)}")
    if node.extra:
        parts.append(f"extra {_short('0x' + node.extra.hex(), longest)}")
    if node.outputs:
        parts.append(": " + ", ".join(f"{v.dtype}{format_shape(v.shape if longest is None else v.last_shape)}" for v in node.outputs))
    return " ".join(parts)


def format_attribute(attribute: Attribute) -> str:
    """The text of an attribute.

    >>> [format_attribute(a) for a in (True, 2, 0.5, b"SAME", DTYPES["int32"], ShapeAttribute((None, 2)), (1, 2))]
    ['true', '2', '0.5', '"SAME"', 'int32', 'shape[?,2]', '[1, 2]']
    """
    match attribute:
        case bool():
            return "true" if attribute else "false"
        case int():
            return str(attribute)
        case float():
            return repr(attribute)
        case bytes():
            return _quoted_bytes(attribute)
        case DType():
            return attribute.name
        case ShapeAttribute():
            return f"shape{format_shape(attribute.shape)}"
        case FunctionReference():
            return f"@{_named(attribute.name)}" + (f" 0x{attribute.serialized.hex()}" if attribute.serialized else "")
        case SerializedAttribute():
            return _format_serialized(attribute)
        case _:
            return "[" + ", ".join(format_attribute(item) for item in attribute) + "]"


def _body_lines(graph: Graph) -> list[str]:
    lines: list[str] = []
    if graph.inputs:
        lines.append("inputs " + ", ".join(_edge(v) for v in graph.inputs))
    if graph.outputs:
        lines.append("outputs " + ", ".join(_edge(v) for v in graph.outputs))
    if graph.control_outputs:
        lines.append("control_outputs " + ", ".join(f"%{_named(n.name)}" for n in graph.control_outputs))
    for value, variable in graph.variables.items():
        kind = f"{variable.dtype}{format_shape(variable.shape)}{' trainable' if variable.trainable else ''}"
        lines.append(f"variable {_edge(value)} = {_quoted(variable.name)} : {kind}")
    if graph.versions != (0, 0):
        lines.append(f"versions {graph.versions[0]} {graph.versions[1]}")
    for name, signature in graph.signatures.items():
        line = f"signature {_quoted(name)} ({_named_edges(signature.inputs)}) ({_named_edges(signature.outputs)})"
        line += f" method {_quoted(signature.method_name)}" if signature.method_name else ""
        lines.append(line + (f" extra 0x{signature.extra.hex()}" if signature.extra else ""))
    for name, collection in graph.collections.items():
        lines.append(f"collection {_quoted(name)} {collection.kind} [{', '.join(_format_item(item) for item in collection.items)}]")
    return [*lines, "", *(format_node(node) for node in graph)]


def _named_edges(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{_quoted(key)} = {_edge(value)}" for key, value in values.items())


def _format_item(item: Any) -> str:
    match item:
        case Node():
            return f"%{_named(item.name)}"
        case Value():
            return _edge(item)
        case NamedRefs():
            refs = ", ".join(f"{_quoted(path)} = {_format_item(held)}" for path, held in item.refs.items())
            return f"0x{item.serialized.hex()} {{{refs}}}"
        case str():
            return f"text {_quoted(item)}"
        case _:
            return format_attribute(item)


def _format_serialized(attribute: SerializedAttribute) -> str:
    array = array_of(attribute)
    # Another encoding of the same tensor must survive, so only what would be encoded alike is shown by its elements.
    if array is None or tensor_attribute(array) != attribute or np.isnan(array).any():
        return f"0x{attribute.data.hex()}"
    elements: list[bool | int | float] = array.ravel().tolist()
    return f"tensor {array.dtype}{format_shape(array.shape)} [{', '.join(format_attribute(e) for e in elements)}]"


def _edge(value: Value) -> str:
    return f"%{_named(value.producer.name)}:{value.index}"


def _named(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    return _quoted_bytes(text.encode())


def _quoted_bytes(data: bytes) -> str:
    inner = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in data)
    return f'"{inner}"'


def _short(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else text[: longest - 3] + "..."


# Parsing


@dataclass(slots=True)
class _Line:
    """A parsed line of a node."""

    number: int
    name: str
    op_type: str
    inputs: list[tuple[str, int]]
    controls: list[str]
    attrs: dict[str, Attribute] = field(default_factory=dict[str, Attribute])
    device: str = ""
    extra: bytes = b""
    types: list[tuple[DType, Shape]] = field(default_factory=list[tuple[DType, Shape]])


@dataclass(slots=True)
class _Section:
    """A graph or function before its names are looked up."""

    number: int
    name: str
    nodes: list[_Line] = field(default_factory=list[_Line])
    inputs: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    outputs: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    control_outputs: list[str] = field(default_factory=list[str])
    variables: list[tuple[tuple[str, int], Variable]] = field(default_factory=list[tuple[tuple[str, int], Variable]])
    versions: tuple[int, int] = (0, 0)
    definition: bytes = b""
    signatures: dict[str, _SignatureLine] = field(default_factory=dict[str, "_SignatureLine"])
    collections: dict[str, tuple[str, list[Any]]] = field(default_factory=dict[str, "tuple[str, list[Any]]"])


@dataclass(slots=True)
class _SignatureLine:
    """A parsed line of a signature."""

    inputs: list[tuple[str, tuple[str, int]]]
    outputs: list[tuple[str, tuple[str, int]]]
    method: str = ""
    extra: bytes = b""


@dataclass(slots=True)
class _Held:
    """What an item of a collection names: a node where the index is None, and messages with several."""

    name: str = ""
    index: int | None = None
    serialized: bytes = b""
    refs: list[tuple[str, _Held]] | None = None


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
        reader = _Reader(line, number)
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
    functions: dict[str, Function] = {}
    graph = _build(sections[0], functions)
    for section in sections[1:]:
        if section.name in functions:
            raise FileFormatError(f"two functions are named {section.name!r}", where=f"line {section.number}")
        functions[section.name] = Function(section.name, _build(section, functions), section.definition)
    return graph


def _read_line(reader: _Reader, section: _Section) -> None:
    if reader.peek("%"):
        section.nodes.append(_read_node(reader))
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


def _read_node(reader: _Reader) -> _Line:
    name = reader.reference()
    reader.expect("=")
    op_type = reader.name()
    reader.expect("(")
    line = _Line(reader.number, name, op_type, [] if reader.peek(")") else reader.separated(reader.edge), [])
    reader.expect(")")
    while reader.take("^"):
        line.controls.append(reader.name())
    if reader.take("{"):
        pairs = [] if reader.peek("}") else reader.separated(reader.pair)
        line.attrs = dict(pairs)
        reader.expect("}")
    if reader.take("on"):
        line.device = reader.string()
    if reader.take("extra"):
        line.extra = reader.hexadecimal()
    if reader.take(":"):
        line.types = reader.separated(reader.type)
    return line


def _build(section: _Section, functions: dict[str, Function]) -> Graph:
    graph = Graph(section.name, functions=functions, versions=section.versions)
    lines: dict[str, _Line] = {}
    for line in section.nodes:
        if line.name in lines:
            raise FileFormatError(f"two nodes are named {line.name!r}", where=f"lines {lines[line.name].number} and {line.number}")
        lines[line.name] = line
    for line in _in_dependency_order(lines):
        graph.add_node(
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
    if not isinstance(item, _Held):
        return item
    if item.refs is not None:
        return NamedRefs(item.serialized, {path: _item(graph, held, number) for path, held in item.refs})
    value = None if item.index is None else _look_up(graph, (item.name, item.index), number)
    if value is None and item.name not in graph:
        raise FileFormatError(f"there is no node %{item.name}", where=f"line {number}")
    return graph[item.name] if value is None else value


def _is_back_edge(edge: tuple[str, int], line: _Line, lines: Mapping[str, _Line]) -> bool:
    before = lines.get(edge[0])
    return before is not None and closes_loop(before.op_type, line.op_type)


def _in_dependency_order(lines: dict[str, _Line]) -> list[_Line]:
    """Each line after those that it names; the order of the text may be another one."""
    missing: dict[str, int] = {}
    readers: dict[str, list[str]] = {name: [] for name in lines}
    for name, line in lines.items():
        data = [edge[0] for edge in line.inputs if not _is_back_edge(edge, line, lines)]
        before = dict.fromkeys((*data, *line.controls))
        missing[name] = len(before)
        for source in before:
            if source not in lines:
                raise FileFormatError(f"there is no node %{source}", where=f"line {line.number}")
            readers[source].append(name)
    order = [name for name in lines if missing[name] == 0]
    for name in order:  # grows while it is walked
        for reader in readers[name]:
            missing[reader] -= 1
            if missing[reader] == 0:
                order.append(reader)
    if len(order) < len(lines):
        stuck = [str(line.number) for name, line in lines.items() if missing[name]]
        raise FileFormatError("nodes wait for each other", where=f"lines {', '.join(stuck[:5])}")
    return [lines[name] for name in order]


def _look_up(graph: Graph, edge: tuple[str, int], number: int) -> Value:
    name, index = edge
    try:
        return graph.value(f"{name}:{index}")
    except GraphError as error:
        raise FileFormatError(f"there is no value %{name}:{index}", where=f"line {number}", cause=error.what) from None


class _Reader:
    """Takes one line apart from left to right."""

    def __init__(self, line: str, number: int) -> None:
        self.number = number
        self._line = line
        self._at = 0

    def error(self, what: str) -> FileFormatError:
        return FileFormatError(what, where=f"line {self.number}, column {self._at + 1}: {self._line.strip()[:200]}")

    def at_end(self) -> bool:
        self._skip()
        return self._at == len(self._line) or self._line[self._at] == "#"

    def peek(self, text: str) -> bool:
        self._skip()
        if not self._line.startswith(text, self._at):
            return False
        # A word must end where it ends: `on` does not begin `once`.
        return not text[0].isalpha() or self._at + len(text) == len(self._line) or not self._line[self._at + len(text)].isalnum()

    def take(self, text: str) -> bool:
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

    def name(self) -> str:
        return self.string() if self.peek('"') else self._match(_NAME, "a name")

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

    def edge(self) -> tuple[str, int]:
        name = self.reference()
        self.expect(":")
        return name, self.integer()

    def named(self, item: Callable[[], _T], opening: str, closing: str) -> list[tuple[str, _T]]:
        self.expect(opening)
        found = [] if self.peek(closing) else self.separated(lambda: self._named_item(item))
        self.expect(closing)
        return found

    def _named_item(self, item: Callable[[], _T]) -> tuple[str, _T]:
        name = self.string()
        self.expect("=")
        return name, item()

    def held(self) -> _Held:
        name = self.reference()
        return _Held(name, self.integer() if self.take(":") else None)

    def item(self) -> Any:
        """An item of a collection."""
        if self.peek("%"):
            return self.held()
        if self.take("text"):
            return self.string()
        if not self.peek("0x"):
            return self.attribute()
        data = self.hexadecimal()
        return _Held(serialized=data, refs=self.named(self.held, "{", "}")) if self.peek("{") else SerializedAttribute(data)

    def type(self) -> tuple[DType, Shape]:
        return self._dtype(), self._shape()

    def pair(self) -> tuple[str, Attribute]:
        key = self.name()
        self.expect("=")
        return key, self.attribute()

    def attribute(self) -> Attribute:
        if self.take("["):
            items = () if self.peek("]") else tuple(self.separated(self.attribute))
            self.expect("]")
            return items
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
        self.expect("[")
        elements = [] if self.peek("]") else self.separated(self.attribute)
        self.expect("]")
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
        self.expect("[")
        if self.take("*"):
            self.expect("]")
            return None
        dims = [] if self.peek("]") else self.separated(self._dimension)
        self.expect("]")
        return tuple(dims)

    def _dimension(self) -> int | None:
        return None if self.take("?") else self.integer()

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


def neighborhood(nodes: Iterable[Node], *, most: int = 12) -> str:
    """The lines of these nodes and of what they read, for messages.

    >>> g = Graph()
    >>> a = g.add_node("Const", "a", output_types=[(DTYPES["float32"], ())])
    >>> b = g.add_node("Neg", "b", inputs=[a.outputs[0]], output_types=[(DTYPES["float32"], ())])
    >>> print(neighborhood([b]))
    %a = Const() : float32[]
    %b = Neg(%a:0) : float32[]
    """
    found: dict[Node, None] = {}
    for node in nodes:
        found.update(dict.fromkeys((*(v.producer for v in node.inputs), *node.control_inputs)))
        found[node] = None
    lines = [format_node(node, longest=60) for node in itertools.islice(found, most)]
    return "\n".join(lines) + (f"\n... and {len(found) - most} more" if len(found) > most else "")
