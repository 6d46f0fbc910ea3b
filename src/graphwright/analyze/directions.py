"""Which part of a step each node belongs to: forward, backward, or optimizer. Told by dataflow, never by a name alone.

Terms
-----
backward
    What depends on the gradient of the loss (`graphwright.analyze.backward`).
activation
    A value that depends on the step's inputs or on random numbers and is not a gradient: floats of rank one or more, masks, lists. What a
    step computes again for its backward pass (`tf.recompute_grad`) is such a value; the work of computing it again is backward.
optimizer
    What lies between gradients and the updates of variables. A node that depends on gradients, from which an update and no reader of
    activations can be reached, is on the last stretch. There the optimizer begins with the first arithmetic on a finished gradient,
    which has the shape in which a variable is updated, or holds rows of it: scaling, clipping and weight decay are optimizer; sums over
    a batch, transpositions and sums of several gradients of one weight (AddN), which finish the gradient, are backward, and so is what
    TensorFlow's names and dataflow mark as a gradient (`graphwright.analyze.backward.gradient_side`). What only the optimizer needs (a
    schedule of the learning rate, corrections of moments) belongs to it too, and so do updates of the same variables that depend on no
    input (weight decay apart from the gradient).

Gap: where no name marks it, elementwise arithmetic that finishes the gradient of a weight without reading an activation (the weight times
a constant, the gradient of a regularizer) counts as optimizer.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from graphwright.analyze.backward import backward_nodes, depending_on, gradient_side, updated_variables, updates_in_branches
from graphwright.analyze.flops import flop_rule, node_flops
from graphwright.ir.dtypes import Shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ADDS_BIAS, SUMS_OF_MANY
from graphwright.ir.traits.control_flow import BRANCHES
from graphwright.ir.traits.effects import is_collective, takes_from_stream
from graphwright.ir.traits.gradients import factors, is_in_gradient_scope
from graphwright.ir.traits.values import INPUTS
from graphwright.ir.walk import topological_order

Direction = Literal["forward", "backward", "optimizer"]

_FINISHES_A_GRADIENT = SUMS_OF_MANY | ADDS_BIAS
_ARITHMETIC = frozenset({"element by element", "optimizer"})
_NORMS = frozenset({"L2Loss", "EuclideanNorm"})


def find_directions(graph: Graph, backward: AbstractSet[Node] | None = None) -> Mapping[Node, Direction]:
    """The direction of every node of a flat graph; forward is what is neither backward nor optimizer.

    Args:
        backward: the nodes that depend on the gradient of the loss, where they are known.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (8,))]).outputs[0]
    >>> y = g.add_node("Relu", "y", inputs=[x], output_types=[(DTYPES["float32"], (8,))])
    >>> find_directions(g)[y]
    'forward'
    """
    backward = backward_nodes(graph) if backward is None else backward
    if not backward:
        return dict.fromkeys(graph.nodes, "forward")
    order = topological_order(graph)
    optimizer = _find_optimizer(graph, order, backward)
    return {n: "optimizer" if n in optimizer else "backward" if n in backward else "forward" for n in order}


def is_split_known(graph: Graph, directions: Mapping[Node, Direction]) -> bool:
    """Whether dataflow tells the directions: False where nodes have names of gradients, and nothing says whether they are gradients.

    They are none where they lead to a product of the forward pass: one outside of their scopes, or one that takes no factor transposed.
    """
    if any(direction != "forward" for direction in directions.values()):
        return True
    doubtful = [n for n in graph.nodes if is_in_gradient_scope(n) and node_flops(n)]
    products = ((n, factors(n)) for n in depending_on(doubtful))
    return not doubtful or any(found and not (is_in_gradient_scope(n) and any(flipped for _, flipped in found)) for n, found in products)


def _find_optimizer(graph: Graph, order: Sequence[Node], backward: AbstractSet[Node]) -> set[Node]:
    depends = _depends_on_data(graph, order)
    last_stretch = _last_stretch(order, backward, depends)
    finished = _rows({v.shape for node in last_stretch if updated_variables(node) for v in node.inputs})
    last_stretch -= gradient_side(graph)[0]
    optimizer: set[Node] = set()
    for node in order:
        if node in last_stretch and (_begins(node, finished) or any(v.producer in optimizer for v in node.inputs)):
            optimizer.add(node)
    updated = {variable for node in optimizer for variable in updated_variables(node)}
    for node in order:
        if node not in backward and node not in depends and any(v in updated for v in updated_variables(node)):
            optimizer.add(node)
    return optimizer | _only_for(optimizer, order, backward, graph)


def _last_stretch(order: Sequence[Node], backward: AbstractSet[Node], depends: AbstractSet[Node]) -> set[Node]:
    """Backward nodes that lead to an update and to no reader of an activation."""
    reads: set[Node] = set()
    updates: set[Node] = set()
    for node in reversed(order):
        if node not in backward:
            continue
        after = [c for v in node.outputs for c in v.consumers if c in backward]
        if any(c in reads for c in after) or any(v.producer not in backward and _is_activation(v, depends) for v in node.inputs):
            reads.add(node)
        if updates_in_branches(node) or any(c in updates for c in after) or updated_variables(node):
            updates.add(node)
    return updates - reads


def _rows(shapes: Iterable[Shape]) -> set[Shape]:
    """The shapes with any number of rows: a sparse gradient has as many as the batch touches."""
    found: set[Shape] = {()}
    found.update((None, *shape[1:]) if len(shape) > 1 else shape for shape in shapes if shape is not None)
    return found


def _begins(node: Node, finished: AbstractSet[Shape]) -> bool:
    """Whether it is arithmetic on a finished gradient."""
    if updated_variables(node) or node.op_type in BRANCHES:
        return True
    if node.op_type in _NORMS:
        return _rows([node.inputs[0].shape]) <= finished
    rule = flop_rule(node.op_type)
    if node.op_type in _FINISHES_A_GRADIENT or is_collective(node) or rule is None or rule.family not in _ARITHMETIC:
        return False
    return _rows(v.shape for v in node.outputs) <= finished


def _depends_on_data(graph: Graph, order: Sequence[Node]) -> set[Node]:
    """Nodes that depend on what the step is given, or on random numbers."""
    fed = {v.producer for v in graph.inputs} | {n for n in order if n.op_type in INPUTS}
    found: set[Node] = set()
    for node in order:
        rule = flop_rule(node.op_type)
        if (
            (node in fed and node.outputs[0].dtype.name != "resource")
            or takes_from_stream(node)
            or (rule is not None and rule.family.startswith("random"))
            or any(v.producer in found for v in node.inputs)
        ):
            found.add(node)
    return found


def _is_activation(value: Value, depends: AbstractSet[Node]) -> bool:
    carries = value.dtype.name.startswith(("bool", "variant", "float", "bfloat", "complex"))
    is_scalar = value.shape == () and value.dtype.name != "variant"
    return carries and value.producer in depends and not is_scalar


def _only_for(optimizer: AbstractSet[Node], order: Sequence[Node], backward: AbstractSet[Node], graph: Graph) -> set[Node]:
    """What nothing but the optimizer reads: outputs of the graph and other effects do not need it."""
    found: set[Node] = set()
    fixed = {v.producer for v in (*graph.inputs, *graph.outputs)} | set(graph.control_outputs)
    for node in reversed(order):
        if node in optimizer or node in backward or node in fixed or not node.outputs:
            continue
        readers = [c for v in node.outputs for c in v.consumers]
        if readers and all(c in optimizer or c in found for c in readers):
            found.add(node)
    return found
