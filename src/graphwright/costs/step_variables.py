"""The step of a graph: the nodes that it runs, and their accesses of variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from graphwright.analyze.backward import backward_nodes
from graphwright.analyze.collections import TRAIN_OPS
from graphwright.analyze.variable_access import Access, find_accesses
from graphwright.analyze.variable_updates import describe_update
from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.edit.clone import clone
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import node_of
from graphwright.ir.traits.control_flow import is_call
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.variables import VARIABLES, updated_weight, variable_key
from graphwright.ir.walk import backward_reachable, forward_reachable
from graphwright.step.fetches import fetch
from graphwright.step.flatten import stateful_op_types
from graphwright.transform.inline_calls import inline_functions


@dataclass(frozen=True, slots=True)
class StepVariables:
    """The accesses of variables in a step: nodes of `graph`, which has no calls, and of the original graph that run."""

    description: str
    graph: Graph
    needed: AbstractSet[Node]
    original: AbstractSet[Node]
    accesses: Sequence[Access]
    backward: AbstractSet[Node]
    effects: Mapping[Node, str]


def choose_step(graph: Graph, outputs: Iterable[Any] | Any = None) -> tuple[str, list[Value], list[Node]]:
    """Return the step to look at: its description, fetched values and run nodes; "" if the graph has none."""
    if outputs is not None:
        return "what the outputs need", *fetch(graph, outputs)
    if graph.outputs or graph.control_outputs:
        return "one call", list(graph.outputs), list(graph.control_outputs)
    for key in TRAIN_OPS:
        if key in graph.collections:
            nodes = [node_of(held) for held in graph.collections[key].references()]
            return f"the train op of the collection {key!r}", [], nodes
    kernels = [node for node in graph.nodes if updated_weight(node) is not None]
    if kernels:
        return "what the optimizer's updates need, with what waits for them", [], list(forward_reachable(kernels))
    values = [value for signature in graph.signatures.values() for value in signature.outputs.values()]
    return f"the signatures {', '.join(graph.signatures)}" if values else "", values, []


def look_at_step(
    graph: Graph, keys: Mapping[Value, str], description: str, values: Sequence[Value], nodes: Sequence[Node]
) -> StepVariables:
    """Return the accesses of variables in a step. Calls are inlined in a copy of the needed part; the graph is not changed."""
    needed = backward_reachable([*(v.producer for v in values), *nodes])
    part = graph if set(values) == set(graph.outputs) else _only(graph, needed, values, nodes)
    if any(is_call(node, graph) for node in needed):
        # A function may call itself: then calls stay, and updates count as the call's.
        with suppress(GraphError, UnsupportedError):
            part = inline_functions(part, Purity(part, stateful_op_types(part)))
    if part is graph:
        return _look(description, graph, keys, needed, needed)
    run = backward_reachable([*(v.producer for v in part.outputs), *part.control_outputs])
    return _look(description, part, _keys_in(part, keys), run, needed)


def _look(
    description: str, graph: Graph, keys: Mapping[Value, str], needed: AbstractSet[Node], original: AbstractSet[Node]
) -> StepVariables:
    accesses = find_accesses(graph, keys, needed)
    effects = {access.node: describe_update(access) for access in accesses if access.writes}
    return StepVariables(description, graph, needed, original, accesses, backward_nodes(graph), effects)


def _only(graph: Graph, needed: AbstractSet[Node], values: Sequence[Value], nodes: Sequence[Node]) -> Graph:
    """Return a graph of the needed part, with the fetched values as outputs, as dataflow analyses expect."""
    part = Graph(graph.name, functions=graph.functions, versions=graph.versions)
    copied = clone([node for node in graph.nodes if node in needed], into=part, input_map={})
    part.inputs = [copied.value_of[v] for v in graph.inputs if v in copied.value_of]
    part.outputs = [copied.value_of[v] for v in dict.fromkeys(values)]
    part.control_outputs = [copied.node_of[n] for n in dict.fromkeys(nodes)]
    return part


def _keys_in(flat: Graph, keys: Mapping[Value, str]) -> dict[Value, str]:
    """Return the keys of variables in a copy; variables made in functions are known by their shared names."""
    by_name = {value.name: key for value, key in keys.items()}
    by_variable = {variable_key(value): key for value, key in keys.items()}
    flat_keys = {value: by_name[value.name] for value in flat.inputs if value.name in by_name}
    for node in flat.nodes:
        if node.op_type in VARIABLES:
            own = variable_key(node.outputs[0])
            flat_keys[node.outputs[0]] = by_name.get(node.outputs[0].name) or by_variable.get(own, own)
    return flat_keys
