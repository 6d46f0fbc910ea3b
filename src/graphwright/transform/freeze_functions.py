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
from graphwright.ir.traits.control_flow import ENTERS, LOOPS, SWITCHES, called_functions, is_control_flow
from graphwright.ir.traits.values import IDENTITIES, is_constant
from graphwright.ir.walk import backward_reachable
from graphwright.transform.inline_calls import inline_calls

_FORWARDS = IDENTITIES | ENTERS | SWITCHES


def _bind_arguments(graph: Graph, node: Node, tensors: Mapping[int, Value]) -> None:
    """Give an If, Case or While tensors as inputs where it had resources; its functions are copied, and read the arguments.

    Args:
        tensors: index of an input -> the value that it reads from now on.
    """
    is_loop = node.op_type in LOOPS
    forwarded = {k: value for k, value in tensors.items() if is_loop and node.outputs[k].dtype != value.dtype}
    read = next((node.outputs[k] for k in forwarded if node.outputs[k].uses), None)
    if read is not None:
        raise UnsupportedError(f"{read.name} is a variable that a loop returns, and is read after the loop", where=f"node {node.name!r}")
    first = 0 if is_loop else 1  # a branch does not see the predicate
    dtypes = {index - first: value.dtype for index, value in tensors.items()}
    for key in list(node.attrs):
        names = called_functions(node, key)
        new = {name: _bound(graph.functions, name, dtypes, is_loop_body=is_loop and key == "body") for name in dict.fromkeys(names)}
        if new:
            graph.set_attr(node, key, with_functions(node.attrs[key], new))
    graph.set_inputs(node, [tensors.get(k, v) for k, v in enumerate(node.inputs)])
    for k, value in forwarded.items():
        graph.set_output_type(node.outputs[k], value.dtype, value.shape)
    graph.set_attr(node, *(("T", types_attribute(node.inputs)) if is_loop else ("Tin", types_attribute(node.inputs[1:]))))


def _read_from(node: Node, value: Value) -> bool:
    """Let a node that reads a variable with a handle read a tensor instead; returns whether it is such a node."""
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
    result, name = node.outputs[0], f"{node.name}/frozen"
    return add_op(
        node.graph, op_type, name, inputs, result.dtype, result.shape, control_inputs=node.control_inputs, device=node.device, **attrs
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
"""Op that reads a variable -> its result, given the value of the variable."""


def _bound(library: dict[str, Function], name: str, positions: Mapping[int, DType], *, is_loop_body: bool) -> str:
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
    """Let nodes that read a variable with a handle read a tensor instead; returns the outputs that are the handle.

    `needed` are the nodes that change, all by default; their replacements are added. Raises `UnsupportedError` where something changes the
    variable, or passes it to an op that needs a variable.
    """
    returned = {old} if old in graph.outputs else set[Value]()
    positions: dict[Node, list[int]] = {}
    for use in old.uses:
        positions.setdefault(use.node, []).append(use.index)
    for node, indices in positions.items():
        if (needed is not None and node not in needed) or _read_from(node, new):
            continue
        if node.op_type in IDENTITIES:
            for index in indices:
                returned |= read_instead(graph, node.outputs[index], new, needed)
            if not any(v.uses for v in node.outputs) and not node.control_consumers and not graph.is_border(node):
                graph.remove_node(node)
        elif node.op_type in _FORWARDS:
            entry = _taken_in(graph, node, new)
            for before, after in zip(node.outputs, entry.outputs, strict=True):
                returned |= read_instead(graph, before, after, needed)
            if needed is not None:
                needed.add(entry)
            take_name(graph, node, entry)
        elif is_control_flow(node):
            _bind_arguments(graph, node, dict.fromkeys(indices, new))
        else:
            raise cannot_freeze(old, node)
    return returned


def cannot_freeze(value: Value, node: Node) -> UnsupportedError:
    """Return the error for a variable that a node changes, or needs as a variable."""
    graph = value.producer.graph
    others = [key for key, known in graph.signatures.items() if node not in backward_reachable(v.producer for v in known.outputs.values())]
    way = "export the model as it is for inference, training=False"
    if others and len(others) < len(graph.signatures):
        way = f"keep only the signatures that do not change it (keep_signatures): {', '.join(others)}"
    return UnsupportedError(
        f"the variable {value.producer.name!r} is also used by {node.name!r}, a {node.op_type}",
        where=f"node {node.name!r} in {graph.name!r}",
        cause="an output depends on a change of the variable, as for a batch norm that was exported in training mode, or on an op "
        "that needs a variable",
        remedy=f"{way}; where an input decides about the change, give its value first: strip_training(constants=...); or keep this "
        "variable: freeze the others with partial=True",
    )


def _taken_in(graph: Graph, node: Node, value: Value) -> Node:
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
    for node in dict.fromkeys(nodes):
        if not body.owns(node) or any(v.uses for v in node.outputs) or body.is_border(node):
            continue
        reroute_control([], node)
        body.remove_node(node)
