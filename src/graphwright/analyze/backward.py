"""Which nodes belong to the backward pass, told by dataflow: what depends on the gradient of the loss.

A training step seeds the backward pass with constants (the derivative of the loss by
itself, and factors of derivatives). They are found without their names: float constants
that the step's results do not need, but the updates of the weights do, where a weight is
a variable that the results depend on. What depends on such a constant is backward, the
optimizer's arithmetic included. Updates of moving averages and metrics are forward.

Gap: a step that returns its gradients, or nothing at all, makes the results depend on
everything, or on nothing. Then the definition falls back to what depends on a node whose
op type exists for gradients only (`*Grad`, `*Backprop*`), or on the gradient that a loss makes. A convolution and its
transposed (`*BackpropInput`) are each the other's gradient: of those that read one filter, the kind that comes first is forward.
"""

from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import LOSSES_WITH_GRADIENT
from graphwright.ir.traits.values import SAME_BUT_FOR_TYPE, is_constant, origin
from graphwright.ir.traits.variables import MAKES_BY_REFERENCE, WHOLE_READS, resource_of, written_references, written_resources
from graphwright.ir.walk import reached

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_HAND_ON = SAME_BUT_FOR_TYPE | WHOLE_READS


def backward_nodes(graph: Graph) -> frozenset[Node]:
    """The nodes that depend on the gradient of the loss; empty for a graph without a backward pass.

    >>> from graphwright.ir.graph import DTYPES
    >>> f32 = (DTYPES["float32"], (8,))
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[f32]).outputs[0]
    >>> y = g.add_node("Relu", "y", inputs=[x], output_types=[f32]).outputs[0]
    >>> d = g.add_node("ReluGrad", "d", inputs=[y, y], output_types=[f32])
    >>> g.outputs = [y]
    >>> [n.name for n in backward_nodes(g)]
    ['d']
    """

    seeds = _find_seeds(graph)

    def after(node: Node) -> list[Node]:
        if node in seeds:
            return seeds[node]
        return [*(c for v in node.outputs for c in v.consumers), *(c for c in node.control_consumers if _writes_what_is_read(node, c))]

    return frozenset(reached(list(seeds) or _seeds_by_type(graph), after))


def _find_seeds(graph: Graph) -> dict[Node, list[Node]]:
    """Constants that only the updates of weights are computed of, each with its readers on the way there.

    Grappler makes one of equal constants: the momentum of a moving average may be a decay rate of the optimizer, and leads to no gradient.
    """
    results = data_ancestors([v.producer for v in graph.outputs])
    weights = {resource_of(v) for node in results for v in node.inputs if v.dtype.name == "resource" or is_reference(v)}
    updates = [n for n in graph.nodes if n not in results and any(v in weights for v in updated_variables(n))]
    behind = data_ancestors(updates) - results
    seeds = [n for n in graph.nodes if n in behind and is_constant(n) and n.outputs[0].dtype.name in _FLOATS]
    within = behind.union(updates)
    return {n: [c for c in n.outputs[0].consumers if c in within] for n in seeds}


def _seeds_by_type(graph: Graph) -> list[Node]:
    seen: set[tuple[str, bool, Value]] = set()
    seeds: list[Node] = []
    for n in graph.nodes:
        kind, transposed, _ = n.op_type.partition("BackpropInput")
        filter_read = origin(n.inputs[1], _HAND_ON) if len(n.inputs) > 1 else None
        made_for_gradients = "Grad" in n.op_type[-6:] or ("Backprop" in n.op_type and not transposed)
        if made_for_gradients or (filter_read is not None and (kind, not transposed, filter_read) in seen):
            seeds.append(n)
        elif filter_read is not None:
            seen.add((kind, bool(transposed), filter_read))
    losses = (n for n in graph.nodes if n.op_type in LOSSES_WITH_GRADIENT)
    return seeds + [reader for n in losses for reader in n.outputs[1].consumers]


def is_reference(value: Value) -> bool:
    """Whether it is a variable of TF1 without a handle, or what such a variable gives when it is read."""
    return resource_of(value).producer.op_type in MAKES_BY_REFERENCE


def updated_variables(node: Node) -> tuple[Value, ...]:
    """The variables that the node writes: handles, and variables of TF1 without a handle."""
    written = written_resources(node)
    if written:
        return tuple(resource_of(v) for v in written)
    return tuple(resource_of(v) for v in written_references(node) if is_reference(v))


def data_ancestors(seeds: list[Node]) -> set[Node]:
    """What the seeds depend on, through data and through variables: a read depends on the writes that it waits for."""

    def before(node: Node) -> list[Node]:
        return [*(v.producer for v in node.inputs), *(c for c in node.control_inputs if _writes_what_is_read(c, node))]

    return set(reached(seeds, before))


def _writes_what_is_read(writer: Node, reader: Node) -> bool:
    written = {resource_of(v) for v in written_resources(writer)}
    return bool(written) and any(v.dtype.name == "resource" and resource_of(v) in written for v in reader.inputs)
