"""Run the updates of variables in a branch or a loop body one after another.

An optimizer that scales the loss updates its variables in a branch, since a step with overflowing gradients updates nothing; gradient
accumulation computes them in a loop. Nothing orders the nodes of such a body, so the temporaries of all updates could be live at once.
"""

from collections.abc import Mapping

from graphwright.analyze.cost import build_cost_graph
from graphwright.errors import UnknownShapeError
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import BRANCHES, LOOPS, called_functions
from graphwright.ir.traits.effects import Purity, is_collective
from graphwright.ir.traits.variables import written_resources
from graphwright.ir.walk import producers_of, reached, topological_order
from graphwright.plan.model import Schedule
from graphwright.transform.rematerialize import apply_schedule
from graphwright.transform.split_identities import split_identities


def order_updates(graph: Graph, purity: Purity) -> int:
    """Chain the nodes that touch large tensors in branches and loops that write several variables; return how many bodies changed.

    Bodies with unknown sizes, several devices or other processes stay as they are.
    """
    branches = (node for body in bodies(graph) for node in body if node.op_type in BRANCHES | LOOPS)
    names = dict.fromkeys(name for node in branches for name in called_functions(node) if name in graph.functions)
    return sum(_order_body(graph.functions[name].body, purity) for name in names)


def _order_body(body: Graph, purity: Purity) -> bool:
    writes = [node for node in body.nodes if written_resources(node)]
    devices = {node.device for node in body.nodes if node.device}
    if len(writes) < 2 or not body.control_outputs or len(devices) > 1 or any(map(is_collective, body.nodes)):
        return False
    split_identities(body)
    body.sort_nodes(_one_after_another(body))
    try:
        tasks = build_cost_graph(body, purity.of(body), lambda _: 0.0)
    except UnknownShapeError:
        return False
    apply_schedule(tasks, Schedule(tuple(range(len(tasks.nodes)))))
    return True


def _one_after_another(body: Graph) -> list[Node]:
    """Return all nodes so that the needs of one end of the graph come before the further needs of the next."""
    place: Mapping[Node, int] = {node: k for k, node in enumerate(topological_order(body))}
    ends = sorted({*body.control_outputs, *(value.producer for value in body.outputs)}, key=place.__getitem__)
    order: dict[Node, None] = dict.fromkeys(value.producer for value in body.inputs)
    for end in ends:
        needed = reached([end], lambda node: (other for other in producers_of(node) if other not in order))
        order.update(dict.fromkeys(sorted(needed, key=place.__getitem__)))
    return [*order, *(node for node in place if node not in order)]
