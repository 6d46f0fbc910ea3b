"""Replace what only asks for a known shape by a constant, so that it no longer holds the tensor it asks about."""

from __future__ import annotations

from graphwright.ir.constants import told_shapes
from graphwright.ir.graph import Graph
from graphwright.transform.fold_constants import replace_by_constants


def fold_shapes(graph: Graph) -> int:
    """Replace Shape, ShapeN, Size, Rank and VariableShape of static shapes by constants; returns how many nodes.

    >>> from graphwright.ir.dtypes import DTYPES
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(f32, (2, 3))]).outputs[0]
    >>> s = g.add_node("Shape", "s", inputs=[x], attrs={"out_type": DTYPES["int32"]}, output_types=[(DTYPES["int32"], (2,))])
    >>> g.outputs = [s.outputs[0]]
    >>> fold_shapes(g), g.outputs[0].producer.op_type, len(x.uses)
    (1, 'Const', 0)
    """
    found = {node: told for node in graph.nodes if (told := told_shapes(node)) is not None}
    return replace_by_constants(graph, found)
