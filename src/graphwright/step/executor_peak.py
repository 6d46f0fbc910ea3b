"""The peak of a step as TensorFlow runs it: a simulation of its executor on the graph that TensorFlow prepares.

The simulation is one run, with one order of the nodes and one estimate of each kernel's time. TensorFlow itself numbers the nodes anew each
time it prepares a function, and threads race. So the prediction states a range, `LESS` below to `MORE` above the simulated peak. In
`bench.accuracy`, measured peaks of small training steps with two threads lie between 0.95 and 1.02 of it; in some processes, convolutions
with batch norms took 1.12 of it. Loops overlap more or less as threads wake up, so their range ends no lower than the peak of one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.executor import simulate_executor
from graphwright.analyze.executor_order import number_nodes
from graphwright.analyze.frames import has_frames
from graphwright.analyze.runtime_constants import runtime_constants
from graphwright.analyze.time_model import estimated_time_s
from graphwright.errors import GraphwrightError, first_line, in_words
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import is_compiled_call
from graphwright.ir.traits.effects import Purity
from graphwright.ops.machine import onednn_enabled
from graphwright.ops.scratch import scratch_bytes
from graphwright.report.obtained import Obtained
from graphwright.report.peak_prediction import Order, PeakPrediction
from graphwright.report.progress import tell
from graphwright.report.timeline import ROLES, Timeline
from graphwright.run.executed_graph import executed_graph, read_executed_graph, recorded_graphs, refusal
from graphwright.run.traced_step import TracedStep
from graphwright.source.attributes import constant_array
from graphwright.source.concrete_function import meets_other_processes
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.compiled_calls import compiled_call_bytes
from graphwright.step.example_inputs import preparable
from graphwright.step.executor_timeline import executor_timeline
from graphwright.step.flatten import stateful_op_types
from graphwright.step.summary import Roles, find_roles

Found = TypeVar("Found")
MOST_NODES = 20_000
"""Grappler follows a chain by recursion, until the stack ends."""
LESS, MORE = 0.05, 0.12
"""Shares of the simulated peak by which measured peaks were smaller and larger."""
_ONEDNN = " and oneDNN's rewrites" if onednn_enabled() else ""
HOW_EXECUTOR = (
    f"TensorFlow's executor simulated on the graph that it runs (after Grappler{_ONEDNN}; nothing was run): depth first on "
    "each thread, buffers freed when the last reader is done; tensors rounded as malloc does, whole pages from 32 KiB on; known kernel "
    "workspace; for the CPU"
)
_HOW_RANGE = (
    f"measured peaks of training steps were up to {LESS:.0%} below and, since each process orders the nodes in another way, "
    f"up to {MORE:.0%} above"
)
_HOW_LOOPS = "; up to the peak of one thread, since loops overlap more or less in each run"


def plain_peak(
    traced: TracedStep,
    like: Graph,
    tasks: TaskMap,
    *,
    records: Sequence[bytes] | None = None,
    roles: Roles | None = None,
    optimized: Graph | None = None,
) -> Obtained[PeakPrediction | None]:
    """Return the predicted peak of a step as it is, or None, and how it was obtained or why it is unknown. The step does not run.

    Most of the time goes into TensorFlow's preparation of the graph, about linear in its nodes.

    Args:
        traced, like, tasks, roles: see `executor_peak`.
        records: TensorFlow's records of preparing the step, if it has.
        optimized: the graph as Grappler left it then, with shapes.
    """

    def predict() -> PeakPrediction:
        shapes = {value.name: value.shape for node in optimized or () for value in node.outputs}
        graph = None if records is None else read_executed_graph(records, like=like, shapes=shapes)
        return executor_peak(traced, like, tasks, threads=inter_op_threads(), graph=graph, roles=roles)

    tell("simulating TensorFlow's executor")
    prediction, why = ask_tensorflow(traced, like, predict)
    return Obtained(prediction, "; ".join(prediction.how.values()) if prediction is not None else f"not simulated{why}")


def prepared(traced: TracedStep, like: Graph, *, memory_optimizer: bool = True) -> Obtained[list[bytes] | None]:
    """Return TensorFlow's record of preparing a step, or None and the reason. The step does not run."""
    tell("asking TensorFlow what it would run")
    return ask_tensorflow(traced, like, lambda: recorded_graphs(preparable(traced), like=like, memory_optimizer=memory_optimizer))


def why_refused(traced: TracedStep, function: Any) -> str:
    """Return why TensorFlow refuses a function although it runs the original step; "" if it accepts it, or cannot be asked."""
    tf = import_tensorflow()
    with tf.init_scope():  # the call may come from a function that is being traced
        symbolic = any(map(tf.is_symbolic_tensor, function.captured_inputs))
        if symbolic or not tf.executing_eagerly() or meets_other_processes(function):
            return ""
        step = preparable(traced)
        why = refusal(replace(step, function=function))
        return why if why and not refusal(step) else ""


@garbage_collection_paused()
def ask_tensorflow(traced: TracedStep, like: Graph, question: Callable[[], Found]) -> Obtained[Found | None]:
    """Answer a question for which TensorFlow has to prepare a step; or return None and the reason, to follow "not ...".

    Args:
        like: the flat graph of the step.
    """
    if len(like) > MOST_NODES or like.inlined > 1.25 * MOST_NODES:
        return Obtained(None, f", since TensorFlow takes long to prepare a graph of more than {MOST_NODES:,} nodes; see predict_peak")
    if meets_other_processes(traced.function):
        return Obtained(None, ", since other processes take part in the step")
    tf = import_tensorflow()
    with tf.init_scope():  # the call may come from a function that is being traced
        if not tf.executing_eagerly():
            return Obtained(None, ", since TensorFlow does not execute eagerly")
        try:
            return Obtained(question(), "")
        except GraphwrightError as error:
            return Obtained(None, f": {first_line(error)}")
        except Exception as error:  # noqa: BLE001 - TensorFlow may refuse to prepare the graph in any way: the answer is then unknown, no more
            return Obtained(None, f": {in_words(error)}")


def executor_peak(
    traced: TracedStep,
    like: Graph,
    tasks: TaskMap,
    *,
    threads: int,
    graph: Graph | None = None,
    as_listed: bool = False,
    roles: Roles | None = None,
) -> PeakPrediction:
    """Return the prediction for the executor's order.

    Args:
        like: the flat graph of the step: shapes of the inputs, variables.
        tasks: of the flat graph, for roles and resident bytes.
        threads: inter-op threads.
        graph: the graph that TensorFlow has prepared, if it has.
        as_listed: whether the step ran with this very graph, see `number_nodes`.
        roles: of the flat graph, if they are known.
    """
    graph = graph or executed_graph(preparable(traced), like=like, shapes={})
    simulate = partial(
        simulate_executor,
        graph,
        time_of=cache(_time_of),
        workspace_of=cache(_workspace_bytes),
        constant=constant_array,
        resident_bytes=tasks.costs.resident_bytes,
        numbered=number_nodes(graph, as_listed=as_listed),
        computed_once=runtime_constants(graph, Purity(graph, stateful_op_types(graph))),
    )
    state = simulate(threads=threads)
    high_bytes, how_range = state.peak_bytes, _HOW_RANGE
    if threads > 1 and has_frames(graph.nodes):
        high_bytes = max(high_bytes, simulate(threads=1).peak_bytes)
        how_range += _HOW_LOOPS
    timeline = executor_timeline(state, tasks, roles or find_roles(tasks))
    how = {"peak": HOW_EXECUTOR, "range": how_range}
    if state.notes:
        how["not exact"] = "; ".join(state.notes)
    prediction = make_prediction(traced, timeline, order="executor", threads=threads, tasks=tasks, how=how)
    return replace(prediction, low_bytes=int((1 - LESS) * state.peak_bytes), high_bytes=int((1 + MORE) * high_bytes))


def make_prediction(
    traced: TracedStep,
    timeline: Timeline,
    *,
    order: Order,
    threads: int,
    tasks: TaskMap,
    how: Mapping[str, str],
) -> PeakPrediction:
    """Return the prediction that a timeline shows."""
    at = timeline.peak_step
    return PeakPrediction(
        name=traced.name,
        feeds=traced.feeds,
        order=order,
        threads=threads,
        peak_bytes=timeline.peak_bytes,
        low_bytes=timeline.peak_bytes,
        high_bytes=timeline.peak_bytes,
        resident_bytes=tasks.costs.resident_bytes,
        peak_op=timeline.words(at) if timeline.labels else "",
        live=timeline.live_at_peak,
        by_role={role: timeline.bytes_by_role[role][at] if timeline.labels else 0 for role in ROLES},
        how=how,
        timeline=timeline,
    )


def inter_op_threads(threads: int | None = None) -> int:
    """Return a number of threads, or the setting of this process."""
    if threads is not None:
        return threads
    return int(import_tensorflow().config.threading.get_inter_op_parallelism_threads()) or os.cpu_count() or 1


def _workspace_bytes(node: Node) -> int:
    return compiled_call_bytes(node) if is_compiled_call(node) else scratch_bytes(node)


def _time_of(node: Node) -> float:
    return estimated_time_s((node,))
