"""The peak of a step as TensorFlow runs it by itself: its executor simulated on the graph that TensorFlow prepares."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TypeVar

from graphwright.analyze.cost import TaskMap
from graphwright.analyze.executor import simulate_executor
from graphwright.analyze.executor_memory import PeakState
from graphwright.analyze.executor_order import number_nodes
from graphwright.analyze.runtime_constants import runtime_constants
from graphwright.analyze.time_model import ASSUMED_ROOFS, EXECUTION_S, estimated_time_s, is_product
from graphwright.analyze.traffic import bytes_moved
from graphwright.analyze.workspace import onednn_enabled, workspace_bytes
from graphwright.errors import GraphwrightError, first_line, in_words
from graphwright.ir.dtypes import Shape
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.effects import Purity
from graphwright.report.obtained import Obtained
from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.progress import tell
from graphwright.report.results import ROLES, LiveBuffer, Role
from graphwright.report.units import counted
from graphwright.run.executed_graph import executed_graph, read_executed_graph, recorded_graphs
from graphwright.run.traced_step import TracedStep
from graphwright.source.attributes import constant_array
from graphwright.source.concrete_function import meets_other_processes
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.example_inputs import preparable
from graphwright.step.flatten import stateful_op_types
from graphwright.step.summary import Roles, find_roles

Found = TypeVar("Found")
Slower = Callable[[Node], float]
_MOST_NODES = 20_000
_MANY_RUNS = 200_000  # of nodes in loops, which draw often enough within one simulation
_TRANSPOSED_BYTES_PER_S = 1.5e9  # read off profiles, as the rates of `analyze.time_model`
_ONEDNN = " and oneDNN's rewrites" if onednn_enabled() else ""
HOW_EXECUTOR = (
    f"TensorFlow's executor simulated on the graph that it runs (after Grappler{_ONEDNN}; nothing was run): depth first on "
    "each thread, buffers freed when the last reader is done; tensors rounded as malloc does, whole pages from 32 KiB on; known kernel "
    "workspace; for the CPU"
)
_LATE = 50.0
_SHARED, _DRAWS = 2.0, 3
_MOST_LATE = 8
_LARGE = 0.02
_HOW_RANGE = "operations start in an order that TensorFlow settles anew each time it prepares a function; {orders} simulated"


def plain_peak(
    traced: TracedStep, like: Graph, tasks: TaskMap, *, simulations: int, draws: int = 1, records: Sequence[bytes] | None = None
) -> Obtained[PeakPrediction | None]:
    """The peak of a step as it is, and how it was obtained; or None, and why it is not known. The step does not run.

    Most of the time goes into TensorFlow's preparing the graph, which takes time about linear in its nodes.

    Args:
        traced, like, tasks, simulations, draws: see `executor_peak`.
        records: what TensorFlow recorded when it prepared the step, if it has.
    """

    def predict() -> PeakPrediction:
        graphs = None if records is None else [read_executed_graph(records, like=like)]
        return executor_peak(traced, like, tasks, threads=inter_op_threads(), simulations=simulations, draws=draws, graphs=graphs)

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
    simulations: int,
    draws: int = 1,
    graphs: Sequence[Graph] | None = None,
) -> PeakPrediction:
    """The prediction for the executor's order.

    Args:
        traced: the step.
        like: its flat graph: shapes of the inputs, variables.
        tasks: of the flat graph, for roles and resident bytes.
        threads: inter-op threads.
        simulations: how many graphs TensorFlow is to prepare.
        draws: how often each of them is simulated at most, with other draws of what is left to chance; once where loops are long.
        graphs: graphs that it has prepared, to be taken instead.
    """
    if graphs is None:
        step, shapes = preparable(traced), dict[str, Shape]()
        graphs = [executed_graph(step, like=like, shapes=shapes) for _ in range(simulations)]
    states: list[PeakState] = []
    for k, graph in enumerate(graphs):
        states += _simulate(graph, tasks, threads, [(seed, _as_estimated) for seed in range(k * draws, (k + 1) * draws)])
    peaks = [state.peak_bytes for state in states]
    median = statistics.median_low(peaks)
    chosen = states[peaks.index(median)]
    roles = find_roles(tasks)
    live, by_role = _live_at(chosen, tasks, roles)
    how = {"peak": HOW_EXECUTOR}
    if len(states) > 1:
        how["range"] = _HOW_RANGE.format(orders=counted(len(set(map(id, graphs))), "such order"))
        if threads > 1:
            how["range"] += "; kernels' times, which decide what another thread gets to run, were varied too"
    if chosen.notes:
        how["not exact"] = "; ".join(chosen.notes)
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
        peak_op=roles.layers.words(chosen.peak_node.name) if chosen.peak_node is not None else "",
        live=live,
        by_role=by_role,
        how=how,
    )


def peak_range(records: Sequence[bytes], like: Graph, tasks: TaskMap, *, threads: int) -> tuple[int, int]:
    """The least and the largest peak that the machine may make of a step, by how long its kernels take.

    What a kernel reads is held until it ends: one that broadcasts, or whose output needs fresh pages, may take several times as long as
    estimated, so that another thread goes on past it; each of those before the peak is simulated so. And products are estimated as if
    they had all cores: where the other thread works too they take twice as long, and more gradients wait for their update, or fewer.

    Args:
        records: what TensorFlow recorded when it prepared the step.
        like, tasks, threads: see `executor_peak`.
    """
    graph = read_executed_graph(records, like=like)
    (state,) = _simulate(graph, tasks, threads, [(0, _as_estimated)])
    if threads == 1 or state.peak_node is None:
        return state.peak_bytes, state.peak_bytes
    before = state.order[: state.order.index(state.peak_node.name)]
    large = [graph[name] for name in before if name in graph and _reads_bytes(graph[name]) > _LARGE * state.peak_bytes]
    cases = [(0, _late(node)) for node in large[-_MOST_LATE:]]
    found = _simulate(graph, tasks, threads, cases) + _simulate(graph, tasks, threads, [(seed, _shared) for seed in range(_DRAWS)])
    peaks = [state.peak_bytes, *(other.peak_bytes for other in found)]
    return min(peaks), max(peaks)


def _late(late: Node) -> Slower:
    return lambda node: _LATE if node is late else 1.0


def _as_estimated(_: Node) -> float:
    return 1.0


def _shared(node: Node) -> float:
    return _SHARED if is_product(node) else 1.0


def _reads_bytes(node: Node) -> int:
    return max((value.nbytes or 0 for value in node.inputs), default=0)


def inter_op_threads(threads: int | None = None) -> int:
    """A number of threads, or the one that TensorFlow is set to in this process."""
    if threads is not None:
        return threads
    return int(import_tensorflow().config.threading.get_inter_op_parallelism_threads()) or os.cpu_count() or 1


def _simulate(graph: Graph, tasks: TaskMap, threads: int, cases: Iterable[tuple[int, Slower]]) -> list[PeakState]:
    """A simulation for each case: the seed of what is drawn, and how many times as long as estimated each kernel takes."""
    plain_time_of, workspace_of = cache(_time_of), cache(workspace_bytes)
    numbered, computed_once = number_nodes(graph), runtime_constants(graph, Purity(graph, stateful_op_types(graph)))
    states: list[PeakState] = []
    runs: dict[int, int] = {}
    for seed, slower in cases:

        def time_of(node: Node, slower: Slower = slower) -> float:
            return plain_time_of(node) * slower(node)

        state = simulate_executor(
            graph,
            time_of=time_of,
            workspace_of=workspace_of,
            constant=constant_array,
            resident_bytes=tasks.costs.resident_bytes,
            threads=threads,
            seed=seed,
            numbered=numbered,
            computed_once=computed_once,
            runs=runs,
        )
        states.append(state)
        if sum(runs.values()) > _MANY_RUNS:
            break
    return states


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


def _live_at(state: PeakState, tasks: TaskMap, roles: Roles) -> tuple[tuple[LiveBuffer, ...], dict[Role, int]]:
    """Buffers at the peak, and bytes by role; what has no buffer (workspace, rounding) counts as temporaries."""
    role_of: dict[str, Role] = {value.name: roles.buffers[b] for b, value in enumerate(tasks.values)}
    backward = {node.name for node in roles.backward}
    live: list[LiveBuffer] = []
    by_role: dict[Role, int] = dict.fromkeys(ROLES, 0)
    for value, nbytes in tasks.resident.items():
        role = roles.resident[value]
        by_role[role] += nbytes
        name = tasks.graph.variables[value].name if value in tasks.graph.variables else value.name
        live.append(LiveBuffer(name, value.producer.op_type, roles.layers.of(value.producer.name), role, nbytes))
    for value, nbytes in state.live:
        name = value.producer.name
        made: Role = "gradients" if name in backward else "temporaries"
        role = role_of.get(value.name, made)
        by_role[role] += nbytes
        live.append(LiveBuffer(value.name, value.producer.op_type, roles.layers.of(name), role, nbytes))
    by_role["weights"] -= min(by_role["weights"], state.freed_resident_bytes)
    by_role["temporaries"] += max(0, state.peak_bytes - sum(by_role.values()))
    live.sort(key=lambda b: (-b.nbytes, b.name))
    return tuple(live), by_role
