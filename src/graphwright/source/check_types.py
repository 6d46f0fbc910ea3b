"""Every node reads what its op takes: checked before a graph is written, so that the error names the node and not a session."""

from __future__ import annotations

from graphwright.errors import GraphError
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits import CALL_TYPES, callee
from graphwright.source.function_def import signatures_of_functions
from graphwright.source.op_types import OpTypes
from graphwright.source.write_nodes import follow_values


def check_types(graph: Graph) -> None:
    """Raise unless the dtypes of all inputs and outputs are those that op types and called functions have.

    Raises:
        GraphError: they are not; the message names the node.
        UnsupportedError: an op type is not known.
    """
    types = OpTypes(signatures_of_functions(graph))
    for body in bodies(graph):
        arguments = {value.producer for value in body.inputs}
        for node in body.nodes:
            if body is graph or (node not in arguments and node.op_type != "_Arg"):
                _check(node, types, body)


def _check(node: Node, types: OpTypes, graph: Graph) -> None:
    expected = types.types_of(node.op_type, follow_values(node), node.name)
    for role, values, dtypes in (("inputs", node.inputs, expected.inputs), ("outputs", node.outputs, expected.outputs)):
        if len(values) != len(dtypes) or any(v.dtype is not d and v.dtype != d for v, d in zip(values, dtypes, strict=True)):
            raise GraphError(
                f"{node.op_type} has {role} {', '.join(map(str, dtypes)) or 'none'}, got {_shown(values)}",
                where=f"node {node.name!r} of graph {graph.name!r}",
                cause="an attribute or an edge was changed without the other",
                remedy="set the attributes of the node (graph.set_attr), or insert a Cast",
            )
    if node.op_type not in CALL_TYPES:
        return
    function = graph.functions.get(callee(node))
    if function is None:
        raise GraphError(f"function {callee(node)!r} is not in the library", where=f"node {node.name!r} of graph {graph.name!r}")
    for role, values, own in (("arguments", node.inputs, function.body.inputs), ("results", node.outputs, function.body.outputs)):
        if len(function.body) and [v.dtype for v in values] != [v.dtype for v in own]:
            raise GraphError(
                f"function {function.name!r} has {role} {_shown(own)}, and the call gives {_shown(values)}",
                where=f"node {node.name!r} of graph {graph.name!r}",
                cause="the function was changed and its call was not",
                remedy="give the call the same inputs (graph.set_inputs) and outputs",
            )


def _shown(values: tuple[Value, ...]) -> str:
    return ", ".join(f"{v.name} of {v.dtype}" for v in values[:8]) + (", ..." if len(values) > 8 else "") or "none"
