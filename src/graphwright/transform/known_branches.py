"""Replace branches and loops that constants decide.

An If or Case with a constant predicate becomes a call of one function, and a loop whose condition is constant `false` its initial values. A
`Switch` of TF1 with a constant predicate becomes an identity, a `Merge` its only live input, and dead nodes are removed. A short loop
becomes one call per round.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import partial

import numpy as np

from graphwright.analyze.storages import Scalar
from graphwright.analyze.trip_counts import counted_loop, follow_loop, number_behind, scalar_value
from graphwright.analyze.unknown_shapes import is_counted_in_data
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.constants import add_constant, constant_array
from graphwright.ir.edit.inline import inline
from graphwright.ir.edit.insert import add_op
from graphwright.ir.edit.library import copy_function, unique_function_name
from graphwright.ir.edit.prune import remove_unread
from graphwright.ir.edit.reroute import replace_node, reroute, reroute_control, set_control_inputs, take_name
from graphwright.ir.function_names import with_functions
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.traits.control_flow import (
    BRANCHES,
    CALL_TYPES,
    CALLS_LIKE,
    IDENTITY_OF_TF1,
    LOOPS,
    MERGES,
    RUNS_WHEN_DEAD,
    SWITCHES,
    called_functions,
    function_at,
    is_back_edge,
    is_loop_condition,
)
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import is_open, origin, returned_arguments
from graphwright.ir.walk import fetched_values, order_of
from graphwright.transform.inline_calls import inline_calls

_MOST_UNROLLED = 10_000  # nodes
_number = partial(number_behind, constant=lambda value: constant_array(value.producer), example={})


def take_decided_branches(graph: Graph, copies: dict[tuple[str, Sequence[Scalar | None]], str] | None = None) -> int:
    """Call `take_known_branches` until none is left, also in copies of functions that get a deciding constant as an argument.

    Args:
        copies: a function and its constant arguments -> the name of its copy, or of the function if they decide nothing.
    """
    copies = {} if copies is None else copies
    taken = 0
    while more := take_known_branches(graph, Purity(graph, {})):
        taken += more
    for node in graph.nodes if graph.functions else ():
        numbers, new_of = _constant_arguments(node), dict[str, str]()
        for name in called_functions(node) if any(number is not None for number in numbers) else ():
            if (key := (name, numbers)) not in copies:
                copies[key] = name  # a function that calls itself
                copy = _with_constants(graph.functions[name], numbers)
                if take_decided_branches(copy, copies):
                    copies[key] = copy.name
                else:
                    del graph.functions[copy.name]
            if copies[key] != name:
                new_of[name] = copies[key]
        for attribute in [key for key in node.attrs if new_of.keys() & set(called_functions(node, key))]:
            graph.set_attr(node, attribute, with_functions(node.attrs[attribute], new_of))
        taken += len(new_of)
    return taken


def _constant_arguments(node: Node) -> Sequence[Scalar | None]:
    """Return the constant arguments of the functions of a call, branch or loop; None for others."""
    if node.op_type not in CALL_TYPES | BRANCHES | LOOPS or any(name not in node.graph.functions for name in called_functions(node)):
        return ()
    inputs = node.inputs[1:] if node.op_type in BRANCHES else node.inputs
    numbers = [_known(value) if value.shape == () else None for value in inputs]
    body = function_at(node, "body", node.graph) if node.op_type in LOOPS else None
    returned = range(len(numbers)) if body is None else returned_arguments(body.body)
    return tuple(number if k == same else None for k, (number, same) in enumerate(zip(numbers, returned, strict=True)))


def _with_constants(function: Function, numbers: Sequence[Scalar | None]) -> Graph:
    body = copy_function(function, unique_function_name(function.body, f"{function.name}_decided"), function.body, {}).graph
    for argument, number in zip(body.inputs, numbers, strict=False):
        if number is not None:
            constant = add_constant(body, f"{argument.producer.name}/constant", np.array(number), dtype=argument.dtype)
            reroute(constant, argument, borders=False)
    return body


def _known(value: Value) -> Scalar | None:
    return scalar_value(value, {}, _number)


def take_known_branches(graph: Graph, purity: Purity, *, kept: Container[Node] = ()) -> int:
    """Replace branches and loops that constants decide, and inline the functions that are taken; returns how many.

    Nodes in `kept` stay, such as those that are fetched by name.
    """
    taken = _take_known_switches(graph, kept)
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


def _take_known_switches(graph: Graph, kept: Container[Node]) -> int:
    """Replace switches with a constant predicate and merges with one live input by identities, and remove dead nodes."""
    dead, taken = set[Node | Value](), dict[Node, tuple[Value, int]]()
    for node in order_of(graph.nodes) if any(node.op_type in SWITCHES for node in graph.nodes) else ():
        entering = [value for value in node.inputs if not is_back_edge(value, node)]
        live = [value for value in entering if value not in dead]
        waits_for_dead = len(live) < len(entering) or not dead.isdisjoint(node.control_inputs)
        if node.op_type in RUNS_WHEN_DEAD:
            waits_for_dead = bool(entering) and not live
            set_control_inputs(graph, node, [before for before in node.control_inputs if before not in dead])
            if len(live) == 1 < len(entering):
                taken[node] = node.outputs[0], node.inputs.index(live[0])
        if waits_for_dead:
            dead.update((node, *node.outputs))
        elif node.op_type in SWITCHES and not is_loop_condition(node.inputs[1].producer) and (number := _known(node.inputs[1])) is not None:
            taken[node] = node.outputs[int(number)], 0
            dead.update(value for value in node.outputs if value is not taken[node][0])
    graph.control_outputs = [node for node in graph.control_outputs if node not in dead or node in kept]
    fetched = fetched_values(graph)
    for kind in (MERGES, SWITCHES):  # merges first: they read dead nodes, which read switches
        for node, (old, k) in taken.items():
            others_read = any(value.uses for value in node.outputs if value is not old and value not in dead)
            if node.op_type in kind and node not in kept and not others_read and (old.uses or old in fetched):
                op_type, inputs, types = IDENTITY_OF_TF1[node.op_type], [node.inputs[k]], (old.dtype, old.last_shape)
                waits, device = node.control_inputs, node.device
                new = add_op(graph, op_type, node.name, inputs, *types, control_inputs=waits, device=device, T=node.attrs["T"])
                graph.replace_uses(old, new)
                take_name(graph, node, new.producer)
        remove_unread(graph, [node for node in graph.nodes if node in dead], lambda node: node in dead and node not in kept)
    return sum(not graph.owns(node) for node in taken)


def _branch(node: Node) -> str | None:
    chosen = _known(node.inputs[0])
    if chosen is None:
        return None
    names = called_functions(node, "branches")
    if names:
        index = int(chosen)
        return names[index if 0 <= index < len(names) else -1]
    return next(iter(called_functions(node, "then_branch" if chosen else "else_branch")), None)


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
    """Unroll short loops in which sizes depend on the round, as for parts of a batch; returns how many loops.

    Args:
        graph: a flat graph; each round is inlined.
        purity: which nodes have no effects, for `ir.edit.inline`.
    """
    unrolled = 0
    for node in [node for node in graph.nodes if node.op_type in LOOPS]:
        loop, function = counted_loop(node), function_at(node, "body", graph)
        open_ = [n for n in function.body.nodes if any(map(is_open, n.outputs))] if function is not None else []
        if loop is None or function is None or not open_ or any(map(is_counted_in_data, open_)):
            continue
        trip, _ = follow_loop(loop, [_number(origin(value)) for value in node.inputs], _number)
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
    return condition is not None and _known(condition.body.outputs[0]) in (False, 0)
