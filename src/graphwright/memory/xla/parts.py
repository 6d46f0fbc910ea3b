"""Keep XLA from running the parts of a batch at the same time.

XLA drops control edges, and could begin and hold all parts at once. So the values that only one part reads go through gates
(`memory/xla/gates.py`), which open when the part before is done: slices of the step's inputs, counters of random numbers, and, where parts
meet in between (batch statistics), what the part had computed by then.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from graphwright.ir.edit.insert import add_identity
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.walk import made_of
from graphwright.memory.xla.gates import KNOWN_WHEN_COMPILING
from graphwright.source.live_graph import is_numeric
from graphwright.transform.split_batch import PART


def add_part_gates(
    graph: Graph, steps: Sequence[Sequence[Node]], others: Collection[Node] = (), residuals: Collection[Node] = ()
) -> dict[Node, bool]:
    """Let each part of the batch wait for the part before it in the schedule.

    Args:
        graph: the graph with the schedule applied, without an order; gates are added.
        steps: the nodes of each step, in the order of the schedule.
        others: existing gates; what passes through them waits already.
        residuals: those of them through which backward parts read residuals.

    Returns:
        The gates, as `add_gates` returns them, none of them solid; empty if the step is not split.
    """
    known = made_of(graph, KNOWN_WHEN_COMPILING)
    holding = _Holding(graph, {*known, *others})
    unasked = known.union(value.producer for gate in residuals for value in gate.inputs)  # are read, too
    before: list[Node] = []
    for turn in _turns(steps):
        if before:
            holding.hold(turn, before)
        holding.given.update(value.producer for node in turn.nodes for value in node.inputs if part_of(value.producer) is None)
        before = turn.results(unasked) or before
    return dict.fromkeys(holding.gates, False)


@dataclass
class _Turn:
    """Nodes of one part that are consecutive in the schedule.

    Attributes:
        start: the first example of the part.
        behind: nodes of no part after them, up to the next turn.
    """

    start: object
    nodes: list[Node] = field(default_factory=list[Node])
    behind: list[Node] = field(default_factory=list[Node])

    def results(self, unasked: set[Node]) -> list[Node]:
        """Return the results of the turn that other nodes can wait for, added to those of earlier turns."""
        own = set(self.nodes)
        nodes = [*self.nodes, *(node for node in self.behind if any(value.producer in own for value in node.inputs))]
        read = {value.producer for node in nodes for value in node.inputs} | unasked
        return [node for node in nodes if node not in read and any(map(is_numeric, node.outputs))]


def _turns(steps: Sequence[Sequence[Node]]) -> list[_Turn]:
    turns: list[_Turn] = []
    for node in (node for nodes in steps for node in nodes):
        if (start := part_of(node)) is not None:
            if not turns or turns[-1].start != start:
                turns.append(_Turn(start))
            turns[-1].nodes.append(node)
        elif turns:
            turns[-1].behind.append(node)
    return turns


def part_of(node: Node) -> object:
    part = node.attrs.get(PART)
    return part[0] if isinstance(part, tuple) else None


class _Holding:
    """Puts gates before the inputs of a turn.

    Attributes:
        given: nodes that need no gate: constants, gated nodes, and nodes of an earlier turn.
    """

    def __init__(self, graph: Graph, given: set[Node]) -> None:
        self.given, self.gates = given, list[Node]()
        self._graph = graph
        self._readers: dict[Value, set[object]] = {}

    def hold(self, turn: _Turn, before: Sequence[Node]) -> None:
        """Let the inputs that only this part reads wait for these nodes, by one gate per value."""
        inside, gate_of = set(turn.nodes), dict[Value, Node]()
        for node in turn.nodes:
            for k, value in enumerate(node.inputs):
                producer, part = value.producer, part_of(value.producer)
                if producer in inside or producer in self.given or not is_numeric(value):
                    continue
                if part == turn.start:
                    reader, place = node, k
                elif part is None and producer.inputs and self._read_by(value) == {turn.start}:
                    reader, place = producer, 0  # a slice, say: of what is there anyway, where its result would take memory
                else:
                    continue
                read = reader.inputs[place]
                if read.producer in self.given or not is_numeric(read):
                    continue
                if read not in gate_of:
                    gate = gate_of[read] = add_identity(read, f"{read.producer.name}/next_part", control_inputs=before)
                    self.given.add(gate)
                    self.gates.append(gate)
                self._graph.replace_input(reader, place, gate_of[read].outputs[0])

    def _read_by(self, value: Value) -> set[object]:
        if value not in self._readers:
            self._readers[value] = {part_of(use.node) for use in value.uses}
        return self._readers[value]
