"""How a batch can be split: which values of a joint graph exist in parts, which are sums over the parts, and which stay whole.

Terms
-----
unit of the batch
    One example. A dimension with n elements is cut where the batch is: examples a to b of `batch` are its elements a n / batch to b n /
    batch. So a dimension that merges batch and time can be cut, and n must be a multiple of the batch.
split
    A value whose parts are slices along an axis, each made by a copy of its node.
sum
    A value of which each part makes a term; the terms are added up at once.
whole
    Any other value. A node with a whole result that reads a split value gathers the parts: that costs memory, never correctness.
phase
    A node that reads a sum over all parts, or a gathered value, waits for all parts: it and its dependents belong to the next phase. Batch
    normalization in training takes two per layer, one forward and one backward.
loop
    It runs in parts if its body does, iteration by iteration: a loop value that an iteration makes split, or as a sum, is so before the
    first one. A body cannot gather, since the parts run one after another, each all of its iterations; so sums stay terms there, through
    linear operations, and a loop in which anything else reads a split value or a sum runs whole. So does a loop whose condition depends on
    examples. Lists are split as their elements are, and can be neither sliced nor gathered.

The batch is the first dimension of the split arguments; everything else follows from the split rules in `ops`, so a wrong guess of the
batch saves little, but gives no wrong result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from graphwright.analyze.in_parts import SAME, TERM, UNREAD, InParts, in_parts
from graphwright.ir.constants import is_zero
from graphwright.ir.edit.copying import CloneResult
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import SUMS
from graphwright.ir.traits.control_flow import ENTERS, LOOPS, SWITCHES, function_at
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.rounds import is_list
from graphwright.ir.traits.values import only_orders, origin
from graphwright.ir.traits.variables import reads_resource
from graphwright.ir.walk import backward_reachable, topological_order

LARGE, QUITE_LARGE = 2, 8
"""A value is large, or quite large, that takes the largest one's bytes by this."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """What can be split."""

    batch: int
    arguments: tuple[Value, ...]
    nodes: Mapping[Node, InParts]
    phases: Mapping[Node, int]

    def in_copy(self, copy: CloneResult) -> Splitting:
        return Splitting(
            self.batch,
            tuple(copy.value_of[value] for value in self.arguments),
            {copy.node_of[node]: how for node, how in self.nodes.items()},
            {copy.node_of[node]: phase for node, phase in self.phases.items()},
        )


def find_batch(arguments: Sequence[Value]) -> tuple[int, tuple[Value, ...]]:
    """Return the most frequent first dimension of the arguments, and the arguments that have it."""
    fronts = [(value, shape[0]) for value in arguments if value.dtype.itemsize is not None and (shape := value.shape)]
    sizes = Counter(size for _, size in fronts if size is not None)
    if not sizes:
        return 1, ()
    batch = sizes.most_common(1)[0][0]
    return batch, tuple(value for value, size in fronts if size == batch)


def find_splitting(graph: Graph, purity: Purity, arguments: Sequence[Value]) -> Splitting | None:
    """Return what of a flat graph can run in parts of the batch; None if nothing can, or if TF1 switches decide what runs."""
    batch, split = find_batch(arguments)
    if batch < 2 or _is_switched(graph):
        return None
    order = topological_order(graph)
    nodes = _Spread(graph, purity, batch, _free(graph, order, purity)).of(dict.fromkeys(split, 0))
    return Splitting(batch, split, nodes, _phases(order, nodes, purity)) if nodes else None


def find_splitting_of_largest(graph: Graph, purity: Purity, by: int = LARGE) -> Splitting | None:
    """Return how to split only the operations around the largest values, such as a language model's logits by rows; None as above.

    The axis of a large value is chosen that avoids making the most bytes whole, less the sums that are added up.

    Args:
        by: how many times smaller than the largest value a large one may be.
    """
    if _is_switched(graph):
        return None
    order = topological_order(graph)
    free = _free(graph, order, purity)
    sizes = {value: value.nbytes or 0 for node in free for value in node.outputs}
    least = max(sizes.values(), default=0) / by
    large = {value for value, nbytes in sizes.items() if nbytes >= max(least, 1)}
    free = [node for node in free if not large.isdisjoint(node.outputs) or not large.isdisjoint(node.inputs)]
    outputs = set(graph.outputs)
    most, best = 0, None
    for axis, units in dict.fromkeys(pair for node in free for v in node.outputs if v in large for pair in enumerate(v.shape or ())):
        if units is None or units < 2:
            continue
        begins = {n for n in free if not large.isdisjoint(n.outputs) and (n.outputs[0].shape or ())[axis : axis + 1] == (units,)}
        spread = _Spread(graph, purity, units, free, dict.fromkeys(begins, axis))
        nodes = spread.of({})
        split = spread.kinds
        split_bytes = sum(sizes[value] for value in split if value not in outputs and _is_read_in_slices(value, split[value], nodes))
        split_bytes -= sum(sizes[value] for node, how in nodes.items() for value in node.outputs if how.kind(value) == TERM)
        if nodes and (best is None or split_bytes > most):
            most, best = split_bytes, Splitting(units, (), nodes, _phases(order, nodes, purity))
    return best


def _is_read_in_slices(value: Value, axis: int, nodes: Mapping[Node, InParts]) -> bool:
    return all(use.node in nodes and nodes[use.node].inputs[use.index] == axis for use in value.uses)


def _is_switched(graph: Graph) -> bool:
    return any(node.op_type in SWITCHES or node.op_type in ENTERS for node in graph.nodes)


def _free(graph: Graph, order: Sequence[Node], purity: Purity) -> list[Node]:
    inputs = {value.producer for value in graph.inputs}
    return [node for node in order if node not in inputs and (not keeps_control_inputs(node, purity) or _only_reads(node, purity))]


def _only_reads(node: Node, purity: Purity) -> bool:
    return node.op_type in LOOPS and purity.is_pure(node)


@dataclass
class _Spread:
    """How nodes that read split values, or begin splits, run in parts; then, values that are read only in slices are made in slices.

    Args:
        free: the nodes that may run in parts, in topological order.
        begins: nodes that make their first output in parts without split inputs, with the axis.
        results: of a body, the kind of each result.

    Attributes:
        kinds: of split values, the axis; of sums in bodies, `TERM`.
    """

    graph: Graph
    purity: Purity
    batch: int
    free: Sequence[Node]
    begins: Mapping[Node, int] = field(default_factory=dict[Node, int])
    results: Sequence[int] | None = None
    kinds: dict[Value, int] = field(default_factory=dict[Value, int])

    def of(self, given: Mapping[Value, int]) -> dict[Node, InParts]:
        whole = set[Node]()
        while True:
            self.kinds = dict(given)
            nodes = self._nodes(whole)
            stuck = set[Node]()
            if self.results is None:
                stuck.update(n for node, value in self.misread(nodes) if is_list(value) for n in (node, value.producer) if n in nodes)
                stuck.update(value.producer for value in self.graph.outputs if is_list(value) and value.producer in nodes)
            if not stuck:
                return nodes
            whole |= stuck

    def misread(self, nodes: Mapping[Node, InParts]) -> Iterator[tuple[Node, Value]]:
        """Return who reads a value in another way than it is made."""
        for node in self.graph.nodes:
            how = nodes.get(node)
            for k, value in enumerate(node.inputs):
                asked = None if how is None else how.inputs[k]
                kind = self.kinds.get(value)
                if asked != kind and (kind is not None or is_list(value)):
                    yield node, value

    def _nodes(self, whole: AbstractSet[Node]) -> dict[Node, InParts]:
        nodes: dict[Node, InParts] = {}
        for node in self.free:
            input_kinds = [self.kinds.get(value) for value in node.inputs]
            is_read = any(kind is not None for kind in input_kinds)
            if node in whole or not (is_read or node in self.begins):
                continue
            if node.op_type in LOOPS:
                self._note(node, self._loop(node, input_kinds), nodes)
            else:
                self._note(node, in_parts(node, input_kinds, None if is_read else self.begins[node], self.batch), nodes)
        results = dict(zip(self.graph.outputs, self.results or (None,) * len(self.graph.outputs), strict=True))
        arguments = set(self.graph.inputs)
        for node in reversed(self.free):
            if node in nodes or node in whole or len(node.outputs) != 1 or not node.inputs:
                continue
            if any(self.kinds.get(value) is not None for value in node.inputs):
                continue
            value = node.outputs[0]
            wanted = {nodes[use.node].inputs[use.index] if use.node in nodes else None for use in value.uses}
            wanted |= {results[value]} if value in results else set()
            axis = wanted.pop() if len(wanted) == 1 else None
            if axis is None or axis < 0:
                continue
            how = in_parts(node, [None] * len(node.inputs), axis, self.batch)
            asked = zip(how.inputs, node.inputs, strict=True) if how is not None else ()
            if not any(along is not None and is_list(v) and v in arguments for along, v in asked):
                self._note(node, how, nodes)
        return nodes

    def _note(self, node: Node, how: InParts | None, nodes: dict[Node, InParts]) -> None:
        if how is not None:
            nodes[node] = how
            least = 0 if self.results is None else TERM
            self.kinds.update((value, how.kind(value)) for value in node.outputs if how.kind(value) >= least)

    def _loop(self, loop: Node, given: Sequence[int | None]) -> InParts | None:
        """Return how a loop runs in parts; None if it must run whole."""
        condition, function = (function_at(loop, name, self.graph) for name in ("cond", "body"))
        if condition is None or function is None or all(kind is None for kind in given):
            return None
        body, kinds = function.body, [SAME if kind is None else kind for kind in given]
        free = _free(body, topological_order(body), self.purity)
        while True:
            spread = _Spread(body, self.purity, self.batch, free, results=kinds)
            nodes = spread.of({value: kind for value, kind in zip(body.inputs, kinds, strict=True) if kind != SAME})
            result_kinds = [spread.kinds.get(value, SAME) for value in body.outputs]
            result_kinds = [TERM if self._adds_up(loop, k, spread) else kind for k, kind in enumerate(result_kinds)]
            changed = [new if old == SAME else old for old, new in zip(kinds, result_kinds, strict=True)]
            if changed == kinds:
                break
            kinds = changed
        for k, (asked, kind, value) in enumerate(zip(kinds, result_kinds, body.outputs, strict=True)):
            can_slice = kind == SAME and asked >= 0 and not is_list(value)
            is_number_before = asked != TERM or given[k] == TERM or is_zero(loop.inputs[k])
            if not (asked == kind or can_slice) or not is_number_before:
                return None
        arguments = dict(zip(condition.body.inputs, kinds, strict=True))
        decides = backward_reachable(value.producer for value in condition.body.outputs)
        if any(kind != SAME and value.producer in decides for value, kind in arguments.items()):
            return None
        if not nodes or next(spread.misread(nodes), None) is not None:
            return None
        inputs = [None if kind == SAME or (kind == TERM and given[k] is None) else kind for k, kind in enumerate(kinds)]
        return InParts(tuple(inputs), tuple(kinds), loop.op_type, body={node.name: how for node, how in nodes.items()})

    def _adds_up(self, loop: Node, k: int, spread: _Spread) -> bool:
        """Whether each iteration adds a sum over the batch to a loop value that starts as 0."""
        body = spread.graph
        argument, result = body.inputs[k], origin(body.outputs[k])
        if spread.kinds.get(argument) is not None or result.producer.op_type not in SUMS:
            return False
        added = {spread.kinds.get(value) for value in result.producer.inputs if origin(value) is not argument}
        return added == {TERM} and is_zero(loop.inputs[k])


def keeps_control_inputs(node: Node, purity: Purity) -> bool:
    """Whether the node must wait for its control inputs. Constants of gradients wait for forward nodes without need."""
    return not purity.is_pure(node) or reads_resource(node) or only_orders(node)


def _phases(order: Sequence[Node], nodes: Mapping[Node, InParts], purity: Purity) -> dict[Node, int]:
    phases: dict[Node, int] = {}
    for node in order:
        phase, how = 0, nodes.get(node)
        for k, value in enumerate(node.inputs):
            before = nodes.get(value.producer)
            kind = None if before is None else before.kind(value)
            own = how is not None and (how.inputs[k] == kind or (kind in (SAME, UNREAD) and how.inputs[k] is None))
            phase = max(phase, phases.get(value.producer, 0) + (kind is not None and not own))
        if keeps_control_inputs(node, purity):
            waits = [phases[n] + (n in nodes) for n in node.control_inputs if n in phases and not (n in nodes and how is not None)]
            phase = max([phase, *waits])
        phases[node] = phase
    return phases
