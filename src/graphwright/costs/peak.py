"""`predict_peak`: the peak memory of a step, in a fixed order or in the one that TensorFlow's executor takes."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.executor import simulate_executor
from graphwright.analyze.executor_buffers import PeakState
from graphwright.analyze.executor_order import number_nodes
from graphwright.analyze.time_model import ASSUMED_ROOFS, estimated_time_s
from graphwright.analyze.workspace import workspace_bytes
from graphwright.costs.xla_peak import xla_peak
from graphwright.errors import ArgumentError
from graphwright.ir.dtypes import Shape
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph, Node, Value
from graphwright.plan.model import Schedule
from graphwright.report.peak_prediction import Order, PeakPrediction
from graphwright.report.results import ROLES, LiveBuffer, Role
from graphwright.run.callables import Step, resolve
from graphwright.run.executed_graph import executed_graph, read_executed_graph
from graphwright.source.attributes import constant_array
from graphwright.source.rebuild import is_jit_compiled
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.train.example_inputs import example_inputs
from graphwright.train.flatten import flatten
from graphwright.train.planning import HOW_PEAK_TRACED, follow_schedule, map_tasks
from graphwright.train.summary import Roles, find_roles, layer_of, make_timeline
from graphwright.train.targets import Feed, Mode, Target, trace

_NUMBERINGS = 5
_TRANSPOSED_BYTES_PER_S = 1.5e9  # read off profiles, as the rates of `analyze.time_model`
_HOW_TRACED = HOW_PEAK_TRACED
_HOW_EXECUTOR = (
    "TensorFlow's executor simulated on the graph that it runs (after Grappler and oneDNN's rewrites; nothing was run): depth first on "
    "each thread, buffers freed when the last reader is done; tensors rounded as malloc does, whole pages from 32 KiB on; known kernel "
    "workspace; for the CPU"
)
_HOW_TRACED_LOOPS = "the order in which the step was traced, held by control edges; inside loops the executor's"
_HOW_RANGE = (
    "the order hangs on numbers that TensorFlow gives the nodes anew each time it prepares a function; {numberings} of them were taken"
)


@garbage_collection_paused()
def predict_peak(
    target: Any,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    *,
    order: Order = "traced",
    threads: int | None = None,
    mode: Mode = "train",
    batch: int | None = None,
    simulations: int = _NUMBERINGS,
) -> PeakPrediction:
    """Predict the peak memory of a step, without running it.

    TensorFlow's executor runs what is ready, in an order of its own that changes from process to process. So there are two figures:
    the peak of the traced order, which `optimize_memory` plans with and holds by control edges, and the peak of the
    executor's order, a range, for the step as it is.

    Args:
        target: a `tf.function`, a `ConcreteFunction`, a Keras model, or the path of a `.keras` file, a SavedModel or a graph.
        feeds: shape (or `tf.TensorSpec`) by argument name.
        inputs: example arguments instead of feeds; their values do not matter.
        order: "traced" or "executor"; a step that XLA compiles (`jit_compile=True`) has an order of its own, whatever is given.
        threads: inter-op threads of the executor; None for the setting of this process.
        mode: for a Keras model, "train" or "infer".
        batch: batch size of a Keras model, instead of feeds.
        simulations: of the executor, each on a graph that TensorFlow prepares anew.

    Returns:
        A `PeakPrediction`, which prints itself.

    Raises:
        UnknownShapeError: a dimension is not known; the message names the argument to bind.
        ArgumentError, UnsupportedError, FileFormatError: the target cannot be traced, read or executed on one device.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda x: tf.reduce_sum(tf.exp(tf.sin(x)) * tf.cos(x)))
    >>> fixed = predict_peak(step, feeds={"x": (1024, 1024)})
    >>> fixed.peak_bytes == 3 * 4 * 2**20, fixed.peak_op
    (True, 'Cos')
    """
    if order not in ("traced", "executor"):
        raise ArgumentError(f"order={order!r} was given", where="argument 'order'", remedy="give 'traced' or 'executor'")
    for name, count in (("threads", threads), ("simulations", simulations)):
        if count is not None and count < 1:
            raise ArgumentError(f"{name}={count} was given", where=f"argument {name!r}", remedy="give 1 or more")
    traced = trace(target, feeds=feeds, inputs=inputs, mode=mode, batch=batch)
    if is_jit_compiled(traced.function):
        return xla_peak(traced, threads=inter_op_threads(threads))
    flat = flatten(traced.function, traced.shapes_by_position)
    tasks = map_tasks(flat)
    if order == "traced" and flat.loops.trip_counts:
        return traced_loops_peak(traced, threads=inter_op_threads(threads), simulations=simulations)
    if order == "traced":
        return _traced(traced, tasks, inter_op_threads(threads))
    return executor_peak(traced, flat.graph, tasks, threads=inter_op_threads(threads), simulations=simulations)


def executor_peak(
    traced: Target, like: Graph, tasks: TaskMap, *, threads: int, simulations: int, graphs: Sequence[Graph] | None = None
) -> PeakPrediction:
    """The prediction for the executor's order.

    Args:
        traced: the step.
        like: its flat graph: shapes of the inputs, variables.
        tasks: of the flat graph, for roles and resident bytes.
        threads: inter-op threads.
        simulations: how many graphs TensorFlow is to prepare.
        graphs: graphs that it has prepared, to be taken instead.
    """
    if graphs is None:
        step, shapes = _step(traced), dict[str, Shape]()
        graphs = [executed_graph(step, like=like, shapes=shapes) for _ in range(simulations)]
    states = [_simulate(graph, tasks, threads, k) for k, graph in enumerate(graphs)]
    peaks = [state.peak_bytes for state in states]
    median = statistics.median_low(peaks)
    chosen = states[peaks.index(median)]
    live, by_role = _live_at(chosen, tasks, find_roles(tasks))
    how = {"peak": _HOW_EXECUTOR}
    if len(states) > 1:
        how["range"] = _HOW_RANGE.format(numberings=len(states))
        if threads > 1:
            how["range"] += "; kernels' times, which decide what another thread gets to run, were varied too"
    if chosen.notes:
        how["loops"] = "; ".join(chosen.notes)
    return PeakPrediction(
        name=traced.name,
        feeds=traced.feeds,
        order="executor",
        threads=threads,
        peak_bytes=median,
        low_bytes=min(peaks),
        high_bytes=max(peaks),
        simulations=len(peaks),
        resident_bytes=tasks.costs.resident_bytes,
        peak_op=chosen.peak_node.name if chosen.peak_node is not None else "",
        live=live,
        by_role=by_role,
        how=how,
    )


def traced_loops_peak(traced: Target, *, threads: int, simulations: int, records: Sequence[bytes] = ()) -> PeakPrediction:
    """The prediction for the traced order of a step with loops: the step is rewritten to hold it, and the executor simulated on that.

    Control edges order whole loops. What runs when inside a loop stays the executor's choice, and how long a loop holds on to its
    arguments when it is over.

    Args:
        traced: the step.
        threads: inter-op threads.
        simulations: how many graphs TensorFlow is to prepare; with records, how often the graph that ran is simulated.
        records: what `collected_graphs` gave when the rewritten step ran.
    """
    flat = flatten(traced.function, traced.shapes_by_position)
    tasks = map_tasks(flat)
    function = follow_schedule(flat, tasks, Schedule(tasks.costs.order))
    held = replace(traced, function=function, owner=_WithoutGrappler(traced.owner))
    ran = [read_executed_graph(records, like=flat.graph)] * simulations if records else None
    found = executor_peak(held, flat.graph, tasks, threads=threads, simulations=simulations, graphs=ran)
    return replace(found, order="traced", how={**found.how, "peak": f"{_HOW_TRACED_LOOPS}; {_HOW_EXECUTOR}"})


def _traced(traced: Target, tasks: TaskMap, threads: int) -> PeakPrediction:
    roles = find_roles(tasks)
    timeline = make_timeline(tasks, Schedule(tasks.costs.order), roles)
    at = timeline.peak_step
    return PeakPrediction(
        name=traced.name,
        feeds=traced.feeds,
        order="traced",
        threads=threads,
        peak_bytes=timeline.peak_bytes,
        low_bytes=timeline.peak_bytes,
        high_bytes=timeline.peak_bytes,
        simulations=1,
        resident_bytes=tasks.costs.resident_bytes,
        peak_op=timeline.labels[at] if timeline.labels else "",
        live=timeline.live_at_peak,
        by_role={role: timeline.bytes_by_role[role][at] if timeline.labels else 0 for role in ROLES},
        how={"peak": _HOW_TRACED},
    )


def inter_op_threads(threads: int | None = None) -> int:
    """A number of threads, or the one that TensorFlow is set to in this process."""
    if threads is not None:
        return threads
    return int(import_tensorflow().config.threading.get_inter_op_parallelism_threads()) or os.cpu_count() or 1


@dataclass(frozen=True)
class _WithoutGrappler:
    """Says that the step of this owner runs as it was rewritten."""

    owner: Any
    grappler_disabled: bool = True


def _step(traced: Target) -> Step:
    off = bool(getattr(traced.owner, "grappler_disabled", False))
    if traced.arguments is not None:
        return Step(traced.name, traced.function, traced.arguments, off)
    return replace(resolve(traced.function, example_inputs(traced)), grappler_disabled=off)


def _simulate(graph: Graph, tasks: TaskMap, threads: int, number: int) -> PeakState:
    return simulate_executor(
        graph,
        time_of=_time_of,
        workspace_of=workspace_bytes,
        constant=constant_array,
        resident_bytes=tasks.costs.resident_bytes,
        threads=threads,
        seed=number,
        numbered=number_nodes(graph),
    )


def _time_of(node: Node) -> float:
    """As planned with, but for two kinds of kernels whose time decides what another thread finds.

    A product whose second operand is transposed brings it into rows first, which takes longer than the product itself where the
    other operand has few rows, as in the backward pass of a recurrent layer. A slice reads no more than it returns.
    """
    seconds = estimated_time_s((node,))
    if node.op_type in ("MatMul", "_FusedMatMul") and node.attrs.get("transpose_b") is True:
        seconds += (node.inputs[1].nbytes or 0) / _TRANSPOSED_BYTES_PER_S
    elif node.op_type in ("Slice", "StridedSlice"):
        seconds -= ((node.inputs[0].nbytes or 0) - (node.outputs[0].nbytes or 0)) / ASSUMED_ROOFS.bytes_per_s
    return max(seconds, 0.0)


def _live_at(state: PeakState, tasks: TaskMap, roles: Roles) -> tuple[tuple[LiveBuffer, ...], dict[Role, int]]:
    """Buffers at the peak, and bytes by role; what has no buffer (workspace, rounding) counts as temporaries."""
    role_of: dict[str, Role] = {value.name: roles.buffers[b] for b, value in enumerate(tasks.values)}
    backward = {node.name for node in roles.backward}
    live: list[LiveBuffer] = []
    by_role: dict[Role, int] = dict.fromkeys(ROLES, 0)
    for value, nbytes in tasks.resident.items():
        role = roles.resident[value]
        by_role[role] += nbytes
        live.append(LiveBuffer(_resident_name(value, tasks.graph), value.producer.op_type, layer_of(value.producer.name), role, nbytes))
    for value, nbytes in state.live:
        name = value.producer.name
        made: Role = "gradients" if name in backward else "temporaries"
        role = role_of.get(value.name, made)
        by_role[role] += nbytes
        live.append(LiveBuffer(value.name, value.producer.op_type, layer_of(name), role, nbytes))
    by_role["weights"] -= min(by_role["weights"], state.freed_resident_bytes)
    by_role["temporaries"] += max(0, state.peak_bytes - sum(by_role.values()))
    live.sort(key=lambda b: (-b.nbytes, b.name))
    return tuple(live), by_role


def _resident_name(value: Value, graph: Graph) -> str:
    return graph.variables[value].name if value in graph.variables else value.name
