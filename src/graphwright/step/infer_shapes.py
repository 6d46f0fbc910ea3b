"""Shapes of a flat graph with TF1 loops, which TensorFlow's inference does not follow across iterations.

During inference, opaque edges are replaced: a value passed between iterations has the shape of its start, and a popped value that of the
pushed one. A dimension that stays open keeps its earlier value.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import numpy as np

from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.constants import add_constant, constant_array
from graphwright.ir.dtypes import Known, Shape, filled
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import ENTERS, MERGES, SWITCHES, is_back_edge
from graphwright.ir.traits.rounds import is_empty_list, puts_last_input, reserves
from graphwright.ir.traits.values import IDENTITIES, exact_shape, origin
from graphwright.source.import_graph import infer_shapes

_ROUNDS = 3


def infer_flat_shapes(
    graph: Graph, feeds: Mapping[int, tuple[int | None, ...]] | None = None, *, bounded: Known | None = None
) -> list[str]:
    """Infer the shapes of a graph from those of its inputs. Raises `UnknownShapeError` if a feed does not fit the graph.

    Args:
        feeds: shapes of inputs by position.
        bounded: facts about the graph, to bound sizes that depend on data.

    Returns:
        The names of the nodes whose number of rows depends on data and was bounded.
    """
    merges = [n for n in graph.nodes if any(is_back_edge(v, n) for v in n.inputs)]
    if not merges:
        return infer_shapes(graph, feeds, bounded=bounded)
    counting: list[str] = []
    for _ in range(_ROUNDS):
        before = {v: v.shape for n in graph.nodes for v in n.outputs}
        counting = _infer_without_loops(graph, merges, feeds, bounded)
        fed = {graph.inputs[k] for k in feeds or {}}
        for value, shape in before.items():
            if value not in fed:
                value.shape = filled(value.shape, shape)
        if not _bind_tensor_arrays(graph) | _bind_lists(graph):
            break
    return counting


def _infer_without_loops(
    graph: Graph, merges: list[Node], feeds: Mapping[int, tuple[int | None, ...]] | None, bounded: Known | None
) -> list[str]:
    replaced: list[tuple[Node, int, Value]] = []

    def replace(node: Node, index: int, value: Value) -> None:
        replaced.append((node, index, node.inputs[index]))
        graph.replace_input(node, index, value)

    for merge in merges:
        enter = next(v.producer for v in merge.inputs if not is_back_edge(v, merge))
        start = enter.inputs[0] if enter.op_type in ENTERS else enter.outputs[0]
        for k in range(len(merge.inputs)):
            replace(merge, k, start)
    popped = _pushed_values(graph)
    for pop, value in popped.items():
        for use in pop.outputs[0].uses:
            replace(use.node, use.index, value)
    try:
        counting = infer_shapes(graph, feeds, bounded=bounded)
    finally:
        for node, index, value in reversed(replaced):
            graph.replace_input(node, index, value)
    for node in graph.nodes:
        if node.op_type in ENTERS:
            node.outputs[0].shape = node.inputs[0].shape
        elif node in popped:
            node.outputs[0].shape = popped[node].shape
    return counting


def _pushed_values(graph: Graph) -> dict[Node, Value]:
    """Return, by node that pops, the value pushed on the same stack."""
    pushed = {_behind(n.inputs[0]): n.inputs[1] for n in graph.nodes if n.op_type.startswith("StackPush")}
    pops = ((n, pushed.get(_behind(n.inputs[0]))) for n in graph.nodes if n.op_type.startswith("StackPop"))
    return {n: value for n, value in pops if value is not None and value.dtype == n.outputs[0].dtype}


def _bind_tensor_arrays(graph: Graph) -> bool:
    """Set the element shapes of tensor arrays from the written values; return whether one changed."""
    changed = False
    for node in graph.nodes:
        if node.op_type not in ("TensorArrayWriteV3", "TensorArrayScatterV3"):
            continue
        array, value = _behind(node.inputs[0]).producer, node.inputs[2].shape
        element = value[1:] if value and node.op_type == "TensorArrayScatterV3" else value
        attribute = array.attrs.get("element_shape")
        if array.op_type != "TensorArrayV3" or element is None or None in element:
            continue
        if not isinstance(attribute, ShapeAttribute) or attribute.shape is None or None in attribute.shape:
            array.graph.set_attr(array, "element_shape", ShapeAttribute(element))
            changed = True
    return changed


def _bind_lists(graph: Graph) -> bool:
    """Do the same for tensor lists whose elements have one shape."""
    element_shapes: dict[Node, set[Shape]] = {}
    for node in filter(puts_last_input, graph.nodes):
        element_shapes.setdefault(_behind(node.inputs[0], MERGES).producer, set()).add(exact_shape(node.inputs[-1]))
    changed = False
    for maker, shapes in element_shapes.items():
        stated = constant_array(maker.inputs[0].producer) if reserves(maker) or is_empty_list(maker) else None
        shape = shapes.pop() if len(shapes) == 1 else None
        if shape is not None and stated is not None and np.any(stated < 0):
            graph.replace_input(maker, 0, add_constant(graph, f"{maker.name}/element_shape", np.asarray(shape, stated.dtype)))
            changed = True
    return changed


def _behind(value: Value, also: AbstractSet[str] = frozenset()) -> Value:
    """Return the handle before it entered a loop."""
    return origin(value, IDENTITIES | ENTERS | SWITCHES | also)
