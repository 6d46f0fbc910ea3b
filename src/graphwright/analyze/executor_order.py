"""In which order TensorFlow's executor runs the kernels of a graph, with one inter-op thread or several.

The executor keeps a count of missing inputs per node. When a kernel is done, its outputs go along the edges, data edges
before control edges, each in the order in which the readers were added to the graph, and the nodes that miss nothing any
more are *ready*. Of these, kernels that call themselves cheap join the queue of the thread that is running; so does the last of
the others when that queue is empty. The rest become tasks at the *front* of that thread's own deque, from which
it takes when its queue is empty. A thread without work takes from the *back* of another one's deque. The deque has room for
1024 tasks; one more runs where it was to be added, before anything else.

So a single thread runs depth first: of two readers of a gradient, the one added last runs at once, and the other when all
that follows from the first is done. Which order that is depends on the numbering of the nodes alone, so
the order of one thread is predicted, not guessed; with more threads it depends on the durations too.

Two things are left to chance, also with one thread. A node with more than 8 readers keeps them in a hash table of pointers, and so
does the node that all nodes without inputs wait for (`in_drawn_order`). And oneDNN's pass, which replaces nodes in the order of such a
table, appends their replacements (`number_nodes`).

Sources, TensorFlow 2.21: common_runtime/executor.cc (`ExecutorState::ScheduleReady`), simple_propagator_state.cc,
propagator_state.cc, graph_constructor.cc (the numbering), graph/edgeset.h; Eigen/CXX11/src/ThreadPool/NonBlockingThreadPool.h.

Kernels that run side by side share the threads inside kernels (Eigen's intra-op pool). Each takes longer then, mostly in proportion;
now and then the parts of the shorter one wait behind those of the longer one, and both end together (seen in traces).

Gaps: short kernels outside of loops count as expensive, as they do in the first ninety steps.
"""

import heapq
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from graphwright.ir.graph import Graph, Node
from graphwright.ir.walk import consumers_of, order_of, producers_of, topological_order

CHEAP = frozenset(
    "Identity IdentityN RefIdentity StopGradient PreventGradient Const _HostConst NoOp _Arg _DeviceArg _Retval _DeviceRetval Shape ShapeN "
    "Rank Size Reshape Squeeze ExpandDims EnsureShape Switch RefSwitch Merge RefMerge Enter RefEnter Exit RefExit NextIteration "
    "RefNextIteration LoopCond ControlTrigger Placeholder StridedSlice StridedSliceGrad BroadcastArgs BroadcastGradientArgs "
    "ConcatOffset VarHandleOp PlaceholderWithDefault Snapshot DebugIdentity".split()
)
"""Op types whose kernels override `OpKernel::IsExpensive` to say no."""

RUNS_TO_CHEAP = 92
QUICK_S = 5.2e-6
"""A kernel below 8000 cycles counts as cheap when it has run so often: its estimate starts at 1e8 cycles and falls by a tenth a run.
The time is that of `analyze.time_model`, which adds 3e-6 s to every kernel."""
TIME_SPREAD = 0.4
"""Standard deviation of the logarithm of measured over estimated time, by which simulations with a seed vary each kernel."""
TOGETHER = 0.1
"""How often a kernel ends together with one that runs beside it."""
_INLINE = 8  # edges that a node keeps without a table (graph/edgeset.h)
_DEQUE_ROOM = 1024  # Eigen's RunQueue
_KERNEL_LABEL, _ONEDNN_LABELS = "_kernel", (b"MklNameChangeOp", b"MklLayoutDependentOp")
_WAKE_S = 2e-5  # until a thread that waits sees new work
_SHARES_S = 1e-4  # kernels from this time on are split into parts that the threads inside kernels work off


_Reader = TypeVar("_Reader")
Token = TypeVar("Token")
"""Says which execution of which node it is."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Who is told when a node is done: data edges as (reader, input, output), then control edges."""

    data: tuple[tuple[int, int, int], ...]
    control: tuple[int, ...]


@dataclass(frozen=True)
class Numbered:
    """A graph as the executor sees it.

    Attributes:
        nodes: by TensorFlow's number.
        edges: per node.
        in_edges: per node, how many edges come in.
        roots: nodes without any.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edges, ...]
    in_edges: tuple[int, ...]
    roots: tuple[int, ...]


def number_nodes(graph: Graph, chance: random.Random | None = None) -> Numbered:
    """Number the nodes as TensorFlow does when it builds the graph of a function from a list of nodes.

    Of the nodes whose inputs are there, the first of the list comes next. A `Merge` does not wait for its `NextIteration`.

    Args:
        chance: draws the places of the nodes that oneDNN's pass replaces; by default they stay as they are.
    """
    order = topological_order(graph) if chance is None else order_of(_with_drawn_places(graph, chance))
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


def _with_drawn_places(graph: Graph, chance: random.Random) -> list[Node]:
    """The nodes, with those that oneDNN's pass has replaced in drawn places.

    The pass appends a new node for each that it replaces, in the reverse postorder of a walk whose roots lie in a hash table of pointers.
    The draw depends on names only, not on the draw that TensorFlow made.
    """
    replaced = {node for node in graph.nodes if node.attrs.get(_KERNEL_LABEL) in _ONEDNN_LABELS}

    def drawn(nodes: Iterable[Node]) -> list[Node]:
        by_name = sorted(nodes, key=lambda node: node.name)
        chance.shuffle(by_name)
        return by_name

    roots = drawn(node for node in graph.nodes if not producers_of(node))
    postorder: list[Node] = []
    seen = set(roots)
    for root in roots:
        stack = [(root, iter(drawn(consumers_of(root))))]
        while stack:
            node, readers = stack[-1]
            reader = next((reader for reader in readers if reader not in seen), None)
            if reader is None:
                postorder.append(node)
                stack.pop()
            else:
                seen.add(reader)
                stack.append((reader, iter(drawn(consumers_of(reader)))))
    places = iter([node for node in reversed(postorder) if node in replaced])
    return [next(places, node) if node in replaced else node for node in graph.nodes]


def in_drawn_order(numbered: Numbered, chance: random.Random) -> Numbered:
    """The graph as TensorFlow may walk it: more readers than `_INLINE` of one node come in any order, since they lie where chance put them.

    So do the nodes that wait for nothing: their edges share a table with three to the sink.
    """

    def drawn(readers: Sequence[_Reader]) -> tuple[_Reader, ...]:
        return tuple(chance.sample(readers, len(readers)))

    edges = [Edges(drawn(e.data), drawn(e.control)) if len(e.data) + len(e.control) > _INLINE else e for e in numbered.edges]
    roots = numbered.roots if len(numbered.roots) + 3 <= _INLINE else drawn(numbered.roots)
    return replace(numbered, edges=tuple(edges), roots=roots)


class Propagator(Protocol[Token]):
    """What happens when nodes run."""

    def roots(self) -> Sequence[Token]: ...  # what is ready at the start
    def is_cheap(self, token: Token) -> bool: ...  # whether its kernel runs in the thread that made it ready
    def start(self, token: Token) -> float: ...  # the kernel begins; returns how many seconds it takes
    def finish(self, token: Token) -> Sequence[Token]: ...  # the kernel is done; returns what is ready now, in order
    def ends_with_others(self) -> bool: ...  # whether one and one beside it end together: their parts wait in the same queues


@dataclass
class _Thread(Generic[Token]):
    tasks: deque[Token]
    queue: deque[Token]
    interrupted: list[tuple[deque[Token], Sequence[Token]]]  # queues that wait for a task that found no room, and what was to follow it
    running: Token | None = None
    ends: float = 0.0
    waiting: bool = False


def execute(propagator: Propagator[Token], *, threads: int = 1) -> None:
    """Run everything, with so many inter-op threads.

    Args:
        propagator: is told of each start and finish, in the order of time.
        threads: 1 or more.
    """
    _Pool(propagator, threads).run(propagator.roots())


class _Pool(Generic[Token]):
    """Eigen's pool of threads, in simulated time."""

    def __init__(self, propagator: Propagator[Token], threads: int) -> None:
        self.propagator = propagator
        self.threads = [_Thread[Token](deque(), deque(), []) for _ in range(threads)]
        self.events: list[tuple[float, int, int]] = []
        self.count = 0

    def run(self, roots: Iterable[Token]) -> None:
        self._dispatch(self.threads[0], list(roots), 0.0)
        for k in range(len(self.threads)):
            self._advance(k, 0.0)
        while self.events:
            now, _, k = heapq.heappop(self.events)
            thread = self.threads[k]
            if thread.running is not None and thread.ends > now:  # it takes longer, because of another one
                self._at(thread.ends, k)
                continue
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
        """`ThreadPoolTempl::Schedule`: a task that finds no room in the deque runs at once, with all that follows inline."""
        for k, token in enumerate(tokens):
            if len(thread.tasks) >= _DEQUE_ROOM:
                thread.interrupted.append((thread.queue, tokens[k + 1 :]))
                thread.queue = deque([token])
                return
            thread.tasks.appendleft(token)
            sleeper = next((k for k, other in enumerate(self.threads) if other.waiting), None)
            if sleeper is not None:
                self.threads[sleeper].waiting = False
                self._at(now + _WAKE_S, sleeper)

    def _at(self, time: float, thread: int) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, thread))

    def _advance(self, k: int, now: float) -> None:
        """Start the next kernel of a thread that has none."""
        thread = self.threads[k]
        token = self._next(thread, now)
        if token is None:
            thread.waiting = True
            return
        time = self.propagator.start(token)
        thread.ends = now + time
        beside = [other for other in self.threads if other.running is not None and other.ends >= now + _SHARES_S]
        if time >= _SHARES_S and beside and self.propagator.ends_with_others():
            thread.ends = max(thread.ends, *(other.ends for other in beside))
            for other in beside:
                other.ends = thread.ends
        thread.running = token
        self._at(thread.ends, k)

    def _next(self, thread: _Thread[Token], now: float) -> Token | None:
        while not thread.queue and thread.interrupted:
            thread.queue, tokens = thread.interrupted.pop()
            self._push(thread, tokens, now)
        if thread.queue:
            return thread.queue.popleft()
        if thread.tasks:
            return thread.tasks.popleft()
        for other in self.threads:
            if other.tasks:
                return other.tasks.pop()
        return None
