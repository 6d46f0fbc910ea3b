"""`count_parameters`: the parameters of a model or step, and their uses in the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphwright.analyze.collections import summarize_collections
from graphwright.analyze.lookup_tables import find_tables
from graphwright.analyze.parameters import Parameter
from graphwright.analyze.update_checks import Finding, check_step, frozen_but_moving, update_ops_of
from graphwright.analyze.variable_access import Access
from graphwright.analyze.variable_updates import AVERAGE_OF_VARIABLE
from graphwright.costs.graph_parameters import graph_parameters
from graphwright.costs.keras_parameters import keras_parameters
from graphwright.costs.step_variables import StepVariables, choose_step, look_at_step
from graphwright.errors import ArgumentError
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph, Value
from graphwright.report.parameter_table import ParameterTable, SideEffect
from graphwright.run.traced_step import TracedStep
from graphwright.source.concrete_function import from_concrete_function
from graphwright.source.keras_file import read_keras_file
from graphwright.source.load import load, made_by
from graphwright.source.model_folder import KERAS_SUFFIXES
from graphwright.source.package import Package
from graphwright.source.private_tensorflow import traces_of
from graphwright.source.stored_variables import stored_variables
from graphwright.source.trust import as_path
from graphwright.step.fetches import is_graph
from graphwright.step.keras_step import is_keras_model
from graphwright.step.targets import Feed, Mode, about_a_step, read_target, trace

_NO_STEP = "no step was traced: give feeds, inputs or batch for that"
_HOW_STEP = {
    "optimizer state": "by dataflow: untrained variables of the backward pass that the forward pass does not compute with",
    "reads, writes": "nodes that the step runs, inside calls, branches and loops too; an op without a rule counts as writing",
    "side effects": "writes outside of the backward pass, and averages of weights; named by their arithmetic",
}


@about_a_step
def count_parameters(
    target: Any,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    *,
    mode: Mode = "auto",
    batch: int | None = None,
    depth: int | None = 2,
) -> ParameterTable:
    """Count the parameters of a model or a step: trainable, not trainable, optimizer state; by layer and by dtype.

    Shapes of inputs need not be known, and nothing is traced or run without need: a Keras model is asked for its variables, a file for its
    handles. Variables that share a name or an object count once. The constants of a frozen graph that are weights count too.

    If there is a step, the table also says which variables it reads and writes, what it updates by side effect, and warns of likely
    mistakes: UPDATE_OPS that the train op does not run, batch norms whose statistics nobody keeps, variables that are not trained,
    never read, or written twice without order. A function and a graph have a step; that of a Keras model is traced if feeds, inputs or a
    batch size are given.

    Args:
        target: as of `inspect`; a Keras model need not be compiled, a `tf.function` needs one trace.
        feeds: shape, or `tf.TensorSpec`, by argument name, for a function that has no trace and for the step of a Keras model.
        outputs: the fetches of one step of a graph: names, tensors or operations, such as the train op. By default its own outputs, the
            collection "train_op", the optimizer's updates, or its signatures.
        depth: the number of parts of a name in `by_layer` and the printed tree; None for all.

    Raises:
        ArgumentError: the target holds no graph, a layer of the model is not built, or a function has no trace or several.
        FileFormatError, GraphError: the file cannot be read.

    >>> import tensorflow as tf
    >>> weight, mean = tf.Variable(tf.ones([8, 2])), tf.Variable(tf.zeros([2]), trainable=False)
    >>> @tf.function(input_signature=[tf.TensorSpec([None, 8])])
    ... def step(x):
    ...     y = x @ weight
    ...     mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(y, 0))
    ...     return y - mean
    >>> table = count_parameters(step)
    >>> table.trainable, table.non_trainable, [(s.effect, s.variable) for s in table.side_effects]
    (16, 2, [('moving average', 'Variable')])
    """
    if depth is not None and depth < 1:
        raise ArgumentError(f"depth={depth} was given", argument="depth", remedy="give 1 or more, or None for whole names")
    target = made_by(target)
    if isinstance(target, str | Path) and Path(target).suffix in KERAS_SUFFIXES and Path(target).exists():
        target = read_keras_file(as_path(target), compiled=True)
    wants_step = feeds is not None or inputs is not None or batch is not None
    if wants_step and outputs is None:
        target = read_target(target)
    if is_keras_model(target):
        if outputs is not None:
            raise ArgumentError("a Keras model has outputs of its own", argument="outputs", remedy="leave it out: it is for graphs")
        traced = trace(target, feeds=feeds, inputs=inputs, mode=mode, batch=batch, open_batch=1) if wants_step else None
        return _of_model(target, traced, depth)
    if wants_step and not is_graph(target) and not isinstance(target, str | Path):
        traced = trace(target, feeds=feeds, inputs=inputs, batch=batch, open_batch=1)
        return _of_function(traced.name, traced.function, outputs, depth)
    if wants_step:  # the parameters of a graph do not depend on it; a feed that names nothing is an error all the same
        trace(target, feeds=feeds, inputs=inputs, outputs=outputs, mode=mode, batch=batch, open_batch=1)
    if hasattr(target, "get_concrete_function") and len(traces_of(target)) != 1 and getattr(target, "input_signature", None) is None:
        trace(target)  # which says what is missing
    graph = load(target)
    name = str((hasattr(target, "get_concrete_function") and getattr(target, "__name__", "")) or graph.name or "graph")
    package = graph.package
    if graph is not target and isinstance(package, Package) and package.keep_function is not None:
        return _of_function(name, package.keep_function, outputs, depth)
    return _of_graph(name, graph, outputs, depth, package.captures if isinstance(package, Package) else ())


def parameters_of(traced: TracedStep) -> ParameterTable:
    if is_keras_model(traced.owner):
        return _of_model(traced.owner, traced, None)
    return _of_function(traced.name, traced.function, None, None)


def _of_function(name: str, function: Any, outputs: Any, depth: int | None) -> ParameterTable:
    graph, binding = from_concrete_function(function, planned=False)
    return _of_graph(name, graph, outputs, depth, graph.inputs[binding.argument_count :])


@garbage_collection_paused()
def _of_graph(name: str, graph: Graph, outputs: Any, depth: int | None, captured: Iterable[Value]) -> ParameterTable:
    stored, keys = stored_variables(graph)
    description, values, nodes = choose_step(graph, outputs)
    step = look_at_step(graph, keys, description, values, nodes) if description and stored else None
    roles = graph_parameters(graph, stored, keys, step, [v for v in captured if v not in keys])
    parameters = (*roles.parameters.values(), *roles.constants)
    table = ParameterTable(name, parameters, depth, roles.how, find_tables(graph), summarize_collections(graph))
    return table if step is None else _with_step(table, roles.parameters, step, graph, read=roles.read)


def _of_model(model: Any, traced: Any, depth: int | None) -> ParameterTable:
    variables = keras_parameters(model, is_traced=traced is not None)
    parameters = {str(k): parameter for k, parameter in enumerate(variables.parameters)}
    if traced is None:
        return ParameterTable(str(model.name), tuple(variables.parameters), depth, {**variables.how, "reads, writes": _NO_STEP})
    graph, binding = from_concrete_function(traced.function, planned=False)
    stored, own_keys = stored_variables(graph)
    captures = zip(graph.inputs[binding.argument_count :], binding.captures, strict=True)
    key_of = {value: str(variables.handles[id(outer)]) for value, outer in captures if id(outer) in variables.handles}
    keys = {value: key_of.get(value, key) for value, key in own_keys.items()}
    step = look_at_step(graph, keys, traced.name, graph.outputs, graph.control_outputs)
    strange = [v for v in stored if v.key in set(keys.values())]
    if strange:  # variables of TensorFlow that no layer tracks
        others = graph_parameters(graph, strange, keys, step)
        parameters.update(others.parameters)
    table = ParameterTable(str(model.name), tuple(parameters.values()), depth, variables.how, tables=find_tables(graph))
    return _with_step(table, parameters, step, graph, from_model=True)


def _with_step(
    table: ParameterTable,
    parameters: Mapping[str, Parameter],
    step: StepVariables,
    graph: Graph,
    *,
    from_model: bool = False,
    read: AbstractSet[str] = frozenset(),
) -> ParameterTable:
    """Return the table with the uses of its parameters in the step; `read` are keys that the graph reads, in this step or not."""
    names = {key: parameter.name for key, parameter in parameters.items()}
    reads: dict[str, dict[str, None]] = {}
    writes: dict[str, dict[str, None]] = {}
    effects: dict[tuple[str, str, str], None] = {}
    for access in step.accesses:
        if access.key not in names:
            continue
        name = names[access.key]
        if access.reads:
            reads.setdefault(name, {})[access.path] = None
        if access.writes:
            writes.setdefault(name, {})[access.path] = None
            effect = step.effects[access.node]
            if not _is_training(access, parameters[access.key], effect, step):
                effects[name, effect, access.path] = None
    weights = {key for key, p in parameters.items() if p.kind in ("trainable", "non-trainable")}
    trainable = {key for key in weights if parameters[key].kind == "trainable"}
    part = step.graph, step.needed, step.accesses
    warnings: list[Finding] = check_step(
        *part, names, trainable, weights, update_ops=update_ops_of(graph), run=step.original, read_elsewhere=read
    )
    if step.backward:
        layers: dict[str, list[str]] = {}
        for key in weights:
            layers.setdefault(parameters[key].scope, []).append(names[key])
        moving = frozen_but_moving(layers, {name for name, effect, _ in effects if effect == "moving average"}, set(writes))
        warnings += [moving] if moving.names else []
    how = dict(_HOW_STEP)
    if from_model:
        del how["optimizer state"]
    elif (step.backward or writes) and not step.graph.outputs:
        how["optimizer state"] += "; fetch the loss beside the train op (outputs=[train_op, loss]), and gradients are found exactly"
    return replace(
        table,
        step=step.description,
        reads={name: tuple(nodes) for name, nodes in reads.items()},
        writes={name: tuple(nodes) for name, nodes in writes.items()},
        side_effects=tuple(SideEffect(*effect) for effect in effects),
        warnings=tuple(warnings),
        how={**how, **table.how} if from_model else {**table.how, **how},
    )


def _is_training(access: Access, parameter: Parameter, effect: str, step: StepVariables) -> bool:
    """Whether a write is the optimizer's, even if it does not depend on a known gradient."""
    if effect == AVERAGE_OF_VARIABLE:
        return False
    if access.top in step.backward or parameter.kind == "optimizer state":
        return True
    return parameter.kind == "trainable" and bool(step.backward) and effect != "moving average"
