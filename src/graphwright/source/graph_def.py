"""`GraphDef` <-> `ir.Graph`, with its library of functions. Read once, written once.

What the IR does not model (debug info of nodes, signature and attributes of functions) is kept
serialized and written back, so that a graph that nobody edited is written as it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.dtypes import dtype_from_number
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.source.attributes import from_attr_value, shape_from_proto, write_attr_value
from graphwright.source.op_registry import op_definition, output_arguments
from graphwright.source.tensorflow_import import import_tensorflow

_MODELED_FIELDS = ("name", "op", "input", "device", "attr")


def from_graph_def(graph_def: Any, *, name: str = "") -> Graph:
    """Read a `GraphDef`. The graph has no inputs or outputs yet: the caller knows them.

    Raises:
        GraphError: a name is taken twice, an input does not exist, or the graph has a cycle.
        UnsupportedError: an op type is neither registered nor in the library.
    """
    definitions = {f.signature.name: f for f in graph_def.library.function}
    functions = {key: _read_function(f, definitions) for key, f in definitions.items()}
    graph = Graph(name=name, versions=(graph_def.versions.producer, graph_def.versions.min_consumer))
    _read_nodes(graph, graph_def.node, definitions, inputs={})
    graph.functions = functions
    for function in functions.values():
        function.body.functions = functions
    return graph


def _read_function(definition: Any, definitions: Mapping[str, Any]) -> Function:
    body = Graph(name=definition.signature.name)
    inputs: dict[str, Value] = {}
    for k, argument in enumerate(definition.signature.input_arg):
        if not argument.type or argument.number_attr:
            raise UnsupportedError(
                f"argument {argument.name!r} has no type of its own",
                where=f"function {definition.signature.name!r}",
                cause="the function is a template whose types follow from each call",
            )
        dtype = dtype_from_number(argument.type)
        shapes = definition.arg_attr[k].attr.get("_output_shapes") if k in definition.arg_attr else None
        shape = shape_from_proto(shapes.list.shape[0]) if shapes is not None and shapes.list.shape else None
        node = body.add_node("_Arg", argument.name, attrs={"T": dtype, "index": k}, output_types=[(dtype, shape)])
        inputs[argument.name] = node.outputs[0]
    body.inputs = inputs.values()
    offsets = _read_nodes(body, definition.node_def, definitions, inputs=inputs)
    body.outputs = [_function_value(body, definition.ret[a.name], offsets, inputs) for a in definition.signature.output_arg]
    body.control_outputs = [body[n] for n in definition.control_ret.values()]
    head = type(definition)()
    head.CopyFrom(definition)
    head.ClearField("node_def")
    head.ClearField("ret")
    return Function(definition.signature.name, body, head.SerializeToString(deterministic=True))


def _read_nodes(graph: Graph, node_defs: Any, definitions: Mapping[str, Any], inputs: Mapping[str, Value]) -> dict[str, dict[str, int]]:
    """Add the nodes in an order in which each input exists; returns, per node, where each output argument starts."""
    offsets: dict[str, dict[str, int]] = {}
    by_name: dict[str, Any] = {}
    for node_def in node_defs:
        if node_def.name in by_name or node_def.name in inputs:
            raise GraphError(f"two nodes are named {node_def.name!r}", where=f"graph {graph.name!r}", cause="the file was edited by hand")
        by_name[node_def.name] = node_def

    done: set[str] = set(inputs)
    for root in node_defs:
        if root.name in done:
            continue
        stack: list[tuple[Any, int]] = [(root, 0)]
        active = {root.name}
        while stack:
            node_def, position = stack.pop()
            pending = None
            for k in range(position, len(node_def.input)):
                source = node_def.input[k].removeprefix("^").split(":")[0]
                if source in done:
                    continue
                if source not in by_name:
                    raise GraphError(f"input {node_def.input[k]!r} does not exist", where=f"node {node_def.name!r}")
                if by_name[source].op in ("NextIteration", "RefNextIteration"):
                    raise UnsupportedError(
                        f"the TF1 loop around {source!r} is not supported",
                        where=f"node {node_def.name!r}",
                        remedy="build the loop with control flow v2 (tf.compat.v1.enable_control_flow_v2)",
                    )
                if source in active:
                    raise GraphError(f"{node_def.name!r} is in a cycle", where=f"input {node_def.input[k]!r}")
                pending = (source, k)
                break
            if pending is not None:
                stack.append((node_def, pending[1]))
                stack.append((by_name[pending[0]], 0))
                active.add(pending[0])
                continue
            offsets[node_def.name] = _add_node(graph, node_def, definitions, offsets, inputs)
            done.add(node_def.name)
            active.discard(node_def.name)
    return offsets


def _add_node(
    graph: Graph, node_def: Any, definitions: Mapping[str, Any], offsets: Mapping[str, dict[str, int]], inputs: Mapping[str, Value]
) -> dict[str, int]:
    attrs = {key: from_attr_value(node_def.attr[key]) for key in sorted(node_def.attr)}
    definition = op_definition(node_def.op)
    if definition is None and node_def.op in definitions:
        definition = definitions[node_def.op].signature
    if definition is None:
        raise UnsupportedError(
            f"op type {node_def.op!r} is not known",
            where=f"node {node_def.name!r}",
            cause="it is a custom op whose library is not loaded, or the graph was made by another TensorFlow version",
            remedy="load the custom op library with tf.load_op_library first",
        )
    arguments = output_arguments(definition, attrs)
    types = [dtype for _, dtypes in arguments for dtype in dtypes]
    shapes = node_def.attr["_output_shapes"].list.shape if "_output_shapes" in attrs else ()
    known = [shape_from_proto(shapes[k]) if k < len(shapes) else None for k in range(len(types))]
    start: dict[str, int] = {}
    position = 0
    for name, dtypes in arguments:
        start[name] = position
        position += len(dtypes)
    data = [_function_value(graph, text, offsets, inputs) for text in node_def.input if not text.startswith("^")]
    controls = [graph[text[1:]] for text in node_def.input if text.startswith("^")]
    extra = b""
    if any(d.name not in _MODELED_FIELDS for d, _ in node_def.ListFields()):
        rest = type(node_def)()
        rest.CopyFrom(node_def)
        for name in _MODELED_FIELDS:
            rest.ClearField(name)
        extra = rest.SerializeToString(deterministic=True)
    graph.add_node(
        node_def.op,
        node_def.name,
        inputs=data,
        control_inputs=controls,
        attrs=attrs,
        output_types=list(zip(types, known, strict=True)),
        device=node_def.device,
        extra=extra,
    )
    return start


def _function_value(graph: Graph, text: str, offsets: Mapping[str, dict[str, int]], inputs: Mapping[str, Value]) -> Value:
    """`arg`, `node`, `node:1` (GraphDef) or `node:output_argument:0` (FunctionDef)."""
    parts = text.split(":")
    if parts[0] in inputs:
        return inputs[parts[0]]
    node = graph[parts[0]]
    index = int(parts[1]) if len(parts) == 2 else 0
    if len(parts) == 3:
        index = offsets[parts[0]][parts[1]] + int(parts[2])
    if index >= len(node.outputs):
        raise GraphError(f"input {text!r} does not exist: {node.name!r} has {len(node.outputs)} outputs", where=f"graph {graph.name!r}")
    return node.outputs[index]


def to_graph_def(graph: Graph, *, keep: Callable[[Node], bool] | None = None, library: bool = True) -> Any:
    """Write a `GraphDef`, with the functions that its nodes reach.

    Args:
        keep: which nodes to write; all by default. Inputs of written nodes may name nodes that are not.
        library: whether to write the functions.
    """
    tf = import_tensorflow()
    graph_def: Any = tf.compat.v1.GraphDef()
    graph_def.versions.producer = graph.versions[0] or tf.version.GRAPH_DEF_VERSION
    graph_def.versions.min_consumer = graph.versions[1]
    for node in graph.nodes:
        if keep is None or keep(node):
            _write_node(node, graph_def.node.add())
    for function in _reached_functions(graph) if library else ():
        _write_function(function, graph_def.library.function.add())
    return graph_def


def _reached_functions(graph: Graph) -> list[Function]:
    """The functions that the nodes call, and those that these call, in the order of the library."""
    reached: set[str] = set()
    bodies = [graph]
    while bodies:
        body = bodies.pop()
        called = {name for node in body for name in _names_of_functions(node)}
        if body is not graph:
            called |= _other_names(graph.functions[body.name])
        fresh = (called & graph.functions.keys()) - reached
        reached |= fresh
        bodies += [graph.functions[name].body for name in fresh]
    return [function for name, function in graph.functions.items() if name in reached]


def _names_of_functions(node: Node) -> set[str]:
    names = {node.op_type}  # the old calling convention: the function is the op
    for attribute in node.attrs.values():
        for item in attribute if isinstance(attribute, tuple) else (attribute,):
            if isinstance(item, FunctionReference):
                names.add(item.name)
                names |= _names_in(item.serialized)
    return names


def _names_in(name_attr_list: bytes) -> set[str]:
    """Functions named in the attributes of a reference."""
    if not name_attr_list:
        return set()
    values: Any = import_tensorflow().compat.v1.AttrValue
    names: set[str] = set()
    stack = [values().func.FromString(name_attr_list)]
    while stack:
        reference = stack.pop()
        names.add(reference.name)
        for value in reference.attr.values():
            stack += [*([value.func] if value.HasField("func") else []), *value.list.func]
    return names


def _other_names(function: Function) -> set[str]:
    """Functions that belong to a function without being called: its attributes name its forward and backward pass."""
    if not function.definition:
        return set()
    definition: Any = _function_def_class().FromString(function.definition)
    return {str(value.s, "utf-8", "replace") for value in definition.attr.values() if value.WhichOneof("value") == "s"}


def _write_function(function: Function, definition: Any) -> None:
    """Write a function from its body; what the body does not say comes from what was read."""
    body = function.body
    definition.ParseFromString(function.definition)
    signature = definition.signature
    signature.name = function.name
    if len(signature.input_arg) != len(body.inputs):  # these are kept by the number of the argument
        definition.ClearField("arg_attr")
        definition.ClearField("resource_arg_unique_id")
    _write_arguments(signature.input_arg, body.inputs, [v.producer.name for v in body.inputs])
    kept = [argument.name for argument in signature.output_arg]
    results = kept if len(kept) == len(body.outputs) else [f"output_{k}" for k in range(len(body.outputs))]
    _write_arguments(signature.output_arg, body.outputs, results)
    edges = _FunctionEdges(body)
    for node in body:
        if node not in edges.arguments:
            node_def = definition.node_def.add()
            _write_node(node, node_def, edges.name_of)
    for name, value in zip(results, body.outputs, strict=True):
        definition.ret[name] = edges.name_of(value)
    if sorted(definition.control_ret.values()) != sorted(n.name for n in body.control_outputs):
        definition.ClearField("control_ret")
        signature.ClearField("control_output")
        for node in body.control_outputs:
            signature.control_output.append(node.name)
            definition.control_ret[node.name] = node.name


def _write_arguments(arguments: Any, values: Sequence[Value], names: Sequence[str]) -> None:
    if len(arguments) != len(values):
        del arguments[:]
        for _ in values:
            arguments.add()
    for argument, value, name in zip(arguments, values, names, strict=True):
        argument.name = name
        argument.type = value.dtype.number


class _FunctionEdges:
    """Names of values as a `FunctionDef` writes them: `argument`, or `node:output_argument:0`."""

    def __init__(self, body: Graph) -> None:
        self.arguments = {v.producer for v in body.inputs}
        self._functions = body.functions
        self._places: dict[Node, list[str]] = {}

    def name_of(self, value: Value) -> str:
        node = value.producer
        if node in self.arguments:
            return node.name
        if node not in self._places:
            self._places[node] = [f"{node.name}:{name}:{k}" for name, count in self._outputs(node) for k in range(count)]
        return self._places[node][value.index]

    def _outputs(self, node: Node) -> list[tuple[str, int]]:
        definition = op_definition(node.op_type)
        if definition is not None:
            return [(name, len(dtypes)) for name, dtypes in output_arguments(definition, node.attrs)]
        head: Any = _function_def_class().FromString(self._functions[node.op_type].definition)
        return [(argument.name, 1) for argument in head.signature.output_arg]


def _function_def_class() -> Any:
    function: Any = import_tensorflow().compat.v1.GraphDef().library.function.add()
    return function.__class__


def _graph_edge(value: Value) -> str:
    """A value as a `GraphDef` writes it."""
    return value.producer.name if value.index == 0 else value.name


def _write_node(node: Node, node_def: Any, edge: Callable[[Value], str] = _graph_edge) -> None:
    if node.extra:
        node_def.ParseFromString(node.extra)
    node_def.name = node.name
    node_def.op = node.op_type
    node_def.device = node.device
    for value in node.inputs:
        node_def.input.append(edge(value))
    for control in node.control_inputs:
        node_def.input.append(f"^{control.name}")
    for key, attribute in node.attrs.items():
        write_attr_value(attribute, node_def.attr[key])
