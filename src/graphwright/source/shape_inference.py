"""The shape rule of loaded graphs: TensorFlow's own inference, asked once for all nodes that an edit touched."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from graphwright.errors import GraphError, first_line
from graphwright.ir.dtypes import Shape, common_shape
from graphwright.ir.edit.library import reached_functions
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.control_flow import CALL_TYPES, ENTERS, MERGES, NEXT_ITERATIONS, is_back_edge, is_control_flow, result_functions
from graphwright.ir.traits.values import ARGUMENTS, INPUTS, is_constant
from graphwright.ir.traits.variables import opens_variable
from graphwright.source.attributes import shape_of
from graphwright.source.function_def import write_function
from graphwright.source.never_run import forbid_to_run
from graphwright.source.private_tensorflow import op_definition
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.write_nodes import graph_edge, write_node, write_placeholder

_BORDER = "graphwright_border_"
_MOST_BEHIND = 10_000
_BY_VALUE = frozenset(kind for kind in NEXT_ITERATIONS | ENTERS | MERGES if not kind.startswith("Ref"))
_NOT_ASKED = INPUTS | _BY_VALUE  # for a reference no placeholder can stand


def infer_output_shapes(nodes: Sequence[Node]) -> Sequence[Sequence[Shape]]:
    """Return the output shapes of nodes of one graph, in topological order; raise `GraphError` where TensorFlow refuses one.

    The nodes are imported once, with placeholders for their inputs from outside. The results of calls, If, Case and While have the shapes
    of the bodies of their functions.
    """
    if not nodes:
        return []
    tf = import_tensorflow()
    graph_def: Any = tf.compat.v1.GraphDef()
    graph_def.versions.producer = (nodes[0].graph.versions or [tf.version.GRAPH_DEF_VERSION])[0]
    border: dict[Value, str] = {}
    inside = {*nodes, *_behind_shapes(nodes)}

    def edge(value: Value) -> str:
        if value.producer in inside:
            return graph_edge(value)
        if value not in border:
            border[value] = f"{_BORDER}{len(border)}"
        return border[value]

    written = inside if len(inside) > len(nodes) else nodes
    for node in written:
        node_def = graph_def.node.add()
        if node.op_type in ARGUMENTS:
            write_placeholder(node.outputs[0], node.name, node_def)
            continue
        write_node(node, node_def, edge)
        _without_outside(node_def, inside, node)
    for value, name in border.items():
        write_placeholder(value, name, graph_def.node.add())
    library = nodes[0].graph.functions
    for name in reached_functions(nodes[0].graph, written):
        write_function(library[name], graph_def.library.function.add())
    graph: Any = tf.Graph()
    try:
        with graph.as_default():
            tf.graph_util.import_graph_def(forbid_to_run(graph_def), name="")
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise GraphError(
            f"TensorFlow refuses the graph: {first_line(error)}",
            where=f"graph {nodes[0].graph.name!r}",
            cause="after an edit, shapes or attributes do not fit together",
        ) from error
    operation: Any = graph.get_operation_by_name
    return [[_shape(tensor, value) for tensor, value in zip(operation(n.name).outputs, n.outputs, strict=True)] for n in nodes]


def _behind_shapes(nodes: Sequence[Node]) -> set[Node]:
    """Return nodes from outside whose values shapes depend on: constants, variables, and computations of lengths."""
    behind: set[Node] = set()
    known = set(nodes)
    stack = [value for node in nodes for value in node.inputs]
    while stack and len(behind) < _MOST_BEHIND:
        value = stack.pop()
        node = value.producer
        if node in known or node in behind or node.op_type in _NOT_ASKED:
            continue
        is_length = value.dtype.name in ("int32", "int64") and node.op_type not in CALL_TYPES
        if is_constant(node) or opens_variable(node) or is_length or _is_reference(value):
            behind.add(node)
            stack += node.inputs
    return behind


def _is_reference(value: Value) -> bool:
    definition = op_definition(value.producer.op_type)
    return definition is not None and any(argument.is_ref for argument in definition.output_arg)


def _shape(tensor: Any, value: Value) -> Shape:
    """Return TensorFlow's shape; for calls, which have none, and control flow, the shapes of the functions."""
    node = value.producer
    inferred = shape_of(tensor)
    if inferred is not None and not is_control_flow(node):
        return inferred
    functions = [node.graph.functions[name] for name in result_functions(node) if name in node.graph.functions]
    results = [f.body.outputs[value.index].shape for f in functions if value.index < len(f.body.outputs)]
    if "body" in node.attrs:  # a loop without rounds returns its inputs
        results.append(shape_of(tensor.op.inputs[value.index]))
    return inferred if not results or None in results else reduce(common_shape, results)


def _without_outside(node_def: Any, inside: set[Node], node: Node) -> None:
    """Remove control edges and device constraints, which do not affect shapes and may name nodes that are not imported."""
    data_inputs = [text for text in node_def.input if not text.startswith("^")]
    for k, value in enumerate(node.inputs):
        if is_back_edge(value, node) and value.producer not in inside:
            data_inputs[k] = data_inputs[1 - k] if len(data_inputs) == 2 else data_inputs[0]
    del node_def.input[:]
    node_def.input.extend(data_inputs)
    node_def.device = ""
    for key in ("_class", "_output_shapes"):
        if key in node_def.attr:
            del node_def.attr[key]
