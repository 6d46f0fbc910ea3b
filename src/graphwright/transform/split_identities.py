"""Remove IdentityN nodes.

An optimizer passes all gradients through one IdentityN (a custom gradient does too), which waits for all of its inputs and holds them. The
readers read its inputs instead.
"""

from collections.abc import Mapping

from graphwright.ir.graph import Graph, Value
from graphwright.ir.traits.values import forwards_several


def split_identities(graph: Graph, *, gradients: bool = True) -> int:
    """Let the readers of every IdentityN without control edges read its inputs; return how many nodes were removed.

    With `gradients`, nodes with a custom gradient are removed too, for graphs that hold their gradients.
    """
    fixed = {*graph.control_outputs, *(v.producer for v in graph.inputs)}
    identities = [n for n in graph.nodes if forwards_several(n) and not (n.control_inputs or n.control_consumers or n in fixed)]
    identities = [n for n in identities if gradients or "_gradient_op_type" not in n.attrs]
    passed_on = {output: value for node in identities for output, value in zip(node.outputs, node.inputs, strict=True)}
    graph.replace_many_uses({output: _source(output, passed_on) for output in passed_on})
    graph.remove_nodes(identities)
    return len(identities)


def _source(value: Value, passed_on: Mapping[Value, Value]) -> Value:
    while value in passed_on:
        value = passed_on[value]
    return value
