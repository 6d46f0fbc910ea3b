"""Make control edges of If and Case nodes hold for the whole branch.

TensorFlow lowers a branch to Switch and Merge nodes. A control edge into it then delays only the choice of the branch, and one out of it
waits for the choice, not for the results, so memory before, inside and after the branch adds up.
"""

from graphwright.ir.edit.insert import add_identity, insert_before
from graphwright.ir.graph import Graph
from graphwright.ir.traits.control_flow import BRANCHES
from graphwright.ir.walk import topological_order


def order_branches(graph: Graph) -> int:
    """Let nodes that wait for a branch wait for its results, and its predicate for what the branch waits for.

    Returns how many branches changed. Call it when the order is fixed.
    """
    changed = 0
    for node in graph.nodes:
        if node.op_type not in BRANCHES or not (node.control_inputs or node.control_consumers):
            continue
        changed += 1
        if node.control_inputs:
            predicate = node.inputs[0]
            gate = insert_before(graph, node, 0, "Identity", f"{node.name}/ordered", attrs={"T": predicate.dtype})
            for control in node.control_inputs:
                if control is not predicate.producer:
                    graph.add_control_input(gate, control)
        if node.control_consumers and node.outputs:
            consumers = node.control_consumers
            done = [add_identity(value, f"{node.name}/done") for value in node.outputs]
            for consumer in consumers:
                for result in done:
                    graph.add_control_input(consumer, result)
                graph.remove_control_input(consumer, node)
    if changed:
        graph.sort_nodes(topological_order(graph))
    return changed
