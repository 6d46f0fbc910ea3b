"""Replaces a call by the body of its function, with the order and effects that a call guarantees."""

from collections.abc import Iterable, Sequence

from graphwright.errors import GraphError
from graphwright.ir.edit.clone import CloneResult, clone
from graphwright.ir.edit.insert import add_identity
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.subgraph import graph_of
from graphwright.ir.traits.control_flow import CONTROL_FLOW_OF_TF1, ENTERS, EXITS, MERGES, SWITCHES, callee
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import ARGUMENTS, GIVEN, only_orders
from graphwright.ir.traits.variables import opens_variable, reads_resource
from graphwright.ir.walk import consumers_of, fed_values, order_of, producers_of, reached


def inline(call: Node, *, purity: Purity | None = None, strict: bool = True) -> CloneResult:
    """Replace a call by the body of its function; the nodes are named `<call>/<node>`. Return their copies.

    The guarantees of a call still hold. Nodes of the body that have effects or read a resource wait for what the call waited for. Nodes
    that waited for the call wait for the effects of the body, and for everything before the call. A result that does not depend on the
    effects gets an `Identity` `<call>/result` that waits for them. Nodes without a device get the device of the call. TensorFlow lists
    the nodes with effects as control outputs of a function; in old functions without, each node that is not known to be pure counts.

    Args:
        call: a `PartitionedCall`, a `StatefulPartitionedCall`, or a node whose op type is a function.
        purity: tells which nodes have no effects; by default `ir.traits` does.
        strict: whether the results wait for the effects, and whether what waited for the call waits for the producers of its arguments.

    Raises:
        GraphError: the node is not a plain call, or the function is not in the library.
    """
    graph = graph_of([call])
    body = _body_of(call)
    effects = _Effects(call, body, purity or Purity(graph, {}))
    sources = dict(zip((v.producer for v in body.inputs), (v.producer for v in call.inputs), strict=True))
    arguments = dict(zip(body.inputs, call.inputs, strict=True))
    result = clone(effects.inner, into=graph, input_map=arguments, control_map=sources, scope=call.name)
    for copy in result.nodes:
        copy.device = copy.device or call.device
        if isinstance(frame := copy.attrs.get("frame_name"), bytes):  # a function that is called twice makes two loops
            graph.set_attr(copy, "frame_name", f"{call.name}/".encode() + frame)

    before = joined(graph, call.control_inputs, f"{call.name}/start")
    for node in effects.waiting if before else ():
        graph.add_control_input(result.node_of[node], before[0])
    changes = [result.node_of[node] for node in effects.changing]
    late = effects.late_results() if strict else frozenset[int]()
    held = joined(graph, changes, f"{call.name}/effects") if late else []
    new_of: dict[Value, Value] = {}
    for k, (output, returned) in enumerate(zip(call.outputs, body.outputs, strict=True)):
        value = result.value_of[returned]
        new_of[output] = add_identity(value, f"{call.name}/result", control_inputs=held).outputs[0] if k in late else value
    if call.control_consumers or (graph.is_border(call) and call in graph.control_outputs):
        ordered = [result.node_of[node] for node in effects.ordered]  # which wait for what the call waited for
        ends = held if held and len(changes) == len(ordered) else ordered or before
        producers = [source for source in sources.values() if not _is_given(source)] if strict else []
        reroute_control(joined(graph, [*ends, *producers] or (sources.values() if strict else ()), f"{call.name}/done"), call)
    graph.replace_many_uses(new_of)
    graph.remove_node(call)
    return result


def joined(graph: Graph, nodes: Iterable[Node], name: str) -> list[Node]:
    """Return at most one node that runs after all of these, instead of an edge for each pair."""
    several = list(dict.fromkeys(nodes))
    return several if len(several) < 2 else [graph.add_node("NoOp", graph.unique_name(name), control_inputs=several)]


class _Effects:
    """The effects of a body: `inner`, the copied nodes in an order in which they can run; `waiting`, the first nodes that must wait for
    what the call waited for; `ordered`, the nodes that must have run when the call has; `changing`, the nodes of `ordered` that change
    something.
    """

    def __init__(self, call: Node, body: Graph, purity: Purity) -> None:
        arguments = {v.producer for v in body.inputs}
        self.inner = order_of(node for node in body if node not in arguments)
        listed = body.control_outputs or call.op_type == "PartitionedCall"
        inside = _inside_of_tf1(self.inner)
        if listed:
            self.ordered = dict.fromkeys(node for node in body.control_outputs if node not in arguments)
            self.changing = [node for node in self.ordered if purity.changes_something(node)]
        else:
            inert = ARGUMENTS | CONTROL_FLOW_OF_TF1
            impure = {node: None for node in self.inner if not (purity.is_pure(node) or only_orders(node) or node.op_type in inert)}
            self.ordered = _outside(impure | {node: None for node in self.inner if reads_resource(node)}, inside)
            self.changing = list(_outside(impure, inside))
        self.waiting = self._first({n for n in self.inner if n in self.ordered or reads_resource(n) or n in inside})
        self._results = body.outputs

    def _first(self, members: set[Node]) -> list[Node]:
        guarded: set[Node] = set()
        first: list[Node] = []
        for node in self.inner:
            if not guarded.isdisjoint(producers_of(node)):
                guarded.add(node)
            elif node in members:
                guarded.add(node)
                first.append(node)
        return first

    def late_results(self) -> frozenset[int]:
        if not self.changing:
            return frozenset()
        feeds: dict[Node, int] = {}  # node -> the results that depend on it, as bits
        for k, value in enumerate(self._results):
            feeds[value.producer] = feeds.get(value.producer, 0) | 1 << k
        for node in reversed(self.inner):
            for after in consumers_of(node):
                feeds[node] = feeds.get(node, 0) | feeds.get(after, 0)
        covered = (1 << len(self._results)) - 1
        for node in self.changing:
            covered &= feeds.get(node, 0)
        return frozenset(k for k in range(len(self._results)) if not covered >> k & 1)


def _inside_of_tf1(nodes: Sequence[Node]) -> set[Node]:
    """Return the nodes in loops and branches of TF1 and their inputs: a control edge that leaves a loop or a dead branch never fires."""
    inside: set[Node] = set()
    for starts, ends in ((ENTERS, EXITS), (SWITCHES, MERGES | EXITS)):
        seeds = (node for node in nodes if node.op_type in starts)
        inside.update(reached(seeds, lambda node, ends=ends: (after for after in consumers_of(node) if after.op_type not in ends)))
    return inside


def _outside(nodes: dict[Node, None], inside: set[Node]) -> dict[Node, None]:
    outside = {node: None for node in nodes if node not in inside}
    if len(outside) != len(nodes):
        outside.update((after, None) for node in inside for after in consumers_of(node) if after not in inside)
    return outside


def _is_given(node: Node) -> bool:
    return (node.op_type in GIVEN or opens_variable(node)) and not node.control_inputs


def _body_of(call: Node) -> Graph:
    graph = call.graph
    name = callee(call)
    function = graph.functions.get(name)
    if function is None:
        raise GraphError(
            f"{call.name!r} = {call.op_type} is not a call of a function in the library",
            where=f"node {call.name!r}",
            cause="only PartitionedCall, StatefulPartitionedCall and functions used as op types can be inlined",
        )
    body = function.body
    for k in range(len(body.inputs)):
        _check_argument(function, k)
    for role, have, want in (("inputs", call.inputs, body.inputs), ("outputs", call.outputs, body.outputs)):
        if [v.dtype for v in have] != [v.dtype for v in want]:
            raise GraphError(f"the {role} of {call.name!r} do not fit function {name!r}", where=f"node {call.name!r}")
    passed = dict(zip(body.inputs, call.inputs, strict=True))
    for output, result in zip(call.outputs, body.outputs, strict=True):
        if result in passed and passed[result].producer in output.consumers:
            raise GraphError(f"{passed[result].producer.name!r} reads {output.name} and makes it", where=f"node {call.name!r}")
    if any(v.producer is call for v in call.inputs):
        raise GraphError(f"{call.name!r} reads itself", where=f"node {call.name!r}")
    if graph.is_border(call) and any(v.producer is call for v in fed_values(graph)):
        raise GraphError(f"{call.name!r} is fed by the graph or a signature", where=f"node {call.name!r}")
    return body


def _check_argument(function: Function, index: int) -> None:
    value = function.body.inputs[index]
    node = value.producer
    if node.inputs or node.control_inputs or len(node.outputs) != 1:
        raise GraphError(
            f"argument {index} of function {function.name!r} is {value.name}, whose node is more than an argument",
            where=f"node {node.name!r}",
            remedy="let it be the only output of a node without inputs, such as _Arg",
        )
    if any(value in (*s.inputs.values(), *s.outputs.values()) for s in function.body.signatures.values()):
        raise GraphError(f"{value.name} is in a signature of the body", where=f"function {function.name!r}")
