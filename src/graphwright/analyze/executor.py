"""TensorFlow's executor, simulated: the order in which it runs the kernels of a graph, and the memory that it holds.

`executor_order` models the threads and their queues, `executor_memory` the buffers of the kernels. This file moves tensors along the edges,
through loops and branches of TF1, as common_runtime/propagator_state.cc of TensorFlow 2.21 does.

Terms
-----
frame
    One run of a loop; an *iteration* is one round of it. The step is a frame with one iteration.
dead
    A tensor of a branch that is not taken. Its readers are skipped, up to the `Merge` that takes the other branch.

A loop whose condition depends on data ends after the most rounds that a counter in it allows, or after the rounds that `Graph.example`
states. Where neither is known, a loop that keeps something of each round is an error, and another loop ends after a few rounds. Where a
condition depends on data, each branch is simulated, and the one with the largest peak counts. The result's `notes` name such loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from graphwright.analyze.cost import unknown_rounds
from graphwright.analyze.executor_memory import Buffer, Constant, Memory, PeakState
from graphwright.analyze.executor_order import QUICK_S, RUNS_TO_CHEAP, Numbered, execute, number_nodes
from graphwright.analyze.frames import count_frames
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import ENTERS, EXITS, MERGES, NEXT_ITERATIONS, is_loop_condition
from graphwright.ir.traits.rounds import pushes
from graphwright.ir.traits.values import RESULTS
from graphwright.ir.walk import topological_order
from graphwright.ops.catalog import CHEAP

_EARLIER_STEPS = 2
_DEAD_S = 6e-6
"""Seconds per dead node, fitted to peaks of recurrent layers. After the last round of a loop its whole body is dead, and the loop holds its
arguments until that is skipped. Skipping a node takes 0.1 us; the rest is the time until freed memory is back with the kernel."""
_OPEN_ROUNDS, _MOST_ROUNDS = 4, 2_000


def simulate_executor(
    graph: Graph,
    *,
    time_of: Callable[[Node], float],
    workspace_of: Callable[[Node], int],
    constant: Constant,
    resident_bytes: int,
    threads: int = 1,
    numbered: Numbered | None = None,
    computed_once: Container[Node] = (),
) -> PeakState:
    """Run a graph as TensorFlow's executor does, on buffers in place of numbers.

    Args:
        graph: the graph that is executed, its nodes in TensorFlow's order (`graphwright.run.executed_graph`).
        time_of: seconds that a kernel takes; irrelevant for one thread.
        workspace_of: bytes that a kernel needs beyond its outputs.
        constant: returns the array of a constant, or None.
        resident_bytes: bytes of variables, inputs and constants.
        threads: inter-op threads.
        numbered: the numbered graph; `number_nodes(graph)` by default.
        computed_once: nodes that count as constants (`graphwright.analyze.runtime_constants`).

    Raises:
        UnknownShapeError: the number of rounds of a loop that keeps something of each round is not known.
    """
    numbered, time_of = numbered or number_nodes(graph), cache(time_of)

    def run(branch: int, earlier_runs: Counter[int]) -> _Frames:
        memory = Memory(graph, workspace_of, constant, resident_bytes, computed_once=computed_once, branch=branch)
        frames = _Frames(numbered, memory, time_of, Counter({k: _EARLIER_STEPS * count for k, count in earlier_runs.items()}))
        execute(frames, threads=threads)
        return frames

    states: list[PeakState] = []
    branches = 1
    while len(states) < branches:
        frames = run(len(states), Counter())
        if max(frames.runs.values(), default=0) > 1:  # a loop: TensorFlow knows the costs of its kernels from earlier steps
            frames = run(len(states), frames.runs)
        branches = max(branches, frames.memory.open_branches)
        states.append(frames.memory.result())
    return max(states, key=lambda state: state.peak_bytes)


@dataclass(eq=False, slots=True)
class _Iteration:
    pending: dict[int, int] = field(default_factory=dict[int, int])
    dead: dict[int, int] = field(default_factory=dict[int, int])
    entries: dict[tuple[int, int], Buffer] = field(default_factory=dict[tuple[int, int], Buffer])
    running: int = 0
    inner_frames: int = 0


@dataclass(eq=False, slots=True)
class _Frame:
    name: str
    parent: _Frame | None
    parent_iteration: int
    missing_inputs: int
    parallel_iterations: int
    iterations: dict[int, _Iteration] = field(default_factory=dict[int, _Iteration])
    latest: int = 0
    deferred: list[tuple[int, Buffer | None]] = field(default_factory=list["tuple[int, Buffer | None]"])
    invariants: list[tuple[int, Buffer | None]] = field(default_factory=list["tuple[int, Buffer | None]"])
    dead_exits: list[int] = field(default_factory=list[int])
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """One execution of one node."""

    node: int
    frame: _Frame
    iteration: int
    dead: bool


@dataclass(slots=True)
class _Running:
    inputs: list[Buffer | None]
    outputs: list[Buffer | None]


class _Frames:
    """A `Propagator` (see `analyze.executor_order`) that moves buffers along the edges of a graph."""

    def __init__(self, numbered: Numbered, memory: Memory, time_of: Callable[[Node], float], earlier_runs: Counter[int]) -> None:
        self.runs = earlier_runs
        self.numbered = numbered
        self.memory = memory
        self.time_of = time_of
        self.edges = numbered.edges
        self.running: dict[Token, _Running] = {}
        self.types = [node.op_type for node in numbered.nodes]
        self.children: dict[tuple[_Frame, int, str], _Frame] = {}
        self.enters = Counter(_frame_name(node) for node in numbered.nodes if node.op_type in ENTERS)
        self.root = _Frame("", None, 0, 0, 1)
        self.root.iterations[0] = _Iteration()

    # The methods of a `Propagator`

    def roots(self) -> Sequence[Token]:
        self.root.iterations[0].running = len(self.numbered.roots)
        return [Token(k, self.root, 0, False) for k in self.numbered.roots]

    def is_cheap(self, token: Token) -> bool:
        k = token.node
        if token.dead or self.types[k] in CHEAP:
            return True
        return self.runs[k] >= RUNS_TO_CHEAP and self.time_of(self.numbered.nodes[k]) < QUICK_S

    def start(self, token: Token) -> float:
        k = token.node
        node = self.numbered.nodes[k]
        entries = token.frame.iterations[token.iteration].entries
        inputs = [entries.pop((k, i), None) for i in range(len(node.inputs))]
        if token.dead:
            self.running[token] = _Running(inputs, [None] * len(node.outputs))
            return _DEAD_S
        if is_loop_condition(node) and inputs[0] is not None and (inputs[0].number is None or self._goes_on_for_ever(token)):
            most = self.most_rounds.get(token.frame.name)
            rounds = "and its memory does not depend on it" if most is None else f"as many rounds as there can be are counted, {most}"
            self.memory.notes[f"how often the loop of {node.name!r} runs is not known; {rounds}"] = None
            token.frame.is_open = most is None
            inputs[0].number = token.iteration < (_OPEN_ROUNDS if most is None else most)
        if token.frame.is_open and pushes(node):
            raise unknown_rounds(token.frame.name)
        self.running[token] = _Running(inputs, self.memory.start(node, inputs))
        self.runs[k] += 1
        return self.time_of(node)

    def _goes_on_for_ever(self, token: Token) -> bool:
        """Return whether a loop exceeds the round limit and has an unknown trip count, as a loop over an iterator."""
        return token.iteration >= _MOST_ROUNDS and token.frame.name not in self.most_rounds

    @cached_property
    def most_rounds(self) -> dict[str, int]:
        """The most rounds of loops, or their rounds in the known call, by frame; unknown loops are missing."""
        graph = self.numbered.nodes[0].graph
        trips = count_frames(topological_order(graph), self.memory.constant_number, graph.example).trips
        return {name: trip.count for name, trip in trips.items() if trip.kind != "unknown"}

    def finish(self, token: Token) -> Sequence[Token]:
        run = self.running.pop(token)
        node = self.numbered.nodes[token.node]
        if token.dead:
            for buffer in run.inputs:
                if buffer is not None:
                    self.memory.release(buffer)
        else:
            self.memory.finish(node, run.inputs)
        if node.op_type in RESULTS and run.inputs and run.inputs[0] is not None:
            run.inputs[0].refs += 1  # the caller gets it
        ready: list[Token] = []
        self._propagate(token, run.outputs, ready)
        for buffer in run.outputs:
            if buffer is not None:
                self.memory.release(buffer)
        token.frame.iterations[token.iteration].running -= 1
        if token.frame.parent is not None or len(token.frame.iterations) > 1:
            self._clean_up(token.frame, token.iteration, ready)
        return ready

    # The ways of outputs

    def _propagate(self, token: Token, outputs: list[Buffer | None], ready: list[Token]) -> None:
        op, frame, iteration = self.types[token.node], token.frame, token.iteration
        node = self.numbered.nodes[token.node]
        if op in ENTERS:
            child = self._child(frame, iteration, node)
            child.missing_inputs -= 1
            if node.attrs.get("is_constant") is True:
                self._hold(child.invariants, token.node, outputs[0])
                for k in sorted(child.iterations):
                    self._activate(token.node, child, k, outputs, token.dead, ready)
            else:
                self._activate(token.node, child, 0, outputs, token.dead, ready)
            self._clean_up(child, 0, ready)
        elif op in EXITS:
            if not token.dead and frame.parent is not None:
                self._activate(token.node, frame.parent, frame.parent_iteration, outputs, False, ready)
            elif token.dead and iteration == frame.latest:
                frame.dead_exits.append(token.node)
        elif op in NEXT_ITERATIONS:
            if token.dead:
                return
            if iteration == frame.latest:
                if len(frame.iterations) == frame.parallel_iterations:
                    self._hold(frame.deferred, token.node, outputs[0])
                    return
                self._next_iteration(frame, ready)
            self._activate(token.node, frame, iteration + 1, outputs, False, ready)
        else:
            self._activate(token.node, frame, iteration, outputs, token.dead, ready)

    @staticmethod
    def _hold(place: list[tuple[int, Buffer | None]], k: int, buffer: Buffer | None) -> None:
        if buffer is not None:
            buffer.refs += 1
        place.append((k, buffer))

    def _activate(self, k: int, frame: _Frame, at: int, outputs: Sequence[Buffer | None], dead: bool, ready: list[Token]) -> None:
        iteration = frame.iterations[at]
        edges = self.edges[k]
        for reader, i, o in edges.data:
            buffer = None if dead else outputs[o]
            if self.types[reader] in MERGES:
                is_ready, is_dead, takes = self._arrives_at_merge(iteration, reader, buffer)
            else:
                is_ready, is_dead = self._arrives(iteration, reader, buffer is None)
                takes = True
            if takes and buffer is not None:
                buffer.refs += 1
                iteration.entries[reader, i] = buffer
            if is_ready:
                self._ready(reader, frame, at, is_dead, ready)
        for reader in edges.control:
            if self.types[reader] in MERGES:
                count = self._pending(iteration, reader) - 2
                iteration.pending[reader] = count
                is_dead = iteration.dead.get(reader, 0) == len(self.numbered.nodes[reader].inputs)
                is_ready = count == 0 or (count == 1 and is_dead)
            else:
                is_ready, is_dead = self._arrives(iteration, reader, dead)
            if is_ready:
                self._ready(reader, frame, at, is_dead, ready)

    def _pending(self, iteration: _Iteration, k: int) -> int:
        count = iteration.pending.get(k)
        if count is None:
            count = self.numbered.in_edges[k]
            if self.types[k] in MERGES:
                count = 1 + 2 * (count - len(self.numbered.nodes[k].inputs))
        return count

    def _arrives(self, iteration: _Iteration, k: int, dead: bool) -> tuple[bool, bool]:
        if dead:
            iteration.dead[k] = iteration.dead.get(k, 0) + 1
        count = self._pending(iteration, k) - 1
        iteration.pending[k] = count
        return count == 0, iteration.dead.get(k, 0) > 0

    def _arrives_at_merge(self, iteration: _Iteration, k: int, buffer: Buffer | None) -> tuple[bool, bool, bool]:
        """Return ready, dead, and whether the tensor is taken; the lowest bit of `pending` says that no live one came."""
        count = self._pending(iteration, k)
        if buffer is not None:
            iteration.pending[k] = count & ~1
            return count == 1, False, bool(count & 1)
        iteration.dead[k] = iteration.dead.get(k, 0) + 1
        is_dead = iteration.dead[k] == len(self.numbered.nodes[k].inputs)
        return count == 1 and is_dead, is_dead, False

    @staticmethod
    def _ready(k: int, frame: _Frame, at: int, dead: bool, ready: list[Token]) -> None:
        frame.iterations[at].running += 1
        ready.append(Token(k, frame, at, dead))

    # _Frames

    def _child(self, frame: _Frame, at: int, node: Node) -> _Frame:
        name = _frame_name(node)
        child = self.children.get((frame, at, name))
        if child is None:
            parallel = node.attrs.get("parallel_iterations")
            child = _Frame(name, frame, at, self.enters[name], parallel if isinstance(parallel, int) else 10)
            child.iterations[0] = _Iteration()
            self.children[frame, at, name] = child
            frame.iterations[at].inner_frames += 1
        return child

    def _next_iteration(self, frame: _Frame, ready: list[Token]) -> None:
        frame.latest += 1
        frame.iterations[frame.latest] = _Iteration()
        frame.dead_exits.clear()
        deferred, frame.deferred = frame.deferred, []
        for k, buffer in deferred:
            self._activate(k, frame, frame.latest, [buffer], buffer is None, ready)
            if buffer is not None:
                self.memory.release(buffer)
        for k, invariant in frame.invariants:
            self._activate(k, frame, frame.latest, [invariant], invariant is None, ready)

    def _clean_up(self, frame: _Frame, at: int, ready: list[Token]) -> None:
        """Drop finished iterations, start a deferred one, and end a finished frame."""
        while frame.parent is not None and (iteration := frame.iterations.get(at)) is not None:
            waits = frame.missing_inputs if at == 0 else at - 1 in frame.iterations
            if iteration.running or iteration.inner_frames or waits:
                break
            for buffer in frame.iterations.pop(at).entries.values():
                self.memory.release(buffer)
            at += 1
            if frame.deferred:
                self._next_iteration(frame, ready)
        if frame.parent is None or frame.iterations or frame.missing_inputs:
            return
        for _, invariant in frame.invariants:
            if invariant is not None:
                self.memory.release(invariant)
        parent, parent_at = frame.parent, frame.parent_iteration
        for k in frame.dead_exits:
            self._activate(k, parent, parent_at, [None], True, ready)
        if self.children.pop((parent, parent_at, frame.name), None) is not None:
            parent.iterations[parent_at].inner_frames -= 1
            self._clean_up(parent, parent_at, ready)


def _frame_name(node: Node) -> str:
    name = node.attrs.get("frame_name")
    return name.decode() if isinstance(name, bytes) else str(name)
