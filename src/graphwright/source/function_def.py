"""`FunctionDef` <-> a function of the library. Names and attributes of the signature and names of results, which the IR does not model,
are kept serialized, as `Function.definition`. A *template*, whose types follow from each call (gradients of TF1, for example), has no
body in the IR.
"""

from collections.abc import Sequence
from typing import Any

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute
from graphwright.ir.dtypes import Shape, dtype_from_number
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.names import free_name
from graphwright.ir.traits.values import ARGUMENTS
from graphwright.source.attributes import from_attr_value, shape_from_proto, shape_to_proto, write_attr_value
from graphwright.source.op_types import REGISTERED, OpTypes, damaged
from graphwright.source.private_tensorflow import op_definition
from graphwright.source.read_nodes import NodeReader
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.write_nodes import follow_shapes, follow_values, write_node


def is_template(function: Function) -> bool:
    return len(function.body) == 0 and bool(function.definition) and bool(parsed(function).node_def)


def read_function(definition: Any, types: OpTypes, *, file_order: bool) -> Function:
    """Read a `FunctionDef`, whose body does not know its library yet. Without `file_order`, each node comes after its inputs."""
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
            argument_attrs = definition.arg_attr[k].attr
            attrs |= {key: from_attr_value(argument_attrs[key]) for key in sorted(argument_attrs) if key.startswith("_")}
            if "_output_shapes" in argument_attrs and argument_attrs["_output_shapes"].list.shape:
                shape = shape_from_proto(argument_attrs["_output_shapes"].list.shape[0])
        node = body.append_node("_Arg", argument.name, attrs=attrs, output_types=[(dtype, shape)])
        inputs[argument.name] = node.outputs[0]
    body.inputs = inputs.values()
    reader = NodeReader(body, types, inputs, in_function=True)
    reader.read(definition.node_def, file_order=file_order)
    where = f"function {name!r}"
    outputs: list[Value] = []
    for argument in definition.signature.output_arg:
        if argument.name not in definition.ret:
            raise damaged(f"the result {argument.name!r} has no value", where)
        value = reader.value(definition.ret[argument.name], where)
        if value.dtype != (dtype := dtype_from_number(argument.type)):
            raise damaged(f"the result {argument.name!r} is declared as {dtype}, and {value.name} is {value.dtype}", where)
        outputs.append(value)
    body.outputs = outputs
    if definition.control_ret:
        body.control_outputs = [body[n] for n in definition.control_ret.values()]
    head = type(definition)()
    head.CopyFrom(definition)
    head.ClearField("node_def")
    return Function(name, body, head.SerializeToString(deterministic=True))


def write_function(function: Function, definition: Any) -> None:
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
        if node in edges.arguments:
            continue
        if node.op_type not in ARGUMENTS:
            write_node(node, definition.node_def.add(), edges.name_of)
        elif node.control_consumers or any(value.use_count for value in node.outputs):
            raise GraphError(
                f"argument {node.name!r} is read and is not in body.inputs",
                where=f"function {function.name!r}",
                remedy="put it into body.inputs, or replace its uses",
            )
    definition.ret.clear()
    for name, place in zip(results, places, strict=True):
        definition.ret[name] = place
    if sorted(definition.control_ret.values()) != sorted(n.name for n in body.control_outputs):
        definition.ClearField("control_ret")
        signature.ClearField("control_output")
        for node in body.control_outputs:
            signature.control_output.append(node.name)
            definition.control_ret[node.name] = node.name


def _result_names(definition: Any, places: Sequence[str], producers: Sequence[str]) -> list[str]:
    """Return names of the results: the old ones where they still fit, else after the nodes that compute them."""
    old_names = [argument.name for argument in definition.signature.output_arg]
    if len(old_names) == len(places):
        return old_names
    old = {definition.ret[name]: name for name in reversed(old_names)}
    results: list[str] = []
    for place, producer in zip(places, producers, strict=True):
        results.append(old.pop(place, "") or free_name(argument_name(producer), (*results, *old_names)))
    return results


def argument_name(name: str) -> str:
    text = "".join(c if c.isalnum() and c.isascii() else "_" for c in name.lower()).strip("_") or "value"
    return text if text[0].isalpha() else f"value_{text}"


def signatures_of_functions(graph: Graph) -> dict[str, Any]:
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
        stated = [value.producer.graph.at_most.get(value, value.last_shape) for value in arguments]
        if [shape_from_proto(shape) for shape in shapes] != stated:
            del shapes[:]
            for shape in stated:
                shape_to_proto(shape, shapes.add())
    for k, value in enumerate(arguments):
        attrs: dict[str, Attribute] = {key: a for key, a in value.producer.attrs.items() if key.startswith("_")}
        if k in definition.arg_attr:
            for key in [key for key in definition.arg_attr[k].attr if key.startswith("_") and key not in attrs]:
                del definition.arg_attr[k].attr[key]
        if attrs:
            follow_shapes(value.producer, attrs)
            for key, attribute in attrs.items():
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
    """Names of values in a `FunctionDef`: `argument`, or `node:output_argument:0`."""

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
        if op_definition(node.op_type) is None:
            return [(argument.name, 1) for argument in parsed(self._functions[node.op_type]).signature.output_arg]
        types = REGISTERED.types_of(node.op_type, follow_values(node), node.name)
        ends = [*types.starts.values(), len(types.outputs)]
        return [(name, ends[k + 1] - ends[k]) for k, name in enumerate(types.starts)]


def parsed(function: Function) -> Any:
    """Return the kept `FunctionDef`; it has nodes only where the function is a template."""
    return _function_def_class().FromString(function.definition)


def _function_def_class() -> Any:
    function: Any = import_tensorflow().compat.v1.GraphDef().library.function.add()
    return function.__class__
