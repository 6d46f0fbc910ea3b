"""Fold a chain of steps behind a convolution or matrix product into its weights: `(x * w) s + t = x * (w s) + t`.

The chain becomes one `BiasAdd` with the name of its last node. Without an offset, the linear op takes that name, and its places in
signatures and collections.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ADDS_BIAS
from graphwright.ir.traits.values import is_identity
from graphwright.transform.constant_values import Array, Constants, remove_unread
from graphwright.transform.folding.linear import LINEAR, Linear, can_hold, linear_of, set_constant_input, set_weights
from graphwright.transform.folding.steps import Chain, add_bias, blocked, empty_chain, layout_behind, step_of, then

Where = Callable[[Node], bool]


@dataclass(slots=True)
class Notes:
    """What was folded, and why other nodes were not."""

    folded: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Name of the last node of a chain -> the linear op, and whether the chain was `behind` or `before` it."""
    refused: dict[Node, list[str]] = field(default_factory=dict[Node, list[str]])

    def refuse(self, node: Node, reason: str) -> None:
        reasons = self.refused.setdefault(node, [])
        if reason not in reasons:
            reasons.append(reason)


def fold_behind(graph: Graph, constants: Constants, notes: Notes, *, where: Where | None = None) -> int:
    """Fold the chains behind linear ops, and behind concatenations of their outputs; returns how many. The nodes are not sorted.

    Args:
        where: which nodes that scale may be folded; by default all.
    """
    count = 0
    for node in graph.nodes:
        if node.op_type not in LINEAR:
            continue
        linear = linear_of(node, constants)
        if isinstance(linear, str):
            for reader in node.outputs[0].consumers:
                notes.refuse(reader, linear)
            continue
        chain = _chain_behind(graph, empty_chain(linear.output, linear.layout, linear.channels_out), constants, notes, where)
        if chain is None:
            continue
        weights = linear.with_outputs_scaled(chain.step.scale)
        if not can_hold(weights, node.inputs[1]) or not can_hold(chain.step.offset, linear.output):
            notes.refuse(chain.nodes[0], f"the new weights of {node.name!r} would not fit in {node.inputs[1].dtype}")
            continue
        name = chain.nodes[-1].name
        set_weights(graph, linear, weights)
        notes.folded[name] = (_put_bias(graph, linear.output, chain), "behind")
        count += 1
    for node in graph.nodes:
        if node.op_type == "ConcatV2" and graph.owns(node):
            count += _fold_concatenated(graph, node, constants, notes, where)
    return count


def _chain_behind(graph: Graph, chain: Chain, constants: Constants, notes: Notes, where: Where | None) -> Chain | None:
    """Extend an empty chain behind a value; returns the longest one that scales the value, or None."""
    best: Chain | None = None
    while True:
        reason = blocked(graph, chain.end)
        if reason:
            for reader in chain.end.consumers:
                notes.refuse(reader, reason)
            return best
        use, channels = chain.end.uses[0], len(chain.step.scale)
        node = use.node
        if node.control_inputs:
            notes.refuse(node, f"{node.name!r} waits for {node.control_inputs[0].name!r}")
            return best
        nodes, layout = (*chain.nodes, node), layout_behind(node, chain.layout, channels, constants) if use.index == 0 else None
        if layout is not None:
            moved = chain.moved if is_identity(node) else chain.moved | {node}
            chain = Chain(node.outputs[0], layout, chain.step, nodes, moved)
            continue
        step = step_of(node, use.index, chain.layout, channels, constants)
        if isinstance(step, str):
            notes.refuse(node, step)
            return best
        if step.scales and where is not None and not where(node):
            return best
        chain = Chain(node.outputs[0], chain.layout, then(chain.step, step), nodes, chain.moved)
        if chain.step.scales and np.isfinite(chain.step.scale).all() and np.isfinite(chain.step.offset).all():
            best = chain


def _put_bias(graph: Graph, output: Value, chain: Chain) -> str:
    """Replace a chain by its offset; returns the new name of the node that makes `output`."""
    last = chain.nodes[-1]
    name, read = last.name, [v.producer for n in chain.nodes for v in n.inputs]
    current = output
    for node in chain.nodes:
        if node in chain.moved:
            graph.replace_input(node, 0, current)
            current = node.outputs[0]
    offset = chain.step.offset
    biased = add_bias(graph, current, offset, chain.layout, last) if np.any(offset) else current
    if biased is not current:
        biased.shape = last.outputs[0].last_shape
    take_place(graph, last, biased)
    graph.remove_nodes(node for node in chain.nodes if node not in chain.moved)
    graph.rename(biased.producer, name)
    remove_unread(graph, read)
    return output.producer.name


def take_place(graph: Graph, old: Node, new: Value) -> None:
    """Give a value the readers of a node's first output, and its producer the node's collections and control edges."""
    graph.replace_uses(old.outputs[0], new, keep=(new.producer,))
    graph.replace_in_collections(old, new.producer)
    reroute_control(new.producer, old)


# Behind a concatenation


@dataclass(frozen=True, slots=True)
class _Branch:
    linear: Linear
    bias: Node | None
    offset: Array | None


def _fold_concatenated(graph: Graph, concat: Node, constants: Constants, notes: Notes, where: Where | None) -> int:
    """Fold the chain behind a concatenation into all its branches; the offset stays behind it."""
    axis = constants(concat.inputs[-1])
    branches = [_branch(graph, value, constants) for value in concat.inputs[:-1]]
    wrong = next((b for b in branches if isinstance(b, str)), None)
    known = [b for b in branches if isinstance(b, _Branch)]
    if axis is None or wrong is not None or not known:
        for reader in concat.outputs[0].consumers:
            notes.refuse(reader, wrong or f"the axis of {concat.name!r} is not a constant")
        return 0
    layout = known[0].linear.layout
    along_channels = int(axis) % layout.rank == layout.axis
    counts = [b.linear.channels_out for b in known]
    if any(b.linear.layout != layout for b in known) or (not along_channels and len(set(counts)) != 1):
        return 0
    channels = sum(counts) if along_channels else counts[0]
    chain = _chain_behind(graph, empty_chain(concat.outputs[0], layout, channels), constants, notes, where)
    if chain is None:
        return 0
    scale = chain.step.scale
    parts = np.split(scale, np.cumsum(counts)[:-1]) if along_channels else [scale] * len(known)
    weights = [b.linear.with_outputs_scaled(part) for b, part in zip(known, parts, strict=True)]
    offsets = [b.offset * part if b.offset is not None else np.zeros(1) for b, part in zip(known, parts, strict=True)]
    if not all(can_hold(a, concat.inputs[0]) for a in (*weights, *offsets, chain.step.offset)):
        notes.refuse(chain.nodes[0], f"the new weights before {concat.name!r} would not fit in {concat.inputs[0].dtype}")
        return 0
    for branch, array, offset in zip(known, weights, offsets, strict=True):
        set_weights(graph, branch.linear, array)
        if branch.bias is not None:
            set_constant_input(graph, branch.bias, 1, offset)
    name = chain.nodes[-1].name
    notes.folded[name] = (_put_bias(graph, concat.outputs[0], chain), "behind")
    return 1


def _branch(graph: Graph, value: Value, constants: Constants) -> _Branch | str:
    reason = blocked(graph, value)
    if reason:
        return reason
    bias, offset = None, None
    if value.producer.op_type in ADDS_BIAS:
        bias = value.producer
        offset = constants(bias.inputs[1])
        value = bias.inputs[0]
        reason = blocked(graph, value)
        if reason or offset is None:
            return reason or f"the offset of {bias.name!r} is not a constant"
    linear = linear_of(value.producer, constants)
    return linear if isinstance(linear, str) else _Branch(linear, bias, offset)
