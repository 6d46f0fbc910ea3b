"""Which variables the functions of a control-flow or call node read and write."""

from __future__ import annotations

from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.arithmetic import ASKS_FOR_SHAPE
from graphwright.ir.traits.control_flow import BRANCHES, called_functions
from graphwright.ir.traits.values import IDENTITIES
from graphwright.ir.traits.variables import READS_OF_VARIABLES, resource_of, written_resources


def resource_effects(node: Node, graph: Graph) -> tuple[frozenset[int], frozenset[int]]:
    """Positions of the inputs of a control-flow or call node whose variables its functions read, and those they write.

    A resource that an op without a rule takes counts as both.
    """
    read: set[int] = set()
    written: set[int] = set()
    offset = 1 if node.op_type in BRANCHES else 0
    for name in dict.fromkeys(called_functions(node)):
        function = graph.functions.get(name)
        if function is None:
            continue
        position = {v: k + offset for k, v in enumerate(function.body.inputs) if v.dtype.name == "resource"}
        for inner in function.body.nodes:
            resources = {k: position[r] for k, v in enumerate(inner.inputs) if (r := resource_of(v)) in position}
            if not resources or inner.op_type in IDENTITIES:
                continue
            if called_functions(inner):
                inner_read, inner_written = resource_effects(inner, graph)
                read |= {resources[k] for k in inner_read if k in resources}
                written |= {resources[k] for k in inner_written if k in resources}
                continue
            if inner.op_type not in ASKS_FOR_SHAPE:
                read |= set(resources.values())
            if written_resources(inner) or inner.op_type not in READS_OF_VARIABLES:
                written |= set(resources.values())
    return frozenset(read), frozenset(written)
