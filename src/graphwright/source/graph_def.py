"""`GraphDef` <-> `ir.Graph`, with its library of functions. Read once, written once.

What the IR does not model (debug info of nodes, signature and attributes of functions) is kept
serialized and written back, so that a graph that nobody edited is written as it was read.

A function whose types follow from each call (a *template*: gradients of TF1, for example) has no body in
the IR: its definition is carried through as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.dtypes import Shape, dtype_from_number
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.source.attributes import from_attr_value, shape_from_proto, shape_to_proto, write_attr_value
from graphwright.source.op_registry import op_definition, output_arguments
from graphwright.source.op_types import OpTypes
from graphwright.source.read_nodes import NodeReader, garbage_collection_paused
from graphwright.source.tensorflow_import import import_tensorflow


def from_graph_def(graph_def: Any, *, name: str = "", file_order: bool = False) -> Graph:
    """Read a `GraphDef`. The graph has no inputs or outputs yet: the caller knows them.

    Args:
        graph_def: is not changed.
        name: of the graph.
        file_order: keep the order of the nodes as it is written; else each node comes after its inputs.

    Raises:
        GraphError: a name is taken twice, an input does not exist or has the wrong dtype, or the graph has a cycle.
        UnsupportedError: an op type is neither registered nor in the library.
    """
    with garbage_collection_paused():
        definitions: dict[str, Any] = {}
        for definition in graph_def.library.function:
            if definition.signature.name in definitions:
                raise GraphError(f"two functions are named {definition.signature.name!r}", where="the library", cause="the file is damaged")
            definitions[definition.signature.name] = definition
        types = OpTypes({key: definition.signature for key, definition in definitions.items()})
        functions = {key: _read_function(definition, types, file_order) for key, definition in definitions.items()}
        graph = Graph(name=name, functions=functions, versions=(graph_def.versions.producer, graph_def.versions.min_consumer))
        NodeReader(graph, types, {}, in_function=False).read(graph_def.node, file_order=file_order)
        for function in functions.values():
            function.body.functions = functions
        _check_functions(graph)
    return graph


def is_template(function: Function) -> bool:
    """Whether the function is carried through unread, because its types follow from each call."""
    return len(function.body) == 0 and bool(function.definition) and bool(_parsed(function).node_def)


def _read_function(definition: Any, types: OpTypes, file_order: bool) -> Function:
    name = definition.signature.name
    arguments = (*definition.signature.input_arg, *definition.signature.output_arg)
    if any(not a.type or a.number_attr or a.type_attr or a.type_list_attr for a in arguments) or definition.signature.attr:
        return Function(name, Graph(name=name), definition.SerializeToString(deterministic=True))
    body = Graph(name=name)
    inputs: dict[str, Value] = {}
    for k, argument in enumerate(definition.signature.input_arg):
        dtype = dtype_from_number(argument.type)
        attrs: dict[str, Attribute] = {"T": dtype, "index": k}
        shape: Shape = None
        if "_input_shapes" in definition.attr and k < len(definition.attr["_input_shapes"].list.shape):
            shape = shape_from_proto(definition.attr["_input_shapes"].list.shape[k])
        if k in definition.arg_attr:
            kept = definition.arg_attr[k].attr
            attrs |= {key: from_attr_value(kept[key]) for key in sorted(kept) if key.startswith("_")}
            if "_output_shapes" in kept and kept["_output_shapes"].list.shape:
                shape = shape_from_proto(kept["_output_shapes"].list.shape[0])
        node = body.add_node("_Arg", argument.name, attrs=attrs, output_types=[(dtype, shape)])
        inputs[argument.name] = node.outputs[0]
    body.inputs = inputs.values()
    reader = NodeReader(body, types, inputs, in_function=True)
    reader.read(definition.node_def, file_order=file_order)
    where = f"function {name!r}"
    outputs: list[Value] = []
    for argument in definition.signature.output_arg:
        if argument.name not in definition.ret:
            raise GraphError(f"the result {argument.name!r} has no value", where=where, cause="the file is damaged")
        value = reader.value(definition.ret[argument.name], where)
        if value.dtype != dtype_from_number(argument.type):
            raise GraphError(
                f"the result {argument.name!r} is declared as {dtype_from_number(argument.type)}, and {value.name} is {value.dtype}",
                where=where,
                cause="the file is damaged",
            )
        outputs.append(value)
    body.outputs = outputs
    body.control_outputs = [body[n] for n in definition.control_ret.values()]
    head = type(definition)()
    head.CopyFrom(definition)
    head.ClearField("node_def")
    return Function(name, body, head.SerializeToString(deterministic=True))


def _check_functions(graph: Graph) -> None:
    """Each function that a node calls exists, here and in the bodies."""
    functions = graph.functions
    for body in (graph, *(f.body for f in functions.values())):
        for node in body:
            for attribute in node.attrs.values():
                for item in attribute if isinstance(attribute, tuple) else (attribute,):
                    if isinstance(item, FunctionReference) and item.name not in functions and item.name:
                        raise GraphError(
                            f"function {item.name!r} is not in the library",
                            where=f"node {node.name!r} of graph {body.name!r}",
                            cause="the file is damaged, or the function was removed by hand",
                        )


def to_graph_def(
    graph: Graph, *, keep: Callable[[Node], bool] | None = None, library: bool = True, every_function: bool = False, into: Any = None
) -> Any:
    """Write a `GraphDef`, with the functions that its nodes reach.

    Args:
        graph: is not changed.
        keep: which nodes to write; all by default. Inputs of written nodes may name nodes that are not.
        library: whether to write the functions.
        every_function: write all functions of the library, not only those that are reached.
        into: a `GraphDef` to fill, which may hold what the IR does not model; a new one by default.
    """
    tf = import_tensorflow()
    graph_def: Any = tf.compat.v1.GraphDef() if into is None else into
    graph_def.versions.producer = graph.versions[0] or tf.version.GRAPH_DEF_VERSION
    graph_def.versions.min_consumer = graph.versions[1]
    with garbage_collection_paused():
        for node in graph.nodes:
            if keep is None or keep(node):
                write_node(node, graph_def.node.add())
        if library:
            for function in graph.functions.values() if every_function else _reached_functions(graph):
                write_function(function, graph_def.library.function.add())
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
    definition = _parsed(function)
    names = {str(value.s, "utf-8", "replace") for value in definition.attr.values() if value.WhichOneof("value") == "s"}
    for node_def in definition.node_def:  # of a template
        names.add(node_def.op)
        for value in node_def.attr.values():
            for reference in [*([value.func] if value.HasField("func") else []), *value.list.func]:
                names |= {reference.name, *_names_in(reference.SerializeToString(deterministic=True))}
    return names


def _parsed(function: Function) -> Any:
    return _function_def_class().FromString(function.definition)


def write_function(function: Function, definition: Any) -> None:
    """Write a function into a `FunctionDef` from its body; what the body does not say comes from what was read."""
    body = function.body
    definition.ParseFromString(function.definition)
    signature = definition.signature
    signature.name = function.name
    if definition.node_def and not len(body):  # a template
        return
    _write_argument_attributes(definition, body.inputs)
    edges = _FunctionEdges(body)
    places = [edges.name_of(value) for value in body.outputs]
    results = _result_names(definition, places, [value.producer.name for value in body.outputs])
    _write_arguments(signature.input_arg, body.inputs, [v.producer.name for v in body.inputs])
    _write_arguments(signature.output_arg, body.outputs, results)
    for node in body:
        if node.op_type == "_Arg" and node not in edges.arguments:
            _check_dropped(node, function.name)
        elif node not in edges.arguments:
            write_node(node, definition.node_def.add(), edges.name_of)
    definition.ret.clear()
    for name, place in zip(results, places, strict=True):
        definition.ret[name] = place
    if sorted(definition.control_ret.values()) != sorted(n.name for n in body.control_outputs):
        definition.ClearField("control_ret")
        signature.ClearField("control_output")
        for node in body.control_outputs:
            signature.control_output.append(node.name)
            definition.control_ret[node.name] = node.name


def _check_dropped(argument: Node, name: str) -> None:
    if argument.control_consumers or any(value.uses for value in argument.outputs):
        raise GraphError(
            f"argument {argument.name!r} is read and is not in body.inputs",
            where=f"function {name!r}",
            remedy="put it into body.inputs, or replace its uses",
        )


def _result_names(definition: Any, places: Sequence[str], producers: Sequence[str]) -> list[str]:
    """Names of the results: those that were read where each still says the same, else after the nodes that make them."""
    kept = [argument.name for argument in definition.signature.output_arg]
    if len(kept) == len(places):
        return kept
    free: dict[str, list[str]] = {}
    for name in kept:
        free.setdefault(definition.ret[name], []).append(name)
    results: list[str] = []
    for place, producer in zip(places, producers, strict=True):
        same = free.get(place)
        name = stem = same.pop(0) if same else _identifier(producer)
        k = 1
        while name in results or (not same and name in kept and name == stem and place not in free):
            name, k = f"{stem}_{k}", k + 1
        results.append(name)
    return results


def _identifier(name: str) -> str:
    """A name as arguments and results of functions are called."""
    text = "".join(c if c.isalnum() and c.isascii() else "_" for c in name.lower()).strip("_") or "value"
    return text if text[0].isalpha() else f"value_{text}"


def signatures_of_functions(graph: Graph) -> dict[str, Any]:
    """`OpDef` of each function of the library, as nodes that have the function as their op see it."""
    signatures: dict[str, Any] = {}
    for name, function in graph.functions.items():
        definition = _function_def_class()()
        if is_template(function):
            definition.ParseFromString(function.definition)
        else:
            for values, arguments in (
                (function.body.inputs, definition.signature.input_arg),
                (function.body.outputs, definition.signature.output_arg),
            ):
                for k, value in enumerate(values):
                    arguments.add(name=f"value_{k}", type=value.dtype.number)
        signatures[name] = definition.signature
    return signatures


def _write_argument_attributes(definition: Any, arguments: Sequence[Value]) -> None:
    if len(definition.signature.input_arg) != len(arguments):  # these are kept by the number of the argument
        definition.ClearField("arg_attr")
        definition.ClearField("resource_arg_unique_id")
    if "_input_shapes" in definition.attr:
        shapes = definition.attr["_input_shapes"].list.shape
        if [shape_from_proto(shape) for shape in shapes] != [value.last_shape for value in arguments]:
            del shapes[:]
            for value in arguments:
                shape_to_proto(value.last_shape, shapes.add())
    for k, value in enumerate(arguments):
        kept: dict[str, Attribute] = {key: a for key, a in value.producer.attrs.items() if key.startswith("_")}
        if k in definition.arg_attr:
            for key in [key for key in definition.arg_attr[k].attr if key.startswith("_") and key not in kept]:
                del definition.arg_attr[k].attr[key]
        if kept:
            _follow_shapes(value.producer, kept)
            for key, attribute in kept.items():
                target = definition.arg_attr[k].attr[key]
                target.Clear()
                write_attr_value(attribute, target)


def _write_arguments(arguments: Any, values: Sequence[Value], names: Sequence[str]) -> None:
    if len(arguments) != len(values):
        old = {argument.name: argument.SerializeToString(deterministic=True) for argument in arguments}
        del arguments[:]
        for name in names:
            arguments.add().ParseFromString(old.get(name, b""))
    for argument, value, name in zip(arguments, values, names, strict=True):
        argument.name = name
        if dtype_from_number(argument.type) != value.dtype:
            argument.ClearField("experimental_full_type")
            argument.ClearField("handle_data")
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
        return [(argument.name, 1) for argument in _parsed(self._functions[node.op_type]).signature.output_arg]


def _function_def_class() -> Any:
    function: Any = import_tensorflow().compat.v1.GraphDef().library.function.add()
    return function.__class__


def graph_edge(value: Value) -> str:
    """A value as a `GraphDef` writes it."""
    return value.producer.name if value.index == 0 else value.name


def write_node(node: Node, node_def: Any, edge: Callable[[Value], str] = graph_edge) -> None:
    """Write a node into a `NodeDef`, whose inputs are named by `edge`."""
    if node.extra:
        node_def.ParseFromString(node.extra)
    node_def.name = node.name
    node_def.op = node.op_type
    node_def.device = node.device
    for value in node.inputs:
        node_def.input.append(edge(value))
    for control in node.control_inputs:
        node_def.input.append(f"^{control.name}")
    for key, attribute in follow_values(node).items():
        write_attr_value(attribute, node_def.attr[key])


_LISTS_OF_TYPES: Mapping[str, tuple[str | None, str | None]] = {
    "PartitionedCall": ("Tin", "Tout"),
    "StatefulPartitionedCall": ("Tin", "Tout"),
    "If": (None, "Tout"),
    "StatelessIf": (None, "Tout"),
    "Case": (None, "Tout"),
    "StatelessCase": (None, "Tout"),
    "While": ("T", None),
    "StatelessWhile": ("T", None),
    "IdentityN": ("T", None),
}
"""Ops whose attributes list the dtypes of all inputs and of all outputs."""


def follow_values(node: Node) -> dict[str, Attribute]:
    """The attributes, with lists of dtypes and shapes that say what the inputs and outputs are now."""
    if "_output_shapes" not in node.attrs and node.op_type not in _LISTS_OF_TYPES:
        return node.attrs
    attrs = dict(node.attrs)
    for key, values in zip(_LISTS_OF_TYPES.get(node.op_type, (None, None)), (node.inputs, node.outputs), strict=True):
        if key is not None:
            dtypes = tuple(v.dtype for v in values)
            if dtypes and isinstance(attrs.get(key), tuple | None) and attrs.get(key) != dtypes:
                attrs[key] = dtypes
            elif not dtypes and isinstance(attrs.get(key), tuple):
                attrs[key] = SerializedAttribute(_EMPTY_LIST)
    if node.op_type in ("If", "StatelessIf", "Case", "StatelessCase"):
        dtypes = tuple(v.dtype for v in node.inputs[1:])
        if dtypes and isinstance(attrs.get("Tin"), tuple | None) and attrs.get("Tin") != dtypes:
            attrs["Tin"] = dtypes
    _follow_shapes(node, attrs)
    return attrs


_EMPTY_LIST = b"\x0a\x00"


def _follow_shapes(node: Node, attrs: dict[str, Attribute]) -> None:
    listed = attrs.get("_output_shapes")
    if isinstance(listed, tuple):
        shapes = tuple(ShapeAttribute(v.shape) for v in node.outputs)
        if shapes != listed[: len(shapes)]:
            attrs["_output_shapes"] = shapes
