"""The order in which TensorFlow's executor runs the kernels of a graph, with one inter-op thread or several.

The executor counts the missing inputs of each node. When a kernel ends, its outputs go along the edges, data edges before control edges,
each in the order in which the readers were added to the graph. A node that misses no input is *ready*. Ready kernels that call themselves
cheap join the queue of the running thread; so does the last of the others when that queue is empty. The rest become tasks at the *front*
of the thread's own deque, from which the thread takes when its queue is empty. An idle thread takes from the *back* of another deque.

So a single thread runs depth first: of two readers of a gradient, the one added last runs first, and the other after everything that
follows from the first. That order depends on the numbering of the nodes only. With several threads it also depends on durations.

TensorFlow leaves two things to chance, which are fixed here. Nodes with more than 8 readers keep them in a hash table of pointers; here
the readers keep their order. oneDNN's pass replaces nodes in the order of such a table; here it goes by name (`number_nodes`).

Sources, TensorFlow 2.21: common_runtime/executor.cc (`ExecutorState::ScheduleReady`), simple_propagator_state.cc,
propagator_state.cc, graph_constructor.cc (the numbering); Eigen/CXX11/src/ThreadPool/NonBlockingThreadPool.h.

Gaps: kernels that run side by side do not slow each other down. Short kernels outside of loops count as expensive, as they do in the
first ninety steps. A deque holds any number of tasks; TensorFlow's hold 1024, and further tasks run at once.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from graphwright.ir.graph import Graph, Node
from graphwright.ir.walk import in_order, order_of, producers_of

RUNS_TO_CHEAP = 92
QUICK_S = 5.2e-6
"""A kernel below 8000 cycles counts as cheap when it has run so often: its estimate starts at 1e8 cycles and falls by a tenth a run.
The time is that of `analyze.time_model`, which adds 3e-6 s to every kernel."""
_KERNEL_LABEL, _ONEDNN_LABELS = "_kernel", (b"MklNameChangeOp", b"MklLayoutDependentOp")
_WAKE_S = 2e-5  # until a waiting thread sees new work

Token = TypeVar("Token")
"""One execution of one node."""


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges out of a node: data edges as (reader, input, output), and control edges."""

    data: tuple[tuple[int, int, int], ...]
    control: tuple[int, ...]


@dataclass(frozen=True)
class Numbered:
    """A graph as the executor sees it.

    Attributes:
        nodes: by TensorFlow's number.
        edges: per node.
        in_edges: the number of edges into each node.
        roots: nodes without edges into them.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edges, ...]
    in_edges: tuple[int, ...]
    roots: tuple[int, ...]


def number_nodes(graph: Graph, *, as_listed: bool = False) -> Numbered:
    """Number the nodes as TensorFlow does when it builds the graph of a function from a list of nodes.

    The first node of the list whose inputs are numbered comes next. A `Merge` does not wait for its `NextIteration`.

    Args:
        as_listed: keeps the places of the nodes that oneDNN's pass made. By default these nodes are sorted by name, in topological order,
            so that the numbers do not depend on the process that prepared the graph.
    """
    order = order_of(graph if as_listed else _with_replacements_sorted(graph))
    number = {node: k for k, node in enumerate(order)}
    data: list[list[tuple[int, int, int]]] = [[] for _ in order]
    control: list[list[int]] = [[] for _ in order]
    late: list[tuple[int, int, int, int]] = []
    for k, node in enumerate(order):
        for i, value in enumerate(node.inputs):
            source = number[value.producer]
            if source < k:
                data[source].append((k, i, value.index))
            else:
                late.append((source, k, i, value.index))  # back edges are added when all nodes are there
        for before in node.control_inputs:
            control[number[before]].append(k)
    for source, *edge in late:
        data[source].append((edge[0], edge[1], edge[2]))
    counts = tuple(len(n.inputs) + len(n.control_inputs) for n in order)
    edges = tuple(Edges(tuple(d), tuple(c)) for d, c in zip(data, control, strict=True))
    return Numbered(tuple(order), edges, counts, tuple(k for k, count in enumerate(counts) if not count))


def _with_replacements_sorted(graph: Graph) -> list[Node]:
    """Return the nodes of a graph, with those that oneDNN's pass made in an order of their own."""
    replaced = {node for node in graph.nodes if node.attrs.get(_KERNEL_LABEL) in _ONEDNN_LABELS}
    by_name = in_order(sorted(replaced, key=lambda node: node.name), producers_of)
    places = iter(by_name)
    return [next(places) if node in replaced else node for node in graph.nodes]


class Propagator(Protocol[Token]):
    """The effects of running nodes."""

    def roots(self) -> Sequence[Token]: ...  # the nodes that are ready at the start
    def is_cheap(self, token: Token) -> bool: ...  # whether the kernel runs in the thread that made it ready
    def start(self, token: Token) -> float: ...  # start the kernel; return its duration in seconds
    def finish(self, token: Token) -> Sequence[Token]: ...  # end the kernel; return the nodes that became ready, in order


@dataclass
class _Thread(Generic[Token]):
    tasks: deque[Token]
    queue: deque[Token]
    running: Token | None = None
    waiting: bool = False


def execute(propagator: Propagator[Token], *, threads: int = 1) -> None:
    """Run all nodes on a number of inter-op threads; the propagator sees each start and finish in the order of time."""
    _Pool(propagator, threads).run(propagator.roots())


class _Pool(Generic[Token]):
    """Eigen's pool of threads, in simulated time."""

    def __init__(self, propagator: Propagator[Token], threads: int) -> None:
        self.propagator = propagator
        self.threads = [_Thread[Token](deque(), deque()) for _ in range(threads)]
        self.events: list[tuple[float, int, int]] = []
        self.count = 0

    def run(self, roots: Iterable[Token]) -> None:
        self._dispatch(self.threads[0], list(roots), 0.0)
        for k in range(len(self.threads)):
            self._advance(k, 0.0)
        while self.events:
            now, _, k = heapq.heappop(self.events)
            thread = self.threads[k]
            if thread.running is not None:
                token, thread.running = thread.running, None
                self._dispatch(thread, self.propagator.finish(token), now)
            thread.waiting = False
            self._advance(k, now)

    def _dispatch(self, thread: _Thread[Token], ready: Sequence[Token], now: float) -> None:
        """`ExecutorState::ScheduleReady`."""
        expensive: list[Token] = []
        for token in ready:
            (thread.queue if self.propagator.is_cheap(token) else expensive).append(token)
        if expensive and not thread.queue:
            thread.queue.append(expensive.pop())
        self._push(thread, expensive, now)

    def _push(self, thread: _Thread[Token], tokens: Sequence[Token], now: float) -> None:
        """`ThreadPoolTempl::Schedule`."""
        for token in tokens:
            thread.tasks.appendleft(token)
            sleeper = next((k for k, other in enumerate(self.threads) if other.waiting), None)
            if sleeper is not None:
                self.threads[sleeper].waiting = False
                self._at(now + _WAKE_S, sleeper)

    def _at(self, time: float, thread: int) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, thread))

    def _advance(self, k: int, now: float) -> None:
        thread = self.threads[k]
        token = self._next(thread)
        if token is None:
            thread.waiting = True
            return
        thread.running = token
        self._at(now + self.propagator.start(token), k)

    def _next(self, thread: _Thread[Token]) -> Token | None:
        if thread.queue:
            return thread.queue.popleft()
        if thread.tasks:
            return thread.tasks.popleft()
        return next((other.tasks.pop() for other in self.threads if other.tasks), None)
