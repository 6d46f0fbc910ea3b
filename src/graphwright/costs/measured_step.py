"""TensorFlow's records of a step, joined with the graph of the step: the operation of each run, and its part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from graphwright.analyze.backward import backward_nodes
from graphwright.analyze.directions import Direction, find_directions
from graphwright.analyze.layers import Layers, find_layers
from graphwright.analyze.parameters import WEIGHTS
from graphwright.analyze.step_profile import OpRun, SourceLine, StepProfile
from graphwright.errors import GraphwrightError
from graphwright.ir.dtypes import element_count
from graphwright.ir.graph import Graph
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.walk import topological_order
from graphwright.ops.flops import node_flops
from graphwright.ops.traffic import bytes_moved
from graphwright.run.executed_graph import plain_op_type
from graphwright.run.record_step import RecordedStep
from graphwright.run.step_session import executed_graph_def
from graphwright.run.step_stats import NodeRun, read_memory, read_runs, written_name
from graphwright.run.traced_step import TracedStep
from graphwright.source.graph_def import from_graph_def
from graphwright.source.tracebacks import creation_lines, innermost_line, scopes
from graphwright.step.flatten import counted_graph
from graphwright.step.summary import variable_kinds

_MADE_BY_GRAPPLER = ("ConstantFolding/", "ArithmeticOptimizer/", "LayoutOptimizer/")


def join_records(traced: TracedStep, recorded: RecordedStep) -> StepProfile:
    stats = recorded.metadata.step_stats
    runs = read_runs(stats)
    start_ns = min(run.start_ns for run in runs)
    executed = _executed(recorded, runs)
    names = {node.name: written_name(node.name) for node in executed.nodes}
    directions, parameters, layers = _parts(traced, executed, names)
    costs = {node.name: (node.op_type, node_flops(node), bytes_moved(node)) for node in executed.nodes}
    return StepProfile(
        name=traced.name,
        runs=tuple(_op_run(run, costs, names, directions, start_ns) for run in runs),
        memory=read_memory(stats, start_ns),
        step_time_s=(max(run.end_ns for run in runs) - start_ns) * 1e-9,
        step_times_s=recorded.times_s,
        plain_time_s=median(recorded.plain_times_s),
        parameters=parameters,
        inputs={names[n.name]: tuple(dict.fromkeys(names[v.producer.name] for v in n.inputs)) for n in executed.nodes},
        sources=_sources(traced.function, names),
        layers=layers,
    )


def _op_run(
    run: NodeRun,
    costs: Mapping[str, tuple[str, float | None, float | None]],
    names: Mapping[str, str],
    directions: Mapping[str, Direction],
    start_ns: int,
) -> OpRun:
    op_type, flops, moved = costs.get(run.name, ("kernel" if run.on_accelerator else "", None, None))
    name = names.get(run.name) or written_name(run.name)
    # The work of kernels counts once: with the run of the host that started them.
    return replace(
        run,
        shapes=(),
        name=name,
        op_type=op_type or "unknown",
        start_ns=run.start_ns - start_ns,
        end_ns=run.end_ns - start_ns,
        direction=directions.get(name, "forward"),
        flops=None if run.on_accelerator else flops,
        bytes_moved=None if run.on_accelerator else moved,
    )


def _executed(recorded: RecordedStep, runs: list[NodeRun]) -> Graph:
    """Return the graph that ran, with the shapes of the first run of each node."""
    graph = from_graph_def(executed_graph_def(recorded.metadata.partition_graphs), file_order=True)
    for node in graph.nodes:
        for value in node.outputs:
            value.shape = None
        plain = plain_op_type(node.op_type)
        if plain != node.op_type:
            graph.set_op_type(node, plain)
    seen: set[str] = set()
    for run in runs:
        if run.name in seen or run.on_accelerator or run.name not in graph:
            continue
        seen.add(run.name)
        outputs = graph[run.name].outputs
        for slot, shape in run.shapes:
            if slot < len(outputs):
                outputs[slot].shape = shape
    return graph


def _parts(traced: TracedStep, executed: Graph, names: Mapping[str, str]) -> tuple[dict[str, Direction], dict[str, int], Layers]:
    """Return the direction by name of each node that ran, elements of weights by the node that reads them first, and layers."""
    try:
        flat, _ = counted_graph(traced)
    except GraphwrightError:  # a step that cannot be flattened can be measured: its parts follow from the graph that ran
        return {names[node.name]: direction for node, direction in find_directions(executed).items()}, {}, find_layers(executed)
    of_node = find_directions(flat)
    known: dict[str, Direction] = {node.name: direction for node, direction in of_node.items()}
    for node, direction in of_node.items():
        if direction == "forward":  # a loop that is forward as a whole may hold training steps
            for name in called_functions(node):
                for inner, found in find_directions(flat.functions[name].body).items() if name in flat.functions else ():
                    known.setdefault(inner.name, found)
    parameters: dict[str, int] = {}
    kinds = variable_kinds(flat, backward_nodes(flat))
    for value, variable in flat.variables.items():
        readers = [node for node in value.consumers if of_node[node] == "forward"] or list(value.consumers)
        if kinds[value] in WEIGHTS and readers:
            parameters[readers[0].name] = parameters.get(readers[0].name, 0) + (element_count(variable.shape) or 0)
    layers = find_layers(flat).with_lines(innermost_line(traced.function), (node.name for node in flat.nodes))
    return _spread(executed, names, known), parameters, layers


def _spread(executed: Graph, names: Mapping[str, str], known: Mapping[str, Direction]) -> dict[str, Direction]:
    """Return directions of the nodes that ran: by name, by scope of a loop or call, or by the nodes that they read."""
    directions: dict[str, Direction] = {}
    for node in executed.nodes:
        name = names[node.name]
        of_grappler = next((prefix for prefix in _MADE_BY_GRAPPLER if name.startswith(prefix)), None)
        written = name if of_grappler is None else name.removeprefix(of_grappler).rpartition("_")[0]
        tried = (name, written, *scopes(node.name))
        direction: Direction | None = next((known[scope] for scope in tried if scope in known), None)
        if direction is not None:
            directions[name] = direction
    for node in topological_order(executed):
        name = names[node.name]
        if name not in directions:
            before = {directions.get(names[value.producer.name], "forward") for value in node.inputs}
            directions[name] = "optimizer" if "optimizer" in before else "backward" if "backward" in before else "forward"
    return directions


def _sources(function: Any, names: Mapping[str, str]) -> dict[str, tuple[SourceLine, ...]]:
    lines_of = creation_lines(function)
    result: dict[str, tuple[SourceLine, ...]] = {}
    for name, written in names.items():
        found = lines_of(written) or next((lines for scope in scopes(name) if (lines := lines_of(scope))), ())
        if found:
            result[written] = tuple(SourceLine(*line) for line in found)
    return result
