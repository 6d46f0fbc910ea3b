"""Cut out what only checks and prints."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Unpack

from graphwright.ir.edit.insert import add_identity
from graphwright.ir.edit.library import bodies
from graphwright.ir.edit.prune import remove_unread
from graphwright.ir.edit.reroute import replace_node, reroute_control
from graphwright.ir.given import Written, edits_in_place
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import CONTROL_FLOW_OF_TF1, MERGES, SWITCHES, called_functions
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import MAY_BE_FED, PLACEHOLDERS
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
"""Those whose output is their input."""

_GUARDS = ("If", "StatelessIf")

# What conditions of assertions are made of; none of them has effects.
_PURE = frozenset(
    "Const Identity IdentityN Shape ShapeN Rank Size Cast Pack Unpack Concat ConcatV2 StridedSlice Slice Reshape ExpandDims Squeeze "
    "Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot All Any Sum Mean Max Min Prod Range Fill "
    "Add AddV2 Sub Mul RealDiv FloorDiv FloorMod Neg Abs Maximum Minimum IsFinite IsNan IsInf Select SelectV2 BroadcastTo "
    "Placeholder PlaceholderWithDefault PlaceholderV2 _Arg NoOp GatherV2 Gather OnesLike ZerosLike AsString StringFormat "
    "Switch Merge StopGradient".split()
)


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

    What a control edge guaranteed stays: who waited for an assertion waits for every effect that
    the assertion waited for (writes, reads of variables, other effects; not for what only made its
    condition). The conditions go where nothing else reads them, and so does an `If` of which both
    branches did nothing but check. What the graph returns or is fed stays.

    Args:
        op_types: what is cut out.
        identities: remove `Identity` nodes that nothing returns, no collection names and that carry no control edges in.
        functions: whether bodies of functions are cleaned too.
        purity: tells which nodes have no effects; without it, common arithmetic is known to have none.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = [(DTYPES["float32"], (2,))]
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=f32).outputs
    >>> checked = g.add_node("CheckNumerics", "checked", inputs=x, output_types=f32).outputs
    >>> g.inputs, g.outputs = x, g.add_node("Relu", "y", inputs=checked, output_types=f32).outputs
    >>> remove_debug_ops(g), g.nodes
    (1, (<Node x = Placeholder()>, <Node y = Relu(x:0)>))
    """
    wanted = frozenset(op_types)
    cleaner = _Cleaner(graph, wanted, purity)
    cleaned = bodies(graph)[::-1] if functions else (graph,)
    removed = 0
    with graph.restored_on_error():
        while True:  # a guard is empty once the branch that held its assertion is
            in_this_round = sum(cleaner.clean(body, identities=identities) for body in cleaned)
            removed += in_this_round
            if not in_this_round or not functions:
                return removed


class _Cleaner:
    def __init__(self, graph: Graph, op_types: frozenset[str], purity: Purity | None) -> None:
        self._library = graph.functions
        self._op_types = op_types
        self._purity = purity

    def clean(self, graph: Graph, *, identities: bool) -> int:
        before = len(graph)
        touched: list[Node] = []
        for node in graph.nodes:
            if graph.owns(node) and node.op_type in self._op_types:
                touched += self._cut(graph, node)
        for node in graph.nodes:
            if graph.owns(node) and self._is_empty_guard(graph, node):
                for use in tuple(u for v in node.outputs for u in v.uses):  # Identities that only wait
                    reroute_control([node, *use.node.control_inputs], use.node)
                    graph.remove_node(use.node)
                touched += _bridged(graph, node)
        self._lift_control(graph, touched)
        # What made conditions and messages, as far as nothing else needs it:
        remove_unread(graph, touched, lambda node: self._is_pure(node) and node.op_type not in MAY_BE_FED)
        if identities:
            for node in graph.nodes:
                if graph.owns(node):
                    _skip_identity(graph, node)
        if len(graph) != before:
            put_in_order(graph)
        return before - len(graph)

    def _cut(self, graph: Graph, node: Node) -> list[Node]:
        """Remove one node; returns those around it, which may have become useless."""
        passes = node.op_type in _PASS_THROUGH and len(node.outputs) == 1
        if any(v.uses for v in node.outputs) or _is_returned(graph, node):
            if not passes:
                return []  # something reads what it makes, such as a summary that is fetched
            if _is_returned(graph, node) or node.control_inputs:  # stays as a name for what it checked
                made = add_identity(node.inputs[0], f"{node.name}/unchecked", control_inputs=node.control_inputs)
                made.device = node.device
                replace_node(node, made)
                return []
            graph.replace_uses(node.outputs[0], node.inputs[0])
        return _bridged(graph, node)

    def _is_empty_guard(self, graph: Graph, node: Node) -> bool:
        """An If that did nothing but check: no branch has effects left, and what it returns only waits."""
        names = called_functions(node)
        if node.op_type not in _GUARDS or not names or _is_returned(graph, node):
            return False
        if any(
            use.node.op_type != "Identity" or use.node.outputs[0].uses or _is_returned(graph, use.node)
            for v in node.outputs
            for use in v.uses
        ):
            return False
        return all(name in self._library and all(map(self._is_pure, self._library[name].body)) for name in names)

    def _is_pure(self, node: Node) -> bool:
        if self._purity is not None and node.op_type not in ("NoOp", *PLACEHOLDERS):
            return self._purity.is_pure(node) or node.op_type in _PURE
        return node.op_type in _PURE and not any(v.dtype.name == "resource" for v in node.inputs)

    def _lift_control(self, graph: Graph, nodes: Iterable[Node]) -> None:
        """Let those that wait for what has no effects wait for the effects before it, so that it is no longer held."""
        waiting = list(dict.fromkeys(nodes))
        while waiting:
            node = waiting.pop()
            if not graph.owns(node) or not (node.control_consumers or node in graph.control_outputs):
                continue
            effects = self._effects_before(node)
            if effects is not None:
                waiting += [consumer for consumer in node.control_consumers if consumer.op_type == "NoOp"]
                reroute_control(effects, node)

    def _effects_before(self, node: Node) -> list[Node] | None:
        """The nearest nodes with effects that a pure node depends on; None where a control edge from it means more.

        In a branch of TF1's control flow an edge also says *whether* something runs. A whole
        `Switch` to `Merge` within what is walked says nothing to the outside, a lone `Switch` does.
        """
        if not self._is_pure(node):
            return None
        effects: dict[Node, None] = {}
        seen: set[tuple[Node, int]] = set()
        waiting = [(node, 0)]
        while waiting:
            current, depth = waiting.pop()
            if (current, depth) in seen:
                continue
            seen.add((current, depth))
            if current.op_type in MERGES:
                depth += 1
            elif current.op_type in SWITCHES:
                depth -= 1
            if depth < 0 or depth > 8:
                return None
            if not self._is_pure(current):
                if depth or current.op_type in CONTROL_FLOW_OF_TF1:
                    return None
                effects[current] = None
                continue
            waiting += [(before, depth) for before in chain((v.producer for v in current.inputs), current.control_inputs)]
        return list(effects)


def _bridged(graph: Graph, node: Node) -> list[Node]:
    """Remove a node, and let what waited for it wait for what it needed; returns both, which may have become useless."""
    before, after = [*(v.producer for v in node.inputs), *node.control_inputs], node.control_consumers
    reroute_control(before, node)
    graph.remove_node(node)
    return [*before, *after]


def _is_returned(graph: Graph, node: Node) -> bool:
    """Whether one of its values is an input or output; a control output is not meant, since that role can be handed on."""
    return graph.is_border(node) and any(value.producer is node for value in (*fed_values(graph), *fetched_values(graph)))


def _skip_identity(graph: Graph, node: Node) -> None:
    if node.op_type != "Identity" or node.control_inputs or graph.is_border(node) or "_class" in node.attrs:
        return
    value = node.inputs[0]
    source = value.producer
    if value.dtype.name == "resource" or source.op_type in REFERENCE_VARIABLES:
        return  # a snapshot of what may change
    if graph.collections_of(node):
        return  # TF1 asks for it by name when it imports the graph: the read of a variable, the pivot of a branch
    if node.control_consumers and source.op_type in CONTROL_FLOW_OF_TF1:
        return  # the anchor of a branch: says whether what waits for it runs
    if source.op_type in CONTROL_FLOW_OF_TF1 and any(c.op_type in CONTROL_FLOW_OF_TF1 for c in node.outputs[0].consumers):
        return
    graph.replace_uses(node.outputs[0], value)
    reroute_control([source], node)
    graph.remove_node(node)
