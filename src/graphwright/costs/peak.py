"""`predict_peak`: the peak memory of a step, in a fixed order or in that of TensorFlow's executor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.device_models import HERE
from graphwright.costs.xla_peak import xla_peak
from graphwright.errors import ArgumentError, GraphError, UnknownShapeError, UnsupportedError, first_line
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.memory.planning import HOW_PEAK_TRACED, follow_schedule, map_tasks
from graphwright.plan.model import Schedule
from graphwright.plan.simulate import simulate
from graphwright.report.peak_prediction import Order, PeakPrediction
from graphwright.report.units import format_bytes
from graphwright.run.executed_graph import read_executed_graph
from graphwright.run.traced_step import TracedStep
from graphwright.step.executor_peak import HOW_EXECUTOR, executor_peak, inter_op_threads, make_prediction, plain_peak
from graphwright.step.flatten import FlatStep, flat_step
from graphwright.step.summary import Roles, find_roles, make_timeline
from graphwright.step.targets import Feed, Mode, about_a_step, trace

_GPU_GRAIN_BYTES = 256  # what TensorFlow's allocator for GPUs rounds to
_HOW_WITHOUT_XLA = "simulated in the order in which the step was traced, tensors rounded to 256 bytes, without the workspace of kernels"
_HOW_TRACED_LOOPS = "the order in which the step was traced, held by control edges; inside loops the executor's"


@garbage_collection_paused()
@about_a_step
def predict_peak(
    target: Any,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    *,
    order: Order = "executor",
    threads: int | None = None,
    mode: Mode = "auto",
    batch: int | None = None,
    device: str = HERE,
) -> PeakPrediction:
    """Predict the peak memory of a step, without running it.

    TensorFlow's executor starts operations as they become ready, in an order that may change from process to process. The default is the
    peak in that order, simulated, with a range. If TensorFlow cannot prepare the step, the peak is that of the traced order, and `how` says
    so. `optimize_memory` starts from the traced order.

    Args:
        order: "executor" or "traced"; a step that XLA compiles (`jit_compile=True`) has its own order in either case.
        threads: inter-op threads of the executor; None for the setting of this process.

    Raises:
        UnknownShapeError: a dimension is unknown; the message names the argument to bind.
        ArgumentError, UnsupportedError, FileFormatError: the target cannot be traced, read or executed on one device.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda x: tf.reduce_sum(tf.exp(tf.sin(x)) * tf.cos(x)))
    >>> predict_peak(step, feeds={"x": (1024, 1024)}, threads=1).peak_bytes / 2**20 > 3 * 4
    True
    >>> traced = predict_peak(step, feeds={"x": (1024, 1024)}, order="traced")
    >>> traced.peak_bytes == 3 * 4 * 2**20, traced.peak_op
    (True, 'Cos')
    """
    check_order(order)
    if threads is not None and threads < 1:
        raise ArgumentError(f"threads={threads} was given", argument="threads", remedy="give 1 or more")
    traced = trace(target, feeds=feeds, inputs=inputs, outputs=outputs, mode=mode, batch=batch, device=device)
    if traced.is_compiled:
        found = xla_peak(traced, threads=inter_op_threads(threads))
        return found if traced.device is None else replace(found, how={**found.how, **_without_xla(traced)})
    flat = flat_step(traced)
    tasks = map_tasks(flat)
    count, reason = inter_op_threads(threads), ""
    if order == "executor":
        try:
            found = executor_peak(traced, flat.graph, tasks, threads=count)
            return replace(found, how={**found.how, **flat.loops.sizes})
        except (UnsupportedError, GraphError) as error:  # TensorFlow cannot prepare the step here
            reason = f"not known: {first_line(error)}"
    elif flat.loops.trip_counts:
        return traced_loops_peak(traced, threads=count)
    prediction = _traced_peak(traced, tasks, find_roles(tasks), reason, count)
    return replace(prediction, how={**prediction.how, **flat.how})


def _without_xla(traced: TracedStep) -> dict[str, str]:
    """Return the peak by TensorFlow's own kernels on the GPU, in words; {} if it is unknown."""
    try:
        costs = map_tasks(flat_step(traced), traced.device).costs
    except (UnknownShapeError, UnsupportedError):
        return {}
    rounded = replace(costs, buffers=tuple(replace(b, nbytes=-(-b.nbytes // _GPU_GRAIN_BYTES) * _GPU_GRAIN_BYTES) for b in costs.buffers))
    peak = simulate(rounded, Schedule(costs.order)).peak_bytes
    return {"without XLA": f"{format_bytes(peak)} by TensorFlow's own kernels, {_HOW_WITHOUT_XLA}"}


def traced_loops_peak(traced: TracedStep, *, threads: int, records: Sequence[bytes] = ()) -> PeakPrediction:
    """Predict the traced order of a step with loops: the step is rewritten to keep it, and the executor is simulated on that.

    Control edges order whole loops; inside loops the order is the executor's. `records` are those of a run of the rewritten step.
    """
    flat = flat_step(traced)
    tasks = map_tasks(flat)
    function = follow_schedule(flat, tasks, Schedule(tasks.costs.order))
    held = replace(traced, function=function, grappler_disabled=True)
    ran = read_executed_graph(records, like=flat.graph) if records else None
    found = executor_peak(held, flat.graph, tasks, threads=threads, graph=ran, as_listed=bool(records))
    return replace(found, order="traced", how={**found.how, "peak": f"{_HOW_TRACED_LOOPS}; {HOW_EXECUTOR}", **flat.loops.sizes})


def _traced_peak(traced: TracedStep, tasks: TaskMap, roles: Roles, reason: str, threads: int) -> PeakPrediction:
    """Predict the peak of the traced order; `reason` says why the executor's is unknown, "" if nobody asked for it."""
    timeline = make_timeline(tasks, Schedule(tasks.costs.order), roles)
    how = f"{HOW_PEAK_TRACED}. The peak in the order of TensorFlow's executor is {reason}" if reason else HOW_PEAK_TRACED
    return make_prediction(traced, timeline, order="traced", threads=threads, tasks=tasks, how={"peak": how})


def check_order(order: str) -> None:
    if order not in ("traced", "executor"):
        raise ArgumentError(f"order={order!r} was given", argument="order", remedy="give 'executor' or 'traced'")


def step_peak(traced: TracedStep, flat: FlatStep, tasks: TaskMap, order: Order, roles: Roles | None = None) -> PeakPrediction:
    """Predict the peak of a step as TensorFlow or XLA runs it; of the traced order if that is asked for or the other is unknown."""
    reason = ""
    if traced.is_compiled:
        try:
            return xla_peak(traced, threads=inter_op_threads())
        except UnsupportedError as error:
            reason = f"not known: {first_line(error)}"
    elif order == "executor":
        prediction, reason = plain_peak(traced, flat.graph, tasks, roles=roles)
        sizes = "".join(f"; {key}: {words}" for key, words in flat.loops.sizes.items())
        if prediction is not None:
            return replace(prediction, how={**prediction.how, "peak": prediction.how["peak"] + sizes})
        reason += sizes
    return _traced_peak(traced, tasks, roles or find_roles(tasks), reason, inter_op_threads())
