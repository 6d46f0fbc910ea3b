"""`inspect`: the costs of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from graphwright.analyze.flop_tally import UNKNOWN_DIRECTIONS
from graphwright.analyze.time_model import ASSUMED_ROOFS
from graphwright.costs.cost_rows import complete_layers, node_costs, op_type_rows
from graphwright.costs.peak import check_order, step_peak
from graphwright.costs.profile import profile_traced
from graphwright.costs.xla_peak import by_operation
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph
from graphwright.memory.planning import map_tasks, stated_bound
from graphwright.plan.model import Schedule
from graphwright.plan.solve import lower_bound
from graphwright.report.inspection import Inspection
from graphwright.report.parameter_table import short_count
from graphwright.report.peak_prediction import Order
from graphwright.report.progress import tell
from graphwright.run.measure import measure as measure_step
from graphwright.run.roofs import measure_roofs
from graphwright.run.traced_step import TracedStep
from graphwright.source.private_keras import layer_classes
from graphwright.source.tracebacks import innermost_line
from graphwright.step.example_inputs import MADE_UP, runnable
from graphwright.step.flatten import flat_step
from graphwright.step.keras_step import is_keras_model
from graphwright.step.summary import Roles, count_executed, count_parameters, find_roles, make_layers, make_timeline, output_shapes
from graphwright.step.targets import Feed, Mode, about_a_step, trace

_HOW = {
    "parameters": "sizes of the variables that the step captures; optimizer state is what updates write and the forward pass never reads",
    "FLOPs": "counted per operation from static shapes, a multiply-add as two; operations in loops count every round",
    "bytes moved": "each input of an operation read once and each output written once, views not at all",
    "estimated time": "per operation, FLOPs or bytes moved over an assumed rate, whichever takes longer; good for ratios only",
    "layers": "by name scope, called as model.summary() calls them; activations are all forward outputs of a layer, kept or not",
    "roles": "by dataflow: backward is what depends on the gradient of the loss",
    "lower bound": "the largest need of one operation: no order and no recomputation needs less",
}


@about_a_step
def inspect(
    target: Any,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    *,
    mode: Mode = "auto",
    batch: int | None = None,
    measure: bool = False,
    profile: bool = False,
    order: Order = "executor",
) -> Inspection:
    """Return the costs of a step: peak memory and its live tensors, parameters, FLOPs, per layer.

    Memory is that of the step as TensorFlow's executor runs it (see `predict_peak`). The peak of a step that XLA compiles comes from
    XLA's own buffer assignment; its memory over time and layers are those of the graph, operation by operation.

    Args:
        target: a `tf.function`, a `ConcreteFunction`, a Keras model, the path of a `.keras` file, a SavedModel or a graph; a `tf.Graph`, a
            `GraphDef`, a `Graph`.
        order: "traced" for memory in the order in which the step was traced, which is predicted faster.
        measure: whether to measure the peak in a fresh process, on the inputs or on made-up ones.
        profile: whether to measure the time of each operation there too, and the roofs of this machine. Both need `trust(path)` for a file.

    Raises:
        UnknownShapeError: a dimension is unknown; the message names the argument to bind.
        ArgumentError, UnsupportedError, FileFormatError: the target cannot be traced or read.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda x: tf.reduce_sum(tf.nn.relu(x)))
    >>> report = inspect(step, feeds={"x": (256, 1024)})
    >>> report.peak_bytes >= 2 * 256 * 1024 * 4
    True
    >>> "output shape" in report.with_table(depth=1, columns=("shape", "flops")).text("layers")
    True
    """
    check_order(order)
    runs = measure or profile
    traced = trace(target, feeds=feeds, inputs=inputs, outputs=outputs, mode=mode, batch=batch, runs=runs)
    made_up = measure and not traced.is_runnable
    if measure:
        traced = runnable(traced)
        tell("measuring the step in separate processes")
    inspection = _inspect(traced, order, measured=measure_step(traced, None) if measure else None)
    if made_up:
        inspection = replace(inspection, how={**inspection.how, "inputs": MADE_UP})
    if not profile:
        return inspection
    tell("measuring the time of each operation")
    profiled = profile_traced(traced).step
    tell("measuring what this machine can do")
    return inspection.with_profile(profiled, measure_roofs())


@garbage_collection_paused()
def _inspect(traced: TracedStep, order: Order, measured: Any) -> Inspection:
    flat = flat_step(traced)
    tasks = map_tasks(flat)
    roles = find_roles(tasks, innermost_line(traced.function))
    peak = step_peak(traced, flat, tasks, order, roles)
    timeline, peak_bytes = peak.timeline or make_timeline(tasks, Schedule(tasks.costs.order), roles), peak.peak_bytes
    how = {**by_operation(_HOW, traced, "lower bound", "bytes moved"), **flat.how, **peak.how}
    bound_bytes, bound_words = stated_bound(tasks, lower_bound(tasks.costs), roles.layers, timeline.peak_bytes)
    execution, counted = count_executed(flat.graph, roles)
    nodes, time_by_op_type = node_costs(execution, roles.layers)
    layers = make_layers(tasks, roles, timeline, None)
    if counted.whole.flops["undivided"]:
        how["roles"] = f"residuals and gradients are {UNKNOWN_DIRECTIONS}"
    return Inspection(
        name=traced.name,
        feeds=traced.feeds,
        node_count=len(flat.graph),
        parameters=short_count(count_parameters(flat.graph, roles)),
        **counted.whole.by_direction,
        unknown_flop_ops=tuple(sorted(counted.unknown_reason)),
        timeline=timeline,
        layers=complete_layers(layers, counted.per_layer, nodes),
        peak_bytes=peak_bytes,
        resident_bytes=tasks.costs.resident_bytes,
        lower_bound_bytes=bound_bytes,
        lower_bound_reason=f"{bound_words}: {100 * bound_bytes / max(peak_bytes, 1):.0f} % of the peak",
        how=how,
        measured=measured,
        executor=None if peak.order == "traced" else peak,
        bytes_moved=counted.whole.bytes_moved,
        op_types=op_type_rows(counted, time_by_op_type),
        nodes=nodes,
        roofs=ASSUMED_ROOFS,
        graph=flat.graph,
        output_shapes=output_shapes(tasks, roles),
        layer_origins=_origins(traced, flat.graph, roles),
    )


def _origins(traced: TracedStep, graph: Graph, roles: Roles) -> dict[str, tuple[str, str]]:
    """Return, by layer, its Keras class and the line of Python that made its first operation outside of the backward pass."""
    classes = layer_classes(traced.owner) if is_keras_model(traced.owner) else {}
    lines: dict[str, str] = {}
    for node in graph.nodes:
        if node not in roles.backward and (line := roles.line(node.name)):
            lines.setdefault(roles.layers.of(node.name), line)
    return {layer: (classes.get(layer, ""), lines.get(layer, "")) for layer in {**classes, **lines}}
