"""The part of a graph between the inputs and outputs of a signature, as a function."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute, SerializedAttribute
from graphwright.ir.edit.clone import clone
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.traits.control_flow import CALL_TYPES
from graphwright.ir.traits.effects import has_known_effects
from graphwright.ir.traits.values import PLACEHOLDERS, is_constant
from graphwright.ir.traits.variables import MAKES_BY_REFERENCE, VARIABLES, makes_table
from graphwright.source.function_def import argument_name

_LARGE_BYTES = 1024  # a constant above this is captured, not copied into the function

_INLINED = re.compile(rf"^((?:{'|'.join(sorted(CALL_TYPES))})(_\d+)?/)+")
"""The scope of calls that were inlined, as TensorFlow names calls: half of the bytes of a small graph."""


@dataclass(frozen=True, slots=True)
class Outlined:
    """A function made of a part of a graph: its arguments are the inputs of the signature by sorted key, then the captured values."""

    function: Function
    captures: tuple[Value, ...]


def outline_signature(graph: Graph, key: str, name: str, object_ids: Mapping[Value, int]) -> Outlined:
    """Make a function of the nodes between the inputs and outputs of a signature; values with `object_ids` are captured. Raise
    `GraphError` where the outputs need a placeholder that is not an input, or a variable or table without an object.
    """
    signature = graph.signatures[key]
    inputs = {signature.inputs[k]: k for k in sorted(signature.inputs)}
    needed, captures = _needed(graph, key, set(inputs), object_ids)
    body = Graph(name, functions=graph.functions, versions=graph.versions)
    value_of: dict[Value, Value] = {}
    for value in (*inputs, *captures):
        argument = argument_name(inputs.get(value, value.producer.name))
        attrs: dict[str, Attribute] = {"T": value.dtype, "index": len(value_of)}
        if value in inputs:
            attrs["_user_specified_name"] = inputs[value].encode()
        parameter = body.add_node("_Arg", body.unique_name(argument), attrs=attrs, output_types=[(value.dtype, value.shape)])
        value_of[value] = parameter.outputs[0]
    body.inputs = list(value_of.values())
    members = [node for node in graph if node in needed]
    inside = clone(members, into=body, input_map=value_of, rename=lambda name: _INLINED.sub("", name))
    body.outputs = [inside.value_of[signature.outputs[k]] for k in sorted(signature.outputs)]
    acting = (node for node in inside.node_of if has_known_effects(node) or node.op_type == "StatefulPartitionedCall")
    body.control_outputs = [inside.node_of[node] for node in acting]
    return Outlined(Function(name, body), captures)


def _needed(graph: Graph, key: str, inputs: set[Value], object_ids: Mapping[Value, int]) -> tuple[set[Node], tuple[Value, ...]]:
    signature = graph.signatures[key]
    needed: set[Node] = set()
    captures: dict[Value, None] = {}
    stack: list[Value | Node] = [signature.outputs[k] for k in sorted(signature.outputs, reverse=True)]
    while stack:
        item = stack.pop()
        if isinstance(item, Value):
            if item in inputs:
                continue
            if item in object_ids or _is_large(item.producer):
                captures[item] = None
                continue
            item = item.producer
        if item in needed or (is_constant(item) and item.attrs and _is_large(item)):
            continue
        _check_possible(item, key)
        needed.add(item)
        # An argument is there from the start, so nothing waits for it.
        waits = [c for c in item.control_inputs if not any(v in inputs or v in object_ids for v in c.outputs)]
        stack += [*item.inputs, *waits]
    return needed, tuple(captures)


def _check_possible(node: Node, key: str) -> None:
    where = f"signature {key!r}, node {node.name!r}"
    if node.op_type in PLACEHOLDERS:
        raise GraphError(
            f"the outputs need {node.name!r}, which is not an input of the signature",
            where=where,
            remedy=f"add it to graph.signatures[{key!r}].inputs, or replace what it feeds",
        )
    if node.op_type in VARIABLES | MAKES_BY_REFERENCE or (makes_table(node) and any(v.dtype.name == "resource" for v in node.outputs)):
        raise GraphError(
            f"{node.op_type} {node.name!r} has no object in the SavedModel that would hold its content",
            where=where,
            cause="it was added to the graph, or comes from another model",
            remedy="make it a constant before it is added (freeze the other model)",
        )


def _is_large(node: Node) -> bool:
    value = node.attrs.get("value")
    return is_constant(node) and isinstance(value, SerializedAttribute) and len(value.data) > _LARGE_BYTES
