"""Dtypes and shapes of outputs, as TensorFlow infers them."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from graphwright.errors import GraphwrightError
from graphwright.ir.dtypes import DType, Shape
from graphwright.ir.graph import Function, Graph, Node
from graphwright.ir.shapes import Shapes
from graphwright.ir.traits.control_flow import called_functions, is_call
from graphwright.ir.walk import order_of
from graphwright.source.op_types import REGISTERED, takes_reference
from graphwright.source.registry_rule import RegistryRule
from graphwright.source.shape_inference import infer_output_shapes


class _EditedRule(RegistryRule):
    """The registry's rule, but a graph may temporarily contain reserved names and unknown op types."""

    def check_name(self, graph: Graph, name: str) -> None:
        super().check_name(graph, name.lstrip("_") or name)

    def check_op(self, graph: Graph, op_type: str, name: str) -> None:
        pass


_EDITED_RULE = _EditedRule()


def output_dtypes(node: Node) -> list[DType]:
    """Return the dtypes of the outputs from op type and attributes, or raise if they do not determine them."""
    if node.op_type in node.graph.functions:
        return [v.dtype for v in node.graph.functions[node.op_type].body.outputs]
    return list(REGISTERED.types_of(node.op_type, node.attrs, node.name).outputs)


def lenient_shapes(nodes: Sequence[Node]) -> Sequence[Sequence[Shape]]:
    """Return the shapes of outputs in edited graphs: nodes that TensorFlow refuses, such as incomplete ones, keep their shapes.

    Args:
        nodes: in topological order.
    """
    inferred = _inferred([node for node in nodes if node.outputs and not takes_reference(node.op_type)])
    answers: list[Sequence[Shape]] = []
    for node in nodes:
        if node in inferred:
            answers.append(inferred[node])
        elif node.inputs and takes_reference(node.op_type):
            answers.append([node.inputs[0].last_shape for _ in node.outputs])
        else:
            answers.append([value.last_shape for value in node.outputs])
    return answers


def _inferred(nodes: Sequence[Node]) -> dict[Node, Sequence[Shape]]:
    """Return the shapes of all nodes that TensorFlow accepts, found by bisection."""
    if not nodes:
        return {}
    try:
        return dict(zip(nodes, infer_output_shapes(nodes), strict=True))
    except (GraphwrightError, ValueError, KeyError):
        middle = len(nodes) // 2
        return _inferred(nodes[:middle]) | _inferred(nodes[middle:]) if middle else {}


def follow_shapes(graph: Graph, *, infer_unknown: bool) -> None:
    """Update shapes after edits; optionally infer unknown shapes when they are read."""
    graph.op_rule = _EDITED_RULE
    shapes = Shapes(graph, lenient_shapes, infer_unknown=infer_unknown)
    if graph.shapes is not None:
        shapes.copy_state(graph.shapes, {node: node for node in graph.nodes})
    graph.shapes = shapes


@contextmanager
def shapes_at_rest(graph: Graph) -> Generator[None]:
    """Do not update shapes after edits in this block, because the edits set the shapes themselves."""
    shapes = graph.shapes
    if shapes is not None:
        shapes.settle_edits()
    graph.shapes = None
    try:
        yield
    finally:
        graph.shapes = shapes


def infer_graph(graph: Graph, nodes: Iterable[Node]) -> None:
    """Let TensorFlow infer the shapes of the nodes' outputs; if it refuses a node, raise a GraphError and change nothing."""
    state = graph.shapes
    if state is not None:
        state.settle_edits()
    order = [node for node in order_of(nodes) if node.outputs]
    plain = [node for node in order if not takes_reference(node.op_type)]
    shapes = dict(zip(plain, infer_output_shapes(plain), strict=True))
    for node in order:
        known = shapes.get(node) or [node.inputs[0].shape if node.inputs else None for _ in node.outputs]
        for value, shape in zip(node.outputs, known, strict=True):
            if value.last_shape != shape:
                value.shape = shape
        if state is not None and not any(value.producer in state.unasked for value in node.inputs):
            state.unasked.pop(node, None)
    if state is not None:
        state.stale = {}


def infer_argument_shapes(graph: Graph, function: Function) -> None:
    """Set unknown shapes of a function's arguments to the shapes that all calls in the main graph agree on."""
    if all(argument.last_shape is not None for argument in function.body.inputs):
        return
    calls = [node for node in graph.nodes if is_call(node, graph) and function.name in (node.op_type, *called_functions(node))]
    for k, argument in enumerate(function.body.inputs):
        shapes = {node.inputs[k].shape for node in calls if k < len(node.inputs)}
        if argument.last_shape is None and len(shapes) == 1:
            argument.shape = shapes.pop()
