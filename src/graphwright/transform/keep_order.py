"""Control edges that make TensorFlow's executor run steps in the order of a plan, or overlap them as planned.

Each edge costs time in each run, so edges that others imply are left out.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from graphwright.ir.edit.insert import insert_before
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import CONVOLUTIONS
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.traits.merging import merge_partners
from graphwright.ir.walk import finished_before
from graphwright.plan.model import Waits

_REMEMBERED = 8192  # of the leaves that a node is behind, besides the first ones, so many of the latest are known: memory is bounded


class _Known(NamedTuple):
    """The leaves that precede a node: all before a number, and others as bits, the lowest for `first`."""

    all_before: int = 0
    first: int = 0
    bits: int = 0


_NOTHING = _Known()


def keep_order(graph: Graph, steps: Sequence[tuple[Node, ...]], waits: Sequence[Waits]) -> None:
    """Add control edges that make each step wait for groups of earlier steps, given by positions.

    A group with many waiting steps becomes one `NoOp`.

    The nodes of a step must stay fusible, or kernels, speed and last bits would change. TensorFlow's oneDNN pass fuses two nodes only if
    they have the same control inputs, so all nodes of a step get the same ones; for Conv2D with BiasAdd it aborts the process unless they
    have none, so an Identity in front of the convolution waits instead. It must not fuse nodes of different steps, which could wait for
    each other: an Identity hides them.
    """
    behind = _Behind()
    asked = Counter(group for groups in waits for group in groups)
    leaves: list[list[int]] = []  # per step, the numbers of the nodes with which it ends
    barriers: dict[tuple[int, ...], Node] = {}
    for nodes, groups in zip(steps, waits, strict=True):
        inside = set(nodes)
        known = behind.known_at([n for n in nodes if not any(v.producer in inside for v in n.inputs)])
        wanted: list[int] = []
        shared: list[Node] = []
        for group in groups:
            numbers = [number for k in group for number in leaves[k]]
            times = asked[group]
            edges = len(behind.missing(numbers, known)) if times > 1 else 0
            if edges * times > edges + times + 1:  # edges without the node, and with it
                if group not in barriers:
                    name = graph.unique_name(f"{nodes[0].name}/ordered")
                    controls = behind.missing(numbers, _NOTHING)
                    barriers[group] = graph.add_node("NoOp", name, control_inputs=controls, device=nodes[0].device)
                shared.append(barriers[group])
            else:
                wanted += numbers
        if others := [*behind.missing(wanted, _union([known, *map(behind.known, shared)])), *shared]:
            _wait(graph, nodes, others)
        leaves.append([behind.add_leaf(n) for n in nodes if not any(c in inside for v in n.outputs for c in v.consumers)])
    for nodes in steps:
        _hide_partners(graph, nodes)


def _wait(graph: Graph, nodes: Sequence[Node], waits: Sequence[Node]) -> None:
    if len(nodes) > 1 and any(node.op_type in CONVOLUTIONS for node in nodes):
        gate = insert_before(graph, nodes[0], 0, "Identity", f"{nodes[0].name}/ordered", attrs={"T": nodes[0].inputs[0].dtype})
        nodes = [gate]
    for node in nodes:
        for other in waits:
            graph.add_control_input(node, other)


def _hide_partners(graph: Graph, nodes: Sequence[Node]) -> None:
    hidden: dict[Value, Node] = {}
    for node in nodes:
        index, partners = merge_partners(node)
        if not all(partner in nodes for partner in partners):
            value = node.inputs[index]
            if value in hidden:
                graph.replace_input(node, index, hidden[value].outputs[0])
            else:
                hidden[value] = insert_before(graph, node, index, "Identity", f"{node.name}/apart", attrs={"T": value.dtype})


class _Behind:
    """For each node, the leaves (last nodes of steps) that have finished when it starts.

    Paths over data and control edges count, except through nodes that may forward a result early (branches and calls, which are lowered)
    and through nodes that may be folded (constants, shapes).
    """

    def __init__(self) -> None:
        self._leaves: list[Node] = []
        self._number: dict[Node, int] = {}
        self._known: dict[Node, _Known] = {}

    def add_leaf(self, node: Node) -> int:
        """Add a leaf with all of its control inputs, and return its number."""
        self._number[node] = len(self._leaves)
        self._leaves.append(node)
        return self._number[node]

    def known_at(self, entries: Sequence[Node]) -> _Known:
        """Return the leaves that precede all of these nodes; a node that calls functions may begin before all inputs are there."""
        return _intersection(
            [_union(self.known(n) for n in (node.control_inputs if called_functions(node) else finished_before(node))) for node in entries]
        )

    def known(self, node: Node) -> _Known:
        """Return the leaves that precede a reader of a node."""
        stack, entered = [node], set[Node]()
        while stack:
            top = stack[-1]
            if top in self._known:
                stack.pop()
            elif top not in entered:
                entered.add(top)
                stack += [n for n in finished_before(top) if n not in self._known]
            else:
                before = [self._known.get(n, _NOTHING) for n in finished_before(top)]
                if top in self._number:
                    before.append(_Known(0, self._number[top], 1))
                self._known[top] = _union(before)
        return self._known[node]

    def missing(self, wanted: Iterable[int], known: _Known) -> list[Node]:
        """Return the latest of these leaves that, with the known ones, imply all of them."""
        unknown: set[int] = {number for number in wanted if not _is_in(number, known)}
        latest: list[Node] = []
        while unknown:
            last = max(unknown)
            latest.append(self._leaves[last])
            more = self.known(latest[-1])
            unknown = {number for number in unknown if number != last and not _is_in(number, more)}
        return latest


def _is_in(number: int, known: _Known) -> bool:
    return number < known.all_before or (number >= known.first and bool(known.bits >> (number - known.first) & 1))


def _union(sets: Iterable[_Known]) -> _Known:
    sets = tuple(sets)
    before = max((one.all_before for one in sets), default=0)
    last = max((one.first + one.bits.bit_length() for one in sets), default=0)
    first = max(before, min((one.first for one in sets if one.bits), default=0), last - _REMEMBERED)
    bits = 0
    for one in sets:
        bits |= one.bits << (one.first - first) if one.first >= first else one.bits >> (first - one.first)
    run = (~bits & (bits + 1)).bit_length() - 1 if first == before else 0
    return _Known(before + run, first + run, bits >> run)


def _intersection(sets: Sequence[_Known]) -> _Known:
    before = min(one.all_before for one in sets)
    first = max(before, min(one.first for one in sets))
    bits = -1
    for one in sets:
        here = one.bits << (one.first - first) if one.first >= first else one.bits >> (first - one.first)
        bits &= here | (1 << max(one.all_before - first, 0)) - 1
    return _Known(before, first, bits)
