"""Checks of dtypes and names before a graph is written, so that errors name the node."""

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.select import parents
from graphwright.ir.traits.control_flow import CALL_TYPES, callee, is_call
from graphwright.ir.traits.values import ARGUMENTS
from graphwright.source.function_def import signatures_of_functions
from graphwright.source.op_types import OpTypes
from graphwright.source.private_tensorflow import op_definition
from graphwright.source.registry_rule import REGISTRY_RULE
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.write_nodes import follow_values

_DEEPEST = 20  # functions may call themselves


def check_types(graph: Graph) -> None:
    """Raise unless inputs and outputs have the dtypes of their op types and called functions, and names are such that TensorFlow accepts
    them and does not confuse two nodes. Errors name the node.
    """
    for node in graph:
        REGISTRY_RULE.check_name(graph, node.name)
    types = OpTypes(signatures_of_functions(graph))
    for body in bodies(graph):
        _check_names_below_calls(body)
        arguments = {value.producer for value in body.inputs}
        for node in body.nodes:
            if body is graph or (node not in arguments and node.op_type not in ARGUMENTS):
                _check(node, types, body)
                _check_version(node, body, in_function=body is not graph)


def _check_version(node: Node, body: Graph, *, in_function: bool) -> None:
    """Refuse an op that TensorFlow has removed for graphs this new. Functions that were read are left as they are."""
    removed = getattr(op_definition(node.op_type), "deprecation", None)
    if removed is None or not removed.version or (in_function and body.versions is None):
        return
    current = import_tensorflow().version.GRAPH_DEF_VERSION
    version = current if in_function or body.versions is None else body.versions[0]
    if version >= removed.version:
        raise UnsupportedError(
            f"TensorFlow runs {node.op_type} only in graphs before version {removed.version}, and this one has {version}",
            where=f"node {node.name!r} of graph {body.name!r}",
            cause="functions run under the version of the running TensorFlow" if in_function else f"it was removed: {removed.explanation}",
            remedy="leave it in the graph"
            if in_function
            else f"replace it, or, if all else allows: graph.versions = ({removed.version - 1}, 0)",
        )


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


def _check_names_below_calls(graph: Graph) -> None:
    """Refuse nodes named like the inlined nodes of a call, which TensorFlow names below the call: it would silently take one for the
    other.
    """
    calls = {node.name: node for node in graph if is_call(node, graph)}
    if not calls:
        return
    for node in graph:
        for scope in parents(node.name):
            if scope in calls and _makes(calls[scope], node.name[len(scope) + 1 :]):
                raise GraphError(
                    f"{node.name!r} is also the name of a node that the call {scope!r} runs, and TensorFlow would confuse them",
                    where=f"graph {graph.name!r}",
                    cause="it was renamed or copied into the scope of a call",
                    remedy="rename one of them (graph.rename), or inline the call",
                )


def _makes(call: Node, name: str, depth: int = 0) -> bool:
    function = call.graph.functions.get(callee(call))
    if function is None or depth > _DEEPEST:
        return False
    body = function.body
    inside = (body[scope] for scope in parents(name) if scope in body)
    return name in body or any(is_call(n, body) and _makes(n, name[len(n.name) + 1 :], depth + 1) for n in inside)


def _shown(values: tuple[Value, ...]) -> str:
    return ", ".join(f"{v.name} of {v.dtype}" for v in values[:8]) + (", ..." if len(values) > 8 else "") or "none"
