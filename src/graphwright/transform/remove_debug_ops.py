"""Remove nodes that only check or print."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Unpack

from graphwright.ir.edit.insert import add_identity
from graphwright.ir.edit.library import bodies
from graphwright.ir.edit.prune import remove_unread
from graphwright.ir.edit.reroute import replace_node, reroute_control
from graphwright.ir.graph import Graph, Node
from graphwright.ir.jobs import Written, edits_in_place
from graphwright.ir.traits.control_flow import CONTROL_FLOW_OF_TF1, MERGES, SWITCHES, called_functions
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import MAY_BE_FED, is_identity, only_orders
from graphwright.ir.traits.variables import REFERENCE_VARIABLES
from graphwright.ir.walk import fed_values, fetched_values
from graphwright.transform.interface import put_in_order

DEBUG_OPS = frozenset(
    "Assert Print PrintV2 CheckNumerics CheckNumericsV2 DebugIdentity DebugIdentityV2 DebugIdentityV3 DebugNanCount "
    "DebugNumericSummary DebugNumericSummaryV2 Abort Timestamp HistogramSummary ScalarSummary ImageSummary "
    "AudioSummary AudioSummaryV2 TensorSummary TensorSummaryV2 MergeSummary".split()
)
"""Op types that change no result: they check, print, or write a summary."""

_PASS_THROUGH = frozenset("Print CheckNumerics CheckNumericsV2 DebugIdentity DebugIdentityV2 DebugIdentityV3".split())
"""Debug ops whose output is their input."""

_GUARDS = ("If", "StatelessIf")
_MOST_NESTED = 8  # branches of TF1
IsPure = Callable[[Node], bool]

_CANNOT_ACT = MAY_BE_FED | frozenset(
    "ShapeN Concat All Any Gather AsString StringFormat Switch Merge NoOp OnesLike IsFinite IsNan IsInf".split()
)
"""Op types without effects, of which conditions and messages are made, beside those that only compute."""


@edits_in_place
def remove_debug_ops(
    graph: Graph,
    *,
    op_types: Iterable[str] = DEBUG_OPS,
    identities: bool = True,
    functions: bool = True,
    purity: Purity | None = None,
    **written: Unpack[Written],
) -> int:
    """Remove assertions, prints, numeric checks and summaries, and `Identity` chains; returns how many nodes.

    The order of effects stays: a node that waited for an assertion waits for all effects that the assertion waited for (writes, reads of
    variables, other effects), but not for the condition. Conditions that nothing else reads are removed, and so is an `If` whose branches
    only checked. Inputs and outputs of the graph stay.

    Args:
        op_types: the op types to remove.
        identities: whether to remove `Identity` nodes that are no outputs, in no collection, and wait for nothing.
        functions: whether to change bodies of functions too.
        purity: which nodes have no effects; by default common arithmetic has none.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = [(DTYPES["float32"], (2,))]
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=f32).outputs
    >>> checked = g.add_node("CheckNumerics", "checked", inputs=x, output_types=f32).outputs
    >>> g.inputs, g.outputs = x, g.add_node("Relu", "y", inputs=checked, output_types=f32).outputs
    >>> remove_debug_ops(g), g.nodes
    (1, (<Node x = Placeholder()>, <Node y = Relu(x:0)>))
    """
    kinds, places, removed = frozenset(op_types), bodies(graph)[::-1] if functions else (graph,), 0
    known = purity or Purity(graph, {})

    def is_pure(node: Node) -> bool:
        reads_resource = purity is None and any(v.dtype.name == "resource" for v in node.inputs)
        return node.op_type in _CANNOT_ACT or (not reads_resource and known.is_pure(node))

    while count := sum(_clean(body, kinds, is_pure, identities=identities) for body in places):
        removed += count
        if not functions:
            break  # otherwise an If may be empty now
    return removed


def _clean(graph: Graph, kinds: frozenset[str], is_pure: IsPure, *, identities: bool) -> int:
    before = len(graph)
    neighbors: list[Node] = []
    for node in graph.nodes:
        if graph.owns(node) and node.op_type in kinds:
            neighbors += _cut(graph, node)
    for node in graph.nodes:
        if graph.owns(node) and _is_empty_guard(graph, node, is_pure):
            for use in tuple(u for v in node.outputs for u in v.uses):  # Identities that only wait
                reroute_control([node, *use.node.control_inputs], use.node)
                graph.remove_node(use.node)
            neighbors += _bridged(graph, node)
    _release(graph, neighbors, is_pure)
    remove_unread(graph, neighbors, lambda node: is_pure(node) and node.op_type not in MAY_BE_FED)
    for node in graph.nodes if identities else ():
        if graph.owns(node):
            _skip_identity(graph, node)
    if len(graph) != before:
        put_in_order(graph)
    return before - len(graph)


def _cut(graph: Graph, node: Node) -> list[Node]:
    """Remove a node where nothing needs its results; returns its neighbors, which may have become useless."""
    if any(v.uses for v in node.outputs) or _is_returned(graph, node):
        if node.op_type not in _PASS_THROUGH or len(node.outputs) != 1:
            return []  # something reads its result, such as a summary that is fetched
        if _is_returned(graph, node) or node.control_inputs:
            same = add_identity(node.inputs[0], f"{node.name}/unchecked", control_inputs=node.control_inputs)
            same.device = node.device
            replace_node(node, same)
            return []
        graph.replace_uses(node.outputs[0], node.inputs[0])
    return _bridged(graph, node)


def _is_empty_guard(graph: Graph, node: Node, is_pure: IsPure) -> bool:
    """Whether a node is an If whose branches have no effects left, and whose results are only waited for."""
    names, readers = called_functions(node), [use.node for v in node.outputs for use in v.uses]
    if node.op_type not in _GUARDS or not names or _is_returned(graph, node):
        return False
    if any(not is_identity(reader) or reader.outputs[0].uses or _is_returned(graph, reader) for reader in readers):
        return False
    return all(name in graph.functions and all(map(is_pure, graph.functions[name].body)) for name in names)


def _release(graph: Graph, nodes: Iterable[Node], is_pure: IsPure) -> None:
    """Let nodes that wait for a node without effects wait for the effects before it."""
    waiting = list(dict.fromkeys(nodes))
    while waiting:
        node = waiting.pop()
        if not graph.owns(node) or not (node.control_consumers or node in graph.control_outputs):
            continue
        effects = _effects_before(node, is_pure)
        if effects is not None:
            waiting += filter(only_orders, node.control_consumers)
            reroute_control(effects, node)


def _effects_before(node: Node, is_pure: IsPure) -> list[Node] | None:
    """Return the nearest nodes with effects before a node; None where a control edge from the node means more.

    In a branch of TF1, a control edge also decides *whether* a node runs. A complete branch, from `Switch` to `Merge`, decides nothing
    outside of it; a lone `Switch` does.
    """
    effects: dict[Node, None] = {}
    seen: set[tuple[Node, int]] = set()
    waiting = [(node, 0)]
    while waiting:
        current, depth = waiting.pop()
        if (current, depth) in seen:
            continue
        seen.add((current, depth))
        depth += int(current.op_type in MERGES) - int(current.op_type in SWITCHES)
        if not 0 <= depth <= _MOST_NESTED:
            return None
        if is_pure(current):
            waiting += [(before, depth) for before in chain((v.producer for v in current.inputs), current.control_inputs)]
        elif current is node or depth or current.op_type in CONTROL_FLOW_OF_TF1:
            return None
        else:
            effects[current] = None
    return list(effects)


def _bridged(graph: Graph, node: Node) -> list[Node]:
    before, after = [*(v.producer for v in node.inputs), *node.control_inputs], node.control_consumers
    reroute_control(before, node)
    graph.remove_node(node)
    return [*before, *after]


def _is_returned(graph: Graph, node: Node) -> bool:
    """Whether one of its values is an input or output; control outputs do not count, as others can take that role."""
    return graph.is_border(node) and any(value.producer is node for value in (*fed_values(graph), *fetched_values(graph)))


def _skip_identity(graph: Graph, node: Node) -> None:
    if not is_identity(node) or node.control_inputs or graph.is_border(node) or "_class" in node.attrs:
        return
    value = node.inputs[0]
    source = value.producer
    if value.dtype.name == "resource" or source.op_type in REFERENCE_VARIABLES:
        return  # a snapshot of a variable
    if graph.collections_of(node):
        return  # TF1 finds it by name when it imports the graph
    if node.control_consumers and source.op_type in CONTROL_FLOW_OF_TF1:
        return  # the anchor of a branch: nodes that wait for it run with the branch
    if source.op_type in CONTROL_FLOW_OF_TF1 and any(c.op_type in CONTROL_FLOW_OF_TF1 for c in node.outputs[0].consumers):
        return
    graph.replace_uses(node.outputs[0], value)
    reroute_control([source], node)
    graph.remove_node(node)
