"""Assign each node of a step to the forward pass, the backward pass or the optimizer, by dataflow and never by a name only.

Terms
-----
backward
    Depends on the gradient of the loss (`graphwright.analyze.backward`).
activation
    A value that depends on the inputs of the step or on random numbers and is no gradient: floats of rank one or more, masks, lists. Values
    that a step computes again for its backward pass (`tf.recompute_grad`) are activations; computing them again is backward work.
optimizer
    The nodes between gradients and the updates of variables. A node that depends on gradients and leads to an update, but to no reader of
    activations, is on the *last stretch*. There the optimizer begins with the first arithmetic on a finished gradient, which has the
    shape in which a variable is updated, or holds rows of it. Scaling, clipping and weight decay are optimizer. Sums over a batch,
    transpositions, sums of several gradients of one weight (AddN) and nodes of `gradient_side` are backward. The nodes that only the
    optimizer needs (a learning rate schedule, corrections of moments) belong to it, and so do updates of the same variables that
    depend on no input (decoupled weight decay).

Gap: where no name marks it, elementwise arithmetic that finishes the gradient of a weight without reading an activation (the weight times
a constant, the gradient of a regularizer) counts as optimizer.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from graphwright.analyze.backward import backward_nodes, depending_on, gradient_side, updated_variables, updates_in_branches
from graphwright.ir.dtypes import Shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ADDS_BIAS, SUMS_OF_MANY
from graphwright.ir.traits.control_flow import BRANCHES
from graphwright.ir.traits.effects import is_collective, takes_from_stream
from graphwright.ir.traits.gradients import factors, is_in_gradient_scope
from graphwright.ir.traits.values import INPUTS
from graphwright.ir.walk import topological_order
from graphwright.ops.flops import flop_rule, node_flops

Direction = Literal["forward", "backward", "optimizer"]

_FINISHES_A_GRADIENT = SUMS_OF_MANY | ADDS_BIAS
_ARITHMETIC = frozenset({"element by element", "optimizer"})
_NORMS = frozenset({"L2Loss", "EuclideanNorm"})


def find_directions(graph: Graph, backward: AbstractSet[Node] | None = None) -> Mapping[Node, Direction]:
    """Return the direction of every node of a flat graph; forward is the rest.

    Args:
        backward: the nodes that depend on the gradient of the loss, if they are known.
    """
    backward = backward_nodes(graph) if backward is None else backward
    if not backward:
        return dict.fromkeys(graph.nodes, "forward")
    order = topological_order(graph)
    optimizer = _find_optimizer(graph, order, backward)
    return {n: "optimizer" if n in optimizer else "backward" if n in backward else "forward" for n in order}


def is_split_known(graph: Graph, directions: Mapping[Node, Direction]) -> bool:
    """Return whether dataflow decides the directions: False if nodes are named as gradients and nothing shows whether they are.

    They are not if they lead to a product of the forward pass: one outside of gradient scopes, or one without a transposed factor.
    """
    if any(direction != "forward" for direction in directions.values()):
        return True
    doubtful = [n for n in graph.nodes if is_in_gradient_scope(n) and node_flops(n)]
    products = ((n, factors(n)) for n in depending_on(doubtful))
    return not doubtful or any(flips and not (is_in_gradient_scope(n) and any(flipped for _, flipped in flips)) for n, flips in products)


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
    """Return the backward nodes that lead to an update and to no reader of an activation."""
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
    """Return the shapes with any number of rows, since a sparse gradient has as many as the batch touches."""
    rows: set[Shape] = {()}
    rows.update((None, *shape[1:]) if len(shape) > 1 else shape for shape in shapes if shape is not None)
    return rows


def _begins(node: Node, finished: AbstractSet[Shape]) -> bool:
    if updated_variables(node) or node.op_type in BRANCHES:
        return True
    if node.op_type in _NORMS:
        return _rows([node.inputs[0].shape]) <= finished
    rule = flop_rule(node.op_type)
    if node.op_type in _FINISHES_A_GRADIENT or is_collective(node) or rule is None or rule.family not in _ARITHMETIC:
        return False
    return _rows(v.shape for v in node.outputs) <= finished


def _depends_on_data(graph: Graph, order: Sequence[Node]) -> set[Node]:
    fed = {v.producer for v in graph.inputs} | {n for n in order if n.op_type in INPUTS}
    dependent: set[Node] = set()
    for node in order:
        rule = flop_rule(node.op_type)
        if (
            (node in fed and node.outputs[0].dtype.name != "resource")
            or takes_from_stream(node)
            or (rule is not None and rule.family.startswith("random"))
            or any(v.producer in dependent for v in node.inputs)
        ):
            dependent.add(node)
    return dependent


def _is_activation(value: Value, depends: AbstractSet[Node]) -> bool:
    carries = value.dtype.name.startswith(("bool", "variant", "float", "bfloat", "complex"))
    is_scalar = value.shape == () and value.dtype.name != "variant"
    return carries and value.producer in depends and not is_scalar


def _only_for(optimizer: AbstractSet[Node], order: Sequence[Node], backward: AbstractSet[Node], graph: Graph) -> set[Node]:
    exclusive: set[Node] = set()
    fixed = {v.producer for v in (*graph.inputs, *graph.outputs)} | set(graph.control_outputs)
    for node in reversed(order):
        if node in optimizer or node in backward or node in fixed or not node.outputs:
            continue
        readers = [c for v in node.outputs for c in v.consumers]
        if readers and all(c in optimizer or c in exclusive for c in readers):
            exclusive.add(node)
    return exclusive
