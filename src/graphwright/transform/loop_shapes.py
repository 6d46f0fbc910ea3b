"""Bind the shapes of loop outputs to those of the loop's inputs.

A While declares the shapes of its outputs in an attribute, written when the step was traced, which shape inference trusts even if feeds
bind more dimensions. A loop's value keeps its shape between iterations, except for `shape_invariants`: such a dimension was open inside the
body although it was known before the loop, and stays open.
"""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import numpy as np

from graphwright.analyze.loop_pairs import popped_lists, pushed_value, readers_of
from graphwright.errors import UnknownShapeError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.constants import Array, add_constant, constant_array
from graphwright.ir.dtypes import Shape, format_shape
from graphwright.ir.edit.library import reached_functions
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import LOOPS, called_functions, function_at
from graphwright.ir.traits.rounds import (
    asks_for_element_shape,
    asks_for_length,
    is_empty_list,
    is_list,
    keeps_length,
    pops,
    pushes,
    reserves,
    unstacks,
)
from graphwright.ir.traits.values import origin
from graphwright.ir.walk import topological_order
from graphwright.transform.fold_constants import fold_shapes, replace_by_constants

Dimension = tuple[Node, int, int]  # a loop, the position of a value, an axis


def relaxed_dimensions(graph: Graph) -> frozenset[Dimension]:
    """Return dimensions that may change between iterations; call it before feeds are bound."""
    dimensions: set[Dimension] = set()
    for node in graph.nodes:
        inner = _body_shapes(graph, node)
        for k, (value, shape) in enumerate(zip(node.inputs, inner, strict=False)):
            for d, (outside, inside) in enumerate(zip(value.shape or (), shape or (), strict=False)):
                if outside is not None and inside is None:
                    dimensions.add((node, k, d))
    return frozenset(dimensions)


def bind_loop_shapes(graph: Graph, relaxed: AbstractSet[Dimension] = frozenset()) -> int:
    """Write the known dimensions of loop inputs into the loops' output shapes; return how many shapes changed.

    Shapes of readers must be inferred again.
    """
    changed = 0
    for node in graph.nodes:
        stated = node.attrs.get("output_shapes")
        if not _body_shapes(graph, node) or not isinstance(stated, tuple):
            continue
        shapes = [a for a in stated if isinstance(a, ShapeAttribute)]
        if len(shapes) != len(node.inputs):
            continue
        for k, (value, attribute) in enumerate(zip(node.inputs, tuple(shapes), strict=True)):
            bound = _bound(node, k, attribute.shape, value.shape, relaxed)
            if bound != attribute.shape and value.dtype.itemsize is not None:
                shapes[k] = ShapeAttribute(bound)
                node.outputs[k].shape = bound
                changed += 1
        node.graph.set_attr(node, "output_shapes", tuple(shapes))
    return changed


def bind_stacked_shapes(shapes: Mapping[Value, Shape]) -> int:
    """Write the shapes of tensors made of lists of fixed length; return how many."""
    changed = 0
    for value, shape in shapes.items():
        node, count = value.producer, _length(value.producer.inputs[0])
        if shape is not None and count == shape[0]:
            graph = node.graph
            element = add_constant(graph, f"{node.name}/element_shape", np.asarray(shape[1:], np.int32))
            graph.replace_input(node, 1, element)
            graph.set_attr(node, "num_elements", count)
            changed += 1
    return changed


def fold_body_shapes(graph: Graph) -> int:
    """Fold the sizes that loops ask for in every iteration, also for their gradients; return how many.

    The shapes in the bodies must be those of this call. Only bodies are folded whose results have the shapes of their arguments, and whose
    list elements are rows of a tensor. Raises `UnknownShapeError` if a loop value with a bound shape changes its shape.
    """
    called = calls(graph)
    folded = 0
    for loop in [node for node in graph.nodes if node.op_type in LOOPS]:
        function = function_at(loop, "body", graph)
        if function is None or called[function.name] > 1:
            continue
        _refuse_growing(loop, function.body)
        if _keeps_shapes(loop, function.body):
            folded += fold_shapes(function.body)
        folded += _fold_questions_about_lists(loop, function.body)
        for p, source in popped_lists(graph, loop).items():
            forward = function_at(source.producer, "body", graph) if source.producer.op_type in LOOPS else None
            element = origin(function.body.outputs[p]).producer.outputs[1]
            push = None if forward is None else origin(forward.body.outputs[source.index]).producer
            if push is None or not pushes(push) or not element.uses or not is_empty_list(source.producer.inputs[source.index].producer):
                continue
            array = constant_array(origin(push.inputs[1]).producer)
            if array is not None:
                constant = add_constant(function.body, f"{element.producer.name}/pushed", array)
                function.body.replace_uses(element, constant)
                function.body.sort_nodes(topological_order(function.body))
                folded += 1
    return folded


def calls(graph: Graph) -> Counter[str]:
    """Return how many nodes call each function, also inside functions."""
    reached = [graph, *(graph.functions[name].body for name in reached_functions(graph, graph.nodes))]
    return Counter(name for body in reached for n in body.nodes for name in called_functions(n))


def _refuse_growing(loop: Node, body: Graph) -> None:
    for k, (result, output) in enumerate(zip(body.outputs, loop.outputs, strict=True)):
        if result.nbytes is not None and output.nbytes is not None and result.shape != output.shape:
            raise UnknownShapeError(
                f"value {k} of the loop changes its shape: {format_shape(output.shape)} becomes {format_shape(result.shape)} in a round",
                where=f"node {loop.name!r}",
                cause="it grows from round to round, but an open size in the step's signature counts as constant",
                remedy="give the step a signature with that size, or none",
            )


def _keeps_shapes(loop: Node, body: Graph) -> bool:
    for start, argument, result in zip(loop.inputs, body.inputs, body.outputs, strict=True):
        is_tensor = argument.dtype.itemsize is not None
        if is_tensor and (argument.nbytes is None or not argument.shape == start.shape == result.shape):
            return False
        is_read = is_list(argument) and any(not (pushes(n) or keeps_length(n)) for n in readers_of(argument))
        if is_read and not unstacks(origin(start).producer) and not _pops_one_shape(argument, origin(start)):
            return False
    return True


def _pops_one_shape(argument: Value, filled: Value) -> bool:
    forward, pushed = filled.producer, pushed_value(filled)
    function = function_at(forward, "body", forward.graph) if pushed is not None else None
    if pushed is None or pushed.nbytes is None or function is None:
        return False
    popped = [node.outputs[1].shape if pops(node) else None for node in readers_of(argument)]
    return popped == [pushed.shape] and _keeps_shapes(forward, function.body)


def _fold_questions_about_lists(loop: Node, body: Graph) -> int:
    """Fold a body's questions about the length and element shape of a list from outside."""
    answers: dict[Node, list[Array]] = {}
    for node in body.nodes:
        maker = _made_before(loop, body, node.inputs[0]) if asks_for_length(node) or asks_for_element_shape(node) else None
        if maker is None or not (unstacks(maker) or reserves(maker)):
            continue
        if asks_for_length(node):
            length = _length(maker.outputs[0])
            array = None if length is None else np.asarray(length)
        else:
            array = constant_array(origin(maker.inputs[1 if unstacks(maker) else 0]).producer)
        if array is not None:
            answers[node] = [array.astype(node.outputs[0].dtype.name)]
    return replace_by_constants(body, answers)


def _made_before(loop: Node, body: Graph, value: Value) -> Node | None:
    """Return the maker of a list outside the body; None if it is made inside, or changes."""
    argument = _as_long(value)
    k = body.inputs.index(argument) if argument in body.inputs else -1
    return _as_long(loop.inputs[k]).producer if k >= 0 and _as_long(body.outputs[k]) is argument else None


def _as_long(value: Value) -> Value:
    value = origin(value)
    while keeps_length(value.producer):
        value = origin(value.producer.inputs[0])
    return value


def _length(value: Value) -> int | None:
    value = _as_long(value)
    node = value.producer
    if unstacks(node):
        return (node.inputs[0].shape or (None,))[0]
    if reserves(node):
        array = constant_array(origin(node.inputs[1]).producer)
        return None if array is None else int(array)
    function = function_at(node, "body", node.graph) if node.op_type in LOOPS else None
    if function is None:
        return None
    result = _as_long(function.body.outputs[value.index])
    return _length(node.inputs[value.index]) if result is function.body.inputs[value.index] else None


def _bound(node: Node, position: int, stated: Shape, known: Shape, relaxed: AbstractSet[Dimension]) -> Shape:
    if stated is None or known is None or len(stated) != len(known):
        return stated
    axes = enumerate(zip(stated, known, strict=True))
    return tuple(k if s is None and (node, position, d) not in relaxed else s for d, (s, k) in axes)


def _body_shapes(graph: Graph, node: Node) -> list[Shape]:
    function = function_at(node, "body", graph) if node.op_type in LOOPS else None
    return [] if function is None else [v.shape for v in function.body.inputs]
