"""Run the iterations of a loop one after the other.

TensorFlow starts an iteration before the former has ended where data allow it, up to
`parallel_iterations` of them (10 or 32 by default). Each holds its own temporaries, so how
much memory a loop takes depends on threads. One at a time, it takes what the plan says.
"""

from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph
from graphwright.ir.traits.control_flow import LOOPS


def run_iterations_in_order(graph: Graph) -> int:
    """Set `parallel_iterations` of the loops to 1, those inside functions included; returns how many changed.

    >>> graph = Graph()
    >>> loop = graph.add_node("While", "loop", attrs={"parallel_iterations": 10})
    >>> run_iterations_in_order(graph), loop.attrs["parallel_iterations"]
    (1, 1)
    """
    changed = 0
    for body in bodies(graph):
        for node in body.nodes:
            if node.op_type in LOOPS and node.attrs.get("parallel_iterations") != 1:
                body.set_attr(node, "parallel_iterations", 1)
                changed += 1
    return changed
