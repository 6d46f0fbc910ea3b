"""TensorFlow's executor, simulated: in which order it runs the kernels of a graph, and how much memory that takes.

`executor_order` has the threads and their queues, `executor_memory` what kernels hold. Here is who gets which tensor when a node is done,
loops and branches of TF1 included.

That follows common_runtime/propagator_state.cc of TensorFlow 2.21. A *frame* is one run of a loop, an *iteration* one round of it;
the step itself is a frame with one iteration. A *dead* tensor is one on a branch that is not taken: nodes behind it
are passed over, up to the `Merge` that takes the other branch.

A condition that is not known (it depends on data) ends its loop after as many rounds as a counter in it allows, or as `Graph.example`
says; where neither is known, a loop that keeps something of each round is an error, and another one ends after a few. Of two branches
the one for True is taken. `notes` of the memory say so.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from graphwright.analyze.cost import unknown_rounds
from graphwright.analyze.executor_memory import Buffer, Constant, Memory, PeakState
from graphwright.analyze.executor_order import (
    CHEAP,
    QUICK_S,
    RUNS_TO_CHEAP,
    TIME_SPREAD,
    TOGETHER,
    Numbered,
    execute,
    in_drawn_order,
    number_nodes,
)
from graphwright.analyze.frames import count_frames
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import ENTERS, EXITS, MERGES, NEXT_ITERATIONS, is_loop_condition
from graphwright.ir.traits.rounds import pushes
from graphwright.ir.traits.values import RESULTS
from graphwright.ir.walk import topological_order

_EARLIER_STEPS = 2
_DEAD_S = 6e-6
_OPEN_ROUNDS, _MOST_ROUNDS = 4, 2_000
"""To pass over a dead node. After the last round of a loop its whole body is dead, and until that is passed the loop holds its arguments,
while another thread may be at work on its results already. To pass over a node takes a tenth of a microsecond; the rest is what
it takes until the memory that it lets go of is back with the kernel, spread over the nodes, and fitted to peaks of recurrent layers."""


def simulate_executor(
    graph: Graph,
    *,
    time_of: Callable[[Node], float],
    workspace_of: Callable[[Node], int],
    constant: Constant,
    resident_bytes: int,
    threads: int = 1,
    seed: int | None = None,
    numbered: Numbered | None = None,
    computed_once: Container[Node] = (),
    runs: dict[int, int] | None = None,
) -> PeakState:
    """Run a graph as TensorFlow's executor does, on buffers in place of numbers.

    Args:
        graph: the graph that is executed, its nodes in TensorFlow's order (`graphwright.run.executed_graph`).
        time_of: seconds that a kernel takes; with one thread they do not matter.
        workspace_of: bytes that a kernel needs beyond its outputs.
        constant: the array of a constant, or None.
        resident_bytes: bytes of variables, inputs and constants.
        threads: inter-op threads.
        seed: draws what TensorFlow leaves to chance: tables of readers, what passes for quick, durations. None for no draw.
        numbered: `number_nodes(graph)`, where it is known.
        computed_once: nodes that count as constants (`graphwright.analyze.runtime_constants`).
        runs: how often each node runs, by its number, where that is known from another draw; gets it where it is empty.

    Raises:
        UnknownShapeError: the size of a tensor that a kernel makes is not known.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> x = g.add_node("_Arg", "x", output_types=[(f32, (256,))]).outputs[0]
    >>> a = g.add_node("Exp", "a", inputs=[x], output_types=[(f32, (256,))]).outputs[0]
    >>> b = g.add_node("Exp", "b", inputs=[x], output_types=[(f32, (256,))]).outputs[0]
    >>> state = simulate_executor(g, time_of=lambda n: 1.0, workspace_of=lambda n: 0, constant=lambda v: None, resident_bytes=1024)
    >>> state.order, state.peak_bytes >= 2048
    (('x', 'b', 'a'), True)
    """
    numbered = numbered or number_nodes(graph)
    runs = {} if runs is None else runs
    while True:
        memory = Memory(graph, workspace_of, constant, resident_bytes, computed_once=computed_once)
        frames = _Frames(numbered, memory, time_of, seed, {k: _EARLIER_STEPS * count for k, count in runs.items()})
        execute(frames, threads=threads)
        if runs or max(frames.runs.values(), default=0) <= 1:
            return memory.result()
        runs.update(frames.runs)  # a loop: what its kernels cost is known from the steps before


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
    deferred: list[tuple[int, Buffer]] = field(default_factory=list[tuple[int, Buffer]])
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

    def __init__(
        self,
        numbered: Numbered,
        memory: Memory,
        time_of: Callable[[Node], float],
        seed: int | None = None,
        earlier_runs: Mapping[int, int] | None = None,
    ) -> None:
        self.chance = None if seed is None else random.Random(seed)
        self.runs = Counter(earlier_runs or {})
        self.numbered = numbered if self.chance is None else in_drawn_order(numbered, self.chance)
        self.memory = memory
        self.time_of = time_of
        self.times: dict[int, float] = {}
        self.edges = self.numbered.edges
        self.varied: dict[int, float] = {}
        self.quick: dict[int, bool] = {}
        self.interrupted = 0.0 if self.chance is None else self.chance.random()
        self.running: dict[Token, _Running] = {}
        self.most_rounds: Mapping[str, int] | None = None
        self.types = [node.op_type for node in numbered.nodes]
        self.children: dict[tuple[_Frame, int, str], _Frame] = {}
        self.enters = Counter(_frame_name(node) for node in numbered.nodes if node.op_type in ENTERS)
        self.root = _Frame("", None, 0, 0, 1)
        self.root.iterations[0] = _Iteration()

    # What the threads ask

    def roots(self) -> Sequence[Token]:
        """The nodes without inputs."""
        self.root.iterations[0].running = len(self.numbered.roots)
        return [Token(k, self.root, 0, False) for k in self.numbered.roots]

    def is_cheap(self, token: Token) -> bool:
        """Whether its kernel runs in the thread that made it ready."""
        k = token.node
        return token.dead or self.types[k] in CHEAP or (self.runs[k] >= RUNS_TO_CHEAP and self._is_quick(k))

    def start(self, token: Token) -> float:
        """Run the kernel on buffers; returns its time."""
        k = token.node
        node = self.numbered.nodes[k]
        entries = token.frame.iterations[token.iteration].entries
        inputs = [entries.pop((k, i), None) for i in range(len(node.inputs))]
        if token.dead:
            self.running[token] = _Running(inputs, [None] * len(node.outputs))
            return _DEAD_S
        if is_loop_condition(node) and inputs[0] is not None and (inputs[0].number is None or self._goes_on_for_ever(token)):
            most = self._most_rounds(token.frame.name)
            rounds = "and its memory does not depend on it" if most is None else f"as many rounds as there can be are counted, {most}"
            self.memory.notes[f"how often the loop of {node.name!r} runs is not known; {rounds}"] = None
            token.frame.is_open = most is None
            inputs[0].number = token.iteration < (_OPEN_ROUNDS if most is None else most)
        if token.frame.is_open and pushes(node):
            raise unknown_rounds(token.frame.name)
        self.running[token] = _Running(inputs, self.memory.start(node, inputs))
        self.runs[k] += 1
        if k not in self.varied:  # a machine is somewhat slower or faster than estimated
            factor = 1.0 if self.chance is None else self.chance.lognormvariate(0.0, TIME_SPREAD)
            self.varied[k] = self._time(k) * factor
        return self.varied[k]

    def _goes_on_for_ever(self, token: Token) -> bool:
        """Whether a condition may be known only since a branch was assumed to be taken, as that of a loop over an iterator."""
        return token.iteration >= _MOST_ROUNDS and self._most_rounds(token.frame.name) is None

    def _most_rounds(self, frame_name: str) -> int | None:
        """How often a loop may run at most, or runs in the call that is known; None where that is not known."""
        if self.most_rounds is None:
            graph = self.numbered.nodes[0].graph
            trips = count_frames(topological_order(graph), self.memory.constant_number, graph.example).trips
            self.most_rounds = {name: trip.count for name, trip in trips.items() if trip.kind != "unknown"}
        return self.most_rounds.get(frame_name)

    def ends_with_others(self) -> bool:
        """Whether two kernels that run side by side end together: chance."""
        return self.chance is not None and self.chance.random() < TOGETHER

    def _time(self, k: int) -> float:
        if k not in self.times:
            self.times[k] = self.time_of(self.numbered.nodes[k])
        return self.times[k]

    def _is_quick(self, k: int) -> bool:
        """Whether the kernel is known to be short; an interruption while it ran makes TensorFlow take it for long for a while."""
        if k not in self.quick:
            self.quick[k] = self._time(k) < QUICK_S and (self.chance is None or self.chance.random() >= self.interrupted)
        return self.quick[k]

    def finish(self, token: Token) -> Sequence[Token]:
        """Let go of the inputs, hand on the outputs."""
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

    # Where outputs go

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

    def _hold(self, place: list[tuple[int, Buffer]] | list[tuple[int, Buffer | None]], k: int, buffer: Buffer | None) -> None:
        if buffer is not None:
            buffer.refs += 1
        place.append((k, buffer))  # type: ignore[arg-type]

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
        """Ready, dead, and whether the tensor is taken: the first live one is. The lowest bit of `pending` says that none came."""
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
            self._activate(k, frame, frame.latest, [buffer], False, ready)
            self.memory.release(buffer)
        for k, invariant in frame.invariants:
            self._activate(k, frame, frame.latest, [invariant], invariant is None, ready)

    def _clean_up(self, frame: _Frame, at: int, ready: list[Token]) -> None:
        """Forget iterations that are over; start a deferred one; end a frame that is over."""
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
