"""Replace what only asks for a known shape by a constant, so that it no longer holds the tensor it asks about."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphwright.ir.dtypes import DTYPES, DType, Shape
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits import ASKS_FOR_SHAPE, reads_resource, resource_of
from graphwright.transform.fold_constants import replace_by_constants


def fold_shapes(graph: Graph) -> int:
    """Replace Shape, ShapeN, Size, Rank and VariableShape of static shapes by constants; returns how many nodes.

    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(f32, (2, 3))]).outputs[0]
    >>> s = g.add_node("Shape", "s", inputs=[x], attrs={"out_type": DTYPES["int32"]}, output_types=[(DTYPES["int32"], (2,))])
    >>> g.outputs = [s.outputs[0]]
    >>> fold_shapes(g), g.outputs[0].producer.op_type, len(x.uses)
    (1, 'Const', 0)
    """
    found: dict[Node, list[np.ndarray[Any, Any]]] = {}
    for node in graph.nodes:
        if node.op_type not in ASKS_FOR_SHAPE:
            continue
        variables = [graph.variables.get(resource_of(v)) for v in node.inputs]
        shapes = [variable.shape if variable else v.shape for variable, v in zip(variables, node.inputs, strict=True)]
        if reads_resource(node) and variables[0] is None:
            continue
        if not any(shape is None or None in shape for shape in shapes):
            found[node] = [_answer(node.op_type, shape, v.dtype) for v, shape in zip(node.outputs, shapes, strict=True)]
    return replace_by_constants(graph, found)


def _answer(op_type: str, shape: Shape, dtype: DType) -> np.ndarray[tuple[int, ...], np.dtype[np.signedinteger]]:
    known = [d for d in shape or () if d is not None]
    kind = np.int64 if dtype == DTYPES["int64"] else np.int32
    match op_type:
        case "Size":
            return np.array(int(np.prod(known, dtype=np.int64)), dtype=kind)
        case "Rank":
            return np.array(len(known), dtype=kind)
        case _:
            return np.array(known, dtype=kind)
