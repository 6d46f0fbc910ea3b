"""Fold batch normalization into the convolutions before it.

At inference a batch norm multiplies each channel by a constant and adds another. Behind a
convolution or a matrix product, the factor can go into the weights: `(x * w) s + t = x * (w s) + t`.
The same holds for every other chain of such steps, so what is folded is the chain: `BiasAdd`, `Add`,
`Sub`, `Mul`, `RealDiv` with constants per channel, and the fused batch norms of all versions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphwright.ir.attributes import Attribute
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits import is_call
from graphwright.transform.constant_arrays import add_constant, constant_array
from graphwright.transform.inline_calls import inline_calls
from graphwright.transform.interface import hand_on_control, put_in_order

Array = np.ndarray[Any, Any]

_LINEAR = {"Conv2D": 4, "DepthwiseConv2dNative": 4, "Conv3D": 5, "MatMul": 2}
"""Op type -> rank of its output."""

_FUSED = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_FOLDED_DTYPES = ("float16", "float32", "float64")


def fold_batch_norms(graph: Graph) -> int:
    """Fold what scales the output of a convolution or matrix product by constants into its weights; returns how many chains.

    Weights and statistics must be constants (freeze variables first), and nothing else may read what
    lies between. Each chain becomes the convolution with new weights and one `BiasAdd`, which has the
    name of the last node of the chain. Results agree to about 1e-5. Functions that are called are
    inlined first.

    >>> from graphwright.ir.dtypes import DTYPES
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(f32, (1, 2))]).outputs[0]
    >>> w = add_constant(g, "w", np.ones((2, 3), np.float32))
    >>> product = g.add_node("MatMul", "product", inputs=[x, w], output_types=[(f32, (1, 3))]).outputs[0]
    >>> s = add_constant(g, "s", np.array([1, 2, 3], np.float32))
    >>> g.outputs = g.add_node("Mul", "scaled", inputs=[product, s], output_types=[(f32, (1, 3))]).outputs
    >>> fold_batch_norms(g), g.outputs[0].producer.op_type, constant_array(g["product"].inputs[1].producer)
    (1, 'Identity', array([[1., 2., 3.],
           [1., 2., 3.]], dtype=float32))
    """
    if any(is_call(node, graph) for node in graph.nodes):
        inline_calls(graph)
    constants = _Constants()
    folded = 0
    for node in graph.nodes:
        if node.op_type in _LINEAR and len(node.inputs) == 2:
            chain = _chain_behind(graph, node, constants)
            if chain is not None and chain.scales:
                _fold(graph, node, chain, constants)
                folded += 1
    if folded:
        put_in_order(graph)
    return folded


@dataclass(slots=True)
class _Chain:
    """What happens per channel behind a linear op: `y * scale + offset`, in double precision."""

    value: Value
    scale: Array
    offset: Array
    scales: bool = False
    nodes: list[Node] = field(default_factory=list[Node])


class _Constants:
    """Values of what depends on constants alone, for the few ops of which statistics of a batch norm are made."""

    def __init__(self) -> None:
        self._known: dict[Value, Array | None] = {}

    def __call__(self, value: Value) -> Array | None:
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self._known:
                stack.pop()
                continue
            pending = [v for v in top.producer.inputs if v not in self._known] if top.producer.op_type in _EVALUATED else []
            if pending:
                stack += pending
                continue
            stack.pop()
            self._known[top] = self._evaluate(top.producer)
        return self._known[value]

    def _evaluate(self, node: Node) -> Array | None:
        if node.op_type == "Const":
            return constant_array(node)
        if node.op_type not in _EVALUATED or len(node.outputs) != 1:
            return None
        inputs: list[Array] = []
        for value in node.inputs:
            array = self._known[value]
            if array is None:
                return None
            inputs.append(array)
        with np.errstate(all="ignore"):
            try:
                if node.op_type == "Squeeze":
                    return _squeeze(inputs[0], node)
                return np.asarray(_EVALUATED[node.op_type](*inputs))
            except (TypeError, ValueError):
                return None


def _same(x: Array) -> Array:
    return x


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x.astype(np.float64))


def _reshape(x: Array, shape: Array) -> Array:
    return np.reshape(x, [int(size) for size in shape])


def _expand_dims(x: Array, axis: Array) -> Array:
    return np.expand_dims(x, int(axis))


def _squeeze(x: Array, node: Node) -> Array:
    axes = node.attrs.get("squeeze_dims")
    chosen = tuple(axis for axis in axes if isinstance(axis, int)) if isinstance(axes, tuple) else ()
    return np.squeeze(x, chosen or None)


_EVALUATED: dict[str, Callable[..., Array]] = {
    "Identity": _same,
    "StopGradient": _same,
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    "Rsqrt": _rsqrt,
    "Square": np.square,
    "Maximum": np.maximum,
    "Reshape": _reshape,
    "ExpandDims": _expand_dims,
    "Squeeze": _same,  # needs its attribute as well
}


def _chain_behind(graph: Graph, node: Node, constants: _Constants) -> _Chain | None:
    """The longest chain whose last step is worth folding, or None."""
    weights = constants(node.inputs[1])
    if weights is None or node.inputs[1].dtype.name not in _FOLDED_DTYPES:
        return None
    channels = _channel_count(node, weights)
    axis = _channel_axis(node)
    if channels is None:
        return None
    best: _Chain | None = None
    chain = _Chain(node.outputs[0], np.ones(channels), np.zeros(channels))
    while True:
        step = _step(graph, chain, axis, _LINEAR[node.op_type], constants)
        if step is None:
            return best
        chain = step
        if chain.scales:
            best = chain


def _step(graph: Graph, chain: _Chain, axis: int, rank: int, constants: _Constants) -> _Chain | None:
    """The chain with the next node, or None where it ends."""
    value = chain.value
    uses = value.uses
    if len(uses) != 1 or graph.is_border(value.producer) or value.producer.control_consumers:
        return None
    node, index = uses[0].node, uses[0].index
    if node.control_inputs:
        return None
    if node.op_type in _FUSED:
        if index != 0 or node.attrs.get("is_training", True) or any(v.uses for v in node.outputs[1:]):
            return None
        if any(_is_returned(graph, v) for v in node.outputs[1:]):
            return None
        gamma, beta, mean, variance = (constants(v) for v in node.inputs[1:5])
        return _normalized(chain, node, mean, variance, beta, gamma, node.attrs.get("epsilon", 1e-4))
    if node.op_type == "BatchNormWithGlobalNormalization":
        if index != 0:
            return None
        mean, variance, beta, gamma = (constants(v) for v in node.inputs[1:5])
        if not node.attrs.get("scale_after_normalization", False) and gamma is not None:
            gamma = np.ones_like(gamma)
        return _normalized(chain, node, mean, variance, beta, gamma, node.attrs.get("variance_epsilon", 1e-3))
    if node.op_type == "Identity":
        return _Chain(node.outputs[0], chain.scale, chain.offset, chain.scales, [*chain.nodes, node])
    if node.op_type not in ("BiasAdd", "Add", "AddV2", "Sub", "Mul", "RealDiv") or node.inputs[0] is node.inputs[1]:
        return None
    other = constants(node.inputs[1 - index])
    if other is None:
        return None
    vector = other.astype(np.float64) if node.op_type == "BiasAdd" else _per_channel(other, axis, rank, len(chain.scale))
    if vector is None:
        return None
    scale, offset, scales = chain.scale, chain.offset, chain.scales
    match node.op_type, index:
        case ("BiasAdd", 0) | ("Add" | "AddV2", _):
            offset = offset + vector
        case "Sub", 0:
            offset = offset - vector
        case "Sub", _:
            scale, offset, scales = -scale, vector - offset, True
        case "Mul", _:
            scale, offset, scales = scale * vector, offset * vector, True
        case "RealDiv", 0:
            scale, offset, scales = scale / vector, offset / vector, True
        case _:
            return None
    if not (np.isfinite(scale).all() and np.isfinite(offset).all()):
        return None
    return _Chain(node.outputs[0], scale, offset, scales, [*chain.nodes, node])


def _normalized(chain: _Chain, node: Node, *statistics: Any) -> _Chain | None:
    mean, variance, beta, gamma, epsilon = statistics
    if any(array is None or array.shape != chain.scale.shape for array in (mean, variance, beta, gamma)):
        return None
    factor = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    offset = chain.offset * factor + (beta.astype(np.float64) - mean.astype(np.float64) * factor)
    if not np.isfinite(factor).all():
        return None
    return _Chain(node.outputs[0], chain.scale * factor, offset, True, [*chain.nodes, node])


def _is_returned(graph: Graph, value: Value) -> bool:
    return value in graph.outputs or any(value in s.outputs.values() for s in graph.signatures.values())


def _channel_count(node: Node, weights: Array) -> int | None:
    if weights.ndim != (_LINEAR[node.op_type] if node.op_type != "MatMul" else 2):
        return None
    if node.op_type == "MatMul":
        return weights.shape[0 if node.attrs.get("transpose_b") else 1]
    if node.op_type == "DepthwiseConv2dNative":
        return weights.shape[2] * weights.shape[3]
    return weights.shape[-1]


def _channel_axis(node: Node) -> int:
    layout = node.attrs.get("data_format", b"NHWC")
    channels_first = isinstance(layout, bytes) and layout.startswith(b"NC") and node.op_type != "MatMul"
    return 1 if channels_first else _LINEAR[node.op_type] - 1


def _per_channel(array: Array, axis: int, rank: int, channels: int) -> Array | None:
    """One number per channel, where the array is broadcast like that and not otherwise."""
    if array.ndim > rank:
        return None
    shape = [1] * (rank - array.ndim) + list(array.shape)
    if any(size != 1 for k, size in enumerate(shape) if k != axis) or shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (channels,))


def _fold(graph: Graph, node: Node, chain: _Chain, constants: _Constants) -> None:
    old_weights = node.inputs[1]
    weights = constants(old_weights)
    assert weights is not None
    scale = chain.scale
    if node.op_type == "DepthwiseConv2dNative":
        scale = scale.reshape(weights.shape[2:])
    elif node.op_type == "MatMul" and node.attrs.get("transpose_b"):
        scale = scale[:, None]
    scaled = (weights.astype(np.float64) * scale).astype(old_weights.dtype.name)
    new_weights = add_constant(graph, f"{old_weights.producer.name}/folded", scaled, device=old_weights.producer.device)
    graph.replace_input(node, 1, new_weights)
    output, last = node.outputs[0], chain.nodes[-1]
    replacement = output
    if np.any(chain.offset):
        bias = add_constant(graph, f"{last.name}/offset", chain.offset.astype(output.dtype.name), device=last.device)
        layout = b"NCHW" if _channel_axis(node) == 1 and node.op_type != "MatMul" else b"NHWC"
        attrs: dict[str, Attribute] = {"T": output.dtype, "data_format": layout}
        made = graph.add_node(
            "BiasAdd",
            graph.unique_name(f"{last.name}/bias"),
            inputs=[output, bias],
            attrs=attrs,
            output_types=[(chain.value.dtype, chain.value.shape)],
            device=last.device,
        )
        replacement = made.outputs[0]
    elif _is_returned(graph, chain.value):
        made = graph.add_node(
            "Identity",
            graph.unique_name(f"{last.name}/result"),
            inputs=[output],
            attrs={"T": output.dtype},
            output_types=[(output.dtype, chain.value.shape)],
        )
        replacement = made.outputs[0]
    graph.replace_uses(chain.value, replacement)
    hand_on_control(graph, last, [replacement.producer])
    own_name = last.name
    read = [v.producer for n in chain.nodes for v in n.inputs] + [old_weights.producer]
    graph.remove_nodes(chain.nodes)
    if replacement is not output:
        graph.rename(replacement.producer, own_name)
    _remove_unread(graph, read)


def _remove_unread(graph: Graph, nodes: list[Node]) -> None:
    """Remove constants that nothing reads any more, and what only they needed."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if not graph.owns(node) or graph.is_border(node) or node.control_consumers or any(v.uses for v in node.outputs):
            continue
        if node.op_type != "Const" and node.op_type not in _EVALUATED:
            continue
        waiting += [v.producer for v in node.inputs]
        graph.remove_node(node)
