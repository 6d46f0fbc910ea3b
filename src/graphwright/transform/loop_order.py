"""Run the iterations of a loop one after the other.

TensorFlow overlaps up to `parallel_iterations` iterations (10 or 32 by default), each with its own temporaries, so the memory of a loop
would depend on threads.
"""

from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph
from graphwright.ir.traits.control_flow import LOOPS


def run_iterations_in_order(graph: Graph) -> int:
    """Set `parallel_iterations` of all loops to 1, also inside functions; return how many changed."""
    changed = 0
    for body in bodies(graph):
        for node in body.nodes:
            if node.op_type in LOOPS and node.attrs.get("parallel_iterations") != 1:
                body.set_attr(node, "parallel_iterations", 1)
                changed += 1
    return changed
