"""`NodeDef`s -> nodes of a graph: of a `GraphDef`, or of the body of a function."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute, SerializedAttribute, ShapeAttribute
from graphwright.ir.dtypes import DType, Shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import is_back_edge
from graphwright.ir.traits.values import PLACEHOLDERS
from graphwright.ir.walk import cycle_among, producers_of, topological_order
from graphwright.source.attributes import from_attr_value, shape_from_proto
from graphwright.source.op_types import NodeTypes, OpTypes, damaged
from graphwright.source.tensorflow_import import import_tensorflow

_MODELED_FIELDS = ("name", "op", "input", "device", "attr")


class NodeReader:
    """Reads the nodes of one graph or function body.

    Args:
        arguments: values that exist already, by the name under which nodes read them.
        in_function: whether edges are written as in a `FunctionDef` (`node:output_argument:0`).
    """

    def __init__(self, graph: Graph, types: OpTypes, arguments: Mapping[str, Value], *, in_function: bool) -> None:
        self._graph = graph
        self._types = types
        self._in_function = in_function
        self._nodes: dict[str, tuple[Node, NodeTypes | None]] = {name: (v.producer, None) for name, v in arguments.items()}
        self._names = set(arguments)
        self._late: list[tuple[Node, Any, NodeTypes]] = []  # added before a node that they read

    def read(self, node_defs: Sequence[Any], *, file_order: bool) -> None:
        """Add nodes, which may be given in any order. Without `file_order`, each comes after its inputs at the end."""
        for node_def in node_defs:
            if node_def.name in self._names:
                raise damaged(f"two nodes are named {node_def.name!r}", f"graph {self._graph.name!r}")
            self._names.add(node_def.name)
        for node_def in node_defs:
            self._add(node_def)
        for node, node_def, types in self._late:
            inputs, controls = self._edges(node_def) or ([], [])
            _check_inputs(node.name, node.op_type, inputs, types.inputs)
            if inputs and all(is_back_edge(value, node) for value in inputs):
                raise GraphError(f"{node.name!r} is in a cycle", where=f"node {node.name!r}", cause="nothing enters its loop")
            self._graph.set_inputs(node, inputs)
            for control in controls:
                self._graph.add_control_input(node, control)
        if self._late:
            _check_no_cycle(self._graph)
        if self._late and not file_order:
            self._graph.sort_nodes(topological_order(self._graph))

    def value(self, edge: str, where: str) -> Value:
        """Return the value of an edge: `arg`, `node`, `node:1` (GraphDef) or `node:output_argument:0` (FunctionDef)."""
        name, _, rest = edge.partition(":")
        entry = self._nodes.get(name)
        if entry is None:
            raise damaged(f"input {edge!r} does not exist", where)
        node, types = entry
        outputs = node.outputs
        if not rest:
            index = 0
        elif types is None:
            index = 0 if rest == "0" else -1
        else:
            argument, _, number = rest.rpartition(":")
            offset = types.starts.get(argument, -1) if argument else 0
            index = offset + int(number) if offset >= 0 and number.isdecimal() and len(number) < 8 else -1
        if not 0 <= index < len(outputs):
            raise damaged(f"input {edge!r} does not exist: {name!r} has {len(outputs)} outputs", where)
        return outputs[index]

    def _add(self, node_def: Any) -> None:
        name, op_type, attr = node_def.name, node_def.op, node_def.attr
        edges = self._edges(node_def)
        attrs: dict[str, Attribute] = {key: from_attr_value(attr[key]) for key in sorted(attr)}
        types = self._types.types_of(op_type, attrs, name)
        inputs, controls = edges or ([], [])
        if edges is not None:
            _check_inputs(name, op_type, inputs, types.inputs)
        node = self._graph.append_node(
            op_type,
            name,
            inputs=inputs,
            control_inputs=controls,
            attrs=attrs,
            output_types=_output_types(types.outputs, attrs, op_type),
            device=node_def.device,
            extra=extra_of(node_def),
        )
        self._nodes[name] = (node, types)
        if edges is None:
            self._late.append((node, node_def, types))

    def _edges(self, node_def: Any) -> tuple[list[Value], list[Node]] | None:
        """Return the inputs and control inputs of a node, or None where one of them is not added yet."""
        nodes = self._nodes
        inputs: list[Value] = []
        controls: list[Node] = []
        for edge in node_def.input:
            source = edge if edge in nodes else edge.removeprefix("^").partition(":")[0]
            if source not in nodes:
                if source in self._names:
                    return None
                raise damaged(f"input {edge!r} does not exist", f"node {node_def.name!r}")
            node, types = nodes[source]
            if edge[:1] == "^":
                controls.append(node)
            elif controls:
                raise damaged(f"input {edge!r} comes after a control input", f"node {node_def.name!r}")
            elif source is edge and node.outputs and (not self._in_function or types is None):  # the common case: the first output
                inputs.append(node.outputs[0])
            else:
                inputs.append(self.value(edge, f"node {node_def.name!r}"))
        return inputs, controls


def _check_no_cycle(graph: Graph) -> None:
    cycle = cycle_among(graph.nodes, producers_of)
    if cycle:
        raise damaged(f"{cycle[0].name!r} is in a cycle", f"nodes {', '.join(node.name for node in cycle[:5])}")


def _check_inputs(name: str, op_type: str, inputs: Sequence[Value], expected: tuple[DType, ...]) -> None:
    if len(inputs) != len(expected):
        raise damaged(f"{op_type} reads {len(expected)} inputs, got {len(inputs)}", f"node {name!r}")
    for k, (value, dtype) in enumerate(zip(inputs, expected, strict=True)):
        if value.dtype is not dtype and value.dtype != dtype:
            raise damaged(f"input {k} has dtype {value.dtype} ({value.name}), {op_type} reads {dtype}", f"node {name!r}")


def _output_types(dtypes: Sequence[DType], attrs: Mapping[str, Attribute], op_type: str) -> list[tuple[DType, Shape]]:
    shapes = attrs.get("_output_shapes")
    if isinstance(shapes, SerializedAttribute) and shapes.data:
        value: Any = import_tensorflow().compat.v1.AttrValue.FromString(shapes.data)
        known: list[Shape] = [shape_from_proto(s) for s in value.list.shape]
    elif isinstance(shapes, tuple):
        known = [s.shape if isinstance(s, ShapeAttribute) else None for s in shapes]
    elif op_type in PLACEHOLDERS and isinstance(attrs.get("shape"), ShapeAttribute) and len(dtypes) == 1:
        shape = attrs["shape"]
        known = [shape.shape if isinstance(shape, ShapeAttribute) else None]
    else:
        return [(dtype, None) for dtype in dtypes]
    return [(dtype, known[k] if k < len(known) else None) for k, dtype in enumerate(dtypes)]


def extra_of(node_def: Any) -> bytes:
    if not (node_def.HasField("experimental_debug_info") or node_def.HasField("experimental_type")):
        return b""
    rest = type(node_def)()
    rest.CopyFrom(node_def)
    for name in _MODELED_FIELDS:
        rest.ClearField(name)
    return rest.SerializeToString(deterministic=True)
