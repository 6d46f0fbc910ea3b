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

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.constants import array_of, tensor_attribute
from graphwright.ir.dtypes import DType, format_shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import NamedRefs
from graphwright.ir.text_parser import NAME
from graphwright.ir.text_parser import from_text as from_text

_PLAIN = re.compile(NAME)
_MOST_SHOWN = 12


def to_text(graph: Graph) -> str:
    """Return the text form of a graph and its functions."""
    lines = [f"graph {_quoted(graph.name)}", *_body_lines(graph)]
    for function in graph.functions.values():
        lines += ["", f"function {_quoted(function.name)}"]
        if function.definition:
            lines.append(f"definition 0x{function.definition.hex()}")
        lines += _body_lines(function.body)
    return "\n".join(lines) + "\n"


def format_node(node: Node, *, longest: int | None = None) -> str:
    """Return the line of a node.

    Args:
        longest: cut attributes at this many characters, for messages; such a line cannot be parsed.
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
    """Return the text of an attribute."""
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


def neighborhood(nodes: Iterable[Node]) -> str:
    """Return the lines of these nodes and of what they read, for messages."""
    neighbors: dict[Node, None] = {}
    for node in nodes:
        neighbors.update(dict.fromkeys((*(v.producer for v in node.inputs), *node.control_inputs)))
        neighbors[node] = None
    lines = [format_node(node, longest=60) for node in itertools.islice(neighbors, _MOST_SHOWN)]
    return "\n".join(lines) + (f"\n... and {len(neighbors) - _MOST_SHOWN} more" if len(neighbors) > _MOST_SHOWN else "")


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
    if graph.versions is not None:
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
    if array is None or array.nbytes > len(attribute.data) or tensor_attribute(array) != attribute or np.isnan(array).any():
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
