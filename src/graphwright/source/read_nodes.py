"""`NodeDef`s -> nodes of a graph: of a `GraphDef`, or of the body of a function.

Nodes are added in an order in which each input exists. Only a `Merge` may read a `NextIteration` that comes later: that
is how loops of TF1 go round. Such an edge is closed when all nodes are there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute, SerializedAttribute, ShapeAttribute
from graphwright.ir.dtypes import DType, Shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import MERGES, NEXT_ITERATIONS
from graphwright.ir.traits.values import PLACEHOLDERS
from graphwright.source.attributes import from_attr_value, shape_from_proto
from graphwright.source.op_types import NodeTypes, OpTypes
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
        self._by_name: dict[str, Any] = {}
        self._late: list[tuple[Node, int, str]] = []

    def read(self, node_defs: Sequence[Any], *, file_order: bool) -> None:
        """Add the nodes.

        Args:
            node_defs: in any order.
            file_order: whether the graph's order is that of `node_defs` at the end; else each node comes after its inputs.

        Raises:
            GraphError: a name is taken twice, an input does not exist or has the wrong dtype, or there is a cycle.
            UnsupportedError: an op type is not known.
        """
        before = self._graph.nodes
        by_name = self._by_name
        for node_def in node_defs:
            name = node_def.name
            if name in by_name or name in self._nodes:
                raise GraphError(
                    f"two nodes are named {name!r}",
                    where=f"graph {self._graph.name!r}",
                    cause="the file is damaged, or was edited by hand",
                )
            by_name[name] = node_def
        in_order = True
        for node_def in node_defs:
            if node_def.name not in self._nodes and not self._add(node_def):
                in_order = False
                self._add_with_inputs(node_def)
        for node, index, edge in self._late:
            self._close_loop(node, index, edge)
        if file_order and not in_order:
            self._graph.sort_nodes([*before, *(self._graph[name] for name in by_name)])

    def value(self, edge: str, where: str) -> Value:
        """Return the value of an edge: `arg`, `node`, `node:1` (GraphDef) or `node:output_argument:0` (FunctionDef)."""
        name, _, rest = edge.partition(":")
        entry = self._nodes.get(name)
        if entry is None:
            raise GraphError(f"input {edge!r} does not exist", where=where, cause="the file is damaged, or a node was removed by hand")
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
            raise GraphError(
                f"input {edge!r} does not exist: {name!r} has {len(outputs)} outputs", where=where, cause="the file is damaged"
            )
        return outputs[index]

    def _add_with_inputs(self, root: Any) -> None:
        """Add a node and, before it, all that it needs."""
        stack: list[tuple[Any, int]] = [(root, 0)]
        active = {root.name}
        while stack:
            node_def, position = stack.pop()
            is_merge = node_def.op in MERGES
            edges = node_def.input
            waits = False
            for k in range(position, len(edges)):
                source = _source(edges[k])
                if source in self._nodes:
                    continue
                before = self._by_name.get(source)
                if before is None:
                    raise _missing(edges[k], node_def)
                if is_merge and before.op in NEXT_ITERATIONS and edges[k][0] != "^":
                    continue
                if source in active:
                    raise GraphError(
                        f"{node_def.name!r} is in a cycle",
                        where=f"input {edges[k]!r}",
                        cause="the file is damaged, or an edit made the node depend on itself",
                    )
                stack.append((node_def, k))
                stack.append((before, 0))
                active.add(source)
                waits = True
                break
            if not waits:
                if not self._add(node_def):
                    raise GraphError(f"the inputs of {node_def.name!r} cannot be ordered", where=f"node {node_def.name!r}")
                active.discard(node_def.name)

    def _add(self, node_def: Any) -> bool:
        """Add a node if all of its inputs are there."""
        name, op_type = node_def.name, node_def.op
        nodes = self._nodes
        inputs: list[Value] = []
        controls: list[Node] = []
        late: list[tuple[int, str]] = []
        in_function = self._in_function
        for edge in node_def.input:
            if edge in nodes:  # the common case: the first output, written without its number
                source = nodes[edge]
                if source[0].outputs and (not in_function or source[1] is None) and not controls:
                    inputs.append(source[0].outputs[0])
                    continue
            elif edge[:1] == "^":
                control = nodes.get(edge[1:])
                if control is None:
                    if edge[1:] in self._by_name:
                        return False
                    raise _missing(edge, node_def)
                controls.append(control[0])
                continue
            elif (before := _source(edge)) not in nodes:
                waiting = self._by_name.get(before)
                if waiting is None:
                    raise _missing(edge, node_def)
                if op_type not in MERGES or waiting.op not in NEXT_ITERATIONS:
                    return False
                late.append((len(inputs) + len(late), edge))
                continue
            if controls:
                raise GraphError(f"input {edge!r} comes after a control input", where=f"node {name!r}", cause="the file is damaged")
            inputs.append(self.value(edge, f"node {name!r}"))
        attr = node_def.attr
        attrs: dict[str, Attribute] = {key: from_attr_value(attr[key]) for key in sorted(attr)}
        types = self._types.types_of(op_type, attrs, name)
        if late and not inputs:
            raise GraphError(
                f"{name!r} is in a cycle", where=f"input {late[0][1]!r}", cause="a Merge that nothing enters, but for its own loop"
            )
        for index, _ in late:
            inputs.insert(index, inputs[0])  # holds the place until the loop is closed
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
        nodes[name] = (node, types)
        self._late += [(node, index, edge) for index, edge in late]
        return True

    def _close_loop(self, node: Node, index: int, edge: str) -> None:
        value = self.value(edge, f"node {node.name!r}")
        if value.dtype != node.inputs[index].dtype:
            raise GraphError(
                f"{node.name!r} takes {node.inputs[index].dtype} and {edge!r} is {value.dtype}",
                where=f"node {node.name!r}",
                cause="the file is damaged",
            )
        self._graph.replace_input(node, index, value)


def _source(edge: str) -> str:
    return edge.removeprefix("^").partition(":")[0]


def _missing(edge: str, node_def: Any) -> GraphError:
    return GraphError(
        f"input {edge!r} does not exist", where=f"node {node_def.name!r}", cause="the file is damaged, or a node was removed by hand"
    )


def _check_inputs(name: str, op_type: str, inputs: Sequence[Value], expected: tuple[DType, ...]) -> None:
    if len(inputs) != len(expected):
        raise GraphError(f"{op_type} reads {len(expected)} inputs, got {len(inputs)}", where=f"node {name!r}", cause="the file is damaged")
    for k, (value, dtype) in enumerate(zip(inputs, expected, strict=True)):
        if value.dtype is not dtype and value.dtype != dtype:
            raise GraphError(
                f"input {k} has dtype {value.dtype} ({value.name}), {op_type} reads {dtype}",
                where=f"node {name!r}",
                cause="an attribute or an edge was changed without the other",
            )


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
    """The fields that the IR does not model, serialized."""
    if not (node_def.HasField("experimental_debug_info") or node_def.HasField("experimental_type")):
        return b""
    rest = type(node_def)()
    rest.CopyFrom(node_def)
    for name in _MODELED_FIELDS:
        rest.ClearField(name)
    return rest.SerializeToString(deterministic=True)
