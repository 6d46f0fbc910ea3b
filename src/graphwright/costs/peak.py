"""`predict_peak`: the peak memory of a step, in a fixed order or in the one that TensorFlow's executor takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.device_models import HERE
from graphwright.costs.xla_peak import xla_peak
from graphwright.errors import ArgumentError, UnknownShapeError, UnsupportedError
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.memory.planning import HOW_PEAK_TRACED, follow_schedule, map_tasks
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import simulate
from graphwright.report.peak_prediction import Order, PeakPrediction
from graphwright.report.results import ROLES
from graphwright.report.units import format_bytes
from graphwright.run.executed_graph import read_executed_graph
from graphwright.run.traced_step import TracedStep
from graphwright.step.executor_peak import HOW_EXECUTOR, executor_peak, inter_op_threads
from graphwright.step.flatten import flat_step
from graphwright.step.summary import find_roles, make_timeline
from graphwright.step.targets import Feed, Mode, about_a_step, trace

_NUMBERINGS = 5
_GPU_GRAIN_BYTES = 256  # what TensorFlow's allocator for GPUs rounds to
_HOW_WITHOUT_XLA = "simulated in the order in which the step was traced, tensors rounded to 256 bytes, without the workspace of kernels"
_HOW_TRACED_LOOPS = "the order in which the step was traced, held by control edges; inside loops the executor's"


@garbage_collection_paused()
@about_a_step
def predict_peak(
    target: Any,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    *,
    order: Order = "traced",
    threads: int | None = None,
    mode: Mode = "auto",
    batch: int | None = None,
    simulations: int = _NUMBERINGS,
    device: str = HERE,
) -> PeakPrediction:
    """Predict the peak memory of a step, without running it.

    TensorFlow's executor runs what is ready, in an order of its own that changes from process to process. So there are two figures:
    the peak of the traced order, which `optimize_memory` plans with and holds by control edges, and the peak of the
    executor's order, a range, for the step as it is.

    Args:
        order: "traced" or "executor"; a step that XLA compiles (`jit_compile=True`) has an order of its own, whatever is given.
        threads: inter-op threads of the executor; None for the setting of this process.
        simulations: of the executor, each on a graph that TensorFlow prepares again.

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
        raise ArgumentError(f"order={order!r} was given", argument="order", remedy="give 'traced' or 'executor'")
    for name, count in (("threads", threads), ("simulations", simulations)):
        if count is not None and count < 1:
            raise ArgumentError(f"{name}={count} was given", argument=name, remedy="give 1 or more")
    traced = trace(target, feeds=feeds, inputs=inputs, mode=mode, batch=batch, device=device)
    if traced.is_compiled:
        found = xla_peak(traced, threads=inter_op_threads(threads))
        return found if traced.device is None else replace(found, how={**found.how, **_without_xla(traced)})
    flat = flat_step(traced, uncompiled=order == "traced")
    tasks = map_tasks(flat)
    if order == "traced" and flat.loops.trip_counts:
        return traced_loops_peak(traced, threads=inter_op_threads(threads), simulations=simulations)
    if order == "traced":
        found = _traced(traced, tasks, inter_op_threads(threads))
        return replace(found, how={**found.how, **flat.how})
    return executor_peak(traced, flat.graph, tasks, threads=inter_op_threads(threads), simulations=simulations)


def _without_xla(traced: TracedStep) -> dict[str, str]:
    """What TensorFlow's own kernels would take on the GPU, in words; nothing where that cannot be told."""
    try:
        costs = map_tasks(flat_step(traced), traced.device).costs
    except (UnknownShapeError, UnsupportedError):
        return {}
    rounded = replace(costs, buffers=tuple(replace(b, nbytes=-(-b.nbytes // _GPU_GRAIN_BYTES) * _GPU_GRAIN_BYTES) for b in costs.buffers))
    peak = simulate(rounded, Schedule(costs.order)).peak_bytes
    return {"without XLA": f"{format_bytes(peak)} by TensorFlow's own kernels, {_HOW_WITHOUT_XLA}"}


def traced_loops_peak(traced: TracedStep, *, threads: int, simulations: int, records: Sequence[bytes] = ()) -> PeakPrediction:
    """The prediction for the traced order of a step with loops: the step is rewritten to hold it, and the executor simulated on that.

    Control edges order whole loops. What runs when inside a loop stays the executor's choice, and how long a loop holds on to its
    arguments when it is over.

    Args:
        traced: the step.
        threads: inter-op threads.
        simulations: how many graphs TensorFlow is to prepare; with records, how often the graph that ran is simulated.
        records: what `collected_graphs` gave when the rewritten step ran.
    """
    flat = flat_step(traced)
    tasks = map_tasks(flat)
    function = follow_schedule(flat, tasks, Schedule(tasks.costs.order))
    held = replace(traced, function=function, grappler_disabled=True)
    ran = [read_executed_graph(records, like=flat.graph)] * simulations if records else None
    found = executor_peak(held, flat.graph, tasks, threads=threads, simulations=simulations, graphs=ran)
    return replace(found, order="traced", how={**found.how, "peak": f"{_HOW_TRACED_LOOPS}; {HOW_EXECUTOR}"})


def _traced(traced: TracedStep, tasks: TaskMap, threads: int) -> PeakPrediction:
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
        peak_op=timeline.words(at) if timeline.labels else "",
        live=timeline.live_at_peak,
        by_role={role: timeline.bytes_by_role[role][at] if timeline.labels else 0 for role in ROLES},
        how={"peak": HOW_PEAK_TRACED},
    )
