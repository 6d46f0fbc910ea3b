"""Take the branch that is sure to be taken.

An If or Case with a constant predicate is a call of one function, and a loop whose condition is a constant `false` hands on what it
starts with. A loop of a few rounds is as many calls.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import partial

from graphwright.analyze.trip_counts import counted_loop, follow_loop, number_behind
from graphwright.analyze.unknown_shapes import is_counted_in_data
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.constants import constant_array
from graphwright.ir.edit.inline import inline
from graphwright.ir.edit.reroute import replace_node, reroute_control
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import BRANCHES, CALLS_LIKE, LOOPS, called_functions, function_at
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import is_open, origin
from graphwright.transform.inline_calls import inline_calls

_MOST_UNROLLED = 10_000  # nodes


def take_known_branches(graph: Graph, purity: Purity, *, kept: Container[Node] = ()) -> int:
    """Replace branches and loops of TF2 whose way is a constant; returns how many. What is called is inlined.

    Args:
        purity: tells which nodes have no effects, for `ir.edit.inline`.
        kept: nodes that stay, such as those that are fetched by name.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''graph "g"
    ... inputs %x:0
    ... outputs %y:0
    ... %x = Placeholder() : float32[2]
    ... %p = Const() {dtype = bool, value = tensor bool[] [true]} : bool[]
    ... %if = StatelessIf(%p:0, %x:0) {then_branch = @relu, else_branch = @relu, Tin = [float32], Tout = [float32]} : float32[2]
    ... %y = Neg(%if:0) {T = float32} : float32[2]
    ... function "relu"
    ... inputs %a:0
    ... outputs %r:0
    ... %a = _Arg() : float32[2]
    ... %r = Relu(%a:0) {T = float32} : float32[2]
    ... ''')
    >>> take_known_branches(g, Purity(g, {})), g["y"]
    (1, <Node y = Neg(if/r:0)>)
    """
    taken = 0
    for node in graph.nodes:
        if not graph.owns(node) or node in kept or graph.collections_of(node):
            continue
        if node.op_type in BRANCHES:
            name = _branch(node)
            if name is not None and name in graph.functions:
                _call(graph, node, name, purity)
                taken += 1
        elif node.op_type in LOOPS and _never_runs(graph, node):
            graph.replace_many_uses(dict(zip(node.outputs, node.inputs, strict=True)))
            reroute_control([*node.control_inputs, *(v.producer for v in node.inputs)], node)
            graph.remove_node(node)
            taken += 1
    return taken


def _branch(node: Node) -> str | None:
    """The function that a branch is sure to call."""
    chosen = constant_array(origin(node.inputs[0]).producer)
    if chosen is None or chosen.size != 1:
        return None
    names = called_functions(node, "branches")
    if names:
        index = int(chosen.item())
        return names[index if 0 <= index < len(names) else -1]
    return next(iter(called_functions(node, "then_branch" if bool(chosen.item()) else "else_branch")), None)


def _call(graph: Graph, node: Node, name: str, purity: Purity) -> None:
    call = _add_call(graph, node, name, "taken", node.inputs[1:])
    replace_node(node, call)
    inline(call, purity=purity)


def _add_call(graph: Graph, node: Node, name: str, scope: str, inputs: Sequence[Value], before: Iterable[Node] = ()) -> Node:
    return graph.add_node(
        CALLS_LIKE[node.op_type],
        graph.unique_name(f"{node.name}/{scope}"),
        inputs=inputs,
        control_inputs=before,
        attrs={
            "f": FunctionReference(name),
            "Tin": tuple(value.dtype for value in inputs),
            "Tout": tuple(value.dtype for value in node.outputs),
        },
        output_types=[(value.dtype, value.last_shape) for value in node.outputs],
        device=node.device,
    )


def unroll_loops(graph: Graph, purity: Purity) -> int:
    """Replace loops of a few rounds by these rounds, where sizes inside hang on the round, and are known then; returns how many.

    So are parts of a batch sized whose borders are computed of the number of the round.

    Args:
        graph: flat; each round is inlined.
        purity: tells which nodes have no effects, for `ir.edit.inline`.
    """
    unrolled = 0
    for node in [node for node in graph.nodes if node.op_type in LOOPS]:
        loop, function = counted_loop(node), function_at(node, "body", graph)
        open_ = [n for n in function.body.nodes if any(map(is_open, n.outputs))] if function is not None else []
        if loop is None or function is None or not open_ or any(map(is_counted_in_data, open_)):
            continue
        number = partial(number_behind, constant=lambda value: constant_array(value.producer), example={})
        trip, _ = follow_loop(loop, [number(origin(value)) for value in node.inputs], number)
        if trip.kind != "exact" or trip.count * len(function.body) > _MOST_UNROLLED:
            continue
        for value, exact in function.body.at_most.items():
            value.shape = exact
        function.body.at_most.clear()
        place, values, calls = graph.nodes.index(node), node.inputs, list[Node]()
        for k in range(trip.count):
            calls.append(_add_call(graph, node, function.name, f"round_{k}", values, calls[-1:] or node.control_inputs))
            values = calls[-1].outputs
        graph.replace_many_uses(dict(zip(node.outputs, values, strict=True)))
        reroute_control(calls[-1:] or node.control_inputs, node)
        graph.remove_node(node)
        others = [n for n in graph.nodes if n not in calls]
        graph.sort_nodes([*others[:place], *calls, *others[place:]])
        unrolled += 1
    if unrolled:
        inline_calls(graph, purity, strict=False, compiled=False)
    return unrolled


def _never_runs(graph: Graph, node: Node) -> bool:
    condition = function_at(node, "cond", graph)
    value = constant_array(origin(condition.body.outputs[0]).producer) if condition is not None else None
    return value is not None and value.size == 1 and not bool(value.item())
