"""Control edges that make TensorFlow's executor run steps in the order of a plan, or overlap them where the plan says so.

Each edge costs time in each run, so what other edges say already gets none: a step waits only for those of the steps before it behind
which neither its inputs nor what it waits for are.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from graphwright.ir.edit.insert import insert_before
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.arithmetic import CONVOLUTIONS
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.walk import finished_before

_REMEMBERED = (1 << 8192) - 1  # of a node no more is known than of so many leaves, so that memory is bounded

_Known = tuple[int, int]  # how many of the first leaves a node is behind, and of those that follow, as bits
_NOTHING: _Known = (0, 0)


def keep_order(graph: Graph, steps: Sequence[tuple[Node, ...]], starts: Sequence[int]) -> None:
    """Control edges that make step k wait for all steps before `starts[k]`.

    What several wait for stands once, as a `NoOp`.

    A group must stay fusible, or its kernels, speed and last bits would differ from the original's. TensorFlow's
    oneDNN pass fuses two nodes only when they have the same control inputs (so all nodes of a group get the same
    ones), and for Conv2D with BiasAdd it aborts the process unless they have none: there an Identity in front of
    the convolution waits instead.
    """
    behind = _Behind()
    asked = Counter(starts)
    counts = [0]  # leaves of the steps before
    barriers: dict[int, Node] = {}
    for k, nodes in enumerate(steps):
        inside = set(nodes)
        entries = [n for n in nodes if not any(v.producer in inside for v in n.inputs)]
        wanted = counts[starts[k]]
        waits = behind.missing(wanted, behind.known_at(entries))
        if len(waits) > 1 and asked[starts[k]] > 1:
            if wanted not in barriers:
                waits = behind.missing(wanted, _NOTHING)
                name = graph.unique_name(f"{nodes[0].name}/ordered")
                barriers[wanted] = graph.add_node("NoOp", name, control_inputs=waits, device=nodes[0].device)
            waits = [barriers[wanted]]
        if waits:
            _wait(graph, nodes, waits)
        for node in nodes:
            if not any(c in inside for v in node.outputs for c in v.consumers):
                behind.add_leaf(node)
        counts.append(len(behind.leaves))


def _wait(graph: Graph, nodes: Sequence[Node], waits: Sequence[Node]) -> None:
    """Let a step wait for other nodes."""
    if len(nodes) > 1 and nodes[0].op_type in CONVOLUTIONS:
        gate = insert_before(graph, nodes[0], 0, "Identity", f"{nodes[0].name}/ordered", attrs={"T": nodes[0].inputs[0].dtype})
        nodes = [gate]
    for node in nodes:
        for other in waits:
            graph.add_control_input(node, other)


class _Behind:
    """Behind which leaves, the nodes with which steps end, each node is: when it starts, they have finished.

    A path over data and control edges says so, but for one through what hands on a result before it has all that it reads (branches and
    calls, which are lowered to nodes of their own), and through what may be folded: constants, questions for a shape.
    """

    def __init__(self) -> None:
        self.leaves: list[Node] = []
        self._number: dict[Node, int] = {}
        self._known: dict[Node, _Known] = {}

    def add_leaf(self, node: Node) -> None:
        """The next leaf, which nobody asked about before; it waits for all that it shall wait for."""
        self._number[node] = len(self.leaves)
        self.leaves.append(node)

    def known_at(self, entries: Sequence[Node]) -> _Known:
        """What all of these are behind by what they read and wait for. What runs functions may begin before it has all that it reads."""
        return _intersection(
            [_union(self.known(n) for n in (node.control_inputs if called_functions(node) else finished_before(node))) for node in entries]
        )

    def known(self, node: Node) -> _Known:
        """What a reader of a node is behind, the node included."""
        stack, entered = [node], set[Node]()
        while stack:
            top = stack[-1]
            if top in self._known:
                stack.pop()
            elif top not in entered:
                entered.add(top)
                stack += [n for n in finished_before(top) if n not in self._known]
            else:
                found = _union(self._known.get(n, _NOTHING) for n in finished_before(top))
                self._known[top] = _with(found, self._number[top]) if top in self._number else found
        return self._known[node]

    def missing(self, wanted: int, known: _Known) -> list[Node]:
        """Of the first so many leaves, the latest ones that, together with what is known, are behind all of them."""
        first, bits = known
        unknown = ~bits & ((1 << max(wanted - first, 0)) - 1)
        found: list[Node] = []
        while unknown:
            last = unknown.bit_length() - 1
            found.append(self.leaves[first + last])
            count, more = self.known(found[-1])
            unknown &= ~(1 << last | (more << count | (1 << count) - 1) >> first)
        return found


def _with(known: _Known, leaf: int) -> _Known:
    return known if leaf < known[0] else _short(known[0], known[1] | 1 << (leaf - known[0]))


def _union(found: Iterable[_Known]) -> _Known:
    found = tuple(found)
    first = max((count for count, _ in found), default=0)
    bits = 0
    for count, more in found:
        bits |= more >> (first - count)
    return _short(first, bits)


def _intersection(found: Sequence[_Known]) -> _Known:
    first = min(count for count, _ in found)
    bits = -1
    for count, more in found:
        bits &= (more << (count - first)) | ((1 << (count - first)) - 1)
    return _short(first, bits)


def _short(first: int, bits: int) -> _Known:
    """The same, with as many leaves as can be counted from the first one on, and no more bits than are remembered."""
    run = (~bits & (bits + 1)).bit_length() - 1
    return first + run, bits >> run & _REMEMBERED
