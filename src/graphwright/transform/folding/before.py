"""Fold a chain of steps before convolutions and matrix products into their weights.

`(x s + t) * w = x * (s w) + (t * w)`. The second term is a number per channel, except near a padded border, where zeros follow the
offset. With padding, only chains without offset are folded (`fold_before`), or the offset stays as `x + t / s` (`fold_factors_before`,
graph_def_editor's `fold_batch_norms_up`), which a ReLU may follow.
"""

from collections.abc import Sequence

import numpy as np

from graphwright.ir.constants import add_constant
from graphwright.ir.edit.insert import add_op
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ADDS_BIAS, BATCH_NORMS, CONVOLUTIONS
from graphwright.ir.traits.values import is_identity
from graphwright.transform.constant_values import Array, Constants, remove_unread
from graphwright.transform.folding.behind import Notes, take_place
from graphwright.transform.folding.linear import LINEAR, Layout, Linear, can_hold, linear_of, set_constant_input, set_weights
from graphwright.transform.folding.steps import Chain, Step, add_bias, blocked, empty_chain, is_returned, step_of, then


def fold_before(graph: Graph, constants: Constants, notes: Notes) -> int:
    """Fold the steps before linear ops where that is exact at borders too; returns how many chains. The nodes are not sorted."""
    count = 0
    for value, linears in _readers(graph, constants).items():
        if not graph.owns(value.producer):
            continue
        chain = _chain_before(graph, value, linears, constants, notes, readers=len(linears))
        if chain is None:
            continue
        reason = _inexact(chain, linears)
        if reason:
            for node in chain.nodes:
                notes.refuse(node, reason)
            continue
        name = chain.nodes[0].name
        offsets = [linear.answer_to(chain.step.offset) for linear in linears]
        read = [v.producer for n in chain.nodes for v in n.inputs]
        for linear, offset in zip(linears, offsets, strict=True):
            set_weights(graph, linear, linear.with_inputs_scaled(chain.step.scale))
            graph.replace_input(linear.node, linear.data, chain.end)
            if np.any(offset):
                _add_behind(graph, linear, offset, constants)
        graph.remove_nodes(chain.nodes)
        remove_unread(graph, read)
        notes.folded[name] = (", ".join(linear.node.name for linear in linears), "before")
        count += 1
    return count


def fold_factors_before(graph: Graph, constants: Constants, notes: Notes) -> int:
    """Fold the factors before each linear op, also before a ReLU; the offset stays. Returns how many. The nodes are not sorted.

    A `Relu6` becomes a `Relu` and a `Minimum`.
    """
    count = 0
    for value, linears in _readers(graph, constants).items():
        if len(linears) != 1 or not graph.owns(value.producer):
            continue
        relu = value.producer if value.producer.op_type in ("Relu", "Relu6") else None
        if relu is not None and (blocked(graph, value) or relu.control_inputs):
            continue
        chain = _chain_before(graph, value if relu is None else relu.inputs[0], linears, constants, notes, readers=1)
        if chain is None:
            continue
        scale = chain.step.scale
        if np.any(scale == 0) or (relu is not None and np.any(scale < 0)):
            notes.refuse(chain.nodes[0], f"a factor is not positive, and {value.producer.name!r} would cut at the other side")
            continue
        linear, last = linears[0], chain.nodes[0]
        weights, offset = linear.with_inputs_scaled(scale), chain.step.offset / scale
        if not can_hold(weights, linear.node.inputs[1]) or not can_hold(offset, chain.end):
            notes.refuse(last, f"the new weights of {linear.node.name!r} would not fit in {linear.node.inputs[1].dtype}")
            continue
        set_weights(graph, linear, weights)
        name, read = last.name, [v.producer for n in chain.nodes for v in n.inputs]
        shifted = add_bias(graph, chain.end, offset, linear.layout, last) if np.any(offset) else chain.end
        take_place(graph, last, shifted)
        graph.remove_nodes(chain.nodes)
        if shifted is not chain.end:
            graph.rename(shifted.producer, name)
        remove_unread(graph, read)
        if relu is not None and relu.op_type == "Relu6":
            _cut_above(graph, relu, 6.0 / scale, linear.layout)
        notes.folded[name] = (linear.node.name, "before")
        count += 1
    return count


def _readers(graph: Graph, constants: Constants) -> dict[Value, list[Linear]]:
    readers: dict[Value, list[Linear]] = {}
    for node in graph.nodes:
        linear = linear_of(node, constants) if node.op_type in LINEAR else ""
        if not isinstance(linear, str):
            readers.setdefault(node.inputs[linear.data], []).append(linear)
    return readers


def _chain_before(
    graph: Graph, value: Value, linears: Sequence[Linear], constants: Constants, notes: Notes, *, readers: int
) -> Chain | None:
    """Return the longest chain of steps before a value that begins by scaling."""
    layout = linears[0].layout
    count = _channel_count(value, linears, constants)
    if count is None or any(linear.layout != layout or linear.node.attrs.get("transpose_a") for linear in linears):
        return None
    best: Chain | None = None
    chain = empty_chain(value, layout, count)
    while True:
        node = chain.end.producer
        reason = blocked(graph, chain.end, readers=1 if chain.nodes else readers)
        if not reason and node.control_inputs:
            reason = f"{node.name!r} waits for {node.control_inputs[0].name!r}"
        if reason:
            notes.refuse(node, reason)
            return best
        if not node.inputs:
            return best
        if is_identity(node):
            chain = Chain(node.inputs[0], layout, chain.step, (*chain.nodes, node))
            continue
        known = [constants(value) is not None for value in node.inputs[:2]]
        index = 1 if len(node.inputs) == 2 and known == [True, False] else 0
        source = node.inputs[index]
        step = step_of(node, index, layout, count, constants)
        shape = source.shape
        has_channels = shape is not None and len(shape) == layout.rank and shape[layout.axis] == count
        if isinstance(step, Step) and node.op_type not in BATCH_NORMS and not has_channels:
            step = f"it is not known that {source.name} has {count} channels"
        if isinstance(step, str):
            notes.refuse(node, step)
            return best
        chain = Chain(source, layout, then(step, chain.step), (*chain.nodes, node))
        if step.scales:
            best = chain


def _channel_count(value: Value, linears: Sequence[Linear], constants: Constants) -> int | None:
    """Return how many channels linear ops read; a grouped convolution has weights for a part of them."""
    axis = linears[0].layout.axis
    shape = value.shape
    count = shape[axis] if shape is not None and axis < len(shape) else None
    if count is None and value.producer.op_type in BATCH_NORMS:
        gamma = constants(value.producer.inputs[1])
        count = None if gamma is None else gamma.size
    if count is None:
        return None
    for linear in linears:
        grouped = linear.node.op_type in CONVOLUTIONS
        inputs = linear.channels_in()
        if not inputs or (count % inputs or linear.channels_out % (count // inputs) if grouped else count != inputs):
            return None
    return count


def _inexact(chain: Chain, linears: Sequence[Linear]) -> str:
    for linear in linears:
        node = linear.node
        if np.any(chain.step.offset) and linear.sees_borders():
            return (
                f"{node.name!r}, a {node.op_type}, has zeros around its input ({_padding(node)}), where the offset would be missing; "
                "editor.rewrite.fold_batch_norms_up folds the factors alone"
            )
        offset = linear.answer_to(chain.step.offset)
        if not can_hold(linear.with_inputs_scaled(chain.step.scale), node.inputs[1]) or not can_hold(offset, linear.output):
            return f"the new weights of {node.name!r} would not fit in {node.inputs[1].dtype}"
        if np.any(offset) and node.control_consumers:
            return f"{node.control_consumers[0].name!r} waits for {node.name!r}"
    return ""


def _padding(node: Node) -> str:
    padding = node.attrs.get("padding")
    return f"padding {padding.decode()}" if isinstance(padding, bytes) and padding != b"VALID" else "it is transposed"


def _add_behind(graph: Graph, linear: Linear, offset: Array, constants: Constants) -> None:
    """Add an offset to the output of a linear op, in its bias or in a new one, which takes the op's name."""
    node = linear.node
    uses = linear.output.uses
    if len(uses) == 1 and not is_returned(graph, linear.output) and uses[0].node.op_type in ADDS_BIAS and uses[0].index == 0:
        bias = uses[0].node
        old = constants(bias.inputs[1])
        if old is not None and can_hold(old + offset, bias.inputs[1]):
            set_constant_input(graph, bias, 1, old + offset)
            return
    biased = add_bias(graph, linear.output, offset, linear.layout, node)
    graph.replace_uses(linear.output, biased, keep=(biased.producer,))
    graph.replace_in_collections(node, biased.producer)
    name = node.name
    graph.rename(node, graph.unique_name(f"{name}/linear"))
    graph.rename(biased.producer, name)


def _cut_above(graph: Graph, relu: Node, limits: Array, layout: Layout) -> None:
    value = relu.outputs[0]
    shape = [1] * layout.rank
    shape[layout.axis] = -1
    limit = add_constant(graph, f"{relu.name}/min/const", limits.reshape(shape), dtype=value.dtype, device=relu.device)
    limited = add_op(graph, "Minimum", f"{relu.name}/min", [value, limit], value.dtype, value.shape, device=relu.device, T=value.dtype)
    graph.replace_uses(value, limited, keep=(limited.producer,))
    graph.set_op_type(relu, "Relu")
