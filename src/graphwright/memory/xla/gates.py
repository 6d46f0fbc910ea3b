"""Keep XLA from merging clones with their originals, and from computing them before the backward part needs them.

XLA drops control edges, and merges equal computations of forward and backward part, which would undo every schedule. So clones and some
gradients read through *gates* (`source/opaque_gate.py`), which open when the steps before them in the schedule are done. XLA orders the
operations between two gates, also for memory.

Terms
-----
run
    Consecutive clones of the schedule. Their gates open when the steps since the run before are done. A gate is placed before the smallest
    operand that is unknown at compile time: the weights of a convolution, not its image. Readers of another clone of the run need none.
sum of gradients
    Where paths join, as at every block of a residual network, gradients are summed. XLA fuses a sum with each of its readers, and so keeps
    the summands of all blocks instead of the sum. Readers of a sum from before the last run read it through a solid gate.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from graphwright.analyze.storages import SMALL_BYTES
from graphwright.ir.edit.insert import add_identity
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ASKS_FOR_SHAPE, LOOKUPS, SUMS
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.traits.values import CONSTANTS, input_behind
from graphwright.ir.traits.views import is_view
from graphwright.ir.walk import made_of, topological_order
from graphwright.source.live_graph import is_numeric, numeric_output

KNOWN_WHEN_COMPILING = ASKS_FOR_SHAPE | CONSTANTS
_SIZES_ONLY = frozenset({"Range", "LinSpace", "Fill"})


def add_gates(
    graph: Graph, steps: Sequence[Sequence[Node]], behind: Iterable[Node], clones: AbstractSet[Node], *, sums: bool = True
) -> dict[Node, bool]:
    """Let the clones wait for the steps before them in the schedule.

    Args:
        graph: the graph with the schedule applied, without an order; gates are added.
        steps: the nodes of each step of the backward part, in the order of the schedule.
        behind: nodes that are done when the backward part begins.
        clones: the clones among the nodes of the steps.
        sums: whether sums of gradients are held too.

    Returns:
        The gates, each an Identity with control inputs, and whether it is solid. `write_live_graph` makes them opaque to XLA.
    """
    compile_time = made_of(graph, KNOWN_WHEN_COMPILING)
    made_in: dict[Node, int] = {}
    run = _Run(graph, [], compile_time)
    number, since, in_run = 0, list(behind), False
    gates: dict[Node, bool] = {}
    for nodes in steps:
        is_clone = not clones.isdisjoint(nodes)
        if is_clone and not in_run:
            run = _Run(graph, _last_of(since, compile_time) or run.waits, compile_time)
            number, since = number + 1, []
        in_run = is_clone
        for node in nodes:
            if is_clone:
                run.hold(node)
                continue
            if sums:
                run.hold_sums(node, [made_in.get(value.producer, number) < number for value in node.inputs])
            made_in[node] = number
            since.append(node)
        gates |= run.gates
    graph.sort_nodes(topological_order(graph))
    return gates


class _Run:
    """A run of clones, and the steps up to the next one."""

    def __init__(self, graph: Graph, waits: Sequence[Node], compile_time: AbstractSet[Node]) -> None:
        self.waits = waits
        self.gates: dict[Node, bool] = {}
        self._graph, self._compile_time = graph, compile_time
        self._held: set[Node] = set()
        self._gated: dict[Value, Value] = {}

    def hold(self, clone: Node) -> None:
        if not any(_behind_views(value) in self._held for value in clone.inputs):
            places = _operands_to_hold(clone, self._compile_time)
            for k in places:
                self._graph.replace_input(clone, k, self._gate(clone.inputs[k], solid=False))
            if not places:
                return
        self._held.add(clone)

    def hold_sums(self, node: Node, is_old: Sequence[bool]) -> None:
        for k, value in enumerate(node.inputs):
            if is_old[k] and _is_large_sum(value):
                self._graph.replace_input(node, k, self._gate(value, solid=True))

    def _gate(self, value: Value, *, solid: bool) -> Value:
        if not self.waits:
            return value
        if value not in self._gated:
            gate = add_identity(value, f"recomputed/{value.producer.name}/gate", control_inputs=self.waits)
            self._gated[value] = gate.outputs[0]
            self.gates[gate] = solid
        return self._gated[value]


def _behind_views(value: Value) -> Node:
    node = value.producer
    while is_view(node) and node.inputs:
        value = input_behind(value)
        node = value.producer
    return node


def _operands_to_hold(node: Node, compile_time: AbstractSet[Node]) -> list[int]:
    """Return the places of the inputs to gate; none if XLA knows all of them at compile time."""
    able = [k for k, value in enumerate(node.inputs) if value.producer not in compile_time and is_numeric(value)]
    if not able or node.op_type in _SIZES_ONLY:
        return []
    if called_functions(node):  # is inlined: what reads only the other arguments would be merged
        return able
    if node.op_type in LOOKUPS and 1 in able:
        return [1]
    numbers = [k for k in able if "int" not in node.inputs[k].dtype.name]  # the others may be sizes that are arguments
    return [min(numbers, key=lambda k: node.inputs[k].nbytes or 0) if numbers else able[0]]


def _is_large_sum(value: Value) -> bool:
    node, nbytes = value.producer, value.nbytes or 0
    return node.op_type in SUMS and nbytes > SMALL_BYTES and sum((v.nbytes or 0) >= nbytes for v in node.inputs) > 1 and is_numeric(value)


def _last_of(nodes: Sequence[Node], compile_time: AbstractSet[Node]) -> list[Node]:
    """Return the nodes that no other node of the group reads and that can take a control edge."""
    able = [node for node in nodes if node not in compile_time and numeric_output(node) is not None]
    read = {value.producer for node in able for value in node.inputs}
    return [node for node in able if node not in read]
