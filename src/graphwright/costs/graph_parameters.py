"""The parameters of a graph: the roles of its variables by collections, files and dataflow; constants that are weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from graphwright.analyze.collections import GLOBAL, LOCAL, METRICS, TRAINABLE, variables_in
from graphwright.analyze.constant_weights import find_constant_weights, weight_use
from graphwright.analyze.optimizer_state import find_optimizer_state
from graphwright.analyze.parameters import Parameter, ParameterKind, make_parameter, scope_of
from graphwright.analyze.variable_access import Access, find_accesses
from graphwright.analyze.variable_updates import INTEGERS, STATE_OF, effects_outside, is_other_state
from graphwright.costs.step_variables import StepVariables
from graphwright.ir.dtypes import element_count
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import node_of
from graphwright.ir.traits.arithmetic import LOOKUPS
from graphwright.ir.traits.values import is_constant
from graphwright.ir.traits.variables import READS_OF_ROWS, SAVES, VARIABLES, WHOLE_READS, updated_weight, variable_key
from graphwright.report.obtained import Obtained
from graphwright.source.meta_graph import SAVER
from graphwright.source.stored_variables import StoredVariable

_NAMED = 2


@dataclass(frozen=True, slots=True)
class GraphParameters:
    """Parameters of a graph, each variable once by key; keys that the graph reads for anything but saving; constants that are weights."""

    parameters: Mapping[str, Parameter]
    read: AbstractSet[str]
    constants: Sequence[Parameter]
    how: Mapping[str, str]


def graph_parameters(
    graph: Graph, stored: Sequence[StoredVariable], keys: Mapping[Value, str], step: StepVariables | None, captured: Iterable[Value] = ()
) -> GraphParameters:
    """Find the role of each variable of a graph by its key, and the constants that are weights."""
    savers = {node_of(held) for held in graph.collections[SAVER].references()} if SAVER in graph.collections else set[Node]()
    accesses = find_accesses(graph, keys, {node for node in graph.nodes if node.op_type not in SAVES and node not in savers})
    uses = _uses(accesses, graph, {v.key: element_count(v.shape) for v in stored})
    effects = {} if step is None else effects_outside(step.accesses, step.backward)
    read = set[str]() if step is None else {access.key for access in step.accesses if access.reads}
    trainable, trainable_how = _trainable(graph, stored, keys, accesses, step, uses)
    state = {v.key for v in stored if v.of_optimizer} | find_optimizer_state(graph, accesses, trainable, frozenset())
    if step is not None:
        state |= find_optimizer_state(step.graph, step.accesses, trainable, step.backward)
    listed = {name: _keys_of(graph, name, keys) for name in (LOCAL, METRICS, "global_step", "eval_step")}
    parts = {keys.get(e.value, ""): e.part_of for e in variables_in(graph.collections.get(GLOBAL)) if e.value is not None}
    names = _aliases(stored, keys)
    weights = {v.name for v in stored}
    parameters: dict[str, Parameter] = {}
    for variable in stored:
        key, use = variable.key, uses.get(variable.key, "")
        effect = effects.get(key, "")
        kind: ParameterKind = "non-trainable"
        if key in trainable:
            kind = "trainable"
        elif key in state:
            kind = "optimizer state"
        elif any(key in held for held in listed.values()) or is_other_state(variable.dtype.name, effect, key in read):
            kind = "other state"
            use = use or STATE_OF.get(effect, "") or ("metric" if key in listed[METRICS] else "")
        elif effect.startswith("moving average") and not use:
            use = effect
        part_of = parts.get(key, "")
        owner = scope_of(variable.name)
        scope = scope_of(owner) if owner in weights else None  # a slot of the optimizer lies where its weight does
        parameters[key] = make_parameter(
            variable.name, kind, variable.dtype, variable.shape, scope=scope, use=use, part_of=part_of, aliases=names.get(key, ())
        )
    constants = [*find_constant_weights(graph), *_captured_weights(captured, graph)]
    how = {"trainable": trainable_how} if trainable_how else {}
    how["variables"] = "read from the graph, its object graph and its collections; nothing was traced or run"
    if stored and len(set(keys.values())) < len(keys):
        how["variables"] += "; several handles of one variable count once"
    if constants or not stored:
        how["constant"] = "constants that reach the weight operand of an operation, maybe cast, transposed or dequantized"
    return GraphParameters(parameters, {access.key for access in accesses if access.reads}, constants, how)


def _uses(accesses: Iterable[Access], graph: Graph, elements: Mapping[str, int | None]) -> dict[str, str]:
    """Return the named uses of variables by key."""
    notes: dict[str, dict[str, None]] = defaultdict(dict)
    for access in accesses:
        if not access.reads or access.writes:
            continue
        if access.node.op_type in READS_OF_ROWS:
            notes[access.key]["embedding"] = None
        for value in access.node.outputs[:1]:
            whole = elements.get(access.key) if access.node.op_type in WHOLE_READS | VARIABLES else None
            use = weight_use(value, graph, whole)
            if access.node.op_type in LOOKUPS:
                use = "embedding"
            if use:
                notes[access.key].update(dict.fromkeys(use.split(", ")))
    return {key: ", ".join(uses) for key, uses in notes.items()}


def _trainable(
    graph: Graph,
    stored: Sequence[StoredVariable],
    keys: Mapping[Value, str],
    accesses: Sequence[Access],
    step: StepVariables | None,
    uses: Mapping[str, str],
) -> Obtained[frozenset[str]]:
    stated = frozenset(v.key for v in stored if v.trainable)
    if TRAINABLE in graph.collections:
        return Obtained(stated | frozenset(_keys_of(graph, TRAINABLE, keys)), "the collection TRAINABLE_VARIABLES")
    if any(v.trainable is not None for v in stored):
        return Obtained(stated, "the `trainable` flag of the variables")
    if not stored:
        return Obtained(stated, "")
    updated = {keys[weight] for weight in map(updated_weight, graph.nodes) if weight is not None and weight in keys}
    slots = find_optimizer_state(graph, accesses, updated, frozenset())
    if step is not None and step.backward:
        written = {a.key for a in step.accesses if a.writes and a.top in step.backward}
        state = slots | find_optimizer_state(step.graph, step.accesses, updated, step.backward)
        how = "by dataflow: what the step updates with gradients and the forward pass reads"
        return Obtained(frozenset(updated | written - state), how)
    if updated:
        return Obtained(frozenset(updated), "by dataflow: what operations of an optimizer update (their first input)")
    how = (
        "the trained variables are unknown (no collection, no object graph, no training step): float variables that are read count as "
        "trainable, moving statistics of batch norms do not"
    )
    return Obtained(frozenset(v.key for v in stored if v.dtype.name not in INTEGERS and "moving average" not in uses.get(v.key, "")), how)


def _keys_of(graph: Graph, name: str, keys: Mapping[Value, str]) -> set[str]:
    entries = variables_in(graph.collections.get(name))
    return {keys.get(e.value, variable_key(e.value)) for e in entries if e.value is not None}


def _aliases(stored: Sequence[StoredVariable], keys: Mapping[Value, str]) -> dict[str, tuple[str, ...]]:
    handles: dict[str, list[str]] = defaultdict(list)
    for value, key in keys.items():
        handles[key].append(value.producer.name)
    return {v.key: tuple(n for n in handles[v.key] if n != v.name) for v in stored if len(handles[v.key]) >= _NAMED}


def _captured_weights(captured: Iterable[Value], graph: Graph) -> Iterator[Parameter]:
    for value in captured:
        # TensorFlow may list a captured tensor that it has made a constant of: then it is found as such.
        use = None if is_constant(value.producer) else weight_use(value, graph)
        if use is not None:
            yield make_parameter(value.producer.name, "constant", value.dtype, value.shape, use=use)
