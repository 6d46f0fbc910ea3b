"""Read unchanged loop values from before the loop.

A While returns every value it was given, also those that its body never changes: the limit of the counter, lists that are only read,
variables. TensorFlow's gradients read such outputs. A reader of the loop's input can run without the loop, has a known shape, and holds no
loop memory.
"""

from graphwright.ir.graph import Graph
from graphwright.ir.traits.control_flow import LOOPS, function_at
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import returned_arguments


def forward_loop_invariants(graph: Graph, purity: Purity) -> int:
    """Let the readers of unchanged loop outputs read the loop's inputs; return how many outputs lost all readers.

    Readers of a variable that passes through a loop with effects still run after that loop.
    """
    forwarded = 0
    for node in graph.nodes:
        if node.op_type not in LOOPS:
            continue
        body = function_at(node, "body", graph)
        for k, argument in enumerate(() if body is None else returned_arguments(body.body)):
            if k != argument:
                continue
            output = node.outputs[k]
            if not output.uses and output not in graph.outputs:
                continue
            if output.dtype.name == "resource" and not purity.is_pure(node):
                for consumer in output.consumers:
                    graph.add_control_input(consumer, node)
            graph.replace_uses(output, node.inputs[k])
            forwarded += 1
    return forwarded
