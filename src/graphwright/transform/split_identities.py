"""Take IdentityN nodes out of the way.

An optimizer passes all gradients through one IdentityN (a custom gradient does too). The
node waits for all of its inputs and holds them, so no gradient could be used up before
the last one is there. Each output is nothing but the input, so the readers may read that.
"""

from __future__ import annotations

from graphwright.ir.graph import Graph


def split_identities(graph: Graph) -> int:
    """Let the readers of every IdentityN read its inputs; returns how many nodes were removed.

    A node that something waits for, or that waits for something, stays.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = (DTYPES["float32"], (2,))
    >>> g = Graph()
    >>> a, b = (g.add_node("Placeholder", n, output_types=[f32]).outputs[0] for n in "ab")
    >>> both = g.add_node("IdentityN", "both", inputs=[a, b], output_types=[f32, f32])
    >>> g.outputs = [g.add_node("Relu", "c", inputs=[both.outputs[1]], output_types=[f32]).outputs[0]]
    >>> split_identities(g), g["c"].inputs[0].name
    (1, 'b:0')
    """
    removed = 0
    waited_for = set(graph.control_outputs)
    for node in graph.nodes:
        if node.op_type != "IdentityN" or node.control_inputs or node.control_consumers or node in waited_for:
            continue
        for output, value in zip(node.outputs, node.inputs, strict=True):
            graph.replace_uses(output, value)
        graph.remove_node(node)
        removed += 1
    return removed
