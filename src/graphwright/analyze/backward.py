"""Find the backward pass of a training step by dataflow: the nodes that depend on the gradient of the loss.

A training step seeds the backward pass with float constants: the derivative of the loss by itself, and factors of derivatives. The forward
pass does not need them; the updates of the weights and the returned gradients do. The nodes that depend on such a constant are backward,
the optimizer's arithmetic included. The forward pass is what the results of the step need. Updates of moving averages and metrics are
forward, and so is a gradient that the forward pass goes on to use (a gradient penalty).

Names of gradient nodes are a hint that dataflow must confirm (`gradient_side`). They separate returned gradients from other results. The
nodes that they read are forward, so a step that returns no loss is recognized too.

Gap: without such names, a step that returns its gradients, or nothing, is recognized by op types that exist for gradients only (`*Grad`,
`*Backprop*`) and by the gradient that a loss computes. A convolution and its transpose (`*BackpropInput`) are each the other's gradient: of
those that read one filter, the kind that comes first is forward.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from graphwright.ir.constants import filler, is_filled
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import LOSSES_WITH_GRADIENT, SCALES
from graphwright.ir.traits.control_flow import BRANCHES
from graphwright.ir.traits.gradients import ACCUMULATES, NOT_LINEAR_IN_BOTH, factors, is_gradient_kernel, is_in_gradient_scope
from graphwright.ir.traits.values import SAME_BUT_FOR_TYPE, is_constant, origin
from graphwright.ir.traits.variables import MAKES_BY_REFERENCE, WHOLE_READS, resource_of, written_references, written_resources
from graphwright.ir.walk import reached, topological_order

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_HAND_ON = SAME_BUT_FOR_TYPE | WHOLE_READS


def backward_nodes(graph: Graph) -> frozenset[Node]:
    """Return the nodes that depend on the gradient of the loss; empty for a graph without a backward pass."""
    gradients, read = gradient_side(graph)
    results = _find_results(graph, gradients, read)
    seeds = _find_seeds(graph, gradients, results)

    def after(node: Node) -> list[Node]:
        if node in seeds:
            return seeds[node]
        readers = [*(c for v in node.outputs for c in v.consumers), *(c for c in node.control_consumers if _writes_what_is_read(node, c))]
        return [c for c in readers if c not in results]

    return frozenset(reached(list(seeds) or (gradients - results) or _seeds_by_type(graph), after))


def gradient_side(graph: Graph) -> tuple[set[Node], list[Node]]:
    """Return the nodes that compute gradients, by name and confirmed by dataflow, and the forward nodes that they read.

    A gradient begins with ones of the loss's shape, with an op that exists for gradients only, or with the transposed factor of a forward
    product. It contains all nodes on paths to other nodes with names of gradients (custom gradients have no such names), and the named
    nodes that only gradients read (factors of derivatives). A gradient inside a loss belongs to the forward pass of that loss.
    """
    named = {n for n in graph.nodes if is_in_gradient_scope(n)}
    if not named:
        return set(), []
    order = topological_order(graph)
    products = {(k, origin(n.inputs[k], _HAND_ON), not flipped) for n in order if n not in named for k, flipped in factors(n)}
    scalable = [n for n in order if n in named and n.op_type not in NOT_LINEAR_IN_BOTH and all(v.dtype.name != "bool" for v in n.outputs)]
    ones = {n: filler(v) for n in scalable for v in n.inputs if v.dtype.name in _FLOATS and is_filled(v, 1)}
    bits = {of: 1 << k for k, of in enumerate(dict.fromkeys(ones.values()))}
    flipped = [n for n in named if any((k, origin(n.inputs[k], _HAND_ON), is_flipped) in products for k, is_flipped in factors(n))]
    late = depending_on([*ones, *flipped, *named.intersection(_seeds_by_type(graph))])
    side: set[Node] = set()
    for node in reversed(order):
        read = [c in side for v in node.outputs for c in v.consumers]
        if (node in named or any(read)) if node in late else (node in named and read and all(read)):
            side.add(node)
    begun: dict[Node, int] = {}  # per node, the bits of the ones that it depends on
    forward: list[Node] = []
    for node in order:
        before = [v.producer for v in node.inputs]
        if node in late:
            begun[node] = bits.get(ones.get(node, node), 0)
            for earlier in before:
                begun[node] |= begun.get(earlier, 0)
        if node in side:
            last = 1 << max(begun.get(node, 0).bit_length() - 1, 0)
            of_a_loss = (n for n in before if node in named and begun.get(node) and n in begun and not begun[n] & last)
            forward += [n for n in of_a_loss if factors(node) or node.op_type in SCALES or not (n in named or n.op_type in ACCUMULATES)]
            forward += [n for n in before if n not in side and not is_constant(n) and not is_filled(n.outputs[0], 1)]
    return side, forward


def depending_on(seeds: Iterable[Node]) -> set[Node]:
    """Return the seeds and all nodes that depend on them through data, also around loops of TF1."""
    return set(reached(seeds, lambda node: (c for v in node.outputs for c in v.consumers)))


def _find_results(graph: Graph, gradients: AbstractSet[Node], read: list[Node]) -> set[Node]:
    forward = data_ancestors(read, depending_on(gradients))
    late = depending_on(gradients - forward)
    return data_ancestors([*read, *(v.producer for v in graph.outputs if v.producer not in late)], late)


def _find_seeds(graph: Graph, gradients: AbstractSet[Node], results: AbstractSet[Node]) -> dict[Node, list[Node]]:
    """Return the constants that only gradients and updates of weights use, each with its readers on the way there.

    Grappler merges equal constants, so one may also be the momentum of a moving average, which leads to no gradient.
    """
    weights = {resource_of(v) for node in results for v in node.inputs if v.dtype.name == "resource" or is_reference(v)}
    late = depending_on(gradients - results)
    ends = {n for n in late if updates_in_branches(n)}.union(late.intersection(v.producer for v in graph.outputs))
    ends.update(n for n in graph.nodes if n not in results and any(n in late or v in weights for v in updated_variables(n)))
    behind = data_ancestors(list(ends)) - results
    seeds = [n for n in graph.nodes if n in behind and is_constant(n) and n.outputs[0].dtype.name in _FLOATS]
    within = behind.union(ends)
    return {n: [c for c in n.outputs[0].consumers if c in within] for n in seeds}


def _seeds_by_type(graph: Graph) -> list[Node]:
    seen: set[tuple[str, bool, Value]] = set()
    seeds: list[Node] = []
    for n in graph.nodes:
        kind, transposed, _ = n.op_type.partition("BackpropInput")
        filter_read = origin(n.inputs[1], _HAND_ON) if len(n.inputs) > 1 else None
        if is_gradient_kernel(n) or (filter_read is not None and (kind, not transposed, filter_read) in seen):
            seeds.append(n)
        elif filter_read is not None:
            seen.add((kind, bool(transposed), filter_read))
    losses = (n for n in graph.nodes if n.op_type in LOSSES_WITH_GRADIENT)
    return seeds + [reader for n in losses for reader in n.outputs[1].consumers]


def is_reference(value: Value) -> bool:
    """Return whether a value is a variable of TF1 without a handle, or the result of reading one."""
    return resource_of(value).producer.op_type in MAKES_BY_REFERENCE


def updated_variables(node: Node) -> tuple[Value, ...]:
    """Return the variables that a node writes: handles, and variables of TF1 without a handle."""
    written = written_resources(node)
    if written:
        return tuple(resource_of(v) for v in written)
    return tuple(resource_of(v) for v in written_references(node) if is_reference(v))


def updates_in_branches(node: Node) -> bool:
    """Return whether a node is a conditional that may write variables."""
    return node.op_type in BRANCHES and any(v.dtype.name == "resource" for v in node.inputs)


def data_ancestors(seeds: list[Node], without: AbstractSet[Node] = frozenset()) -> set[Node]:
    """Return the nodes that the seeds depend on through data, and through variables whose write a read waits for."""

    def before(node: Node) -> list[Node]:
        writers = (c for c in node.control_inputs if c not in without and _writes_what_is_read(c, node))
        return [*(v.producer for v in node.inputs), *writers]

    return set(reached(seeds, before))


def _writes_what_is_read(writer: Node, reader: Node) -> bool:
    written = {resource_of(v) for v in written_resources(writer)}
    return bool(written) and any(v.dtype.name == "resource" and resource_of(v) in written for v in reader.inputs)
