"""Let the bodies of If, While and Case take tensors where they took variables."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.attributes import Attribute
from graphwright.ir.call_types import types_attribute
from graphwright.ir.constants import Array, add_constant
from graphwright.ir.dtypes import DType
from graphwright.ir.edit.copying import copy_body
from graphwright.ir.edit.insert import add_op, replace_argument
from graphwright.ir.edit.library import unique_function_name
from graphwright.ir.edit.reroute import replace_node, reroute_control, take_name
from graphwright.ir.function_names import with_functions
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.node import Library
from graphwright.ir.traits.control_flow import ENTERS, LOOPS, SWITCHES, called_functions, is_control_flow
from graphwright.ir.traits.values import IDENTITIES, is_constant
from graphwright.transform.inline_calls import inline_calls

HAND_ON = IDENTITIES | ENTERS | SWITCHES
"""What hands a variable on; loops and branches of TF1 take it in."""


def check_arguments(graph: Graph, node: Node, given: Mapping[int, DType]) -> None:
    """Raise what `bind_arguments` would raise for values of these dtypes, and change nothing."""
    positions = _positions(node, given)
    library = Library(graph.functions)
    for key, name in _named(node):
        _bound(library, name, positions, is_loop_body=node.op_type in LOOPS and key == "body")


def bind_arguments(graph: Graph, node: Node, given: Mapping[int, Value]) -> None:
    """Give a control-flow node tensors as inputs where it had resources; its functions are copied, and read the arguments.

    Args:
        graph: which has the node.
        node: an If, Case or While.
        given: index of an input -> the value that it reads from now on.

    Raises:
        UnsupportedError: a body writes to the variable or hands it to an op that is not known, or the variable is read behind the loop
            that hands it on.
    """
    is_loop = node.op_type in LOOPS
    handed_on = {k: value for k, value in given.items() if is_loop and node.outputs[k].dtype != value.dtype}
    read = next((node.outputs[k] for k in handed_on if node.outputs[k].uses), None)
    if read is not None:
        raise UnsupportedError(f"{read.name} is a variable that a loop hands on, and is read behind it", where=f"node {node.name!r}")
    positions = _positions(node, {index: value.dtype for index, value in given.items()})
    new_of: dict[str, dict[str, str]] = {}
    for key, name in _named(node):
        names = new_of.setdefault(key, {})
        if name not in names:
            names[name] = _bound(graph.functions, name, positions, is_loop_body=is_loop and key == "body")
    for key, names in new_of.items():
        graph.set_attr(node, key, with_functions(node.attrs[key], names))
    graph.set_inputs(node, [given.get(k, v) for k, v in enumerate(node.inputs)])
    for k, value in handed_on.items():
        graph.set_output_type(node.outputs[k], value.dtype, value.shape)
    graph.set_attr(node, *(("T", types_attribute(node.inputs)) if is_loop else ("Tin", types_attribute(node.inputs[1:]))))


def read_from(node: Node, value: Value) -> bool:
    """Let a node that reads a variable with a handle, or asks about it, read a tensor instead; whether it is such a node."""
    rule = _READS.get(node.op_type)
    if rule is None:
        return False
    graph, new = node.graph, rule(node, value)
    if new is not value and not is_constant(new.producer):
        replace_node(node, new.producer)
        return True
    graph.replace_uses(node.outputs[0], new)
    reroute_control(node.control_inputs, node)  # who waited for the node waits for what it waited for
    graph.remove_node(node)
    return True


def _instead(node: Node, op_type: str, inputs: Sequence[Value], **attrs: Attribute) -> Value:
    made, name = node.outputs[0], f"{node.name}/frozen"
    return add_op(
        node.graph, op_type, name, inputs, made.dtype, made.shape, control_inputs=node.control_inputs, device=node.device, **attrs
    )


def _constant(node: Node, array: Array) -> Value:
    return add_constant(node.graph, f"{node.name}/frozen", array)


def _gather(node: Node, value: Value) -> Value:
    batch_dims, indices = node.attrs.get("batch_dims", 0), node.inputs[1]
    axis = add_constant(node.graph, f"{node.name}/axis", np.array(batch_dims, np.int32))
    types: dict[str, Attribute] = {"Tparams": value.dtype, "Tindices": indices.dtype, "Taxis": axis.dtype}
    return _instead(node, "GatherV2", [value, indices, axis], **types, batch_dims=batch_dims)


def _shape(node: Node, value: Value) -> Value:
    dtype = node.outputs[0].dtype
    if value.shape is None or None in value.shape:
        return _instead(node, "Shape", [value], T=value.dtype, out_type=dtype)
    return _constant(node, np.array(value.shape, dtype.name))


_READS: Mapping[str, Callable[[Node, Value], Value]] = {
    "ReadVariableOp": lambda _, value: value,
    "VarIsInitializedOp": lambda node, _: _constant(node, np.array(True)),
    "VariableShape": _shape,
    "ResourceGather": _gather,
    "ResourceGatherNd": lambda node, value: _instead(
        node, "GatherNd", [value, node.inputs[1]], Tparams=value.dtype, Tindices=node.inputs[1].dtype
    ),
}
"""What reads a variable -> what gives the same, given the value that the variable holds."""


def _positions(node: Node, dtypes: Mapping[int, DType]) -> dict[int, DType]:
    """Which arguments of the functions the inputs are: a branch does not see what decides."""
    first = 0 if node.op_type in LOOPS else 1
    return {index - first: dtype for index, dtype in dtypes.items()}


def _named(node: Node) -> list[tuple[str, str]]:
    return [(key, name) for key in node.attrs for name in called_functions(node, key)]


def _bound(library: dict[str, Function], name: str, positions: Mapping[int, DType], *, is_loop_body: bool) -> str:
    """The function with these arguments as tensors, added to the library; returns its name."""
    if name not in library:
        raise GraphError(f"function {name!r} is not in the library")
    old = library[name]
    body = copy_body(old, name, library, {}).graph
    inline_calls(body)
    for position, dtype in positions.items():
        _bind(body, position, dtype, is_loop_body=is_loop_body)
    body.name = unique_function_name(body, f"{name}_frozen")
    library[body.name] = Function(body.name, body, old.definition)
    return body.name


def _bind(body: Graph, position: int, dtype: DType, *, is_loop_body: bool) -> None:
    """Let argument `position` be the value of the variable that it was."""
    old = body.inputs[position]
    if old.dtype.name != "resource":
        return
    new = replace_argument(body, position, dtype, None)
    passed_on = read_instead(body, old, new)
    if passed_on:
        if not is_loop_body:
            raise UnsupportedError(f"function {body.name!r} returns a variable", where=f"argument {old.producer.name!r}")
        body.outputs = [new if v in passed_on else v for v in body.outputs]
    body.control_outputs = [n for n in body.control_outputs if body.owns(n)]
    _drop(body, [*(v.producer for v in passed_on), old.producer])
    body.sort_nodes([new.producer, *(n for n in body.nodes if n is not new.producer)])


def read_instead(graph: Graph, old: Value, new: Value, needed: set[Node] | None = None) -> set[Value]:
    """Let what reads a variable with a handle read a tensor instead; returns the values that are the variable and are outputs.

    Args:
        needed: only these nodes change; what is made instead of them is added. All by default.

    Raises:
        UnsupportedError: something changes the variable, or hands it on to an op that needs a variable.
    """
    returned = {old} if old in graph.outputs else set[Value]()
    positions: dict[Node, list[int]] = {}
    for use in old.uses:
        positions.setdefault(use.node, []).append(use.index)
    for node, indices in positions.items():
        if (needed is not None and node not in needed) or read_from(node, new):
            continue
        if node.op_type in IDENTITIES:
            for index in indices:
                returned |= read_instead(graph, node.outputs[index], new, needed)
            if not any(v.uses for v in node.outputs) and not node.control_consumers and not graph.is_border(node):
                graph.remove_node(node)
        elif node.op_type in HAND_ON:
            made = _taken_in(graph, node, new)
            for before, after in zip(node.outputs, made.outputs, strict=True):
                returned |= read_instead(graph, before, after, needed)
            if needed is not None:
                needed.add(made)
            take_name(graph, node, made)
        elif is_control_flow(node):
            bind_arguments(graph, node, dict.fromkeys(indices, new))
        else:
            raise UnsupportedError(
                f"the variable is also used by {node.name!r}, a {node.op_type}, in function {graph.name!r}",
                where=f"node {node.name!r}",
                cause="the body changes the variable, or hands it on to an op that needs a variable",
                remedy="where an input decides whether it does, give its value first: strip_training(constants=...)",
            )
    return returned


def _taken_in(graph: Graph, node: Node, value: Value) -> Node:
    """An `Enter` or `Switch` that takes a tensor into a loop or branch of TF1 where the old one takes a variable."""
    return graph.add_node(
        node.op_type,
        graph.unique_name(f"{node.name}/frozen"),
        inputs=[value, *node.inputs[1:]],
        control_inputs=node.control_inputs,
        attrs={**node.attrs, "T": value.dtype},
        output_types=[(value.dtype, value.shape)] * len(node.outputs),
        device=node.device,
        extra=node.extra,
    )


def _drop(body: Graph, nodes: list[Node]) -> None:
    """Remove the nodes that were the variable and that nothing reads any more."""
    for node in dict.fromkeys(nodes):
        if not body.owns(node) or any(v.uses for v in node.outputs) or body.is_border(node):
            continue
        for consumer in node.control_consumers:
            body.remove_control_input(consumer, node)
        body.remove_node(node)
