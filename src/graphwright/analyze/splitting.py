"""How a batch can be split: which values of a joint graph exist in parts, which are sums over the parts, and which stay whole.

Terms
-----
unit of the batch
    One example. A dimension with n elements is cut where the batch is: examples a to b of `batch` are its elements a n / batch to
    b n / batch. So a dimension into which batch and time are merged can be cut, and n must be a multiple of the batch.
split
    A value whose parts are slices along an axis, each made by a copy of its node.
sum
    A value of which each part makes a term; the terms are added up at once, and whoever reads it reads the sum.
whole
    Any other value. A node with a whole result that reads what is split gathers the parts: that costs memory, never correctness.
phase
    A node that reads a sum over all parts, or what was gathered of them, waits for them all: it, and what depends on it, belong to the
    next phase. Batch normalization in training takes two per layer, one forward and one backward.

Nothing here knows what the dimensions mean. The batch is what the arguments that are split have in front; everything else follows from
the rules of `split_rules/`, so a wrong guess of the batch is a plan that saves little, and no wrong result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from graphwright.analyze.flop_rules.rule import UnknownSizeError, dims
from graphwright.analyze.split_rules.rule import Dimensions
from graphwright.analyze.split_rules.table import RULES
from graphwright.ir.constants import Array, constant_array
from graphwright.ir.edit.copying import CloneResult
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import ENTERS, SWITCHES
from graphwright.ir.traits.effects import Purity, makes_counter
from graphwright.ir.traits.values import only_orders, origin
from graphwright.ir.traits.variables import reads_resource
from graphwright.ir.walk import topological_order

_LARGE = 2  # a value is large that takes the largest one's bytes by this


@dataclass(frozen=True, slots=True)
class InParts:
    """How a node runs in parts.

    Attributes:
        inputs: per input, the axis along which a part reads a slice of it; None where it reads all of it.
        output: the axis along which the outputs are split; None where each part makes a term of a sum.
        sizes: the elements of constant inputs that are sizes along the split dimensions, as (input, element).
        op_type: of the parts.
        divisor: by what the sum of all parts is divided.
        drawn: how many numbers are drawn per step of the counter at input 2; 0 for what draws none.
        alone: whether the first output alone is split, and nobody reads the others.
    """

    inputs: tuple[int | None, ...]
    output: int | None
    op_type: str
    sizes: tuple[tuple[int, int], ...] = ()
    divisor: int = 1
    drawn: int = 0
    alone: bool = False

    def split_outputs(self, node: Node) -> Sequence[Value]:
        """The outputs that are split; none where each part makes a term."""
        return () if self.output is None else node.outputs[:1] if self.alone else node.outputs


@dataclass(frozen=True, slots=True)
class Splitting:
    """What can be split.

    Attributes:
        batch: how many examples the batch has.
        arguments: the inputs of the graph that are split along their first axis.
        nodes: the nodes that run in parts.
        phases: the phase of each node.
    """

    batch: int
    arguments: tuple[Value, ...]
    nodes: Mapping[Node, InParts]
    phases: Mapping[Node, int]

    def in_copy(self, copy: CloneResult) -> Splitting:
        """The same of a copy of the whole graph."""
        return Splitting(
            self.batch,
            tuple(copy.value_of[value] for value in self.arguments),
            {copy.node_of[node]: how for node, how in self.nodes.items()},
            {copy.node_of[node]: phase for node, phase in self.phases.items()},
        )


def in_parts(node: Node, split: Sequence[int | None], wanted: int | None, batch: int) -> InParts | None:
    """How a node runs in parts when some inputs are split; None where it has to run whole.

    Where inputs are split along dimensions that do not go together, as in the scores of each example by each other one, the one is chosen
    with which least is gathered.

    Args:
        split: per input, the axis along which it is split already.
        wanted: the axis along which the result is to be split, for a node of which no input is.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> x, dy = (g.add_node("Placeholder", n, output_types=[(f32, (8, k))]).outputs[0] for n, k in (("x", 3), ("dy", 5)))
    >>> dw = g.add_node("MatMul", "dw", inputs=[x, dy], attrs={"transpose_a": True}, output_types=[(f32, (3, 5))])
    >>> in_parts(dw, [0, 0], None, 8)
    InParts(inputs=(0, 0), output=None, op_type='MatMul', sizes=(), divisor=1, drawn=0, alone=False)
    """
    rule = RULES.get(node.op_type)
    if rule is None or not node.outputs:
        return None
    try:
        known = rule(node)
        if wanted is not None:
            asked = [known.output[wanted]]
        else:
            asked = [labels[axis] for labels, axis in zip(known.inputs, split, strict=True) if axis is not None]
        ways = [_along(node, known, label, batch) for label in dict.fromkeys(asked) if label is not None]
        return min((way for way in ways if way is not None), key=lambda way: _gathered_bytes(node, split, way), default=None)
    except (UnknownSizeError, IndexError, ValueError):  # a use that the rule does not know
        return None


def _gathered_bytes(node: Node, split: Sequence[int | None], how: InParts) -> int:
    """What exists whole where a node runs in this way: inputs that are split along other axes, and sums."""
    gathered = {value for value, has, asks in zip(node.inputs, split, how.inputs, strict=True) if has is not None and has != asks}
    return sum(value.nbytes or 0 for value in (*gathered, *(node.outputs if how.output is None else ())))


def _along(node: Node, known: Dimensions, label: object, batch: int) -> InParts | None:
    """The node in parts along one label, where all sizes allow it."""
    inputs = tuple(labels.index(label) if label in labels else None for labels in known.inputs)
    output = known.output.index(label) if label in known.output else None
    if output is None and not known.sums:
        return None
    cut = [dims(value)[axis] for value, axis in zip(node.inputs, inputs, strict=True) if axis is not None]
    if output is not None:
        cut += [dims(value)[output] for value in node.outputs[: 1 if known.alone else None]]
    if any(size % batch or not size for size in cut):
        return None
    if any(labels.count(label) > 1 for labels in (*known.inputs, known.output)):
        return None
    sizes = tuple((k, element) for k, labels in known.sizes.items() for element, other in enumerate(labels) if other == label)
    for k, element in sizes:
        array = constant_array(origin(node.inputs[k]).producer)
        if array is None or (array[element] != -1 and array[element] % batch):
            return None
    if known.drawn:
        elements = 1
        for size in dims(node.outputs[0]):
            elements *= size
        if elements // batch % known.drawn or not makes_counter(origin(node.inputs[2]).producer):
            return None
    if output is not None:
        return InParts(inputs, output, node.op_type, sizes, drawn=known.drawn, alone=known.alone)
    return InParts(inputs, None, known.term or node.op_type, sizes, known.divisor)


def part_of_size(array: Array, element: int, start: int, stop: int, batch: int) -> Array:
    """Sizes for the examples from `start` to `stop`, of sizes for the whole batch; -1, which stands for the rest, stays."""
    changed = array.copy()
    if changed[element] != -1:
        changed[element] = int(changed[element]) * (stop - start) // batch
    return changed


def find_batch(arguments: Sequence[Value]) -> tuple[int, tuple[Value, ...]]:
    """The size of the batch, and the arguments that have it in front: the most frequent first dimension, of several the first one's.

    >>> find_batch(())
    (1, ())
    """
    fronts = [(value, shape[0]) for value in arguments if value.dtype.itemsize is not None and (shape := value.shape)]
    sizes = Counter(size for _, size in fronts if size is not None)
    if not sizes:
        return 1, ()
    batch = sizes.most_common(1)[0][0]
    return batch, tuple(value for value, size in fronts if size == batch)


def find_splitting(graph: Graph, purity: Purity, arguments: Sequence[Value]) -> Splitting | None:
    """What of a flat graph can run in parts of the batch; None where nothing can, or where TF1's switches decide what runs.

    Args:
        purity: which nodes have effects; they run once, whole.
        arguments: the inputs of the graph among which the batch is looked for.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(f32, (8, 3))]).outputs[0]
    >>> y = g.add_node("Relu", "y", inputs=[x], output_types=[(f32, (8, 3))])
    >>> found = find_splitting(g, Purity(g, {}), [x])
    >>> found.batch, found.nodes[y].output
    (8, 0)
    """
    batch, split = find_batch(arguments)
    if batch < 2 or _is_switched(graph):
        return None
    order = topological_order(graph)
    nodes = _spread(graph, _free(graph, order, purity), batch, dict.fromkeys(split, 0))
    return Splitting(batch, split, nodes, _phases(order, nodes, purity)) if nodes else None


def find_splitting_of_largest(graph: Graph, purity: Purity) -> Splitting | None:
    """What makes and reads the largest values of a flat graph, to run in parts alone: a language model's logits by rows.

    What is at least half as large as the largest value counts as large. Of the axes of the first large one, that is taken along which most
    bytes are never made whole; its elements are the units of the batch. None as for `find_splitting`.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> x, w = (g.add_node("Placeholder", n, output_types=[(f32, shape)]).outputs[0] for n, shape in (("x", (6, 2)), ("w", (2, 50))))
    >>> logits = g.add_node("MatMul", "logits", inputs=[x, w], output_types=[(f32, (6, 50))])
    >>> norm = g.add_node("L2Loss", "norm", inputs=logits.outputs, output_types=[(f32, ())])
    >>> g.inputs, g.outputs = [x, w], norm.outputs
    >>> found = find_splitting_of_largest(g, Purity(g, {"L2Loss": False}))
    >>> found.batch, found.nodes[logits].inputs, found.nodes[norm].output
    (6, (0, None), None)
    """
    if _is_switched(graph):
        return None
    order = topological_order(graph)
    free = _free(graph, order, purity)
    sizes = {value: value.nbytes or 0 for node in free for value in node.outputs}
    least = max(sizes.values(), default=0) / _LARGE
    large = {value for value, nbytes in sizes.items() if nbytes >= max(least, 1)}
    free = [node for node in free if not large.isdisjoint(node.outputs) or not large.isdisjoint(node.inputs)]
    first = next((value for node in free for value in node.outputs if value in large), None)
    kept = set(graph.outputs)
    most, best = -1, None
    for axis, units in enumerate((first.shape or ()) if first is not None else ()):
        if units is None or units < 2:
            continue
        begins = {n for n in free if not large.isdisjoint(n.outputs) and (n.outputs[0].shape or ())[axis : axis + 1] == (units,)}
        axes: dict[Value, int] = {}
        nodes = _spread(graph, free, units, axes, dict.fromkeys(begins, axis))
        made = sum(sizes[value] for value in axes if value not in kept and _is_read_in_slices(value, axes[value], nodes))
        if nodes and made > most:
            most, best = made, Splitting(units, (), nodes, _phases(order, nodes, purity))
    return best


def _is_read_in_slices(value: Value, axis: int, nodes: Mapping[Node, InParts]) -> bool:
    return all(use.node in nodes and nodes[use.node].inputs[use.index] == axis for use in value.uses)


def _is_switched(graph: Graph) -> bool:
    return any(node.op_type in SWITCHES or node.op_type in ENTERS for node in graph.nodes)


def _free(graph: Graph, order: Sequence[Node], purity: Purity) -> list[Node]:
    """The nodes that may run in parts."""
    given = {value.producer for value in graph.inputs}
    return [node for node in order if node not in given and not keeps_control_inputs(node, purity)]


def _spread(
    graph: Graph, free: Sequence[Node], batch: int, axes: dict[Value, int], begins: Mapping[Node, int] = MappingProxyType({})
) -> dict[Node, InParts]:
    """How nodes run in parts that read what is split, and those that begin it; then, what is read in slices alone is made in slices.

    Args:
        free: the nodes that may run in parts, in an order in which they can run.
        axes: of values that are split already; gets those of all that are.
        begins: nodes that make their first output in parts where they read nothing that is split, and along which axis.
    """
    nodes: dict[Node, InParts] = {}
    for node in free:
        found = [axes.get(value) for value in node.inputs]
        is_read = any(axis is not None for axis in found)
        if is_read or node in begins:
            _note(node, in_parts(node, found, None if is_read else begins[node], batch), nodes, axes)
    kept = set(graph.outputs)
    for node in reversed(free):
        if node in nodes or len(node.outputs) != 1 or node.outputs[0] in kept or not node.inputs:
            continue
        if any(axes.get(value) is not None for value in node.inputs):
            continue
        wanted = {nodes[use.node].inputs[use.index] if use.node in nodes else None for use in node.outputs[0].uses}
        axis = wanted.pop() if len(wanted) == 1 else None
        if axis is not None:
            _note(node, in_parts(node, [None] * len(node.inputs), axis, batch), nodes, axes)
    return nodes


def keeps_control_inputs(node: Node, purity: Purity) -> bool:
    """Whether it matters when the node runs. What only computes waits for its inputs: gradients have constants that wait for forward nodes
    for no reason, and would let all parts meet there.
    """
    return not purity.is_pure(node) or reads_resource(node) or only_orders(node)


def _note(node: Node, parts: InParts | None, nodes: dict[Node, InParts], axes: dict[Value, int]) -> None:
    if parts is not None:
        nodes[node] = parts
        if parts.output is not None:
            axes.update(dict.fromkeys(parts.split_outputs(node), parts.output))


def _phases(order: Sequence[Node], nodes: Mapping[Node, InParts], purity: Purity) -> dict[Node, int]:
    phases: dict[Node, int] = {}
    for node in order:
        phase = 0
        for k, value in enumerate(node.inputs):
            before = value.producer
            made = nodes.get(before)
            waits = made is not None and (node not in nodes or made.output is None or nodes[node].inputs[k] != made.output)
            phase = max(phase, phases.get(before, 0) + waits)
        if keeps_control_inputs(node, purity):
            phase = max([phase, *(phases[before] + (before in nodes) for before in node.control_inputs if before in phases)])
        phases[node] = phase
    return phases
