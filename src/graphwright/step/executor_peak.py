"""The peak of a step as TensorFlow runs it by itself: its executor simulated on the graph that TensorFlow prepares."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.executor import simulate_executor
from graphwright.analyze.executor_memory import PeakState
from graphwright.analyze.executor_order import number_nodes
from graphwright.analyze.runtime_constants import runtime_constants
from graphwright.analyze.time_model import ASSUMED_ROOFS, EXECUTION_S, estimated_time_s
from graphwright.analyze.traffic import bytes_moved
from graphwright.analyze.workspace import onednn_enabled, workspace_bytes
from graphwright.errors import GraphwrightError, first_line, in_words
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import is_compiled_call
from graphwright.ir.traits.effects import Purity
from graphwright.report.obtained import Obtained
from graphwright.report.peak_prediction import Order, PeakPrediction
from graphwright.report.progress import tell
from graphwright.report.timeline import ROLES, Timeline
from graphwright.report.units import counted
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
_MOST_NODES = 20_000
_SIMULATIONS = 3
_RANGE_NODES = 4_000  # above, one simulation has to do
_MANY_RUNS = 200_000  # of nodes in loops, which draw often enough within one simulation
_TRANSPOSED_BYTES_PER_S = 1.5e9  # read off profiles, as the rates of `analyze.time_model`
_ONEDNN = " and oneDNN's rewrites" if onednn_enabled() else ""
HOW_EXECUTOR = (
    f"TensorFlow's executor simulated on the graph that it runs (after Grappler{_ONEDNN}; nothing was run): depth first on "
    "each thread, buffers freed when the last reader is done; tensors rounded as malloc does, whole pages from 32 KiB on; known kernel "
    "workspace; for the CPU"
)
_HOW_RANGE = "TensorFlow chooses the order of operations each time it prepares a function; {orders} simulated"


def plain_peak(
    traced: TracedStep,
    like: Graph,
    tasks: TaskMap,
    *,
    records: Sequence[bytes] | None = None,
    roles: Roles | None = None,
    optimized: Graph | None = None,
) -> Obtained[PeakPrediction | None]:
    """The peak of a step as it is, and how it was obtained; or None, and why it is not known. The step does not run.

    Most of the time goes into TensorFlow's preparing the graph, which takes time about linear in its nodes.

    Args:
        traced, like, tasks, roles: see `executor_peak`.
        records: what TensorFlow recorded when it prepared the step, if it has.
        optimized: the graph as Grappler left it then, with shapes, where it is known.
    """

    def predict() -> PeakPrediction:
        shapes = {value.name: value.shape for node in optimized or () for value in node.outputs}
        graph = None if records is None else read_executed_graph(records, like=like, shapes=shapes)
        return executor_peak(traced, like, tasks, threads=inter_op_threads(), graph=graph, roles=roles)

    tell("simulating TensorFlow's executor")
    found, why = ask_tensorflow(traced, like, predict)
    return Obtained(found, "; ".join(found.how.values()) if found is not None else f"not simulated{why}")


def prepared(traced: TracedStep, like: Graph, *, memory_optimizer: bool = True) -> Obtained[list[bytes] | None]:
    """TensorFlow's record of how it prepares a step; or None, and why there is none. The step does not run.

    Args:
        memory_optimizer: whether Grappler's memory optimizer takes part, as it does by default.
    """
    tell("asking TensorFlow what it would run")
    return ask_tensorflow(traced, like, lambda: recorded_graphs(preparable(traced), like=like, memory_optimizer=memory_optimizer))


def why_refused(traced: TracedStep, function: Any) -> str:
    """Why TensorFlow refuses to run a function in place of a step that it runs; "" where it does not, or cannot be asked. Nothing runs."""
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
    """The answer to a question for which TensorFlow has to prepare a step; or None, and why there is none, to be put behind "not ...".

    Args:
        like: the flat graph of the step.
    """
    if len(like) > _MOST_NODES or like.inlined > 1.25 * _MOST_NODES:  # Grappler goes along a chain by recursion, until the stack ends
        return Obtained(None, f", since TensorFlow takes long to prepare a graph of more than {_MOST_NODES:,} nodes; see predict_peak")
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
    simulations: int | None = None,
    graph: Graph | None = None,
    as_numbered: bool = False,
    roles: Roles | None = None,
) -> PeakPrediction:
    """The prediction for the executor's order.

    Args:
        traced: the step.
        like: its flat graph: shapes of the inputs, variables.
        tasks: of the flat graph, for roles and resident bytes.
        threads: inter-op threads.
        simulations: how often the execution is simulated at most, each time with other draws of what is left to chance; once where loops
            are long. Three times by default, once for a large graph.
        graph: the graph that TensorFlow has prepared, where it has.
        as_numbered: whether the step ran with this very graph. TensorFlow numbers the nodes again when it prepares the step again.
        roles: of the flat graph, where they are known.
    """
    graph = graph or executed_graph(preparable(traced), like=like, shapes={})
    count = simulations or (_SIMULATIONS if len(like) <= _RANGE_NODES else 1)
    states = _simulate(graph, tasks, threads, count, as_numbered=as_numbered)
    peaks = [state.peak_bytes for state in states]
    chosen = states[peaks.index(max(peaks))]
    timeline = executor_timeline(chosen, tasks, roles or find_roles(tasks))
    how = {"peak": HOW_EXECUTOR}
    if len(states) > 1:
        how["range"] = _HOW_RANGE.format(orders=counted(len(states), "such order"))
        if threads > 1:
            how["range"] += "; kernels' times, which decide what another thread gets to run, were varied too"
    if chosen.notes:
        how["not exact"] = "; ".join(chosen.notes)
    return make_prediction(
        traced, timeline, order="executor", threads=threads, low_bytes=min(peaks), simulations=len(peaks), tasks=tasks, how=how
    )


def make_prediction(
    traced: TracedStep,
    timeline: Timeline,
    *,
    order: Order,
    threads: int,
    tasks: TaskMap,
    how: Mapping[str, str],
    low_bytes: int | None = None,
    simulations: int = 1,
) -> PeakPrediction:
    """The prediction that a timeline shows."""
    at = timeline.peak_step
    return PeakPrediction(
        name=traced.name,
        feeds=traced.feeds,
        order=order,
        threads=threads,
        peak_bytes=timeline.peak_bytes,
        low_bytes=timeline.peak_bytes if low_bytes is None else low_bytes,
        high_bytes=timeline.peak_bytes,
        simulations=simulations,
        resident_bytes=tasks.costs.resident_bytes,
        peak_op=timeline.words(at) if timeline.labels else "",
        live=timeline.live_at_peak,
        by_role={role: timeline.bytes_by_role[role][at] if timeline.labels else 0 for role in ROLES},
        how=how,
        timeline=timeline,
    )


def inter_op_threads(threads: int | None = None) -> int:
    """A number of threads, or the one that TensorFlow is set to in this process."""
    if threads is not None:
        return threads
    return int(import_tensorflow().config.threading.get_inter_op_parallelism_threads()) or os.cpu_count() or 1


def _simulate(graph: Graph, tasks: TaskMap, threads: int, count: int, *, as_numbered: bool) -> list[PeakState]:
    """Simulations with different draws of what is left to chance."""
    time_of, workspace_of = cache(_time_of), cache(_workspace_bytes)
    computed_once = runtime_constants(graph, Purity(graph, stateful_op_types(graph)))
    states: list[PeakState] = []
    runs: dict[int, int] = {}
    for seed in range(count):
        state = simulate_executor(
            graph,
            time_of=time_of,
            workspace_of=workspace_of,
            constant=constant_array,
            resident_bytes=tasks.costs.resident_bytes,
            threads=threads,
            seed=seed,
            numbered=number_nodes(graph, None if as_numbered else random.Random(seed)),
            computed_once=computed_once,
            runs=runs,
        )
        states.append(state)
        if sum(runs.values()) > _MANY_RUNS:
            break
    return states


def _workspace_bytes(node: Node) -> int:
    return compiled_call_bytes(node) if is_compiled_call(node) else workspace_bytes(node)


def _time_of(node: Node) -> float:
    """As planned with, but for three kinds of kernels whose time decides what another thread finds.

    What hands on a reference moves nothing. Counted by its bytes, the way of a weight's gradient round a loop (`NextIteration`,
    `Merge`, `Switch`) takes longer than the sum itself, and in the simulation the thread with the sums falls behind until
    the other one has made the terms of as many rounds as may run at once.
    A product whose second operand is transposed brings it into rows first, which takes longer than the product itself where the
    other operand has few rows, as in the backward pass of a recurrent layer. A slice reads no more than it returns.
    """
    if bytes_moved(node) == 0:
        return EXECUTION_S
    seconds = estimated_time_s((node,))
    if node.attrs.get("transpose_b") is True:
        seconds += (node.inputs[1].nbytes or 0) / _TRANSPOSED_BYTES_PER_S
    elif node.op_type in ("Slice", "StridedSlice"):
        seconds -= ((node.inputs[0].nbytes or 0) - (node.outputs[0].nbytes or 0)) / ASSUMED_ROOFS.bytes_per_s
    return max(seconds, 0.0)
