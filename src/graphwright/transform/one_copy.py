"""Write equal constant weights once."""

from graphwright.ir.attributes import Attribute, SerializedAttribute
from graphwright.ir.edit.library import remove_unused_functions
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.values import is_constant
from graphwright.transform.attach import HoldsFiles

_LARGE_BYTES = 1024


def leave_one_copy(graph: Graph) -> None:
    """Merge equal large constants, and remove functions that only objects of a SavedModel call.

    Those functions hold earlier weights, as constants or as variables that need a checkpoint. Functions that make and fill tables stay.
    """
    first: dict[tuple[Attribute, str], Node] = {}
    for node in filter(is_constant, graph.nodes):
        value = node.attrs.get("value")
        held = node.control_inputs or graph.is_border(node) or graph.collections_of(node)
        if held or not isinstance(value, SerializedAttribute) or len(value.data) <= _LARGE_BYTES:
            continue
        other = first.setdefault((value, node.device), node)
        if other is not node:
            graph.replace_uses(node.outputs[0], other.outputs[0])
            reroute_control([other], node)
            graph.remove_node(node)
    if isinstance(graph.package, HoldsFiles) and graph.package.has_files:
        remove_unused_functions(graph, called=graph.package.functions_of_state())
